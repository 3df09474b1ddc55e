//! Spans whose parent is unknown: they wait, with their digests, and are inserted when the parent appears.
//!
//! An event can be lost or late, so a store may name a parent that this worker never stored. Inserting such spans at
//! the root would credit the worker with prompts that it does not hold; dropping them would lose what it does hold.
//! The number of waiting spans is bounded, and the group that has waited longest is dropped first.

use std::collections::{BTreeMap, BTreeSet};

use crate::number_map::NumberMap;
use crate::span::Size;
use crate::table_hash::TableHash;

/// One waiting span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrphanSpan {
    pub name: u64,
    pub digest: u64,
    pub size: Size,
    /// How often the worker holds the span. Zero for a span that was removed meanwhile and keeps the position of
    /// those behind it.
    pub count: u32,
}

/// A chain of spans that waits for one parent.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    worker: u16,
    parent: u64,
    pub spans: Vec<OrphanSpan>,
    /// Spans with a count above zero.
    live: usize,
}

impl Group {
    fn new(worker: u16, parent: u64, spans: &[OrphanSpan]) -> Group {
        let live = spans.iter().filter(|span| span.count > 0).count();
        Group { worker, parent, spans: spans.to_vec(), live }
    }
}

/// All waiting spans.
pub(crate) struct Orphans {
    groups: BTreeMap<u64, Group>,
    next_group: u64,
    by_parent: NumberMap<(u16, u64), BTreeSet<u64>>,
    by_name: NumberMap<(u16, u64), (u64, u32)>,
    /// Groups by worker.
    by_worker: NumberMap<u16, BTreeSet<u64>>,
    spans: usize,
    spans_max: usize,
    /// Spans that began to wait, that found their parent, and that were dropped because too many waited.
    pub parked: u64,
    pub grafted: u64,
    pub dropped: u64,
}

impl Orphans {
    pub fn new(spans_max: usize, hash: TableHash) -> Orphans {
        Orphans {
            groups: BTreeMap::new(),
            next_group: 0,
            by_parent: NumberMap::new(hash),
            by_name: NumberMap::new(hash),
            by_worker: NumberMap::new(hash),
            spans: 0,
            spans_max,
            parked: 0,
            grafted: 0,
            dropped: 0,
        }
    }

    /// Whether this worker has waiting spans.
    #[inline]
    pub fn has_waiting(&self, worker: u16) -> bool {
        !self.groups.is_empty() && self.by_worker.contains_key(&worker)
    }

    /// Number of waiting spans.
    pub fn len(&self) -> usize {
        self.spans
    }

    pub fn bytes(&self) -> usize {
        let group_bytes = size_of::<(u64, Group)>() * 2 + size_of::<BTreeSet<u64>>() + 4 * size_of::<u64>();
        self.spans * size_of::<OrphanSpan>()
            + self.groups.len() * group_bytes
            + self.by_parent.allocated()
            + self.by_name.allocated()
            + self.by_worker.allocated()
    }

    /// Lets a chain wait for `parent`. Spans at its start that already wait at the same position are counted once
    /// more.
    pub fn park(&mut self, worker: u16, mut parent: u64, mut spans: &[OrphanSpan]) {
        self.parked += spans.len() as u64;
        while let Some((first, rest)) = spans.split_first() {
            if !self.add_counts(worker, parent, first) {
                break;
            }
            (parent, spans) = (first.name, rest);
        }
        if spans.is_empty() || spans.len() > self.spans_max {
            self.dropped += spans.len() as u64;
            return;
        }
        self.make_room(spans.len());
        self.add(Group::new(worker, parent, spans));
    }

    /// Copies the waiting chains of one worker to another one, which has none.
    pub fn copy(&mut self, from: u16, to: u16) {
        if !self.has_waiting(from) {
            return;
        }
        let groups: Vec<Group> = self.groups.values().filter(|group| group.worker == from).cloned().collect();
        for group in groups {
            self.restore(to, group.parent, &group.spans);
        }
    }

    /// Adds a waiting chain for a worker that has none of its names waiting.
    fn restore(&mut self, worker: u16, parent: u64, spans: &[OrphanSpan]) {
        let is_hollow = spans.iter().all(|span| span.count == 0);
        if is_hollow || spans.len() > self.spans_max {
            self.dropped += spans.len() as u64;
            return;
        }
        self.parked += spans.len() as u64;
        self.make_room(spans.len());
        self.add(Group::new(worker, parent, spans));
    }

    /// Counts a waiting name once more. Returns false where it does not wait.
    pub fn store_by_name(&mut self, worker: u16, name: u64) -> bool {
        let Some(&(id, at)) = self.by_name.get(&(worker, name)) else { return false };
        let group = self.groups.get_mut(&id).expect("names point to groups that wait");
        let count = &mut group.spans[at as usize].count;
        *count = count.saturating_add(1);
        true
    }

    /// Whether a name waits.
    pub fn has(&self, worker: u16, name: u64) -> bool {
        self.by_name.contains_key(&(worker, name))
    }

    fn make_room(&mut self, spans: usize) {
        while self.spans + spans > self.spans_max && !self.groups.is_empty() {
            self.drop_oldest();
        }
    }

    fn add_counts(&mut self, worker: u16, parent: u64, span: &OrphanSpan) -> bool {
        let Some(&(id, at)) = self.by_name.get(&(worker, span.name)) else { return false };
        let group = self.groups.get_mut(&id).expect("names point to groups that wait");
        let before = if at == 0 { group.parent } else { group.spans[at as usize - 1].name };
        let waiting = &mut group.spans[at as usize];
        let is_same = before == parent && waiting.digest == span.digest;
        waiting.count = waiting.count.saturating_add(u32::from(is_same));
        is_same
    }

