//! Which node continues which: one hash table for the whole tree, read without a lock.
//!
//! Keyed by (parent's serial, offset, digest), so that a node with a million children costs no more than a million nodes with
//! one, and a namespace costs nothing of its own. A slot is published by its key; a reader checks what it finds
//! against the node itself, so that a slot reused under its eyes is a miss, never a wrong answer.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::digest::mix;
use crate::node::{Node, NodeRef, Serial};

const EMPTY: u64 = 0;
const TOMB: u64 = 1;
const SLOTS_MIN: usize = 16;

struct Slot {
    key: AtomicU64,
    node: AtomicPtr<Node>,
}

/// The slots; their number is a power of two.
pub(crate) struct Table {
    slots: Box<[Slot]>,
}

/// The table as readers see it.
pub(crate) struct Children {
    table: AtomicPtr<Table>,
}

/// What the writer knows about the table's filling.
#[derive(Default)]
pub(crate) struct Filling {
    live: usize,
    /// Slots that are not empty: live ones and tombs.
    used: usize,
}

#[inline]
fn key_of(stem: Serial, at: u32, digest: u64) -> u64 {
    let place = (stem << 7 | u64::from(at)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix(digest ^ place).max(TOMB + 1)
}

impl Table {
    fn new(slots: usize) -> Table {
        let empty = || Slot { key: AtomicU64::new(EMPTY), node: AtomicPtr::new(ptr::null_mut()) };
        Table { slots: (0..slots).map(|_| empty()).collect() }
    }

    pub fn allocated(&self) -> usize {
        size_of::<Table>() + size_of_val::<[Slot]>(&self.slots)
    }

    /// The slots in the order in which a key is looked for.
    #[inline]
    fn probe(&self, key: u64) -> impl Iterator<Item = &Slot> {
        let mask = self.slots.len() - 1;
        (0..=mask).map(move |step| &self.slots[(key as usize + step) & mask])
    }

    /// Puts a node into the first slot that is not live; true when that slot was empty.
    fn insert(&self, key: u64, node: NodeRef) -> bool {
        let free = self.probe(key).find(|slot| slot.key.load(Ordering::Relaxed) <= TOMB);
        let slot = free.expect("the table is rebuilt before it is full");
        let was_empty = slot.key.load(Ordering::Relaxed) == EMPTY;
        // Release, because a reader that still has the slot's former key may load this pointer before it sees the new key.
        slot.node.store(node.as_ptr(), Ordering::Release);
        slot.key.store(key, Ordering::Release);
        was_empty
    }
}

impl Children {
    pub fn new() -> Children {
        Children { table: AtomicPtr::new(Box::into_raw(Box::new(Table::new(SLOTS_MIN)))) }
    }

    #[inline]
    fn table(&self) -> &Table {
        // SAFETY: a table is freed by epoch after it was replaced; callers are pinned or hold the lock, as for nodes.
        unsafe { &*self.table.load(Ordering::Acquire) }
    }

    /// Bytes of the table.
    pub fn allocated(&self) -> usize {
        self.table().allocated()
    }

    /// The child that continues the node `stem` after its first `at` spans with a span of this digest.
    #[inline]
    pub fn find(&self, stem: Serial, at: usize, digest: u64) -> Option<NodeRef> {
        let key = key_of(stem, at as u32, digest);
        for slot in self.table().probe(key) {
            let found = slot.key.load(Ordering::Acquire);
            if found == EMPTY {
                return None;
            }
            if found == key
                && let Some(node) = NodeRef::from_raw(slot.node.load(Ordering::Acquire))
                && node.continues(stem, at, digest)
            {
                return Some(node);
            }
        }
        None
    }

    /// Links a node. Returns the table it outgrew, to be freed by epoch.
    pub fn link(&self, filling: &mut Filling, node: NodeRef) -> Option<*mut Table> {
        let outgrown = self.make_room(filling);
        let was_empty = self.table().insert(key_of(node.stem, node.at, node.digest), node);
        filling.live += 1;
        filling.used += usize::from(was_empty);
        outgrown
    }

    /// Unlinks a node. Returns the table where it has become much too large, to be freed by epoch.
    pub fn unlink(&self, filling: &mut Filling, node: NodeRef) -> Option<*mut Table> {
        let key = key_of(node.stem, node.at, node.digest);
        let is_it = |slot: &&Slot| {
            slot.key.load(Ordering::Relaxed) == key && slot.node.load(Ordering::Relaxed) == node.as_ptr()
        };
        let slot = self.table().probe(key).find(is_it).expect("a linked node is in the table");
        slot.key.store(TOMB, Ordering::Release);
        filling.live -= 1;
        let slots = self.table().slots.len();
        (slots > SLOTS_MIN && filling.live < slots / 8).then(|| self.rebuild(filling))
    }

    fn make_room(&self, filling: &mut Filling) -> Option<*mut Table> {
        let is_full = (filling.used + 1) * 4 > self.table().slots.len() * 3;
        is_full.then(|| self.rebuild(filling))
    }

    /// Replaces the table by one that is a third to two thirds full, without tombs.
    fn rebuild(&self, filling: &mut Filling) -> *mut Table {
        let table = Table::new((filling.live * 2).next_power_of_two().max(SLOTS_MIN));
        for slot in &self.table().slots {
            let key = slot.key.load(Ordering::Relaxed);
            if key > TOMB
                && let Some(node) = NodeRef::from_raw(slot.node.load(Ordering::Relaxed))
            {
                table.insert(key, node);
            }
        }
        filling.used = filling.live;
        self.table.swap(Box::into_raw(Box::new(table)), Ordering::AcqRel)
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        // SAFETY: the table came from a box, and nobody else can reach it during a drop.
        unsafe { free_table(*self.table.get_mut()) };
    }
}

/// Frees a table that was replaced.
///
/// # Safety
/// It came from [`Children::link`] or [`Children::unlink`], nobody can reach it any more, and it is freed once.
pub(crate) unsafe fn free_table(table: *mut Table) {
    // SAFETY: the caller's contract.
    drop(unsafe { Box::from_raw(table) });
}
