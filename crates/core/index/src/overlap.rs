//! The answer of a lookup, in a buffer that the caller keeps: nothing is allocated once it has grown to its size.

use warmroute_types::WorkerId;

use crate::body::{Body, ones};
use crate::node::Node;
use crate::span::Reach;

use std::sync::atomic::Ordering::Relaxed;

/// How far from its start one worker holds a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Who.
    pub worker: WorkerId,
    /// How far.
    pub reach: Reach,
}

/// Words in a set of [`MAX_WORKERS`](warmroute_types::MAX_WORKERS) workers.
pub(crate) const WORDS_MAX: usize = warmroute_types::MAX_WORKERS / 64;

/// The workers that hold everything that was matched so far.
pub(crate) type Alive = [u64; WORDS_MAX];

/// The overlaps of one prompt: every worker that holds anything of it, once, in no particular order.
#[derive(Debug, Default)]
pub struct Overlaps {
    found: Vec<Overlap>,
    /// Where a worker stands in `found`, with the lookup it belongs to; only used where chains fork.
    seats: Vec<(u64, u32)>,
    lookup: u64,
    overflows: u32,
}

impl Overlaps {
    /// An empty buffer.
    pub fn new() -> Overlaps {
        Overlaps::default()
    }

    /// The workers that hold something, each once.
    pub fn as_slice(&self) -> &[Overlap] {
        &self.found
    }

    /// What one worker holds. This looks through the list: to score a fleet, walk the list once instead.
    pub fn of(&self, worker: WorkerId) -> Reach {
        self.found
            .iter()
            .find(|overlap| overlap.worker == worker)
            .map_or(Reach::default(), |found| found.reach)
    }

    /// How often the last lookup gave up a way because it already followed four.
    pub fn overflows(&self) -> u32 {
        self.overflows
    }

    pub(crate) fn begin(&mut self) {
        self.found.clear();
        self.lookup += 1;
        self.overflows = 0;
    }

    pub(crate) fn count_overflow(&mut self) {
        self.overflows += 1;
    }

    #[inline]
    fn report(&mut self, worker: u16, reach: Reach) {
        self.found.push(Overlap { worker: WorkerId(worker), reach });
    }

    /// Reports a worker that another way may have reported already: the further one counts.
    fn report_best(&mut self, worker: u16, reach: Reach) {
        let seat = usize::from(worker);
        if self.seats.len() <= seat {
            self.seats.resize(seat + 1, (0, 0));
        }
        let (lookup, at) = self.seats[seat];
        if lookup != self.lookup {
            self.seats[seat] = (self.lookup, self.found.len() as u32);
            self.report(worker, reach);
        } else if self.found[at as usize].reach.bytes < reach.bytes {
            self.found[at as usize].reach = reach;
        }
    }
}

/// Whether a lookup may meet a worker more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ways {
    /// One chain: a worker drops out once.
    One,
    /// Several: a worker's best counts.
    Many,
}

/// The set of workers that are still alive on one way down the tree.
#[derive(Clone)]
pub(crate) struct Party {
    pub alive: Alive,
    /// Words that can have a bit at all.
    words: usize,
    /// Nobody has joined yet: whoever holds the first node does.
    is_open: bool,
    ways: Ways,
}

impl Party {
    pub fn new(words: usize, ways: Ways) -> Party {
        Party { alive: [0; WORDS_MAX], words: words.min(WORDS_MAX), is_open: true, ways }
    }

    pub fn is_over(&self) -> bool {
        !self.is_open && self.alive[..self.words].iter().all(|&word| word == 0)
    }

    /// Goes on through the first `matched` spans of a node: who does not hold all of them drops out, and is reported.
    #[inline]
    pub fn pass(&mut self, node: &Node, body: Body<'_>, matched: usize, out: &mut Overlaps) {
        let mut held = [0; WORDS_MAX];
        let held = &mut held[..self.words];
        for (index, word) in body.words().filter(|&(index, _)| index < self.words) {
            held[index] = word.load(Relaxed);
        }
        let is_all_held =
            !self.is_open && self.alive.iter().zip(&*held).all(|(alive, held)| alive & !held == 0);
        if is_all_held {
            return;
        }
        self.pass_listed(node, body, matched, held, out);
        for (index, held) in held.iter().enumerate() {
            let dropped = self.alive[index] & !held;
            if dropped != 0 {
                self.report_word(index, dropped, node.start, out);
            }
            self.alive[index] = if self.is_open { *held } else { self.alive[index] & held };
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
        held: &mut [u64],
        out: &mut Overlaps,
    ) {
        let (ids, masks) = body.entries();
        let whole = ones(matched);
        for (&id, mask) in ids.iter().zip(masks) {
            let (index, bit) = (usize::from(id / 64), 1 << (id % 64));
            if index >= held.len() || !(self.is_open || self.alive[index] & bit != 0) {
                continue;
            }
            let mask = mask.load(Relaxed) & whole;
            if mask == whole {
                held[index] |= bit;
            } else if mask & 1 == 1 && held[index] & bit == 0 {
                let reach = body.reach(node.start, mask.trailing_ones() as usize);
                self.report_one(id, reach, out);
                self.alive[index] &= !bit;
            }
        }
    }

    /// The party as it would be after the first `matched` spans, without reporting anybody.
    pub fn glance(&self, body: Body<'_>, matched: usize) -> Party {
        let mut party = self.clone();
        let mut held = [0; WORDS_MAX];
        body.words().for_each(|(index, word)| held[index] = word.load(Relaxed));
        let (ids, masks) = body.entries();
        for (&id, mask) in ids.iter().zip(masks) {
            let is_held = mask.load(Relaxed) & ones(matched) == ones(matched);
            held[usize::from(id / 64)] |= u64::from(is_held) << (id % 64);
        }
        for (alive, held) in party.alive[..self.words].iter_mut().zip(held) {
            *alive = if self.is_open { held } else { *alive & held };
        }
        party.is_open = false;
        party
    }

    /// Reports all who are left.
    pub fn end(&self, reach: Reach, out: &mut Overlaps) {
        for (index, &word) in self.alive[..self.words].iter().enumerate() {
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
    fn report_one(&self, worker: u16, reach: Reach, out: &mut Overlaps) {
        match self.ways {
            Ways::One => out.report(worker, reach),
            Ways::Many => out.report_best(worker, reach),
        }
    }
}
