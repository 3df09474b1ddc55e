//! A queue whose writers never wait: when it is full, it drops its oldest items.
//!
//! It drops the oldest, because peers number their messages and request missing ones, and the newest state
//! matters most.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The most that a queue holds; beyond either limit it drops its oldest items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub items: usize,
    pub bytes: usize,
}

/// An item with a size in bytes.
pub(crate) trait ByteSize {
    fn bytes(&self) -> usize;
}

/// A queue with many writers and one reader.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    pushed: Notify,
    limits: QueueLimits,
}

#[derive(Debug)]
struct QueueState<T> {
    items: VecDeque<T>,
    bytes: usize,
}

impl<T: ByteSize> Queue<T> {
    pub(crate) fn new(limits: QueueLimits) -> Queue<T> {
        let state = Mutex::new(QueueState { items: VecDeque::new(), bytes: 0 });
        Queue { state, pushed: Notify::new(), limits }
    }

    /// Appends an item; returns how many older items were dropped.
    pub(crate) fn push(&self, item: T) -> u64 {
        let dropped = self.state.lock().push(item, self.limits);
        self.pushed.notify_one();
        dropped
    }

    /// The oldest item, if there is one.
    pub(crate) fn try_pop(&self) -> Option<T> {
        let mut state = self.state.lock();
        let item = state.items.pop_front()?;
        state.bytes -= item.bytes();
        Some(item)
    }

    /// Number of queued items.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Waits for the oldest item. Only one reader may wait; cancelling loses nothing.
    pub(crate) async fn pop(&self) -> T {
        loop {
            if let Some(item) = self.try_pop() {
                return item;
            }
            self.pushed.notified().await;
        }
    }
}

impl<T: ByteSize> QueueState<T> {
    fn push(&mut self, item: T, limits: QueueLimits) -> u64 {
        let mut dropped = 0;
        while self.items.len() >= limits.items || self.bytes + item.bytes() > limits.bytes {
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

    impl ByteSize for Vec<u8> {
        fn bytes(&self) -> usize {
            self.len()
        }
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let queue = std::sync::Arc::new(Queue::new(QueueLimits { items: 4, bytes: 64 }));
        let reader = tokio::spawn({
            let queue = std::sync::Arc::clone(&queue);
            async move { queue.pop().await }
        });
        tokio::task::yield_now().await;
        queue.push(vec![7_u8]);
        assert_eq!(reader.await.unwrap(), [7]);
    }

    proptest! {
        /// The remaining items are the newest that fit, in order.
        #[test]
        fn a_full_queue_drops_the_oldest(sizes in prop::collection::vec(0..12_usize, 0..40)) {
            let limits = QueueLimits { items: 5, bytes: 20 };
            let queue = Queue::new(limits);
            let mut dropped = 0;
            for (number, size) in sizes.iter().enumerate() {
                dropped += queue.push(vec![number as u8; *size]);
            }
            let left: Vec<Vec<u8>> = std::iter::from_fn(|| queue.try_pop()).collect();
            prop_assert_eq!(left.len() as u64 + dropped, sizes.len() as u64);
            let expected: Vec<usize> = sizes[sizes.len() - left.len()..].to_vec();
            prop_assert_eq!(left.iter().map(Vec::len).collect::<Vec<_>>(), expected);
            prop_assert!(left.len() <= limits.items && left.iter().map(Vec::len).sum::<usize>() <= limits.bytes);
        }
    }
}
