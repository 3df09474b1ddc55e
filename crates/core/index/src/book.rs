//! What one worker reported, beside what the tree says: under which names it holds its spans.
//!
//! In a fleet whose engines agree on hashes, everybody knows a span by the name that lies beside it in its node, and
//! this book holds one number per node. Only what differs costs more: a span known to this worker by another name, a
//! name stored twice, a span with two names.

use crate::hash::NumberMap;
use crate::node::NodeId;
use crate::places::{Place, Places};

/// One worker's names.
#[derive(Default)]
pub(crate) struct Book {
    /// The nodes in which the worker holds something, each with the spans that it does *not* hold by their own name.
    pub holds: NumberMap<NodeId, u64>,
    /// Names that only this worker uses for a span, to their places.
    pub own: Places,
    /// By node and offset: the name of each span that is known by a name of the worker's own.
    own_names: NumberMap<NodeId, Vec<u64>>,
    /// How often beyond the first time a name was stored.
    pub twice: NumberMap<u64, u32>,
    /// Further names of spans that have several.
    twins: NumberMap<Place, Vec<u64>>,
    /// Names that the lists have room for.
    listed: usize,
    /// Bytes of the book when they were last counted.
    pub weighed: usize,
}

impl Book {
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    pub fn bytes(&self) -> usize {
        size_of::<Book>()
            + self.holds.allocated()
            + self.own.allocated()
            + self.own_names.allocated()
            + self.twice.allocated()
            + self.twins.allocated()
            + self.listed * size_of::<u64>()
    }

    /// Whether the worker knows the span by a name of its own instead of the span's.
    pub fn is_own(&self, place: Place) -> bool {
        !self.own_names.is_empty() && self.own_bits(place.node()) >> place.offset() & 1 == 1
    }

    #[inline]
    pub fn own_bits(&self, node: NodeId) -> u64 {
        self.holds.get(&node).copied().unwrap_or(0)
    }

    /// Where a name of the worker's own points.
    #[inline]
    pub fn own_place(&self, name: u64) -> Option<Place> {
        if self.own.is_empty() {
            return None;
        }
        self.own.find(name, |place| {
            self.own_name(place) == Some(name)
                || self.twins.get(&place).is_some_and(|names| names.contains(&name))
        })
    }

    /// The name by which the worker knows a span, where it is one of its own.
    pub fn own_name(&self, place: Place) -> Option<u64> {
        let names = self.own_names.get(&place.node())?;
        self.is_own(place).then(|| names[place.offset()])
    }

    /// Notes that the worker knows these spans of a node by names of its own: `names` begin at offset `from`. They are
    /// in the table already.
    pub fn note_own(&mut self, node: NodeId, mut bits: u64, from: usize, names: &[u64]) {
        *self.holds.get_or_default(node) |= bits;
        let list = self.own_names.get_or_default(node);
        let before = list.capacity();
        let end = 64 - bits.leading_zeros() as usize;
        if list.len() < end {
            list.reserve_exact((from + names.len()).max(end) - list.len());
            list.resize(end, 0);
        }
        while bits != 0 {
            let offset = bits.trailing_zeros() as usize;
            list[offset] = names[offset - from];
            bits &= bits - 1;
        }
        self.listed += list.capacity() - before;
    }

    /// The worker comes to know a span that it did not hold by this name.
    pub fn learn(&mut self, place: Place, name: u64, knows: Knows) {
        let bit = 1 << place.offset();
        match knows {
            Knows::OwnName => {
                self.own.insert(name, place);
                self.note_own(place.node(), bit, place.offset(), &[name]);
            }
            Knows::SharedName => *self.holds.get_or_default(place.node()) &= !bit,
        }
    }

    /// The worker knows a span that it holds by one more name.
    pub fn learn_twin(&mut self, place: Place, name: u64, knows: Knows) {
        let twin = match knows {
            Knows::OwnName => {
                self.own.insert(name, place);
                name
            }
            // The span's own name comes first; that of the worker's own becomes the further one.
            Knows::SharedName => {
                let own = self.own_name(place).unwrap_or(name);
                *self.holds.get_or_default(place.node()) &= !(1 << place.offset());
                own
            }
        };
        let list = self.twins.get_or_default(place);
        let before = list.capacity();
        list.push(twin);
        self.listed += list.capacity() - before;
    }

    /// Takes a name off a span that the worker holds under it. False where that was its last name.
    pub fn unlearn(&mut self, place: Place, name: u64) -> bool {
        if !self.own.is_empty() {
            self.own.remove(name, |at| at == place);
        }
        let Some(twins) = self.twins.get_mut(&place) else { return false };
        let left = match twins.iter().position(|&twin| twin == name) {
            Some(at) => {
                twins.swap_remove(at);
                None
            }
            None => twins.pop(),
        };
        if twins.is_empty() {
            self.listed -= self.twins.remove(&place).map_or(0, |gone| gone.capacity());
        }
        if let Some(heir) = left {
            self.note_own(place.node(), 1 << place.offset(), place.offset(), &[heir]);
        }
        true
    }

    /// The names under which the worker holds a span, in order. `shared` is the one that lies beside it.
    pub fn names_of(&self, place: Place, shared: u64) -> Vec<u64> {
        let first = self.own_name(place).unwrap_or(shared);
        let mut names = self.twins.get(&place).cloned().unwrap_or_default();
        names.push(first);
        names.sort_unstable();
        names
    }

    /// Whether two workers that hold these spans of a node know each by the same one name.
    pub fn knows_alike(&self, other: &Book, node: NodeId, bits: u64) -> bool {
        let own = self.own_bits(node) & bits;
        let is_same = |offset: usize| {
            let place = Place::new(node, offset);
            own >> offset & 1 == 0 || self.own_name(place) == other.own_name(place)
        };
        !self.has_twins() && !other.has_twins() && other.own_bits(node) & bits == own && (0..64).all(is_same)
    }

    /// Takes one extra count off a name; false where it had none.
    pub fn take_twice(&mut self, name: u64) -> bool {
        if self.twice.is_empty() {
            return false;
        }
        let Some(count) = self.twice.get_mut(&name) else { return false };
        *count -= 1;
        if *count == 0 {
            self.twice.remove(&name);
        }
        true
    }

    pub fn has_twins(&self) -> bool {
        !self.twins.is_empty()
    }

    /// Forgets the names of these spans and their counts, but for those that lie beside them.
    pub fn forget(&mut self, node: NodeId, bits: u64) {
        let own = if self.own_names.is_empty() { 0 } else { self.own_bits(node) & bits };
        let mut left = if self.twins.is_empty() { own } else { bits };
        while left != 0 {
            let place = Place::new(node, left.trailing_zeros() as usize);
            let twins = self.twins.remove(&place).unwrap_or_default();
            self.listed -= twins.capacity();
            for name in twins.into_iter().chain(self.own_name(place)) {
                self.own.remove(name, |at| at == place);
                self.twice.remove(&name);
            }
            left &= left - 1;
        }
    }

    /// Notes what the worker still holds of a node.
    pub fn keep(&mut self, node: NodeId, left: u64) {
        if left == 0 {
            self.holds.remove(&node);
            if !self.own_names.is_empty() {
                self.listed -= self.own_names.remove(&node).map_or(0, |gone| gone.capacity());
            }
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
