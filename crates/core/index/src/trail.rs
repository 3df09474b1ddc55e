//! The trail of a lookup: the boundaries that it passed, for callers that know more about a cache than the tree does.
//!
//! A holder's overlap says how far its chain of blocks reaches. An engine with several caches can continue the prompt
//! only at some of the boundaries before that. Each boundary has a key that depends on everything from the root to it,
//! so the caller can keep what it knows by key. Boundaries point to the one before them, because a lookup of bytes
//! may follow several paths.

use crate::root::RootKey;
use crate::span::Reach;

/// Whether a lookup records its trail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// It does not, which costs nothing.
    #[default]
    Off,
    /// It does, for prompts of bytes.
    On,
}

/// Identifies everything from the root to a boundary between spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoundaryKey(u64);

impl BoundaryKey {
    /// The key of a root: nothing of a prompt.
    pub fn of_root(root: RootKey) -> BoundaryKey {
        BoundaryKey(root.to_bits())
    }

    /// The key after one more span. Multiplications spread the bits; digests are hashes already.
    #[must_use]
    pub fn after(self, digest: u64) -> BoundaryKey {
        let mixed = u128::from(self.0 ^ 0x9e37_79b9_7f4a_7c15) * u128::from(digest ^ 0xd6e8_feb8_6659_fd93);
        BoundaryKey((mixed as u64 ^ (mixed >> 64) as u64).wrapping_add(self.0.rotate_left(23)))
    }

    /// The key as a number.
    pub fn to_bits(self) -> u64 {
        self.0
    }
}

/// A place on a trail; `None` at the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrailPlace(Option<u32>);

/// A boundary that a lookup passed.
#[derive(Clone, Copy, Debug)]
pub struct Boundary {
    /// Its key.
    pub key: BoundaryKey,
    /// Its distance from the root.
    pub reach: Reach,
    /// The boundary before it.
    pub before: TrailPlace,
}

/// All boundaries of one lookup.
#[derive(Debug, Default)]
pub struct Trail {
    recording: Recording,
    boundaries: Vec<Boundary>,
    root: u64,
    here: Node,
}

/// The node that the lookup is in.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// Where the node begins.
    start: TrailPlace,
    start_spans: u32,
    /// Its first boundary.
    first: u32,
}

impl Trail {
    /// The boundary at a place; `None` at the root.
    pub fn at(&self, place: TrailPlace) -> Option<&Boundary> {
        self.boundaries.get(place.0? as usize)
    }

    pub(crate) fn set(&mut self, recording: Recording) {
        self.recording = recording;
    }

    pub(crate) fn begin(&mut self, root: u64) {
        self.boundaries.clear();
        self.root = root;
        self.here = Node::default();
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.recording == Recording::On
    }

    /// Records the boundaries after the matched spans of a node that begins at `start`.
    pub(crate) fn enter(
        &mut self,
        start: TrailPlace,
        start_spans: u32,
        matched: impl Iterator<Item = (u64, Reach)>,
    ) {
        self.here = Node { start, start_spans, first: self.boundaries.len() as u32 };
        let mut key = self.at(start).map_or(BoundaryKey(self.root), |boundary| boundary.key);
        let mut before = start;
        for (digest, reach) in matched {
            key = key.after(digest);
            self.boundaries.push(Boundary { key, reach, before });
            before = TrailPlace(Some(self.boundaries.len() as u32 - 1));
        }
    }

    /// The place after the first `count` spans of the present node.
    pub(crate) fn place(&self, count: usize) -> TrailPlace {
        match count {
            0 => self.here.start,
            count => TrailPlace(Some(self.here.first + count as u32 - 1)),
        }
    }

    /// The place that a reach inside the present node leads to.
    pub(crate) fn place_of(&self, reach: Reach) -> TrailPlace {
        if !self.is_recording() {
            return TrailPlace::default();
        }
        self.place(reach.spans.saturating_sub(self.here.start_spans) as usize)
    }
}
