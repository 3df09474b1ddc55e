//! A network with a will of its own, in virtual time: it loses, repeats, delays, reorders and cuts, and is narrow where it is told to be.
//!
//! Whatever speaks in letters can be a node of it; the router's tests use it, too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use warmroute_peers::Letter;
use warmroute_types::{Micros, RouterId, To};

pub const STEP: Micros = Micros::from_millis(25);

/// What transports hold for one router before they drop the oldest.
const LANE_BYTES: usize = 16 << 20;

/// A number that looks random, from one that does not.
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Whatever speaks and hears.
pub trait Node {
    /// Takes in a message; what it answers.
    fn hear(&mut self, bytes: &[u8], now: Micros) -> Vec<Letter>;

    /// What it says by itself, at every step.
    fn step(&mut self, now: Micros) -> Vec<Letter>;
}

/// A network.
pub struct Net<N> {
    pub nodes: BTreeMap<u64, N>,
    /// What waits for a narrow way, from whom to whom.
    lanes: BTreeMap<(u64, u64), VecDeque<Letter>>,
    /// By the time of arrival: from whom, to whom, what.
    air: BTreeMap<(Micros, u64), (u64, u64, Letter)>,
    /// Pairs that cannot reach each other.
    pub cut: BTreeSet<(u64, u64)>,
    /// Of a hundred messages.
    pub lost: u64,
    pub repeated: u64,
    pub delay: RangeInclusive<u64>,
    /// Bytes that go from one to another in a step.
    pub width: usize,
    pub now: Micros,
    dice: u64,
    /// Bytes that were sent, from whom to whom.
    pub sent: BTreeMap<(u64, u64), usize>,
    /// Messages that found a lane full, or pushed others out.
    pub dropped: usize,
}

impl<N: Node> Net<N> {
    pub fn new(seed: u64) -> Net<N> {
        Net {
            nodes: BTreeMap::new(),
            lanes: BTreeMap::new(),
            air: BTreeMap::new(),
            cut: BTreeSet::new(),
            lost: 0,
            repeated: 0,
            delay: 0..=10_000,
            width: usize::MAX,
            now: Micros::from_secs(1),
            dice: seed,
            sent: BTreeMap::new(),
            dropped: 0,
        }
    }

    pub fn roll(&mut self, sides: u64) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.dice) % sides
    }

    /// So long, at least and at most.
    pub fn set_delay_ms(&mut self, delay: RangeInclusive<u64>) {
        self.delay = delay.start() * 1_000..=delay.end() * 1_000;
    }

    /// Neither cut nor lossy nor slow any more.
    pub fn heal(&mut self) {
        self.cut.clear();
        (self.lost, self.repeated) = (0, 0);
        self.set_delay_ms(0..=10);
    }

    pub fn is_cut(&self, a: u64, b: u64) -> bool {
        self.cut.contains(&(a.min(b), a.max(b)))
    }

    /// Hands letters over to the network.
    pub fn post(&mut self, from: u64, letters: &[Letter]) {
        for letter in letters {
            let receivers: Vec<u64> = match letter.to {
                To::Everyone => self.nodes.keys().copied().collect(),
                To::One(RouterId(id)) => vec![id],
            };
            for to in receivers.into_iter().filter(|to| *to != from) {
                *self.sent.entry((from, to)).or_default() += letter.bytes.len();
                let lane = self.lanes.entry((from, to)).or_default();
                lane.push_back(letter.clone());
                while lane.iter().map(|letter| letter.bytes.len()).sum::<usize>() > LANE_BYTES {
                    lane.pop_front();
                    self.dropped += 1;
                }
                self.carry((from, to), if self.width == usize::MAX { usize::MAX } else { 0 });
            }
        }
    }

    /// Lets so many bytes of a lane go.
    fn carry(&mut self, (from, to): (u64, u64), mut bytes: usize) {
        while bytes > 0
            && let Some(letter) = self.lanes.get_mut(&(from, to)).and_then(VecDeque::pop_front)
        {
            bytes = bytes.saturating_sub(letter.bytes.len());
            self.fly(from, to, &letter);
        }
    }

    fn fly(&mut self, from: u64, to: u64, letter: &Letter) {
        let copies = if self.roll(100) < self.repeated { 2 } else { 1 };
        for _ in 0..copies {
            if self.roll(100) >= self.lost {
                let swing = self.roll(self.delay.end() - self.delay.start() + 1);
                let at = self.now + Micros(self.delay.start() + swing);
                let ticket = self.roll(u64::MAX);
                self.air.insert((at, ticket), (from, to, letter.clone()));
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(((at, ticket), (from, to, letter))) = self.air.pop_first() {
            if at > self.now {
                self.air.insert((at, ticket), (from, to, letter));
                return;
            }
            if self.is_cut(from, to) {
                continue;
            }
            let Some(node) = self.nodes.get_mut(&to) else { continue };
            let answers = node.hear(&letter.bytes, self.now);
            self.post(to, &answers);
        }
    }

    pub fn step(&mut self) {
        self.now = self.now + STEP;
        let lanes: Vec<(u64, u64)> = self.lanes.keys().copied().collect();
        lanes.into_iter().for_each(|lane| self.carry(lane, self.width));
        self.deliver();
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        for id in ids {
            let letters = self.nodes.get_mut(&id).map(|node| node.step(self.now)).unwrap_or_default();
            self.post(id, &letters);
        }
    }

    pub fn steps(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }
}
