//! The lookup: a walk down the tree, without a lock, as far as the prompt and the caches agree.
//!
//! There are two forms. A prompt cut into fixed chunks is a chain of digests, compared in sequence. A prompt matched
//! against engines' blocks is bytes: each node gives the length of its next span, and the walk digests that many
//! bytes. Several paths may be open at once there (engines with other block sizes, text split in other ways); a
//! lookup follows at most [`PATHS_MAX`].
//!
//! A lookup that runs during a write sees each node before or after the change, never in between.

use crate::body::{Body, SPANS_MAX};
use crate::children::Children;
use crate::digest::Digester;
use crate::holder_bits::{HolderBits, WORDS_MAX};
use crate::live_set::{LiveSet, PathCount};
use crate::node::{NodeRef, Pinned};
use crate::operation::Prompt;
use crate::overlap::Overlaps;
use crate::span::common;
use crate::trail::TrailPlace;

/// Most paths followed at once.
const PATHS_MAX: usize = 4;

/// The data that a lookup reads.
#[derive(Clone, Copy)]
pub(crate) struct LookupContext<'a> {
    pub children: &'a Children,
    pub digester: &'a Digester,
    pub holder_bits: &'a HolderBits,
    pub pinned: Pinned<'a>,
}

impl LookupContext<'_> {
    /// Looks a prompt up, with the smallest live set that has room for all positions in use.
    pub fn lookup(self, root: u64, prompt: Prompt<'_>, out: &mut Overlaps) {
        match self.holder_bits.words() {
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

/// Looks up a chain of chunk digests.
fn chunks<const N: usize>(context: LookupContext<'_>, root: u64, digests: &[u64], out: &mut Overlaps) {
    let children = context.children;
    let Some(&first) = digests.first() else { return };
    let Some(root) = children.find(0, 0, root, context.pinned) else { return };
    let mut next = children.find(root.serial, 0, first, context.pinned);
    let mut live_set = LiveSet::<N>::new(context.holder_bits, PathCount::One);
    let mut rest = digests;
    let mut reach = root.start;
    while let Some(node) = next {
        let body = node.body();
        let len = body.len();
        // A node mostly matches to its end. Its probable child is prefetched during the comparison.
        if let Some(follower) = rest.get(len).and_then(|&digest| probable(node, len, digest)) {
            follower.prefetch();
        }
        let matched = common(body.digests(len), rest);
        live_set.pass(&node, body, matched, out);
        if live_set.is_empty() {
            return;
        }
        reach = body.reach(node.start, matched);
        rest = &rest[matched..];
        next = rest.first().and_then(|&digest| continuation(children, node, matched, digest));
        if next.is_none() {
            out.end_path(reach, matched < len || node.next().is_some());
        }
    }
    live_set.end(reach, out);
}

/// The probable next child, if it begins with this digest after the first `at` spans.
#[inline]
fn probable(node: NodeRef<'_>, at: usize, digest: u64) -> Option<NodeRef<'_>> {
    node.next().filter(|next| next.continues(node.serial, at, digest))
}

/// The child after the first `at` spans of a node that begins with this digest.
#[inline]
fn continuation<'g>(children: &Children, node: NodeRef<'g>, at: usize, digest: u64) -> Option<NodeRef<'g>> {
    // A node without children has no probable child.
    let find = |_| children.find(node.serial, at, digest, node.pinned());
    probable(node, at, digest).or_else(|| node.next().and_then(find))
}

/// A path that is not walked yet. The first span of `node` matches the prompt at byte `from`.
struct Path<'a, const N: usize> {
    node: NodeRef<'a>,
    from: usize,
    /// The same place on the trail.
    place: TrailPlace,
    live_set: LiveSet<'a, N>,
}

/// A lookup over bytes.
struct ByteWalk<'a, const N: usize> {
    context: LookupContext<'a>,
    prompt: &'a [u8],
    paths: [Option<Path<'a, N>>; PATHS_MAX],
    open: usize,
}

