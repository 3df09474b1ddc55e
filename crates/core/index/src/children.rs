//! Which node continues which: hash tables for the whole tree, read without a lock.
//!
//! Keyed by (parent's serial, offset, digest), so that a node with a million children costs no more than a million nodes
//! with one, and a namespace costs nothing of its own. A slot is published by its key; a reader checks what it finds
//! against the node itself, so that a slot reused under its eyes is a miss, never a wrong answer.
//!
//! There are many small tables instead of a large one, because a table is rebuilt in one go, under the writer's lock:
//! with ten million nodes, one of them is a tenth of a millisecond.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::digest::mix;
use crate::node::{Node, NodeRef, Serial};

const EMPTY: u64 = 0;
const TOMB: u64 = 1;

/// Tables, a power of two. A key's highest bits say which, its lowest where to begin in it.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 10;

struct Slot {
    key: AtomicU64,
    node: AtomicPtr<Node>,
}

/// The slots of one cache line.
#[repr(align(64))]
pub(crate) struct Line([Slot; SLOTS_A_LINE]);

const SLOTS_A_LINE: usize = 4;

/// A table: a power of two of lines, its logarithm kept in the six bits that the alignment leaves free. A reader needs
/// one load to know both. Null where nothing is linked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Table(*mut Line);

const LOG_BITS: usize = 63;

/// The tables as readers see them.
pub(crate) struct Children {
    shards: Box<[AtomicPtr<Line>]>,
}

/// What the writer knows about one table's filling.
#[derive(Clone, Copy, Default)]
struct Shard {
    live: u32,
    /// Slots that are not empty: live ones and tombs.
    used: u32,
}

/// What the writer knows about all of them.
pub(crate) struct Filling {
    shards: Box<[Shard]>,
    /// Bytes of all tables.
    bytes: usize,
}

impl Default for Filling {
    fn default() -> Filling {
        let bytes = SHARDS * (size_of::<Shard>() + size_of::<AtomicPtr<Line>>());
        Filling { shards: vec![Shard::default(); SHARDS].into(), bytes }
    }
}