    fn add(&mut self, group: Group) {
        let (id, worker) = (self.next_group, group.worker);
        self.next_group += 1;
        self.spans += group.spans.len();
        let mut group = group;
        let mut emptied = Vec::new();
        for at in 0..group.spans.len() {
            let OrphanSpan { name, count, .. } = group.spans[at];
            if count == 0 {
                continue;
            }
            // A name is held at one position: an earlier waiting span with this name is dropped.
            if let Some((other, position)) = self.by_name.insert((worker, name), (id, at as u32)) {
                let waiting = if other == id { Some(&mut group) } else { self.groups.get_mut(&other) };
                if let Some(waiting) = waiting {
                    waiting.spans[position as usize].count = 0;
                    waiting.live -= 1;
                    emptied.push(other);
                }
            }
        }
        self.by_parent.get_or_default((worker, group.parent)).insert(id);
        self.by_worker.get_or_default(worker).insert(id);
        self.groups.insert(id, group);
        emptied.into_iter().for_each(|other| self.drop_if_hollow(other));
    }

    /// Removes a name once. Returns false where it does not wait.
    pub fn remove(&mut self, worker: u16, name: u64) -> bool {
        let Some(&(id, at)) = self.by_name.get(&(worker, name)) else { return false };
        let group = self.groups.get_mut(&id).expect("names point to groups that wait");
        let waiting = &mut group.spans[at as usize];
        waiting.count -= 1;
        if waiting.count == 0 {
            group.live -= 1;
            self.by_name.remove(&(worker, name));
            self.drop_if_hollow(id);
        }
        true
    }

    /// Drops a waiting name that the worker now holds elsewhere.
    pub fn forget(&mut self, worker: u16, name: u64) {
        if let Some((id, at)) = self.by_name.remove(&(worker, name)) {
            let group = self.groups.get_mut(&id).expect("names point to groups that wait");
            group.spans[at as usize].count = 0;
            group.live -= 1;
            self.drop_if_hollow(id);
        }
    }

    /// Removes and returns the oldest group that waits for this parent.
    pub fn take(&mut self, worker: u16, parent: u64) -> Option<Group> {
        let id = *self.by_parent.get(&(worker, parent))?.first()?;
        self.take_group(id)
    }

    /// Drops waiting groups of one worker until about `spans_max` spans were dropped. Returns true while there are
    /// more.
    pub fn clear_some(&mut self, worker: u16, spans_max: usize) -> bool {
        let mut dropped = 0;
        while dropped < spans_max
            && let Some(&id) = self.by_worker.get(&worker).and_then(BTreeSet::first)
        {
            dropped += self.take_group(id).map_or(0, |group| group.spans.len());
        }
        self.has_waiting(worker)
    }

    fn drop_oldest(&mut self) {
        let Some((&id, _)) = self.groups.first_key_value() else { return };
        self.dropped += self.take_group(id).map_or(0, |group| group.live as u64);
    }

    fn drop_if_hollow(&mut self, id: u64) {
        if self.groups.get(&id).is_some_and(|group| group.live == 0) {
            self.take_group(id);
        }
    }

    fn take_group(&mut self, id: u64) -> Option<Group> {
        let group = self.groups.remove(&id)?;
        self.spans -= group.spans.len();
        let key = (group.worker, group.parent);
        if let Some(ids) = self.by_parent.get_mut(&key) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_parent.remove(&key);
            }
        }
        for span in &group.spans {
            if self.by_name.get(&(group.worker, span.name)).is_some_and(|&(owner, _)| owner == id) {
                self.by_name.remove(&(group.worker, span.name));
            }
        }
        let groups = self.by_worker.get_or_default(group.worker);
        groups.remove(&id);
        if groups.is_empty() {
            self.by_worker.remove(&group.worker);
        }
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(name: u64) -> OrphanSpan {
        OrphanSpan { name, digest: name * 10, size: Size(1 << 12), count: 1 }
    }

    #[test]
    fn the_longest_waiting_group_is_dropped_first() {
        let mut orphans = Orphans::new(3, TableHash::new(1));
        orphans.park(0, 1, &[waiting(2), waiting(3)]);
        orphans.park(0, 4, &[waiting(5)]);
        orphans.park(0, 6, &[waiting(7)]);
        assert_eq!((orphans.len(), orphans.dropped), (2, 2));
        assert!(orphans.take(0, 1).is_none());
        assert_eq!(orphans.take(0, 4).unwrap().spans[0].name, 5);
    }

    #[test]
    fn a_chain_stored_twice_waits_once_and_is_removed_twice() {
        let mut orphans = Orphans::new(10, TableHash::new(1));
        orphans.park(0, 1, &[waiting(2), waiting(3)]);
        orphans.park(0, 1, &[waiting(2), waiting(3), waiting(4)]);
        assert_eq!(orphans.len(), 3);
        assert!(orphans.remove(0, 2) && orphans.remove(0, 2) && !orphans.remove(0, 2));
        let spans = orphans.take(0, 1).unwrap().spans;
        assert_eq!(spans.iter().map(|span| span.count).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn clearing_one_worker_leaves_the_others_waiting() {
        let mut orphans = Orphans::new(10, TableHash::new(1));
        orphans.park(0, 1, &[waiting(2)]);
        orphans.park(1, 1, &[waiting(2)]);
        assert!(!orphans.clear_some(0, 10));
        assert!(orphans.take(0, 1).is_none() && orphans.take(1, 1).is_some());
        assert!(!orphans.has_waiting(0) && !orphans.has_waiting(1) && orphans.len() == 0);
    }
}
