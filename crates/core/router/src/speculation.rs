//! What was sent to a worker whose engine reports its cache, until the report comes.
//!
//! The event arrives about with the first token. Until then siblings of a request must see where it went, so it is presumed
//! like any other. Once its event has come, or must have come, the event alone counts and the presumption is withdrawn.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use warmroute_types::Micros;

use crate::presumed::Presumed;

/// An event that has not come by then does not come.
const ANSWERED_WITHIN: Micros = Micros::from_secs(2);

/// The most presumptions that wait; beyond, the oldest is withdrawn early.
const WAITING_MAX: usize = 1 << 16;

/// Names one that waits: when its request was sent, and a number.
pub(crate) type Ticket = (Micros, u64);

/// Presumptions that wait for an event.
#[derive(Default)]
pub(crate) struct Speculations {
    waiting: Mutex<BTreeMap<Ticket, Presumed>>,
    next: AtomicU64,
}

impl Speculations {
    /// A prompt that was sent at `sent` is being computed; its event is on its way.
    pub fn await_event(&self, presumed: Presumed, sent: Micros) -> Ticket {
        let ticket = (sent, self.next.fetch_add(1, Ordering::Relaxed));
        let mut waiting = self.waiting.lock();
        waiting.insert(ticket, presumed);
        let early = if waiting.len() > WAITING_MAX { waiting.pop_first() } else { None };
        drop(waiting);
        // Withdrawing takes the index's lock: not under ours.
        drop(early);
        ticket
    }

    /// Its event has come.
    pub fn answered(&self, ticket: Ticket) {
        let withdrawn = self.waiting.lock().remove(&ticket);
        drop(withdrawn);
    }

    /// Withdraws what is old enough.
    pub fn expire(&self, now: Micros) {
        let oldest = || {
            let mut waiting = self.waiting.lock();
            let first = waiting.first_entry()?;
            (now.since(first.key().0) >= ANSWERED_WITHIN).then(|| first.remove())
        };
        while let Some(withdrawn) = oldest() {
            drop(withdrawn);
        }
    }
}