impl Filling {
    /// Bytes of all tables.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[inline]
fn key_of(stem: Serial, at: u32, digest: u64) -> u64 {
    let place = (stem << 7 | u64::from(at)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix(digest ^ place).max(TOMB + 1)
}

#[inline]
fn shard_of(key: u64) -> usize {
    (key >> (64 - SHARD_BITS)) as usize
}

impl Table {
    /// An empty table for this many nodes, at most half full.
    fn with_room_for(nodes: usize) -> Table {
        let lines = (nodes * 2).div_ceil(SLOTS_A_LINE).next_power_of_two();
        let empty = || Slot { key: AtomicU64::new(EMPTY), node: AtomicPtr::new(ptr::null_mut()) };
        let line = || Line([empty(), empty(), empty(), empty()]);
        let slots: Box<[Line]> = (0..lines).map(|_| line()).collect();
        let log = lines.trailing_zeros() as usize;
        Table(Box::into_raw(slots).cast::<Line>().map_addr(|address| address | log))
    }

    fn lines(self) -> *mut [Line] {
        let log = self.0.addr() & LOG_BITS;
        let lines = if self.0.is_null() { 0 } else { 1 << log };
        ptr::slice_from_raw_parts_mut(self.0.map_addr(|address| address & !LOG_BITS), lines)
    }

    /// The lines, to be read.
    ///
    /// # Safety
    /// The table is not freed while `'a` lasts.
    #[inline]
    unsafe fn as_slice<'a>(self) -> &'a [Line] {
        if self.0.is_null() {
            return &[];
        }
        // SAFETY: a table that is not null came from a box of that many lines; the caller says that it is alive.
        unsafe { &*self.lines() }
    }

    fn bytes(self) -> usize {
        self.lines().len() * size_of::<Line>()
    }

    /// Frees the table.
    ///
    /// # Safety
    /// Nobody can reach it any more, and it is freed once.
    pub unsafe fn free(self) {
        if !self.0.is_null() {
            // SAFETY: the caller's contract; it came from a box of that many lines.
            drop(unsafe { Box::from_raw(self.lines()) });
        }
    }
}

/// The slots in the order in which a key is looked for.
#[inline]
fn probe(lines: &[Line], key: u64) -> impl Iterator<Item = &Slot> {
    let slots = lines.len() * SLOTS_A_LINE;
    let mask = slots.wrapping_sub(1);
    (0..slots).map(move |step| {
        let at = (key as usize + step) & mask;
        &lines[at / SLOTS_A_LINE].0[at % SLOTS_A_LINE]
    })
}

/// Puts a node into the first slot that is not live; true when that slot was empty.
fn insert(lines: &[Line], key: u64, node: NodeRef) -> bool {
    let free = probe(lines, key).find(|slot| slot.key.load(Ordering::Relaxed) <= TOMB);
    let slot = free.expect("the table is rebuilt before it is full");
    let was_empty = slot.key.load(Ordering::Relaxed) == EMPTY;
    // Release, because a reader that still has the slot's former key may load this pointer before it sees the new key.
    slot.node.store(node.as_ptr(), Ordering::Release);
    slot.key.store(key, Ordering::Release);
    was_empty
}

impl Children {
    pub fn new() -> Children {
        Children { shards: (0..SHARDS).map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
    }

    #[inline]
    fn table(&self, shard: usize) -> Table {
        Table(self.shards[shard].load(Ordering::Acquire))
    }

    #[inline]
    fn lines(&self, shard: usize) -> &[Line] {
        // SAFETY: a table is freed by epoch after it was replaced; callers are pinned or hold the lock, as for nodes.
        unsafe { self.table(shard).as_slice() }
    }

    /// The child that continues the node `stem` after its first `at` spans with a span of this digest.
    #[inline]
    pub fn find(&self, stem: Serial, at: usize, digest: u64) -> Option<NodeRef> {
        let key = key_of(stem, at as u32, digest);
        for slot in probe(self.lines(shard_of(key)), key) {
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
    pub fn link(&self, filling: &mut Filling, node: NodeRef) -> Option<Table> {
        let key = key_of(node.stem, node.at, node.digest);
        let at = shard_of(key);
        let used = filling.shards[at].used as usize;
        let is_full = (used + 1) * 4 > self.lines(at).len() * SLOTS_A_LINE * 3;
        let outgrown = is_full.then(|| self.rebuild(filling, at, 1));
        let was_empty = insert(self.lines(at), key, node);
        let shard = &mut filling.shards[at];
        shard.live += 1;
        shard.used += u32::from(was_empty);
        outgrown
    }

    /// Unlinks a node. Returns the table where it has become much too large, to be freed by epoch.
    pub fn unlink(&self, filling: &mut Filling, node: NodeRef) -> Option<Table> {
        let key = key_of(node.stem, node.at, node.digest);
        let at = shard_of(key);
        let is_it = |slot: &&Slot| {
            slot.key.load(Ordering::Relaxed) == key && slot.node.load(Ordering::Relaxed) == node.as_ptr()
        };
        let slot = probe(self.lines(at), key).find(is_it).expect("a linked node is in the table");
        slot.key.store(TOMB, Ordering::Release);
        filling.shards[at].live -= 1;
        let (live, slots) = (filling.shards[at].live as usize, self.lines(at).len() * SLOTS_A_LINE);
        (live == 0 || live < slots / 8).then(|| self.rebuild(filling, at, 0))
    }

    /// Replaces a table by one that has room for `more` nodes than it has, without tombs.
    fn rebuild(&self, filling: &mut Filling, at: usize, more: usize) -> Table {
        let old = self.table(at);
        let nodes = filling.shards[at].live as usize + more;
        let new = if nodes == 0 { Table(ptr::null_mut()) } else { Table::with_room_for(nodes) };
        // SAFETY: the new table is nobody else's yet.
        let lines = unsafe { new.as_slice() };
        for slot in self.lines(at).iter().flat_map(|line| &line.0) {
            let key = slot.key.load(Ordering::Relaxed);
            if key > TOMB
                && let Some(node) = NodeRef::from_raw(slot.node.load(Ordering::Relaxed))
            {
                insert(lines, key, node);
            }
        }
        filling.shards[at].used = filling.shards[at].live;
        filling.bytes = filling.bytes + new.bytes() - old.bytes();
        self.shards[at].store(new.0, Ordering::Release);
        old
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for shard in &self.shards {
            // SAFETY: nobody else can reach a table during a drop.
            unsafe { Table(shard.load(Ordering::Relaxed)).free() };
        }
    }
}
