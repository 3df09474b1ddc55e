//! The child table: hash tables for the whole tree, read without a lock.
//!
//! The key is (parent's serial, offset, digest). A node with a million children costs no more than a million nodes
//! with one child, and a namespace costs nothing of its own. The writer publishes a slot by storing its key. A reader
//! checks the node that it finds, so a slot that is reused during the read is a miss and never a wrong answer.
//!
//! There are many small tables, because a table is rebuilt as a whole under the writer's lock: with ten million
//! nodes, rebuilding one of them takes a tenth of a millisecond.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::node::{Node, NodePtr, NodeRef, Pinned, Serial};
use crate::table_hash::TableHash;

const EMPTY: u64 = 0;
const TOMBSTONE: u64 = 1;

/// Number of tables, a power of two. A key's highest bits choose the table, its lowest bits the first slot to probe.
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

/// A table: a power of two of lines. The logarithm is kept in the six low bits that the alignment leaves free, so a
/// reader needs one load for both. Null where the table is empty.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Table(*mut Line);

const LOG_BITS: usize = 63;

/// The tables, as readers see them.
pub(crate) struct Children {
    hash: TableHash,
    shards: Box<[AtomicPtr<Line>]>,
}

/// How full one table is.
#[derive(Clone, Copy, Default)]
struct Shard {
    live: u32,
    /// Slots that are not empty: live ones and tombstones.
    used: u32,
}

/// How full all tables are. Only the writer needs it.
pub(crate) struct TableStats {
    shards: Box<[Shard]>,
    /// Bytes of all tables.
    bytes: usize,
}

impl Default for TableStats {
    fn default() -> TableStats {
        let bytes = SHARDS * (size_of::<Shard>() + size_of::<AtomicPtr<Line>>());
        TableStats { shards: vec![Shard::default(); SHARDS].into(), bytes }
    }
}

impl TableStats {
    /// Bytes of all tables.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
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

    /// The lines of the table.
    ///
    /// # Safety
    /// The table is not freed while `'a` lasts.
    #[inline]
    unsafe fn as_slice<'a>(self) -> &'a [Line] {
        if self.0.is_null() {
            return &[];
        }
        // SAFETY: a table that is not null came from a box of that many lines; the caller guarantees that it is
        // alive.
        unsafe { &*self.lines() }
    }

    fn bytes(self) -> usize {
        self.lines().len() * size_of::<Line>()
    }

    /// Frees the table.
    ///
    /// # Safety
    /// The table is unreachable, and it is freed once.
    pub unsafe fn free(self) {
        if !self.0.is_null() {
            // SAFETY: the caller's contract; it came from a box of that many lines.
            drop(unsafe { Box::from_raw(self.lines()) });
        }
    }
}

/// The slots in the order in which a key is probed.
#[inline]
fn probe(lines: &[Line], key: u64) -> impl Iterator<Item = &Slot> {
    let slots = lines.len() * SLOTS_A_LINE;
    let mask = slots.wrapping_sub(1);
    (0..slots).map(move |step| {
        let at = (key as usize + step) & mask;
        &lines[at / SLOTS_A_LINE].0[at % SLOTS_A_LINE]
    })
}

/// Puts a node into the first slot that is not live. Returns true if that slot was empty.
fn insert(lines: &[Line], key: u64, node: *mut Node) -> bool {
    let free = probe(lines, key).find(|slot| slot.key.load(Ordering::Relaxed) <= TOMBSTONE);
    let slot = free.expect("the table is rebuilt before it is full");
    let was_empty = slot.key.load(Ordering::Relaxed) == EMPTY;
    // Release, because a reader that still has the slot's former key may load this pointer before it sees the new key.
    slot.node.store(node, Ordering::Release);
    slot.key.store(key, Ordering::Release);
    was_empty
}

impl Children {
    pub fn new(hash: TableHash) -> Children {
        Children { hash, shards: (0..SHARDS).map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
    }

    /// The digest is an engine's or a client's choice where a block has no text, so the hash is keyed.
    #[inline]
    fn key_of(&self, parent_serial: Serial, at: u32, digest: u64) -> u64 {
        let position = (parent_serial << 7 | u64::from(at)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash.of(digest ^ position).max(TOMBSTONE + 1)
    }

    #[inline]
    fn table(&self, shard: usize) -> Table {
        Table(self.shards[shard].load(Ordering::Acquire))
    }

    #[inline]
    fn lines<'g>(&self, shard: usize, _pinned: Pinned<'g>) -> &'g [Line] {
        // SAFETY: the table is current now, and is freed by epoch after it was replaced: not before `'g` ends.
        unsafe { self.table(shard).as_slice() }
    }

