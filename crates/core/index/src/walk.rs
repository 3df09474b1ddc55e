//! The lookup: down the tree, without a lock, as far as a prompt and the caches go together.
//!
//! Two forms over one structure. A prompt that was cut into fixed chunks comes as a chain of digests, compared in
//! sequence. A prompt that is matched against engines' blocks comes as bytes: each node says how long its next span
//! is, the walk digests that many bytes and compares. There several ways may be open at once (engines with other
//! block sizes, text split otherwise); at most [`WAYS_MAX`] are followed.
//!
//! A lookup that runs beside a write sees each node before or after it, never in between.

use crate::body::{Body, SPANS_MAX};
use crate::children::Children;
use crate::digest::Digester;
use crate::index::Prompt;
use crate::node::NodeRef;
use crate::overlap::Overlaps;
use crate::party::{Party, Ways};
use crate::seats::{Seats, WORDS_MAX};
use crate::span::common;

/// Ways followed at once.
const WAYS_MAX: usize = 4;

/// What a lookup reads.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub children: &'a Children,
    pub digester: &'a Digester,
    pub seats: &'a Seats,
}

impl Ground<'_> {
    /// Looks a prompt up, with the smallest set of workers that has room for all in use. The caller is pinned.
    pub fn lookup(self, root: u64, prompt: Prompt<'_>, out: &mut Overlaps) {
        match self.seats.words() {
            0..=1 => self.walk::<1>(root, prompt, out),
            2..=4 => self.walk::<4>(root, prompt, out),
            5..=16 => self.walk::<16>(root, prompt, out),
            17..=64 => self.walk::<64>(root, prompt, out),
            _ => self.walk::<WORDS_MAX>(root, prompt, out),
        }
    }

    fn walk<const N: usize>(self, root: u64, prompt: Prompt<'_>, out: &mut Overlaps) {
        match prompt {
            Prompt::Chunks(digests) => chunks::<N>(self, root, digests, out),
            Prompt::Bytes(text) => bytes::<N>(self, root, text, out),
        }
    }
}

/// Looks a chain of chunk digests up.
fn chunks<const N: usize>(ground: Ground<'_>, root: u64, digests: &[u64], out: &mut Overlaps) {
    let children = ground.children;
    let Some(&first) = digests.first() else { return };
    let Some(root) = children.find(0, 0, root) else { return };
    let mut next = children.find(root.serial, 0, first);
    let mut party = Party::<N>::new(ground.seats, Ways::One);
    let mut rest = digests;
    let mut reach = root.start;
    while let Some(node) = next {
        let body = node.body();
        let len = body.len();
        // If all of this node matches, as it mostly does, this one follows: it comes closer while we compare.
        if let Some(follower) = rest.get(len).and_then(|&digest| probable(node, len, digest)) {
            follower.prefetch();
        }
        let matched = common(body.digests(len), rest);
        party.pass(&node, body, matched, out);
        if party.is_over() {
            return;
        }
        reach = body.reach(node.start, matched);
        rest = &rest[matched..];
        next = rest.first().and_then(|&digest| continuation(children, node, matched, digest));
    }
    party.end(reach, out);
}

/// The child that probably comes next, if it begins with this digest after the first `at` spans.
#[inline]
fn probable(node: NodeRef, at: usize, digest: u64) -> Option<NodeRef> {
    node.next().filter(|next| next.continues(node.serial, at, digest))
}

/// The child after the first `at` spans of a node that begins with this digest.
#[inline]
fn continuation(children: &Children, node: NodeRef, at: usize, digest: u64) -> Option<NodeRef> {
    // A node without any child has no probable one either.
    probable(node, at, digest).or_else(|| node.next().and_then(|_| children.find(node.serial, at, digest)))
}

/// A way down the tree that is still to be walked. Its node's first span matches the prompt at `from`.
struct Way<'a, const N: usize> {
    node: NodeRef,
    from: usize,
    party: Party<'a, N>,
}

