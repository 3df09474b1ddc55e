//! What was sent to a worker whose engine reports its cache, until the report comes.
//!
//! The event arrives about with the first token. Until then siblings of a request must see where it went, so it is presumed
//! like any other. Once its event has come, or must have come, the event alone counts and the presumption is withdrawn.
//!
//! Engines publish in order, and before they answer. So when a request's own blocks are seen to be reported, the events of
//! all requests that had their first token before it was sent have come too, whoever looked when they were answered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use warmroute_types::{Micros, WorkerId};

use crate::presumption_guard::PresumptionGuard;

/// An event that has not come by then does not come.
const ANSWERED_WITHIN: Micros = Micros::from_secs(2);

/// The most presumptions that wait; beyond, the oldest is withdrawn early.
const WAITING_MAX: usize = 1 << 16;

/// Names one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SpeculationTicket {
    /// When its request was sent.
    sent: Micros,
    worker: WorkerId,
    /// In the order of first tokens.
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
    /// The number of the next first token: whatever had its own before has a lower one.
    pub fn moment(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// A prompt that was sent to a worker at `sent` is being computed; its event is on its way.
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
        // Withdrawing takes the index's lock: not under ours.
        drop(early);
        ticket
    }

    /// Its event has come.
    pub fn answered(&self, ticket: SpeculationTicket) {
        let withdrawn = self.waiting.lock().remove(ticket);
        drop(withdrawn);
    }

    /// The events of all on this worker that had their first token before this moment have come.
    pub fn caught_up(&self, worker: WorkerId, moment: u64) {
        let next = |waiting: &Waiting| waiting.first_of(worker).filter(|ticket| ticket.number < moment);
        self.withdraw(next);
    }

    /// Withdraws what is old enough.
    pub fn expire(&self, now: Micros) {
        let is_old = |ticket: &SpeculationTicket| now.since(ticket.sent) >= ANSWERED_WITHIN;
        self.withdraw(|waiting| waiting.oldest().filter(is_old));
    }

    /// Withdraws one after another, and nothing of it under the lock.
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
