//! Queue of future events. Events of one time are ordered by kind, then by creation, so that a run does not
//! depend on the heap's layout.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use warmroute_types::Micros;

/// A future event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// An engine's step, or run of steps, ends. Only the newest stamp is valid.
    Due { node: u32, stamp: u32 },
    /// A first token reaches the router.
    FirstToken { job: u32, attempt: u32 },
    /// The end of an answer reaches the router.
    Ended { job: u32, attempt: u32 },
    /// Cache changes reach the directory, or leave their engine as a batch.
    CacheChanges { delivery: u32 },
    /// A message of an engine's event stream reaches the routers.
    StreamMessage { node: u32 },
    /// A replay request reaches an engine.
    Replay { router: u16, node: u16, number: u32 },
    /// A replay reaches the router.
    Replayed { router: u16, node: u16, number: u32 },
    /// Routers expire old state.
    Tick,
    /// Engines report their load to all routers.
    LoadReports,
    /// An incident happens.
    Incident { index: u32 },
    /// A client sends its next turn.
    Ask { job: u32 },
    /// A request reaches its engine.
    Submit { job: u32, attempt: u32 },
    /// A router shares its next batch with its peers.
    ShareBatch { router: u16 },
    /// A message reaches a peer.
    PeerMessage { message: u32 },
}

/// Future events, earliest first.
#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Reverse<(Micros, Event, u64)>>,
    made: u64,
}

impl Queue {
    /// Adds an event.
    pub fn push(&mut self, at: Micros, event: Event) {
        self.made += 1;
        self.heap.push(Reverse((at, event, self.made)));
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<Micros> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Removes and returns the next event.
    pub fn pop(&mut self) -> Option<(Micros, Event)> {
        self.heap.pop().map(|Reverse((at, event, _))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_are_ordered_by_kind() {
        let mut queue = Queue::default();
        let ask = Event::Ask { job: 1 };
        let due = Event::Due { node: 2, stamp: 0 };
        queue.push(Micros(5), ask);
        queue.push(Micros(5), due);
        queue.push(Micros(4), Event::Tick);
        assert_eq!(queue.next_at(), Some(Micros(4)));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(Micros(4), Event::Tick), (Micros(5), due), (Micros(5), ask)]);
    }
}