/// A walk over bytes.
struct Reading<'a, const N: usize> {
    ground: Ground<'a>,
    prompt: &'a [u8],
    ways: [Option<Way<'a, N>>; WAYS_MAX],
    open: usize,
}

/// Looks a prompt's bytes up.
fn bytes<const N: usize>(ground: Ground<'_>, root: u64, prompt: &[u8], out: &mut Overlaps) {
    let Some(root) = ground.children.find(0, 0, root) else { return };
    let mut reading = Reading { ground, prompt, ways: [const { None }; WAYS_MAX], open: 0 };
    let party = Party::<N>::new(ground.seats, Ways::Many);
    reading.fork(root, root.body(), &[0], 0, &party, out);
    while let Some(way) = reading.take_up() {
        reading.follow(way, out);
    }
}

impl<'a, const N: usize> Reading<'a, N> {
    /// Walks one way to its end. Where it forks, the other ways are put aside.
    fn follow(&mut self, way: Way<'a, N>, out: &mut Overlaps) {
        let Way { node, from, mut party } = way;
        let body = node.body();
        let mut ends = [from; SPANS_MAX + 1];
        let matched = self.compare(body, &mut ends);
        let before = party.clone();
        party.pass(&node, body, matched, out);
        // Whoever goes on is reported where its way ends.
        if self.fork(node, body, &ends[..=matched], matched, &before, out) == Goes::NoFurther {
            party.end(body.reach(node.start, matched), out);
        }
    }

    fn take_up(&mut self) -> Option<Way<'a, N>> {
        self.open = self.open.checked_sub(1)?;
        self.ways[self.open].take()
    }

    /// Compares a node's spans with the prompt: how many match, and where in the prompt each ends.
    fn compare(&self, body: Body<'_>, ends: &mut [usize; SPANS_MAX + 1]) -> usize {
        let digests = body.digests(body.len());
        let sizes = body.sizes(digests.len());
        let mut from = ends[0];
        for (at, &digest) in digests.iter().enumerate() {
            let end = from + sizes.at(at).bytes() as usize;
            let Some(span) = self.prompt.get(from..end) else { return at };
            // The first span was digested to find the node.
            if at > 0 && self.ground.digester.digest(span) != digest {
                return at;
            }
            from = end;
            ends[at + 1] = end;
        }
        digests.len()
    }

    /// Puts the children aside that continue the prompt where it was matched, each with those who get that far.
    fn fork(
        &mut self,
        node: NodeRef,
        body: Body<'_>,
        ends: &[usize],
        matched: usize,
        before: &Party<'a, N>,
        out: &mut Overlaps,
    ) -> Goes {
        let mut goes = Goes::NoFurther;
        let Some(fan) = node.fan() else { return goes };
        for twig in fan.twigs() {
            let (at, length) = (twig.at as usize, twig.bytes as usize);
            // A child as long as the span that the node itself has there would be that span.
            let is_own = at < matched && body.size(at).bytes() == twig.bytes;
            let Some(&from) = ends.get(at).filter(|_| !is_own) else { continue };
            let Some(span) = self.prompt.get(from..from + length) else { continue };
            if let Some(child) = self.ground.children.find(node.serial, at, self.ground.digester.digest(span))
            {
                let party = if at == 0 { before.clone() } else { before.glance(body, at) };
                let is_open = self.put_aside(Way { node: child, from, party }, out);
                goes = if is_open && at == matched { Goes::On } else { goes };
            }
        }
        goes
    }

    /// False where nobody is left on that way, or too many ways are open.
    fn put_aside(&mut self, way: Way<'a, N>, out: &mut Overlaps) -> bool {
        if way.party.is_over() {
            return false;
        }
        let Some(seat) = self.ways.get_mut(self.open) else {
            out.count_overflow();
            return false;
        };
        *seat = Some(way);
        self.open += 1;
        true
    }
}

/// Whether all that was matched of a node is continued by a child.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    On,
    NoFurther,
}
