//! What is presumed, taken out of the index to be brought into another one later.
//!
//! It is a list of uses, oldest first: which worker, which chain, how long ago. Chains share their heads, so they are kept as
//! segments that continue one another, as the tree keeps them. Uses that are brought back go through the tree's own laws, so capacity,
//! time to live and budget hold for them as for others. Digests only; whoever has no seed learns nothing from them.

use std::collections::BTreeMap;

use warmroute_types::{Micros, Packed};

use crate::body::SPANS_MAX;
use crate::node::{NodeRef, Serial};
use crate::span::{Size, Span};
use crate::tree::Tree;

/// A chain of more spans than this is nobody's prompt. It bounds what one use can cost.
const CHAIN_SPANS_MAX: u32 = 1 << 16;

/// Bytes of the smallest segment and of a use, written down.
const SEGMENT_BYTES_MIN: usize = 20;
const USE_BYTES: usize = 15;

/// Bytes that a use takes, and a segment beside its spans, however it is written down.
const WRITTEN_BYTES: usize = 24;

/// What is presumed, apart from its index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    segments: Vec<Segment>,
    digests: Vec<u64>,
    sizes: Vec<Size>,
    uses: Vec<Used>,
    /// Which uses are a worker's, in order.
    by_worker: BTreeMap<u16, Vec<u32>>,
}

/// What was used last, apart from its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    /// It.
    pub snapshot: Snapshot,
    /// Whether there was more.
    pub is_cut: bool,
}

/// Up to 64 spans that continue a root or another segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    before: Before,
    /// Where its spans begin among all.
    first: u32,
    len: u8,
    /// How many spans come before it in its chain.
    depth: u32,
}

/// What a segment continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing: it begins a prompt in the namespace with this key.
    Root(u64),
    /// The first so many spans of an earlier segment.
    Segment(u32, u8),
}

/// One answered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The worker's number.
    pub worker: u16,
    /// It used the first so many spans of this segment, and all before it.
    pub segment: u32,
    /// How many.
    pub end: u8,
    /// How long before the snapshot was taken.
    pub age: Micros,
}

/// Bytes that are no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what caches hold is not written as it should be")]
pub struct BadSnapshot;

/// One that is being taken, the last use first.
pub(crate) struct Taking {
    snapshot: Snapshot,
    /// Bytes that it may still take to write down.
    room: usize,
    is_cut: bool,
    /// The segment that each node has become.
    known: BTreeMap<Serial, u32>,
}

impl Taking {
    pub fn new(bytes_max: usize) -> Taking {
        Taking { snapshot: Snapshot::default(), room: bytes_max, is_cut: false, known: BTreeMap::new() }
    }

    /// Whether another use may be added; one that may not is left out.
    pub fn has_room(&mut self) -> bool {
        self.is_cut |= self.room == 0;
        self.room > 0
    }

    /// Adds a use that ends in a node after so many of its spans.
    pub fn add(&mut self, tree: &Tree, worker: u16, leaf: NodeRef, end: usize, age: Micros) {
        let mut path = vec![(leaf, end)];
        let mut node = leaf;
        while let Some(parent) = tree.ledger(node).parent {
            path.push((parent, node.at as usize));
            node = parent;
        }
        path.pop();
        let mut before = Before::Root(node.digest);
        for &(node, end) in path.iter().rev() {
            before = Before::Segment(self.segment(before, node, end), end as u8);
        }
        if let Before::Segment(segment, end) = before {
            self.snapshot.uses.push(Used { worker, segment, end, age });
            self.room = self.room.saturating_sub(WRITTEN_BYTES);
        }
    }

    /// The segment of a node. One that has changed since it was taken, as far as that matters here, is taken anew.
    fn segment(&mut self, before: Before, node: NodeRef, end: usize) -> u32 {
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

    /// All of it. Workers inside the index are seats; outside they have numbers.
    pub fn finish(mut self, number_of: impl Fn(u16) -> u16) -> Newest {
        self.snapshot.uses.iter_mut().for_each(|one| one.worker = number_of(one.worker));
        self.snapshot.uses.reverse();
        self.snapshot.sort();
        Newest { snapshot: self.snapshot, is_cut: self.is_cut }
    }
}

impl Snapshot {
    /// How many requests are remembered.
    pub fn uses(&self) -> usize {
        self.uses.len()
    }

    /// How many spans.
    pub fn spans(&self) -> usize {
        self.digests.len()
    }

    /// All segments, each after those that it continues.
    pub fn segments(&self) -> impl Iterator<Item = (Before, Vec<Span>)> {
        self.segments.iter().map(|&segment| {
            let spans = self.digests_of(segment).iter().zip(self.sizes_of(segment));
            let span = |(&digest, size): (&u64, &Size)| Span::of(digest, *size);
            (segment.before, spans.map(span).collect())
        })
    }

    /// All uses, oldest first.
    pub fn used(&self) -> &[Used] {
        &self.uses
    }

