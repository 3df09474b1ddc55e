//! Spans whose parent is unknown: they wait, with their digests, and are inserted when the parent appears.
//!
//! An event can be lost or late, so a store may name a parent that this holder never stored. Inserting such spans at
//! the root would credit the holder with prompts that it does not hold; dropping them would lose what it does hold.
//! The number of waiting spans is bounded, and the group that has waited longest is dropped first.

use std::collections::{BTreeMap, BTreeSet};

use crate::holder_bits::HolderPosition;
use crate::number_map::NumberMap;
use crate::span::Size;
use crate::table_hash::TableHash;

/// One waiting span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrphanSpan {
    pub name: u64,
    pub digest: u64,
    pub size: Size,
    /// How often the holder holds the span. Zero for a span that was removed meanwhile and keeps the position of
    /// those behind it.
    pub count: u32,
}

/// A chain of spans that waits for one parent.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    holder: HolderPosition,
    parent: u64,
    pub spans: Vec<OrphanSpan>,
    /// Spans with a count above zero.
    live: usize,
}

impl Group {
    fn new(holder: HolderPosition, parent: u64, spans: &[OrphanSpan]) -> Group {
        let live = spans.iter().filter(|span| span.count > 0).count();
        Group { holder, parent, spans: spans.to_vec(), live }
    }
}

