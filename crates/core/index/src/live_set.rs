//! The holders that hold everything matched so far during a lookup.
//!
//! The set is a bit array of `N` words. Each lookup uses the smallest `N` with room for the words in use: a few
//! holders fit a register, thousands fit a few cache lines, and neither pays for the other.

use std::sync::atomic::Ordering::Relaxed;

use crate::body::{Body, ones};
use crate::holder_bits::{HolderBits, HolderPosition};
use crate::node::Node;
use crate::overlap::Overlaps;
use crate::span::Reach;

/// Whether a lookup may report a holder more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathCount {
    /// One path: a holder is reported once.
    One,
    /// Several paths: a holder's longest overlap counts.
    Many,
}

/// The holders that hold everything matched so far on one path down the tree.
#[derive(Clone)]
pub(crate) struct LiveSet<'a, const N: usize> {
    alive: [u64; N],
    /// True before the first node: every holder that holds it joins.
    is_open: bool,
    paths: PathCount,
    holder_bits: &'a HolderBits,
}

impl<'a, const N: usize> LiveSet<'a, N> {
    pub fn new(holder_bits: &'a HolderBits, paths: PathCount) -> LiveSet<'a, N> {
        LiveSet { alive: [0; N], is_open: true, paths, holder_bits }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.is_open && self.alive.iter().all(|&word| word == 0)
    }

    /// Passes the first `matched` spans of a node. Holders that do not hold all of them are reported and leave the
    /// set.
    #[inline]
    pub fn pass(&mut self, node: &Node, body: Body<'_>, matched: usize, out: &mut Overlaps) {
        if self.is_held_by_one(body, matched) {
            return;
        }
        let mut held = complete::<N>(body);
        let is_all_held =
            !self.is_open && self.alive.iter().zip(&held).all(|(alive, held)| alive & !held == 0);
        if is_all_held {
            return;
        }
        self.pass_listed(node, body, matched, &mut held, out);
        for (index, held) in held.into_iter().enumerate() {
            let dropped = self.alive[index] & !held;
            if dropped != 0 {
                self.report_word(index, dropped, node.start, out);
            }
            self.alive[index] = if self.is_open { held } else { self.alive[index] & held };
        }
        self.is_open = false;
    }

    /// The usual case of a chain that no holders share: one holder is left, it alone is listed, and it holds all.
    #[inline]
    fn is_held_by_one(&self, body: Body<'_>, matched: usize) -> bool {
        let ([position], [mask]) = body.entries() else { return false };
        let (index, bit) = (position.word(), position.mask());
        let is_alone = |(at, &word): (usize, &u64)| word == if at == index { bit } else { 0 };
        !self.is_open
            && mask.load(Relaxed) & ones(matched) == ones(matched)
            && self.alive.iter().enumerate().all(is_alone)
    }

    /// Handles the listed holders. Those that hold all matched spans are added to `held`; those that hold only the
    /// first of them are reported and leave.
    #[inline]
    fn pass_listed(
        &mut self,
        node: &Node,
        body: Body<'_>,
        matched: usize,
        held: &mut [u64; N],
        out: &mut Overlaps,
    ) {
        let (positions, masks) = body.entries();
        let whole = ones(matched);
        for (&position, mask) in positions.iter().zip(masks) {
            let (index, bit) = (position.word(), position.mask());
            // A position assigned after the lookup began may lie beyond the words of this set.
            if index >= N || !(self.is_open || self.alive[index] & bit != 0) {
                continue;
            }
            let mask = mask.load(Relaxed) & whole;
            if mask == whole {
                held[index] |= bit;
            } else if mask & 1 == 1 && held[index] & bit == 0 {
                let reach = body.reach(node.start, mask.trailing_ones() as usize);
                self.report_one(position, reach, out);
                self.alive[index] &= !bit;
            }
        }
    }

    /// The set after the first `matched` spans, without reporting holders that leave.
    pub fn restricted_to(&self, body: Body<'_>, matched: usize) -> LiveSet<'a, N> {
        let mut held = complete::<N>(body);
        let (positions, masks) = body.entries();
        for (&position, mask) in positions.iter().zip(masks) {
            if let Some(word) = held.get_mut(position.word()) {
                let is_held = mask.load(Relaxed) & ones(matched) == ones(matched);
                *word |= u64::from(is_held) * position.mask();
            }
        }
        let both = |(alive, held): (&u64, &u64)| if self.is_open { *held } else { alive & held };
        let mut live_set = LiveSet { is_open: false, ..self.clone() };
        live_set
            .alive
            .iter_mut()
            .zip(self.alive.iter().zip(&held))
            .for_each(|(word, pair)| *word = both(pair));
        live_set
    }

    /// Reports all holders that are left.
    pub fn end(&self, reach: Reach, out: &mut Overlaps) {
        for (index, &word) in self.alive.iter().enumerate() {
            self.report_word(index, word, reach, out);
        }
    }

    #[inline]
    fn report_word(&self, index: usize, mut word: u64, reach: Reach, out: &mut Overlaps) {
        while word != 0 {
            self.report_one(HolderPosition::at(index, word.trailing_zeros()), reach, out);
            word &= word - 1;
        }
    }

    #[inline]
    fn report_one(&self, position: HolderPosition, reach: Reach, out: &mut Overlaps) {
        let holder = self.holder_bits.holder(position);
        match self.paths {
            PathCount::One => out.report(holder, reach),
            PathCount::Many => out.report_best(position, holder, reach),
        }
    }
}

/// The holders in a body's set of complete holders.
#[inline]
fn complete<const N: usize>(body: Body<'_>) -> [u64; N] {
    let mut held = [0; N];
    for (index, word) in body.words() {
        if let Some(held) = held.get_mut(index) {
            *held = word.load(Relaxed);
        }
    }
    held
}
