//! A snapshot of the presumed spans, taken from one index and restored into another.
//!
//! A snapshot is a list of uses, oldest first: holder, chain, age. Chains share their beginnings, so they are stored
//! as segments that continue one another, as in the tree. Restored uses obey the index's own rules: capacity, time to
//! live and budget. A snapshot contains digests only. Without the seed they reveal nothing about the text.

use std::collections::BTreeMap;

use warmroute_types::{Micros, Packed, WorkerId};

use crate::body::SPANS_MAX;
use crate::holder_id::HolderId;
use crate::node::{NodeRef, Serial};
use crate::span::Size;
use crate::tree::PinnedTree;

/// Most spans of one chain. It bounds the cost of one use; no prompt is that long.
const CHAIN_SPANS_MAX: u32 = 1 << 16;

/// Encoded bytes of the smallest segment, and of a use.
const SEGMENT_BYTES_MIN: usize = 20;
const USE_BYTES: usize = 15;

/// Bytes that a use takes, and a segment beside its spans, in any encoding.
const WRITTEN_BYTES: usize = 24;

/// The presumed spans of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    segments: Vec<Segment>,
    digests: Vec<u64>,
    sizes: Vec<Size>,
    uses: Vec<SnapshotUse>,
    /// The indices of each holder's uses, in order.
    by_holder: BTreeMap<HolderId, Vec<u32>>,
}

/// The most recently used presumed spans, within a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundedSnapshot {
    /// The spans.
    pub snapshot: Snapshot,
    /// Whether older uses were left out.
    pub is_truncated: bool,
}

/// Up to 64 spans that continue a root or another segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    before: SegmentParent,
    /// The index of its first span in `digests` and `sizes`.
    first: u32,
    len: u8,
    /// How many spans precede the segment in its chain.
    depth: u32,
}

/// The predecessor of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentParent {
    /// None: the segment begins a prompt in the namespace with this key.
    Root(u64),
    /// An earlier segment, and how many of its spans precede.
    Segment(u32, u8),
}

/// One answered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotUse {
    pub holder: HolderId,
    /// The last segment of its chain.
    pub segment: u32,
    /// How many spans of that segment it used.
    pub end: u8,
    /// The time between the use and the snapshot.
    pub age: Micros,
}

/// The bytes do not encode a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the encoded cache snapshot is malformed")]
pub struct BadSnapshot;

/// A snapshot in progress. Uses are added newest first.
pub(crate) struct SnapshotBuilder {
    snapshot: Snapshot,
    /// Encoded bytes that the snapshot may still grow by.
    room: usize,
    is_truncated: bool,
    /// The segment of each node.
    known: BTreeMap<Serial, u32>,
}

impl SnapshotBuilder {
    pub fn new(bytes_max: usize) -> SnapshotBuilder {
        SnapshotBuilder {
            snapshot: Snapshot::default(),
            room: bytes_max,
            is_truncated: false,
            known: BTreeMap::new(),
        }
    }

    /// Whether another use may be added. Notes that uses were left out where none may.
    pub fn has_room(&mut self) -> bool {
        self.is_truncated |= self.room == 0;
        self.room > 0
    }

    /// Adds a use that ends in a node after `end` of its spans.
    pub fn add(
        &mut self,
        tree: &PinnedTree<'_, '_>,
        holder: HolderId,
        leaf: NodeRef<'_>,
        end: usize,
        age: Micros,
    ) {
        let mut path = vec![(leaf, end)];
        let mut node = leaf;
        while let Some(parent) = tree.parent(node) {
            path.push((parent, node.at as usize));
            node = parent;
        }
        path.pop();
        let mut before = SegmentParent::Root(node.digest);
        for &(node, end) in path.iter().rev() {
            before = SegmentParent::Segment(self.segment(before, node, end), end as u8);
        }
        if let SegmentParent::Segment(segment, end) = before {
            self.snapshot.uses.push(SnapshotUse { holder, segment, end, age });
            self.room = self.room.saturating_sub(WRITTEN_BYTES);
        }
    }

