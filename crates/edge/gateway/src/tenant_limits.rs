//! Tenants' limits behind a lock, and their messages as envelopes ([`SharedLimits`]).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use warmroute_admission::{Exceeded, Lease, LeaseDecision, LimitMessage, SharedLimits};
use warmroute_peers::{Envelope, PeerMessage};
use warmroute_types::{Micros, RouterId, To};

/// Where a request that waits gets its decision.
pub(crate) type Answer = oneshot::Sender<Result<Lease, Exceeded>>;

/// Messages in one envelope.
const MESSAGES_MAX: usize = 256;

/// The limits of all tenants.
#[derive(Default)]
pub(crate) struct TenantLimits {
    pub(crate) shared: Mutex<SharedLimits<Answer>>,
    /// This router's id; 0 while it does not share.
    me: AtomicU64,
}

impl TenantLimits {
    /// Takes what a running request has used beyond its reservation.
    pub(crate) fn extend(&self, lease: &mut Lease, took: u32) {
        self.shared.lock().extend(lease, took);
    }

    /// Settles a request at its end.
    pub(crate) fn settle(&self, lease: &Lease, took: u32) {
        self.shared.lock().settle(lease, took);
    }

    /// Learns the length of an answer.
    pub(crate) fn learn(&self, lease: &Lease, tokens: u32) {
        self.shared.lock().learn(lease, tokens);
    }

    /// Shares limits from now on.
    pub(crate) fn join(&self, me: RouterId) {
        self.me.store(me.0, Relaxed);
    }

    fn me(&self) -> RouterId {
        RouterId(self.me.load(Relaxed))
    }

    /// Sends what is due to these routers.
    pub(crate) fn tick(&self, others: BTreeSet<RouterId>, now: Micros) -> Vec<Envelope> {
        let mut shared = self.shared.lock();
        let mut decided = shared.set_members(self.me(), others, now);
        decided.extend(shared.tick(now));
        drop(shared);
        self.wake(decided);
        self.take_messages()
    }

    pub(crate) fn receive(&self, from: RouterId, messages: Vec<LimitMessage>, now: Micros) -> Vec<Envelope> {
        let mut shared = self.shared.lock();
        let decided: Vec<LeaseDecision<Answer>> =
            messages.into_iter().filter_map(|message| shared.receive(from, message, now)).collect();
        drop(shared);
        self.wake(decided);
        self.take_messages()
    }

    /// Hands decisions to their requests. What a request whose client has gone was granted is given back.
    fn wake(&self, decided: Vec<LeaseDecision<Answer>>) {
        for (answer, decision) in decided {
            if let Err(Ok(lease)) = answer.send(decision) {
                self.shared.lock().give_back(&lease);
            }
        }
    }

    pub(crate) fn take_messages(&self) -> Vec<Envelope> {
        let messages = self.shared.lock().take_messages();
        self.envelopes(messages)
    }

    /// Messages to one recipient travel together. Lists are long and travel alone.
    fn envelopes(&self, messages: Vec<(To, LimitMessage)>) -> Vec<Envelope> {
        let from = self.me();
        let mut groups: Vec<(To, Vec<LimitMessage>)> = Vec::new();
        for (to, message) in messages {
            let is_list = matches!(message, LimitMessage::Held { .. });
            match groups.last_mut() {
                Some((last, group)) if *last == to && !is_list && group.len() < MESSAGES_MAX => {
                    group.push(message);
                }
                _ => groups.push((to, vec![message])),
            }
        }
        let envelope =
            |(to, messages)| Envelope { to, bytes: PeerMessage::Limits { from, messages }.encode().into() };
        groups.into_iter().map(envelope).collect()
    }
}
