//! Messages between routers, over a network that delays, loses or partitions them.

use std::sync::Arc;

use warmroute_peers::{Config, Envelope};
use warmroute_types::{Micros, RouterId, To};

use super::Simulation;
use crate::queue::Event;

/// A message in transit.
pub(super) struct PeerMessage {
    from: usize,
    to: usize,
    bytes: Arc<[u8]>,
}

/// The id of the router at an index: the index plus one.
pub(super) fn name(router: usize) -> RouterId {
    RouterId(router as u64 + 1)
}

impl Simulation<'_> {
    /// Schedules the first batch of each router, spread evenly over the batch interval.
    pub(super) fn start_sharing(&mut self) {
        if self.config.sharing.is_none() {
            return;
        }
        let routers = self.routers.len();
        for router in 0..routers {
            let offset = Config::default().batch_interval.0 * router as u64 / routers as u64;
            self.schedule_batch(router, Micros(offset));
        }
    }

    fn schedule_batch(&mut self, router: usize, at: Micros) {
        self.messages.next_batch.insert(router, at);
        self.queue.push(at, Event::ShareBatch { router: router as u16 });
    }

    /// Sends a router's next batch, and schedules the one after it. Does nothing if an earlier batch took its place.
    pub(super) fn share_batch(&mut self, router: usize) {
        if self.messages.next_batch.get(&router) != Some(&self.now) {
            return;
        }
        let envelopes = self.routers[router].share_batch(self.now);
        envelopes.iter().for_each(|envelope| self.send_to_peers(router, envelope));
        if !self.is_over() {
            self.schedule_batch(router, self.now + self.routers[router].next_batch_in(self.now));
        }
    }

    /// Sends what a router shares at once after routing a request, and after its first token.
    pub(super) fn share_now(&mut self, router: usize) {
        let envelopes = self.routers[router].share_now(self.now);
        envelopes.iter().for_each(|envelope| self.send_to_peers(router, envelope));
        self.hasten_batch(router);
    }

    /// Moves a router's next batch to when it is due, if that is sooner.
    fn hasten_batch(&mut self, router: usize) {
        let next = self.now + self.routers[router].next_batch_in(self.now);
        if self.messages.next_batch.get(&router).is_some_and(|&due| next < due) {
            self.schedule_batch(router, next);
        }
    }

    /// Sends an envelope to the routers it addresses. Losses are drawn per receiver.
    fn send_to_peers(&mut self, from: usize, envelope: &Envelope) {
        let Some(network) = &self.config.sharing else { return };
        for to in 0..self.routers.len() {
            let is_addressed = envelope.to == To::Everyone || envelope.to == To::One(name(to));
            if to == from || !is_addressed {
                continue;
            }
            self.shared_bytes += envelope.bytes.len() as u64;
            if network.loss > 0.0 && self.losses.share() < network.loss {
                continue;
            }
            let message = PeerMessage { from, to, bytes: Arc::clone(&envelope.bytes) };
            let number = self.messages.next_number;
            self.messages.next_number += 1;
            self.messages.in_transit.insert(number, message);
            self.queue.push(self.now + network.delay, Event::PeerMessage { message: number });
        }
    }

    /// Delivers a message, unless a partition stops it, and sends the replies.
    pub(super) fn receive_peer_message(&mut self, message: u32) {
        let Some(PeerMessage { from, to, bytes }) = self.messages.in_transit.remove(&message) else { return };
        let routers = self.routers.len();
        if self.config.sharing.as_ref().is_some_and(|network| network.passes(from, to, routers, self.now)) {
            let answers = self.routers[to].receive_from_peer(&bytes, self.now);
            answers.iter().for_each(|answer| self.send_to_peers(to, answer));
            self.hasten_batch(to);
        }
    }
}

/// Messages in transit, by number, and when each router sends its next batch.
#[derive(Default)]
pub(super) struct PeerMessages {
    next_batch: std::collections::HashMap<usize, Micros>,
    in_transit: std::collections::HashMap<u32, PeerMessage>,
    next_number: u32,
}