    /// The segment of a node. A node that changed since it was added, as far as this use goes, gets a new segment.
    fn segment(&mut self, before: SegmentParent, node: NodeRef<'_>, end: usize) -> u32 {
        let body = node.body();
        let digests = body.digests(body.len());
        let is_same = |&&number: &&u32| {
            let known = self.snapshot.digests_of(self.snapshot.segments[number as usize]);
            known.get(..end) == digests.get(..end)
        };
        if let Some(&number) = self.known.get(&node.serial).filter(is_same) {
            return number;
        }
        let sizes = body.sizes(digests.len());
        let sizes: Vec<Size> = (0..digests.len()).map(|at| sizes.at(at)).collect();
        let span_bytes = if are_even(&sizes) { 8 } else { 16 };
        self.room = self.room.saturating_sub(WRITTEN_BYTES + span_bytes * sizes.len());
        let number = self.snapshot.push(before, digests, &sizes);
        self.known.insert(node.serial, number);
        number
    }

    /// The finished snapshot.
    pub fn finish(mut self) -> BoundedSnapshot {
        self.snapshot.uses.reverse();
        self.snapshot.sort();
        BoundedSnapshot { snapshot: self.snapshot, is_truncated: self.is_truncated }
    }
}

impl Snapshot {
    /// Number of uses.
    pub fn uses(&self) -> usize {
        self.uses.len()
    }

    /// Number of spans.
    pub fn spans(&self) -> usize {
        self.digests.len()
    }

    /// The workers whose uses it contains, in ascending order. Presumed spans have one holder for each worker.
    pub fn workers(&self) -> impl Iterator<Item = WorkerId> {
        self.by_holder.keys().map(|holder| WorkerId(holder.0))
    }

    /// A holder's uses, oldest first.
    pub(crate) fn uses_of(&self, holder: HolderId) -> impl Iterator<Item = SnapshotUse> {
        let indices = self.by_holder.get(&holder).map_or(&[][..], Vec::as_slice);
        indices.iter().map(|&index| self.uses[index as usize])
    }

    /// Writes a use's chain to the buffers, from its root on. Returns the root's key.
    pub(crate) fn chain(&self, used: SnapshotUse, digests: &mut Vec<u64>, sizes: &mut Vec<Size>) -> u64 {
        let (mut parts, mut before) = (Vec::new(), SegmentParent::Segment(used.segment, used.end));
        while let SegmentParent::Segment(number, end) = before {
            let segment = self.segments[number as usize];
            parts.push((segment.first as usize, usize::from(end)));
            before = segment.before;
        }
        digests.clear();
        sizes.clear();
        for (first, len) in parts.into_iter().rev() {
            digests.extend_from_slice(&self.digests[first..first + len]);
            sizes.extend_from_slice(&self.sizes[first..first + len]);
        }
        match before {
            SegmentParent::Root(key) => key,
            SegmentParent::Segment(..) => 0,
        }
    }

    fn digests_of(&self, segment: Segment) -> &[u64] {
        &self.digests[segment.first as usize..][..usize::from(segment.len)]
    }

    fn sizes_of(&self, segment: Segment) -> &[Size] {
        &self.sizes[segment.first as usize..][..usize::from(segment.len)]
    }

    fn push(&mut self, before: SegmentParent, digests: &[u64], sizes: &[Size]) -> u32 {
        let depth = match before {
            SegmentParent::Root(_) => 0,
            SegmentParent::Segment(number, end) => self.segments[number as usize].depth + u32::from(end),
        };
        let (first, len) = (self.digests.len() as u32, digests.len() as u8);
        self.digests.extend_from_slice(digests);
        self.sizes.extend_from_slice(sizes);
        self.segments.push(Segment { before, first, len, depth });
        self.segments.len() as u32 - 1
    }

    /// `None` where the chain would be longer than [`CHAIN_SPANS_MAX`].
    fn push_bounded(&mut self, before: SegmentParent, digests: &[u64], sizes: &[Size]) -> Option<()> {
        let number = self.push(before, digests, sizes);
        let depth = self.segments[number as usize].depth;
        (depth + digests.len() as u32 <= CHAIN_SPANS_MAX).then_some(())
    }