    /// Adds a segment that continues nothing or an earlier one.
    pub fn add_segment(&mut self, before: Before, spans: &[Span]) -> Result<(), BadSnapshot> {
        if let Before::Segment(number, end) = before {
            self.expect(number, end).ok_or(BadSnapshot)?;
        }
        let sizes: Option<Vec<Size>> = spans.iter().map(Span::size).collect();
        let is_sane = (1..=SPANS_MAX).contains(&spans.len());
        let sizes = sizes.filter(|_| is_sane).ok_or(BadSnapshot)?;
        let digests: Vec<u64> = spans.iter().map(|span| span.digest).collect();
        self.push_bounded(before, &digests, &sizes).ok_or(BadSnapshot)
    }

    /// Adds a use, after those that are older.
    pub fn add_use(&mut self, one: Used) -> Result<(), BadSnapshot> {
        self.expect(one.segment, one.end).ok_or(BadSnapshot)?;
        self.by_worker.entry(one.worker).or_default().push(self.uses.len() as u32);
        self.uses.push(one);
        Ok(())
    }

    /// A worker's uses, oldest first.
    pub(crate) fn uses_of(&self, worker: u16) -> impl Iterator<Item = Used> {
        let places = self.by_worker.get(&worker).map_or(&[][..], Vec::as_slice);
        places.iter().map(|&place| self.uses[place as usize])
    }

    /// A use's chain, from its root on; returns the root's key.
    pub(crate) fn chain(&self, one: Used, digests: &mut Vec<u64>, sizes: &mut Vec<Size>) -> u64 {
        let (mut parts, mut before) = (Vec::new(), Before::Segment(one.segment, one.end));
        while let Before::Segment(number, end) = before {
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
            Before::Root(key) => key,
            Before::Segment(..) => 0,
        }
    }

    fn digests_of(&self, segment: Segment) -> &[u64] {
        &self.digests[segment.first as usize..][..usize::from(segment.len)]
    }

    fn sizes_of(&self, segment: Segment) -> &[Size] {
        &self.sizes[segment.first as usize..][..usize::from(segment.len)]
    }

    fn push(&mut self, before: Before, digests: &[u64], sizes: &[Size]) -> u32 {
        let depth = match before {
            Before::Root(_) => 0,
            Before::Segment(number, end) => self.segments[number as usize].depth + u32::from(end),
        };
        let (first, len) = (self.digests.len() as u32, digests.len() as u8);
        self.digests.extend_from_slice(digests);
        self.sizes.extend_from_slice(sizes);
        self.segments.push(Segment { before, first, len, depth });
        self.segments.len() as u32 - 1
    }

    /// Nothing where the chain would be longer than any prompt.
    fn push_bounded(&mut self, before: Before, digests: &[u64], sizes: &[Size]) -> Option<()> {
        let number = self.push(before, digests, sizes);
        let depth = self.segments[number as usize].depth;
        (depth + digests.len() as u32 <= CHAIN_SPANS_MAX).then_some(())
    }

    fn sort(&mut self) {
        for (place, one) in (0..).zip(&self.uses) {
            self.by_worker.entry(one.worker).or_default().push(place);
        }
    }

    /// Writes it down.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.segments.len() as u32).to_le_bytes());
        self.segments.iter().for_each(|&segment| self.encode_segment(segment, out));
        out.extend_from_slice(&(self.uses.len() as u32).to_le_bytes());
        for one in &self.uses {
            out.extend_from_slice(&one.worker.to_le_bytes());
            out.extend_from_slice(&one.segment.to_le_bytes());
            out.push(one.end);
            out.extend_from_slice(&one.age.0.to_le_bytes());
        }
    }

    fn encode_segment(&self, segment: Segment, out: &mut Vec<u8>) {
        match segment.before {
            Before::Root(key) => {
                out.push(0);
                out.extend_from_slice(&key.to_le_bytes());
            }
            Before::Segment(number, end) => {
                out.push(end);
                out.extend_from_slice(&u64::from(number).to_le_bytes());
            }
        }
        let sizes = self.sizes_of(segment);
        // Chunks are all of one size, most of the time.
        let is_even = are_even(sizes);
        out.extend_from_slice(&[segment.len, u8::from(is_even)]);
        let written = if is_even { &sizes[..sizes.len().min(1)] } else { sizes };
        written.iter().for_each(|size| out.extend_from_slice(&size.0.to_le_bytes()));
        self.digests_of(segment).iter().for_each(|digest| out.extend_from_slice(&digest.to_le_bytes()));
    }

    /// Reads what [`Snapshot::encode`] wrote. Whatever the bytes are, this takes no more memory than a few times their number.
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
            let (worker, segment, end) = (bytes.u16()?, bytes.u32()?, bytes.u8()?);
            let age = Micros(bytes.u64()?);
            snapshot.add_use(Used { worker, segment, end, age }).ok()?;
        }
        Some(snapshot)
    }

    fn read_before(&self, bytes: &mut Packed<'_>) -> Option<Before> {
        let (end, number) = (bytes.u8()?, bytes.u64()?);
        if end == 0 {
            return Some(Before::Root(number));
        }
        let number = u32::try_from(number).ok()?;
        self.expect(number, end)?;
        Some(Before::Segment(number, end))
    }

    /// That there is such a segment, with at least so many spans, and not none.
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
            // Written at length only where they differ.
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
