//! The workers that are still with a lookup on its way down the tree.
//!
//! A set of bits in `N` words. `N` is fixed when the lookup begins, the smallest that has room for the words in use:
//! with a few workers the set is a register, with thousands a few cache lines, and neither pays for the other.

use std::sync::atomic::Ordering::Relaxed;

use crate::body::{Body, ones};
use crate::node::Node;
use crate::overlap::Overlaps;
use crate::seats::Seats;
use crate::span::Reach;

/// Whether a lookup may meet a worker more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ways {
    /// One chain: a worker drops out once.
    One,
    /// Several: a worker's best counts.
    Many,
}

/// The set of workers that hold everything that was matched so far on one way down the tree.
#[derive(Clone)]
pub(crate) struct Party<'a, const N: usize> {
    alive: [u64; N],
    /// Nobody has joined yet: whoever holds the first node does.
    is_open: bool,
    ways: Ways,
    seats: &'a Seats,
}

impl<'a, const N: usize> Party<'a, N> {
    pub fn new(seats: &'a Seats, ways: Ways) -> Party<'a, N> {
        Party { alive: [0; N], is_open: true, ways, seats }
    }

    #[inline]
    pub fn is_over(&self) -> bool {
        !self.is_open && self.alive.iter().all(|&word| word == 0)
    }

    /// Goes on through the first `matched` spans of a node: who does not hold all of them drops out, and is reported.
    #[inline]
    pub fn pass(&mut self, node: &Node, body: Body<'_>, matched: usize, out: &mut Overlaps) {
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

    /// The listed holders: those that hold all of the stretch are added to `held`, those that hold only its
    /// beginning are reported and leave.
    #[inline]
    fn pass_listed(
        &mut self,
        node: &Node,
        body: Body<'_>,
        matched: usize,
        held: &mut [u64; N],
        out: &mut Overlaps,
    ) {
        let (seats, masks) = body.entries();
        let whole = ones(matched);
        for (&seat, mask) in seats.iter().zip(masks) {
            let (index, bit) = (usize::from(seat / 64), 1 << (seat % 64));
            // A seat that was taken after the lookup began may lie beyond the words it looks at.
            if index >= N || !(self.is_open || self.alive[index] & bit != 0) {
                continue;
            }
            let mask = mask.load(Relaxed) & whole;
            if mask == whole {
                held[index] |= bit;
            } else if mask & 1 == 1 && held[index] & bit == 0 {
                let reach = body.reach(node.start, mask.trailing_ones() as usize);
                self.report_one(seat, reach, out);
                self.alive[index] &= !bit;
            }
        }
    }

    /// The party as it would be after the first `matched` spans, without reporting anybody.
    pub fn glance(&self, body: Body<'_>, matched: usize) -> Party<'a, N> {
        let mut held = complete::<N>(body);
        let (seats, masks) = body.entries();
        for (&seat, mask) in seats.iter().zip(masks) {
            if let Some(word) = held.get_mut(usize::from(seat / 64)) {
                let is_held = mask.load(Relaxed) & ones(matched) == ones(matched);
                *word |= u64::from(is_held) << (seat % 64);
            }
        }
        let both = |(alive, held): (&u64, &u64)| if self.is_open { *held } else { alive & held };
        let mut party = Party { is_open: false, ..self.clone() };
        party.alive.iter_mut().zip(self.alive.iter().zip(&held)).for_each(|(word, pair)| *word = both(pair));
        party
    }

    /// Reports all who are left.
    pub fn end(&self, reach: Reach, out: &mut Overlaps) {
        for (index, &word) in self.alive.iter().enumerate() {
            self.report_word(index, word, reach, out);
        }
    }

    #[inline]
    fn report_word(&self, index: usize, mut word: u64, reach: Reach, out: &mut Overlaps) {
        while word != 0 {
            self.report_one((index * 64) as u16 + word.trailing_zeros() as u16, reach, out);
            word &= word - 1;
        }
    }

    #[inline]
    fn report_one(&self, seat: u16, reach: Reach, out: &mut Overlaps) {
        let worker = self.seats.worker(seat);
        match self.ways {
            Ways::One => out.report(worker, reach),
            Ways::Many => out.report_best(seat, worker, reach),
        }
    }
}

/// Who holds every span of a body, as far as they are known by a bit.
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
