//! Presumptions for workers with events, until the event arrives.
//!
//! The event arrives at about the first token. Until then, siblings of a request must see its assignment, so
//! the prompt is presumed like any other. Once its event has arrived, or must have, only the event counts and
//! the presumption is withdrawn.
//!
//! Engines publish events in order and before they answer. When a request's own blocks are reported, the
//! events of all requests with an earlier first token have therefore arrived too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use warmroute_types::{Micros, WorkerId};

use crate::presumption_guard::PresumptionGuard;

/// Time after which an event no longer arrives.
pub(crate) const ANSWERED_WITHIN: Micros = Micros::from_secs(2);

/// Maximum of waiting presumptions; beyond it the oldest is withdrawn early.
const WAITING_MAX: usize = 1 << 16;

/// Identifies a waiting presumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SpeculationTicket {
    /// Time at which the request was sent.
    sent: Micros,
    worker: WorkerId,
    /// Sequence number of the first token.
    number: u64,
}

/// Presumptions that wait for an event.
#[derive(Default)]
pub(crate) struct Speculations {
    waiting: Mutex<Waiting>,
    next: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    by_age: BTreeMap<SpeculationTicket, PresumptionGuard>,
    by_worker: BTreeSet<(WorkerId, u64, Micros)>,
}

impl Waiting {
    fn insert(&mut self, ticket: SpeculationTicket, presumed: PresumptionGuard) {
        self.by_age.insert(ticket, presumed);
        self.by_worker.insert((ticket.worker, ticket.number, ticket.sent));
    }

    fn remove(&mut self, ticket: SpeculationTicket) -> Option<PresumptionGuard> {
        self.by_worker.remove(&(ticket.worker, ticket.number, ticket.sent));
        self.by_age.remove(&ticket)
    }

    fn oldest(&self) -> Option<SpeculationTicket> {
        self.by_age.first_key_value().map(|(ticket, _)| *ticket)
    }

    fn first_of(&self, worker: WorkerId) -> Option<SpeculationTicket> {
        let from = (worker, 0, Micros::ZERO);
        let &(of, number, sent) = self.by_worker.range(from..).next()?;
        (of == worker).then_some(SpeculationTicket { sent, worker, number })
    }
}

impl Speculations {
    /// Sequence number of the next first token; earlier ones are lower.
    pub fn moment(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Registers a presumption whose event is expected.
    pub fn await_event(
        &self,
        presumed: PresumptionGuard,
        worker: WorkerId,
        sent: Micros,
    ) -> SpeculationTicket {
        let ticket = SpeculationTicket { sent, worker, number: self.next.fetch_add(1, Ordering::Relaxed) };
        let mut waiting = self.waiting.lock();
        waiting.insert(ticket, presumed);
        let early = waiting.oldest().filter(|_| waiting.by_age.len() > WAITING_MAX);
        let early = early.and_then(|ticket| waiting.remove(ticket));
        drop(waiting);
        // Withdrawing takes the index's lock, so ours is released first.
        drop(early);
        ticket
    }

    /// Withdraws a presumption whose event has arrived.
    pub fn answered(&self, ticket: SpeculationTicket) {
        let withdrawn = self.waiting.lock().remove(ticket);
        drop(withdrawn);
    }

    /// Withdraws the worker's presumptions with first tokens before this sequence number: their events have
    /// arrived.
    pub fn caught_up(&self, worker: WorkerId, moment: u64) {
        let next = |waiting: &Waiting| waiting.first_of(worker).filter(|ticket| ticket.number < moment);
        self.withdraw(next);
    }

    /// Withdraws presumptions whose events must have arrived.
    pub fn expire(&self, now: Micros) {
        let is_old = |ticket: &SpeculationTicket| now.since(ticket.sent) >= ANSWERED_WITHIN;
        self.withdraw(|waiting| waiting.oldest().filter(is_old));
    }

    /// Withdraws presumptions one by one, each outside the lock.
    fn withdraw(&self, next: impl Fn(&Waiting) -> Option<SpeculationTicket>) {
        loop {
            let mut waiting = self.waiting.lock();
            let withdrawn = next(&waiting).and_then(|ticket| waiting.remove(ticket));
            drop(waiting);
            if withdrawn.is_none() {
                return;
            }
        }
    }
}
