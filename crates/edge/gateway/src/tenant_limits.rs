//! Tenants' limits as requests and the exchange with other routers use them: a request waits here for the answer of its
//! tenant's home ([`SharedLimits`]).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use warmroute_admission::{
    Asked, Decided, Exceeded, ExpectedTokens, Lease, Limit, LimitMessage, Limits, SharedLimits,
};
use warmroute_peers::{Envelope, PeerMessage};
use warmroute_types::{Micros, RouterId, To};

use crate::gateway::Gateway;

type Answer = oneshot::Sender<Result<Lease, Exceeded>>;

/// Messages in one envelope.
const MESSAGES_MAX: usize = 256;

/// The limits of all tenants.
#[derive(Default)]
pub(crate) struct TenantLimits {
    shared: Mutex<SharedLimits<Answer>>,
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
    fn tick(&self, others: BTreeSet<RouterId>, now: Micros) -> Vec<Envelope> {
        let mut shared = self.shared.lock();
        let mut decided = shared.set_members(self.me(), others, now);
        decided.extend(shared.tick(now));
        drop(shared);
        self.wake(decided);
        self.take_messages()
    }

    fn receive(&self, from: RouterId, messages: Vec<LimitMessage>, now: Micros) -> Vec<Envelope> {
        let mut shared = self.shared.lock();
        let decided: Vec<Decided<Answer>> =
            messages.into_iter().filter_map(|message| shared.receive(from, message, now)).collect();
        drop(shared);
        self.wake(decided);
        self.take_messages()
    }

    /// Hands decisions to their requests. What a request whose client has gone was granted is given back.
    fn wake(&self, decided: Vec<Decided<Answer>>) {
        for (answer, decision) in decided {
            if let Err(Ok(lease)) = answer.send(decision) {
                self.shared.lock().give_back(&lease);
            }
        }
    }

    fn take_messages(&self) -> Vec<Envelope> {
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

/// Asks whether a request may run, and waits for the tenant's home to answer.
pub(crate) async fn reserve(
    gateway: &Gateway,
    tenant: u64,
    limits: Limits,
    expected: ExpectedTokens,
) -> Result<Lease, Exceeded> {
    let shared = &gateway.admission_gate.limits.shared;
    let (answer, answered) = oneshot::channel();
    let asked = shared.lock().ask(tenant, limits, expected, answer, gateway.now());
    let id = match asked {
        Asked::Decided(decision) => return decision,
        Asked::Pending(id) => id,
    };
    gateway.notify_peers();
    let mut wait = PendingAsk { gateway, id, answered: Some(answered) };
    let Some(answered) = wait.answered.as_mut() else { return Err(NO_ANSWER) };
    let decision = answered.await;
    wait.answered = None;
    decision.unwrap_or(Err(NO_ANSWER))
}

/// The sender of an answer is dropped only with the gateway.
const NO_ANSWER: Exceeded = Exceeded { limit: Limit::Requests, retry_after_s: 1 };

/// A request that waits for an answer. A client that leaves meanwhile returns what is granted.
struct PendingAsk<'a> {
    gateway: &'a Gateway,
    id: u64,
    /// `None` once it is answered.
    answered: Option<oneshot::Receiver<Result<Lease, Exceeded>>>,
}

impl Drop for PendingAsk<'_> {
    fn drop(&mut self) {
        let Some(mut answered) = self.answered.take() else { return };
        let mut shared = self.gateway.admission_gate.limits.shared.lock();
        shared.cancel(self.id);
        answered.close();
        if let Ok(Ok(lease)) = answered.try_recv() {
            shared.give_back(&lease);
        }
    }
}

impl Gateway {
    /// Shares tenants' limits with other routers. `seed` is the same on all of them.
    pub fn share_limits(&self, me: RouterId, seed: u64) {
        self.admission_gate.set_seed(seed);
        self.admission_gate.limits.join(me);
    }

    /// Messages about limits that are due, to these routers. Call it every few milliseconds while limits are shared.
    pub fn compose_limits(&self, others: BTreeSet<RouterId>) -> Vec<Envelope> {
        self.admission_gate.limits.tick(others, self.now())
    }

    /// Whether limits are shared with this router.
    pub fn shares_limits_with(&self, router: RouterId) -> bool {
        self.admission_gate.limits.shared.lock().has_member(router)
    }

    /// Messages about limits that requests have caused.
    pub fn take_limit_messages(&self) -> Vec<Envelope> {
        self.admission_gate.limits.take_messages()
    }

    /// Takes another router's messages about limits; returns the answers.
    pub fn receive_limits(&self, from: RouterId, messages: Vec<LimitMessage>) -> Vec<Envelope> {
        self.admission_gate.limits.receive(from, messages, self.now())
    }
}
