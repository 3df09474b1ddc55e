//! What one worker reported, beside what the tree says: under which names it holds its spans.
//!
//! In a fleet whose engines agree on hashes, everybody knows a span by the name that lies beside it in its node, and
//! this book holds one number per node. Only what differs costs more: a span known to this worker by another name, a
//! name stored twice, a span with two names.

use crate::hash::{self, NumberMap};
use crate::node::NodeId;
use crate::places::{Place, Places};

/// One worker's names.
#[derive(Default)]
pub(crate) struct Book {
    /// The nodes in which the worker holds something, each with the spans that it does *not* hold by their own name.
    pub holds: NumberMap<NodeId, u64>,
    /// Names that only this worker uses for a span.
    pub own: Places<u64>,
    /// How often beyond the first time a name was stored.
    pub twice: NumberMap<u64, u32>,
    /// How many names beyond the first a span has.
    pub twins: NumberMap<Place, u32>,
    /// Bytes of the book when they were last counted.
    pub weighed: usize,
}

impl Book {
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    pub fn bytes(&self) -> usize {
        size_of::<Book>()
            + hash::allocated(&self.holds)
            + self.own.allocated()
            + hash::allocated(&self.twice)
            + hash::allocated(&self.twins)
    }

    /// Whether the worker knows the span by a name of its own instead of the span's.
    pub fn is_own(&self, place: Place) -> bool {
        !self.own.is_empty() && self.own_bits(place.node()) >> place.offset() & 1 == 1
    }

    pub fn own_bits(&self, node: NodeId) -> u64 {
        self.holds.get(&node).copied().unwrap_or(0)
    }

    /// Notes whether the worker knows a span by a name of its own.
    pub fn set_own(&mut self, place: Place, knows: Knows) {
        let bits = self.holds.entry(place.node()).or_insert(0);
        match knows {
            Knows::OwnName => *bits |= 1 << place.offset(),
            Knows::SharedName => *bits &= !(1 << place.offset()),
        }
    }

    /// Where a name of the worker's own points.
    pub fn own_place(&self, name: u64) -> Option<Place> {
        self.own.find(name, |_, key| key == name)
    }

    /// Takes one extra count off a name; false where it had none.
    pub fn take_twice(&mut self, name: u64) -> bool {
        take_one(&mut self.twice, name)
    }

    /// Takes one extra name off a span; false where it had none.
    pub fn take_twin(&mut self, place: Place) -> bool {
        take_one(&mut self.twins, place)
    }

    /// Notes what the worker still holds of a node.
    pub fn keep(&mut self, node: NodeId, left: u64) {
        if left == 0 {
            self.holds.remove(&node);
            hash::shrink(&mut self.holds);
        } else if let Some(own) = self.holds.get_mut(&node) {
            *own &= left;
        }
    }
}

/// By which name a worker knows a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knows {
    /// By one that only it uses.
    OwnName,
    /// By the one that lies beside the span.
    SharedName,
}

fn take_one<K: Eq + std::hash::Hash>(counts: &mut NumberMap<K, u32>, key: K) -> bool {
    if counts.is_empty() {
        return false;
    }
    let Some(count) = counts.get_mut(&key) else { return false };
    *count -= 1;
    if *count == 0 {
        counts.remove(&key);
        hash::shrink(counts);
    }
    true
}
