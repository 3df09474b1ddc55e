//! A network in virtual time that loses, repeats, delays, reorders and cuts messages, with limited bandwidth.
//!
//! Any type that sends envelopes can be a node. The router's tests use this file, too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use warmroute_peers::Envelope;
use warmroute_types::{Micros, RouterId, To};

pub const STEP: Micros = Micros::from_millis(25);

/// Bytes that a transport queues for one router before it drops the oldest message.
const QUEUE_BYTES: usize = 16 << 20;

/// Hash that serves as a random number.
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A router in the network.
pub trait Node {
    /// Receives a message; returns the responses.
    fn receive(&mut self, bytes: &[u8], now: Micros) -> Vec<Envelope>;

    /// Messages that the node sends at each step.
    fn step(&mut self, now: Micros) -> Vec<Envelope>;
}

pub struct Net<N> {
    pub nodes: BTreeMap<u64, N>,
    /// Messages that wait for bandwidth, by sender and receiver.
    queues: BTreeMap<(u64, u64), VecDeque<Envelope>>,
    /// Messages in flight, by time of arrival: sender, receiver, message.
    in_flight: BTreeMap<(Micros, u64), (u64, u64, Envelope)>,
    /// Pairs that cannot reach each other.
    pub cut: BTreeSet<(u64, u64)>,
    /// Percentages of messages that are lost and repeated.
    pub lost: u64,
    pub repeated: u64,
    pub delay: RangeInclusive<u64>,
    /// Bandwidth from one node to another.
    pub bytes_per_step: usize,
    pub now: Micros,
    random_state: u64,
    /// Bytes sent, by sender and receiver.
    pub sent: BTreeMap<(u64, u64), usize>,
    /// Messages dropped because a queue was full.
    pub dropped: usize,
}

impl<N: Node> Net<N> {
    pub fn new(seed: u64) -> Net<N> {
        Net {
            nodes: BTreeMap::new(),
            queues: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            cut: BTreeSet::new(),
            lost: 0,
            repeated: 0,
            delay: 0..=10_000,
            bytes_per_step: usize::MAX,
            now: Micros::from_secs(1),
            random_state: seed,
            sent: BTreeMap::new(),
            dropped: 0,
        }
    }

    pub fn random_below(&mut self, bound: u64) -> u64 {
        self.random_state = self.random_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random_state) % bound
    }

    /// Sets the range of delays.
    pub fn set_delay_ms(&mut self, delay: RangeInclusive<u64>) {
        self.delay = delay.start() * 1_000..=delay.end() * 1_000;
    }

    /// Removes all faults.
    pub fn heal(&mut self) {
        self.cut.clear();
        (self.lost, self.repeated) = (0, 0);
        self.set_delay_ms(0..=10);
    }

    pub fn is_cut(&self, a: u64, b: u64) -> bool {
        self.cut.contains(&(a.min(b), a.max(b)))
    }

    /// Sends envelopes into the network.
    pub fn send(&mut self, from: u64, envelopes: &[Envelope]) {
        for envelope in envelopes {
            let receivers: Vec<u64> = match envelope.to {
                To::Everyone => self.nodes.keys().copied().collect(),
                To::One(RouterId(id)) => vec![id],
            };
            for to in receivers.into_iter().filter(|to| *to != from) {
                *self.sent.entry((from, to)).or_default() += envelope.bytes.len();
                let queue = self.queues.entry((from, to)).or_default();
                queue.push_back(envelope.clone());
                while queue.iter().map(|envelope| envelope.bytes.len()).sum::<usize>() > QUEUE_BYTES {
                    queue.pop_front();
                    self.dropped += 1;
                }
                self.drain((from, to), if self.bytes_per_step == usize::MAX { usize::MAX } else { 0 });
            }
        }
    }

    /// Transmits this many bytes of a queue.
    fn drain(&mut self, (from, to): (u64, u64), mut bytes: usize) {
        while bytes > 0
            && let Some(envelope) = self.queues.get_mut(&(from, to)).and_then(VecDeque::pop_front)
        {
            bytes = bytes.saturating_sub(envelope.bytes.len());
            self.transmit(from, to, &envelope);
        }
    }

    fn transmit(&mut self, from: u64, to: u64, envelope: &Envelope) {
        let copies = if self.random_below(100) < self.repeated { 2 } else { 1 };
        for _ in 0..copies {
            if self.random_below(100) >= self.lost {
                let jitter = self.random_below(self.delay.end() - self.delay.start() + 1);
                let at = self.now + Micros(self.delay.start() + jitter);
                let query_id = self.random_below(u64::MAX);
                self.in_flight.insert((at, query_id), (from, to, envelope.clone()));
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(((at, query_id), (from, to, envelope))) = self.in_flight.pop_first() {
            if at > self.now {
                self.in_flight.insert((at, query_id), (from, to, envelope));
                return;
            }
            if self.is_cut(from, to) {
                continue;
            }
            let Some(node) = self.nodes.get_mut(&to) else { continue };
            let replies = node.receive(&envelope.bytes, self.now);
            self.send(to, &replies);
        }
    }

    pub fn step(&mut self) {
        self.now = self.now + STEP;
        let queues: Vec<(u64, u64)> = self.queues.keys().copied().collect();
        queues.into_iter().for_each(|queue| self.drain(queue, self.bytes_per_step));
        self.deliver();
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        for id in ids {
            let envelopes = self.nodes.get_mut(&id).map(|node| node.step(self.now)).unwrap_or_default();
            self.send(id, &envelopes);
        }
    }

    pub fn steps(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }
}