    fn sort(&mut self) {
        for (index, used) in (0..).zip(&self.uses) {
            self.by_holder.entry(used.holder).or_default().push(index);
        }
    }

    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.segments.len() as u32).to_le_bytes());
        self.segments.iter().for_each(|&segment| self.encode_segment(segment, out));
        out.extend_from_slice(&(self.uses.len() as u32).to_le_bytes());
        for used in &self.uses {
            out.extend_from_slice(&used.holder.0.to_le_bytes());
            out.extend_from_slice(&used.segment.to_le_bytes());
            out.push(used.end);
            out.extend_from_slice(&used.age.0.to_le_bytes());
        }
    }

    fn encode_segment(&self, segment: Segment, out: &mut Vec<u8>) {
        match segment.before {
            SegmentParent::Root(key) => {
                out.push(0);
                out.extend_from_slice(&key.to_le_bytes());
            }
            SegmentParent::Segment(number, end) => {
                out.push(end);
                out.extend_from_slice(&u64::from(number).to_le_bytes());
            }
        }
        let sizes = self.sizes_of(segment);
        // Chunks mostly have one size.
        let is_even = are_even(sizes);
        out.extend_from_slice(&[segment.len, u8::from(is_even)]);
        let written = if is_even { &sizes[..sizes.len().min(1)] } else { sizes };
        written.iter().for_each(|size| out.extend_from_slice(&size.0.to_le_bytes()));
        self.digests_of(segment).iter().for_each(|digest| out.extend_from_slice(&digest.to_le_bytes()));
    }

    /// Decodes what [`Snapshot::encode`] wrote. For any input, memory stays within a few times the input's length.
    pub fn decode(bytes: &mut Packed<'_>) -> Result<Snapshot, BadSnapshot> {
        Snapshot::read(bytes).ok_or(BadSnapshot)
    }

    fn read(bytes: &mut Packed<'_>) -> Option<Snapshot> {
        let mut snapshot = Snapshot::default();
        let (mut digests, mut sizes) = (Vec::new(), Vec::new());
        for _ in 0..bytes.count(SEGMENT_BYTES_MIN)? {
            let before = snapshot.read_before(bytes)?;
            read_spans(bytes, &mut digests, &mut sizes)?;
            snapshot.push_bounded(before, &digests, &sizes)?;
        }
        for _ in 0..bytes.count(USE_BYTES)? {
            let (holder, segment, end) = (HolderId(bytes.u16()?), bytes.u32()?, bytes.u8()?);
            let age = Micros(bytes.u64()?);
            snapshot.expect(segment, end)?;
            snapshot.uses.push(SnapshotUse { holder, segment, end, age });
        }
        snapshot.sort();
        Some(snapshot)
    }

    fn read_before(&self, bytes: &mut Packed<'_>) -> Option<SegmentParent> {
        let (end, number) = (bytes.u8()?, bytes.u64()?);
        if end == 0 {
            return Some(SegmentParent::Root(number));
        }
        let number = u32::try_from(number).ok()?;
        self.expect(number, end)?;
        Some(SegmentParent::Segment(number, end))
    }

    /// Checks that the segment exists and has at least `end` spans, and that `end` is not zero.
    fn expect(&self, number: u32, end: u8) -> Option<()> {
        let segment = self.segments.get(number as usize)?;
        (1..=segment.len).contains(&end).then_some(())
    }
}

fn are_even(sizes: &[Size]) -> bool {
    sizes.windows(2).all(|pair| pair[0] == pair[1])
}

fn read_spans(bytes: &mut Packed<'_>, digests: &mut Vec<u64>, sizes: &mut Vec<Size>) -> Option<()> {
    let (len, is_even) = (usize::from(bytes.u8()?), bytes.u8()?);
    if !(1..=SPANS_MAX).contains(&len) || is_even > 1 {
        return None;
    }
    let mut size = || bytes.u32().map(Size).filter(|size| size.bytes() > 0);
    sizes.clear();
    match is_even {
        1 => sizes.resize(len, size()?),
        _ => {
            for _ in 0..len {
                sizes.push(size()?);
            }
            // The encoding lists sizes only where they differ.
            if are_even(sizes) {
                return None;
            }
        }
    }
    digests.clear();
    for _ in 0..len {
        digests.push(bytes.u64()?);
    }
    Some(())
}
