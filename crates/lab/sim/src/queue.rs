//! What will happen when. Events of one time come in the order of their kind, then in the order in which they were made:
//! so a run does not depend on how the queue is built.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use warmroute_types::Micros;

/// Something that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// An engine's step, or run of steps, ends. Only the newest stamp counts.
    Due { node: u32, stamp: u32 },
    /// A router hears of a first token.
    FirstToken { job: u32, attempt: u32 },
    /// A router hears of an end.
    Ended { job: u32, attempt: u32 },
    /// News of caches reach the directory, or leave their engine as a batch.
    News { delivery: u32 },
    /// What an engine sent reaches the routers' feeds.
    Letter { node: u32 },
    /// A router's question for what it missed reaches an engine.
    Replay { gate: u16, node: u16, number: u32 },
    /// The answer reaches the router.
    Replayed { gate: u16, node: u16, number: u32 },
    /// Routers forget what is too old.
    Tick,
    /// Somebody fails, comes or goes.
    Incident { index: u32 },
    /// A client asks.
    Ask { job: u32 },
    /// A request reaches its engine.
    Submit { job: u32, attempt: u32 },
    /// A router tells the others what is new.
    Speak { gate: u16 },
    /// What a router said reaches another.
    Told { message: u32 },
}

/// All that is to come.
#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Reverse<(Micros, Event, u64)>>,
    made: u64,
}

impl Queue {
    /// Something will happen at a time.
    pub fn push(&mut self, at: Micros, event: Event) {
        self.made += 1;
        self.heap.push(Reverse((at, event, self.made)));
    }

    /// When the next thing happens.
    pub fn next_at(&self) -> Option<Micros> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next thing.
    pub fn pop(&mut self) -> Option<(Micros, Event)> {
        self.heap.pop().map(|Reverse((at, event, _))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_come_by_kind() {
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