    /// The child that continues the node with this serial after its first `at` spans, beginning with a span of this
    /// digest.
    #[inline]
    pub fn find<'g>(
        &self,
        parent_serial: Serial,
        at: usize,
        digest: u64,
        pinned: Pinned<'g>,
    ) -> Option<NodeRef<'g>> {
        let key = self.key_of(parent_serial, at as u32, digest);
        for slot in probe(self.lines(shard_of(key), pinned), key) {
            let found = slot.key.load(Ordering::Acquire);
            if found == EMPTY {
                return None;
            }
            // SAFETY: the key is removed from the table before its node is retired, and the key was read after the
            // guard was taken. A slot reused since points to a node that was linked later.
            let node = || unsafe { NodePtr::from_raw(slot.node.load(Ordering::Acquire), pinned) };
            if found == key
                && let Some(node) = node()
                && node.continues(parent_serial, at, digest)
            {
                return Some(node);
            }
        }
        None
    }

    /// Links a node. Returns the table it outgrew, to be freed by epoch.
    pub fn link(&self, table_stats: &mut TableStats, node: NodeRef<'_>) -> Option<Table> {
        let key = self.key_of(node.parent_serial, node.at, node.digest);
        let at = shard_of(key);
        let used = table_stats.shards[at].used as usize;
        let is_full = (used + 1) * 4 > self.lines(at, node.pinned()).len() * SLOTS_A_LINE * 3;
        let outgrown = is_full.then(|| self.rebuild(table_stats, at, 1, node.pinned()));
        let was_empty = insert(self.lines(at, node.pinned()), key, node.as_raw());
        let shard = &mut table_stats.shards[at];
        shard.live += 1;
        shard.used += u32::from(was_empty);
        outgrown
    }

    /// Unlinks a node. Returns the old table where it had become far too large, to be freed by epoch.
    pub fn unlink(&self, table_stats: &mut TableStats, node: NodeRef<'_>) -> Option<Table> {
        let key = self.key_of(node.parent_serial, node.at, node.digest);
        let at = shard_of(key);
        let is_it = |slot: &&Slot| {
            slot.key.load(Ordering::Relaxed) == key && slot.node.load(Ordering::Relaxed) == node.as_raw()
        };
        let slot =
            probe(self.lines(at, node.pinned()), key).find(is_it).expect("a linked node is in the table");
        slot.key.store(TOMBSTONE, Ordering::Release);
        table_stats.shards[at].live -= 1;
        let (live, slots) =
            (table_stats.shards[at].live as usize, self.lines(at, node.pinned()).len() * SLOTS_A_LINE);
        (live == 0 || live < slots / 8).then(|| self.rebuild(table_stats, at, 0, node.pinned()))
    }

    /// Replaces a table by one without tombstones that has room for `more` additional nodes.
    fn rebuild(&self, table_stats: &mut TableStats, at: usize, more: usize, pinned: Pinned<'_>) -> Table {
        let old = self.table(at);
        let nodes = table_stats.shards[at].live as usize + more;
        let new = if nodes == 0 { Table(ptr::null_mut()) } else { Table::with_room_for(nodes) };
        // SAFETY: the new table is not shared yet.
        let lines = unsafe { new.as_slice() };
        for slot in self.lines(at, pinned).iter().flat_map(|line| &line.0) {
            let key = slot.key.load(Ordering::Relaxed);
            if key > TOMBSTONE {
                insert(lines, key, slot.node.load(Ordering::Relaxed));
            }
        }
        table_stats.shards[at].used = table_stats.shards[at].live;
        table_stats.bytes = table_stats.bytes + new.bytes() - old.bytes();
        self.shards[at].store(new.0, Ordering::Release);
        old
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for shard in &self.shards {
            // SAFETY: a drop has exclusive access to the tables.
            unsafe { Table(shard.load(Ordering::Relaxed)).free() };
        }
    }
}
