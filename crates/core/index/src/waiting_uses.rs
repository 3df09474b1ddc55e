//! Requests without a first token, in the order of arrival.
//!
//! Ids only increase, so a queue is sorted by them. Unlike an ordered map it allocates nothing once it has grown.

use std::collections::VecDeque;

use crate::node_uses::UseId;

/// Removed entries that may stay in the queue, besides as many as there are live ones.
const REMOVED_MAX: usize = 16;

/// Waiting requests by id. An entry that was removed out of order stays as `None` until the queue is compacted.
#[derive(Debug)]
pub(crate) struct WaitingUses<T> {
    queue: VecDeque<(UseId, Option<T>)>,
    len: usize,
}

impl<T> WaitingUses<T> {
    pub fn new() -> WaitingUses<T> {
        WaitingUses { queue: VecDeque::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a request. Its id is larger than all before.
    pub fn push(&mut self, id: UseId, waiting: T) {
        debug_assert!(self.queue.back().is_none_or(|&(last, _)| last < id), "ids increase");
        self.queue.push_back((id, Some(waiting)));
        self.len += 1;
    }

    pub fn get(&self, id: UseId) -> Option<&T> {
        let at = self.position(id)?;
        self.queue[at].1.as_ref()
    }

    pub fn get_mut(&mut self, id: UseId) -> Option<&mut T> {
        let at = self.position(id)?;
        self.queue[at].1.as_mut()
    }

    pub fn remove(&mut self, id: UseId) -> Option<T> {
        let at = self.position(id)?;
        let removed = self.queue[at].1.take()?;
        self.len -= 1;
        self.compact();
        Some(removed)
    }

    /// All requests, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (UseId, &T)> {
        self.queue.iter().filter_map(|(id, waiting)| Some((*id, waiting.as_ref()?)))
    }

    fn position(&self, id: UseId) -> Option<usize> {
        self.queue.binary_search_by_key(&id, |&(id, _)| id).ok()
    }

    fn compact(&mut self) {
        while self.queue.pop_front_if(|(_, waiting)| waiting.is_none()).is_some() {}
        if self.queue.len() > 2 * self.len + REMOVED_MAX {
            self.queue.retain(|(_, waiting)| waiting.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_queue_is_an_ordered_map(removed in prop::collection::vec(prop::option::of(0_u64..200), 0..400)) {
            let (mut queue, mut map) = (WaitingUses::new(), BTreeMap::new());
            for (id, removed) in (0..).zip(removed) {
                queue.push(id, id * 7);
                map.insert(id, id * 7);
                if let Some(removed) = removed {
                    prop_assert_eq!(queue.remove(removed), map.remove(&removed));
                }
                prop_assert_eq!(queue.len(), map.len());
                prop_assert!(queue.queue.len() <= 2 * queue.len() + REMOVED_MAX + 1);
            }
            prop_assert!(queue.iter().eq(map.iter().map(|(&id, waiting)| (id, waiting))));
            prop_assert!((0..400).all(|id| queue.get(id) == map.get(&id)));
        }
    }
}