/// All waiting spans.
pub(crate) struct Orphans {
    groups: BTreeMap<u64, Group>,
    next_group: u64,
    by_parent: NumberMap<(HolderPosition, u64), BTreeSet<u64>>,
    by_name: NumberMap<(HolderPosition, u64), (u64, u32)>,
    /// Groups by holder.
    by_holder: NumberMap<HolderPosition, BTreeSet<u64>>,
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
            by_holder: NumberMap::new(hash),
            spans: 0,
            spans_max,
            parked: 0,
            grafted: 0,
            dropped: 0,
        }
    }

    /// Whether this holder has waiting spans.
    #[inline]
    pub fn has_waiting(&self, holder: HolderPosition) -> bool {
        !self.groups.is_empty() && self.by_holder.contains_key(&holder)
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
            + self.by_holder.allocated()
    }

    /// Lets a chain wait for `parent`. Spans at its start that already wait at the same position are counted once
    /// more.
    pub fn park(&mut self, holder: HolderPosition, mut parent: u64, mut spans: &[OrphanSpan]) {
        self.parked += spans.len() as u64;
        while let Some((first, rest)) = spans.split_first() {
            if !self.add_counts(holder, parent, first) {
                break;
            }
            (parent, spans) = (first.name, rest);
        }
        if spans.is_empty() || spans.len() > self.spans_max {
            self.dropped += spans.len() as u64;
            return;
        }
        self.make_room(spans.len());
        self.add(Group::new(holder, parent, spans));
    }

    /// Copies the waiting chains of one holder to another one, which has none.
    pub fn copy(&mut self, from: HolderPosition, to: HolderPosition) {
        if !self.has_waiting(from) {
            return;
        }
        let groups: Vec<Group> = self.groups.values().filter(|group| group.holder == from).cloned().collect();
        for group in groups {
            self.restore(to, group.parent, &group.spans);
        }
    }

    /// Adds a waiting chain for a holder that has none of its names waiting.
    fn restore(&mut self, holder: HolderPosition, parent: u64, spans: &[OrphanSpan]) {
        let is_hollow = spans.iter().all(|span| span.count == 0);
        if is_hollow || spans.len() > self.spans_max {
            self.dropped += spans.len() as u64;
            return;
        }
        self.parked += spans.len() as u64;
        self.make_room(spans.len());
        self.add(Group::new(holder, parent, spans));
    }

    /// Counts a waiting name once more. Returns false where it does not wait.
    pub fn store_by_name(&mut self, holder: HolderPosition, name: u64) -> bool {
        let Some(&(id, at)) = self.by_name.get(&(holder, name)) else { return false };
        let group = self.groups.get_mut(&id).expect("names point to groups that wait");
        let count = &mut group.spans[at as usize].count;
        *count = count.saturating_add(1);
        true
    }

    /// Whether a name waits.
    pub fn has(&self, holder: HolderPosition, name: u64) -> bool {
        self.by_name.contains_key(&(holder, name))
    }

    fn make_room(&mut self, spans: usize) {
        while self.spans + spans > self.spans_max && !self.groups.is_empty() {
            self.drop_oldest();
        }
    }

    fn add_counts(&mut self, holder: HolderPosition, parent: u64, span: &OrphanSpan) -> bool {
        let Some(&(id, at)) = self.by_name.get(&(holder, span.name)) else { return false };
        let group = self.groups.get_mut(&id).expect("names point to groups that wait");
        let before = if at == 0 { group.parent } else { group.spans[at as usize - 1].name };
        let waiting = &mut group.spans[at as usize];
        let is_same = before == parent && waiting.digest == span.digest;
        waiting.count = waiting.count.saturating_add(u32::from(is_same));
        is_same
    }

    fn add(&mut self, group: Group) {
        let (id, holder) = (self.next_group, group.holder);
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
            if let Some((other, position)) = self.by_name.insert((holder, name), (id, at as u32)) {
                let waiting = if other == id { Some(&mut group) } else { self.groups.get_mut(&other) };
                if let Some(waiting) = waiting {
                    waiting.spans[position as usize].count = 0;
                    waiting.live -= 1;
                    emptied.push(other);
                }
            }
        }
        self.by_parent.get_or_default((holder, group.parent)).insert(id);
        self.by_holder.get_or_default(holder).insert(id);
        self.groups.insert(id, group);
        emptied.into_iter().for_each(|other| self.drop_if_hollow(other));
    }

    /// Removes a name once. Returns false where it does not wait.
    pub fn remove(&mut self, holder: HolderPosition, name: u64) -> bool {
        let Some(&(id, at)) = self.by_name.get(&(holder, name)) else { return false };
        let group = self.groups.get_mut(&id).expect("names point to groups that wait");
        let waiting = &mut group.spans[at as usize];
        waiting.count -= 1;
        if waiting.count == 0 {
            group.live -= 1;
            self.by_name.remove(&(holder, name));
            self.drop_if_hollow(id);
        }
        true
    }

    /// Drops a waiting name that the holder now holds elsewhere.
    pub fn forget(&mut self, holder: HolderPosition, name: u64) {
        if let Some((id, at)) = self.by_name.remove(&(holder, name)) {
            let group = self.groups.get_mut(&id).expect("names point to groups that wait");
            group.spans[at as usize].count = 0;
            group.live -= 1;
            self.drop_if_hollow(id);
        }
    }

    /// Removes and returns the oldest group that waits for this parent.
    pub fn take(&mut self, holder: HolderPosition, parent: u64) -> Option<Group> {
        let id = *self.by_parent.get(&(holder, parent))?.first()?;
        self.take_group(id)
    }

    /// Drops waiting groups of one holder until about `spans_max` spans were dropped. Returns true while there are
    /// more.
    pub fn clear_some(&mut self, holder: HolderPosition, spans_max: usize) -> bool {
        let mut dropped = 0;
        while dropped < spans_max
            && let Some(&id) = self.by_holder.get(&holder).and_then(BTreeSet::first)
        {
            dropped += self.take_group(id).map_or(0, |group| group.spans.len());
        }
        self.has_waiting(holder)
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
        let key = (group.holder, group.parent);
        if let Some(ids) = self.by_parent.get_mut(&key) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_parent.remove(&key);
            }
        }
        for span in &group.spans {
            if self.by_name.get(&(group.holder, span.name)).is_some_and(|&(owner, _)| owner == id) {
                self.by_name.remove(&(group.holder, span.name));
            }
        }
        let groups = self.by_holder.get_or_default(group.holder);
        groups.remove(&id);
        if groups.is_empty() {
            self.by_holder.remove(&group.holder);
        }
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HolderPosition = HolderPosition(0);
    const B: HolderPosition = HolderPosition(1);

    fn waiting(name: u64) -> OrphanSpan {
        OrphanSpan { name, digest: name * 10, size: Size(1 << 12), count: 1 }
    }

    #[test]
    fn the_longest_waiting_group_is_dropped_first() {
        let mut orphans = Orphans::new(3, TableHash::new(1));
        orphans.park(A, 1, &[waiting(2), waiting(3)]);
        orphans.park(A, 4, &[waiting(5)]);
        orphans.park(A, 6, &[waiting(7)]);
        assert_eq!((orphans.len(), orphans.dropped), (2, 2));
        assert!(orphans.take(A, 1).is_none());
        assert_eq!(orphans.take(A, 4).unwrap().spans[0].name, 5);
    }

    #[test]
    fn a_chain_stored_twice_waits_once_and_is_removed_twice() {
        let mut orphans = Orphans::new(10, TableHash::new(1));
        orphans.park(A, 1, &[waiting(2), waiting(3)]);
        orphans.park(A, 1, &[waiting(2), waiting(3), waiting(4)]);
        assert_eq!(orphans.len(), 3);
        assert!(orphans.remove(A, 2) && orphans.remove(A, 2) && !orphans.remove(A, 2));
        let spans = orphans.take(A, 1).unwrap().spans;
        assert_eq!(spans.iter().map(|span| span.count).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn clearing_one_holder_leaves_the_others_waiting() {
        let mut orphans = Orphans::new(10, TableHash::new(1));
        orphans.park(A, 1, &[waiting(2)]);
        orphans.park(B, 1, &[waiting(2)]);
        assert!(!orphans.clear_some(A, 10));
        assert!(orphans.take(A, 1).is_none() && orphans.take(B, 1).is_some());
        assert!(!orphans.has_waiting(A) && !orphans.has_waiting(B) && orphans.len() == 0);
    }
}
