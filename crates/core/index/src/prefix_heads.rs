//! The largest prefix heads: which beginnings of prompts most of the index continues, and who holds them.
//!
//! A head is the first node after a root. The survey walks up from evenly spaced nodes and counts for each head the
//! tokens that it meets below it, so its cost does not grow with the index: at most [`SAMPLES_MAX`] nodes and
//! [`STEPS_MAX`] steps, in pieces, and writers run in between. Of an index with more nodes the sizes are estimates.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam_epoch::pin;

use crate::body::Body;
use crate::holder_bits::HolderPosition;
use crate::node::{NodeId, NodeRef, Serial};
use crate::tree::{PinnedTree, Tree};

/// Nodes that a survey starts from.
const SAMPLES_MAX: usize = 2_048;

/// Steps towards a root in the whole survey, and while the lock is held once: a cache miss each.
const STEPS_MAX: usize = 16_384;
const STEPS_A_HOLD: usize = 512;

/// A head and what continues it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixHead {
    /// Digest of its first span.
    pub digest: u64,
    /// Tokens of the head itself.
    pub head_tokens: u32,
    /// Distinct tokens that begin with it, an estimate for a large index.
    pub tokens: u64,
    /// Prompts that branch off within or after it.
    pub branches: u32,
    /// Who holds some of the head, ascending.
    pub holders: Vec<crate::HolderId>,
}

/// A survey in progress.
#[derive(Default)]
pub(crate) struct HeadSurvey {
    /// The next id to start from, and the distance between two.
    next: usize,
    stride: usize,
    steps: usize,
    sampled: usize,
    /// The head of each node met so far.
    head_of: BTreeMap<Serial, Serial>,
    heads: BTreeMap<Serial, (NodeId, u64)>,
}

/// Whether a survey has more to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survey {
    Goes,
    Done,
}

impl HeadSurvey {
    /// Continues the survey for one hold of the lock.
    pub fn go_on(&mut self, tree: &mut Tree) -> Survey {
        let guard = pin();
        let (ids, tree) = (tree.id_end(), tree.pin(&guard));
        self.stride = (ids / SAMPLES_MAX).max(1);
        let (pause, stop) = (self.steps + STEPS_A_HOLD, self.steps >= STEPS_MAX);
        while self.next < ids && self.steps < pause && !stop {
            let node = tree.living(self.next as NodeId + 1);
            self.next += self.stride;
            self.steps += 1;
            node.into_iter().for_each(|node| self.count(&tree, node));
        }
        if self.next < ids && !stop { Survey::Goes } else { Survey::Done }
    }

    fn count(&mut self, tree: &PinnedTree<'_, '_>, node: NodeRef<'_>) {
        let body = node.body();
        let tokens = node.reach(body.len()).tokens - node.start.tokens;
        self.sampled += 1;
        if let Some((head, id)) = self.find_head(tree, node) {
            self.heads.entry(head).or_insert((id, 0)).1 += u64::from(tokens);
        }
    }

    /// The head above a node; none for a root, and where the steps are used up.
    fn find_head(&mut self, tree: &PinnedTree<'_, '_>, node: NodeRef<'_>) -> Option<(Serial, NodeId)> {
        let (mut at, mut passed) = (node, Vec::new());
        let head = loop {
            if let Some(&head) = self.head_of.get(&at.serial) {
                break head;
            }
            let parent = tree.parent(at)?;
            passed.push(at.serial);
            self.steps += 1;
            if parent.parent_serial == 0 {
                self.heads.entry(at.serial).or_insert((at.id, 0));
                break at.serial;
            }
            if self.steps >= STEPS_MAX {
                return None;
            }
            at = parent;
        };
        self.head_of.extend(passed.into_iter().map(|serial| (serial, head)));
        self.heads.get(&head).map(|&(id, _)| (head, id))
    }

    /// The largest heads that still exist, largest first. Holders are bit positions.
    pub fn finish(self, tree: &mut Tree, count_max: usize) -> Vec<(PrefixHead, Vec<HolderPosition>)> {
        let guard = pin();
        // Where the steps ran out, fewer nodes than planned stand for the whole.
        let weight = (tree.counts.nodes as f64 / self.sampled.max(1) as f64).max(1.0);
        let tree = tree.pin(&guard);
        let mut heads: Vec<_> = self.heads.into_iter().collect();
        heads.sort_unstable_by_key(|&(serial, (_, tokens))| (std::cmp::Reverse(tokens), serial));
        let living = heads.into_iter().filter_map(|(serial, (id, tokens))| {
            let node = tree.living(id).filter(|node| node.serial == serial)?;
            Some((node, (tokens as f64 * weight) as u64))
        });
        living.take(count_max).map(|(node, tokens)| describe(&tree, node, tokens)).collect()
    }
}

fn describe(tree: &PinnedTree<'_, '_>, node: NodeRef<'_>, tokens: u64) -> (PrefixHead, Vec<HolderPosition>) {
    let head_tokens = node.reach(node.body().len()).tokens;
    let head = PrefixHead {
        digest: node.digest,
        head_tokens,
        tokens: tokens.max(head_tokens.into()),
        branches: tree.meta(node).children,
        holders: Vec::new(),
    };
    (head, positions(node.body()))
}

/// Bit positions of all holders of a body's spans.
fn positions(body: Body<'_>) -> Vec<HolderPosition> {
    let (positions, masks) = body.entries();
    let listed = positions
        .iter()
        .zip(masks)
        .filter(|(_, mask)| mask.load(Relaxed) != 0)
        .map(|(&position, _)| position);
    let complete = body.words().flat_map(|(index, word)| {
        let bits = word.load(Relaxed);
        (0..64).filter(move |bit| bits & (1 << bit) != 0).map(move |bit| HolderPosition::at(index, bit))
    });
    listed.chain(complete).collect()
}
