//! A queue that never makes its writers wait: when it is full, its oldest go.
//!
//! The oldest, because whoever shares numbers its messages and asks for what it missed: what comes last is what is still true.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// How much a queue holds at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub items: usize,
    pub bytes: usize,
}

/// What has a size.
pub(crate) trait Weigh {
    fn bytes(&self) -> usize;
}

/// Many write, one reads.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    held: Mutex<Held<T>>,
    filled: Notify,
    room: Room,
}

#[derive(Debug)]
struct Held<T> {
    items: VecDeque<T>,
    bytes: usize,
}

impl<T: Weigh> Queue<T> {
    pub(crate) fn new(room: Room) -> Queue<T> {
        let held = Mutex::new(Held { items: VecDeque::new(), bytes: 0 });
        Queue { held, filled: Notify::new(), room }
    }

    /// Puts one at the end; how many others had to go for it.
    pub(crate) fn push(&self, item: T) -> u64 {
        let dropped = self.held.lock().push(item, self.room);
        self.filled.notify_one();
        dropped
    }

    /// The oldest, if there is one.
    pub(crate) fn try_pop(&self) -> Option<T> {
        let mut held = self.held.lock();
        let item = held.items.pop_front()?;
        held.bytes -= item.bytes();
        Some(item)
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.held.lock().items.len()
    }

    /// The oldest, as soon as there is one. For one reader; may be given up at any time without losing anything.
    pub(crate) async fn pop(&self) -> T {
        loop {
            if let Some(item) = self.try_pop() {
                return item;
            }
            self.filled.notified().await;
        }
    }
}

impl<T: Weigh> Held<T> {
    fn push(&mut self, item: T, room: Room) -> u64 {
        let mut dropped = 0;
        while self.items.len() >= room.items || self.bytes + item.bytes() > room.bytes {
            let Some(oldest) = self.items.pop_front() else { break };
            self.bytes -= oldest.bytes();
            dropped += 1;
        }
        self.bytes += item.bytes();
        self.items.push_back(item);
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Weigh for Vec<u8> {
        fn bytes(&self) -> usize {
            self.len()
        }
    }

    #[tokio::test]
    async fn a_reader_that_came_first_is_woken() {
        let queue = std::sync::Arc::new(Queue::new(Room { items: 4, bytes: 64 }));
        let reader = tokio::spawn({
            let queue = std::sync::Arc::clone(&queue);
            async move { queue.pop().await }
        });
        tokio::task::yield_now().await;
        queue.push(vec![7_u8]);
        assert_eq!(reader.await.unwrap(), [7]);
    }

    proptest! {
        /// What is left is the newest, in order, as much as there is room for.
        #[test]
        fn the_oldest_go_first(sizes in prop::collection::vec(0..12_usize, 0..40)) {
            let room = Room { items: 5, bytes: 20 };
            let queue = Queue::new(room);
            let mut dropped = 0;
            for (number, size) in sizes.iter().enumerate() {
                dropped += queue.push(vec![number as u8; *size]);
            }
            let left: Vec<Vec<u8>> = std::iter::from_fn(|| queue.try_pop()).collect();
            prop_assert_eq!(left.len() as u64 + dropped, sizes.len() as u64);
            let expected: Vec<usize> = sizes[sizes.len() - left.len()..].to_vec();
            prop_assert_eq!(left.iter().map(Vec::len).collect::<Vec<_>>(), expected);
            prop_assert!(left.len() <= room.items && left.iter().map(Vec::len).sum::<usize>() <= room.bytes);
        }
    }
}