/// Looks up a prompt's bytes.
fn bytes<const N: usize>(context: LookupContext<'_>, root_key: u64, prompt: &[u8], out: &mut Overlaps) {
    let Some(root) = context.children.find(0, 0, root_key, context.pinned) else { return };
    let mut walk = ByteWalk { context, prompt, paths: [const { None }; PATHS_MAX], open: 0 };
    let live_set = LiveSet::<N>::new(context.holder_bits, PathCount::Many);
    out.trail.begin(root_key);
    walk.fork(root, root.body(), &[0], 0, &live_set, out);
    while let Some(path) = walk.next_path() {
        walk.follow(path, out);
    }
}

impl<'a, const N: usize> ByteWalk<'a, N> {
    /// Walks one node. Children that continue the prompt become new paths.
    fn follow(&mut self, path: Path<'a, N>, out: &mut Overlaps) {
        let Path { node, from, place, mut live_set } = path;
        let body = node.body();
        let mut ends = [from; SPANS_MAX + 1];
        let matched = self.compare(body, &mut ends);
        if out.trail.is_recording() {
            let (digests, sizes) = (body.digests(matched).iter().enumerate(), body.sizes(matched));
            let boundaries = digests.scan(node.start, |reach, (at, &digest)| {
                *reach = reach.plus(sizes.at(at), 1);
                Some((digest, *reach))
            });
            out.trail.enter(place, node.start.spans, boundaries);
        }
        let before = live_set.clone();
        live_set.pass(&node, body, matched, out);
        // Holders on a path that continues are reported where that path ends.
        if self.fork(node, body, &ends[..=matched], matched, &before, out) == Next::End {
            let reach = body.reach(node.start, matched);
            out.end_path(reach, matched < body.len() || node.next().is_some());
            live_set.end(reach, out);
        }
    }

    fn next_path(&mut self) -> Option<Path<'a, N>> {
        self.open = self.open.checked_sub(1)?;
        self.paths[self.open].take()
    }

    /// Compares a node's spans with the prompt. Returns how many match, and writes where each of them ends to `ends`.
    fn compare(&self, body: Body<'_>, ends: &mut [usize; SPANS_MAX + 1]) -> usize {
        let digests = body.digests(body.len());
        let sizes = body.sizes(digests.len());
        let mut from = ends[0];
        for (at, &digest) in digests.iter().enumerate() {
            let end = from + sizes.at(at).bytes() as usize;
            let Some(span) = self.prompt.get(from..end) else { return at };
            // The first span was digested to find the node.
            if at > 0 && self.context.digester.digest(span) != digest {
                return at;
            }
            from = end;
            ends[at + 1] = end;
        }
        digests.len()
    }

    /// Opens a path for each child that continues the matched part, with the holders that hold everything before it.
    fn fork(
        &mut self,
        node: NodeRef<'a>,
        body: Body<'_>,
        ends: &[usize],
        matched: usize,
        before: &LiveSet<'a, N>,
        out: &mut Overlaps,
    ) -> Next {
        let mut next = Next::End;
        let Some(child_lengths) = node.child_lengths() else { return next };
        for child in child_lengths.as_slice() {
            let (at, length) = (child.at as usize, child.bytes as usize);
            // A child of the same length would be the node's own span.
            let is_own = at < matched && body.size(at).bytes() == child.bytes;
            let Some(&from) = ends.get(at).filter(|_| !is_own) else { continue };
            let Some(span) = self.prompt.get(from..from + length) else { continue };
            let digest = self.context.digester.digest(span);
            if let Some(child) = self.context.children.find(node.serial, at, digest, node.pinned()) {
                let live_set = if at == 0 { before.clone() } else { before.restricted_to(body, at) };
                let is_open =
                    self.push_path(Path { node: child, from, place: out.trail.place(at), live_set }, out);
                next = if is_open && at == matched { Next::Child } else { next };
            }
        }
        next
    }

    /// Returns false where no holder is left on the path, or too many paths are open.
    fn push_path(&mut self, path: Path<'a, N>, out: &mut Overlaps) -> bool {
        if path.live_set.is_empty() {
            return false;
        }
        let Some(slot) = self.paths.get_mut(self.open) else {
            out.count_overflow();
            return false;
        };
        *slot = Some(path);
        self.open += 1;
        true
    }
}

/// Whether a child continues everything that was matched of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Child,
    End,
}
