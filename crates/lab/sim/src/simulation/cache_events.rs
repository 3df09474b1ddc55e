//! Cache events, from engines to a directory or to the routers' feeds.
//!
//! ```text
//!   exact      engine ──refresh, lag, loss──► directory
//!   reported   engine ──refresh──► numbered batch ──lag, loss──► each router's feed ──► router
//!                          ▲ remembered                                │ asks for what it missed
//!                          └────────────── a hop, and back by the lag ─┘
//! ```

use std::ops::Range;

use warmroute_engine::Happened;
use warmroute_types::Micros;

use super::Simulation;
use crate::config::{EvictionEvents, TierEvents, View};
use crate::directory::CacheChange;
use crate::event_stream::StreamMessage;
use crate::event_transit;
use crate::feed_follower::{ReplayReply, ReplayRequest};
use crate::node::NodeState;
use crate::prompt::Excerpt;
use crate::queue::Event;

/// Interval at which feeds learn of answers and of the time, as in production. A multiple of the tick.
const FEED_TICK: Micros = Micros::from_millis(500);

impl Simulation<'_> {
    /// Whether routers follow the engines' event streams.
    fn has_feeds(&self) -> bool {
        self.config.view == View::Reported && (self.needs_overlap || self.publishes_unread)
    }

    /// Sends changes of an engine's cache to the directory or the feeds, if any reader exists.
    pub(super) fn send_changes(&mut self, index: usize, happened: &[Happened]) {
        if !self.config.needs_events() || !(self.needs_overlap || self.publishes_unread) {
            return;
        }
        let (nodes, jobs, block_tokens) = (&self.nodes, &self.jobs, self.config.fleet[0].block_size);
        let has_feeds = self.has_feeds();
        let stored = |id, blocks: Range<usize>| {
            let job = &jobs[nodes[index].job(id) as usize];
            let mut stored = event_transit::stored(&job.chain, blocks.clone())?;
            if has_feeds {
                let turn = &job.session.turns[job.turn];
                let tokens = blocks.start as u32 * block_tokens..blocks.end as u32 * block_tokens;
                stored.content = Excerpt::of(turn.prompt.iter().chain(&turn.answer), tokens);
            }
            Some(stored)
        };
        let is_published = |one: &Happened| match one {
            Happened::Kept { .. } | Happened::Dropped { .. } => {
                self.config.tier_events == TierEvents::Published
            }
            Happened::Removed { .. } => self.config.eviction_events == EvictionEvents::Published,
            _ => true,
        };
        let happened: Vec<Happened> = happened.iter().copied().filter(is_published).collect();
        let path = &self.config.events;
        let at = if has_feeds { path.departure(self.now) } else { path.arrival(self.now) };
        if let Some(delivery) = self.transit.send(index, at, &happened, stored) {
            self.queue.push(at, Event::CacheChanges { delivery });
        }
    }

    /// Delivers changes: applies them to the directory, or publishes them as one batch.
    pub(super) fn deliver_changes(&mut self, delivery: u32) {
        let (node, changes) = self.transit.receive(delivery);
        if !self.has_feeds() {
            let is_lost = self.is_lost();
            // A directory always learns of a dead engine, even over a path that loses messages.
            let heard = changes.iter().filter(|one| !is_lost || **one == CacheChange::Cleared);
            return heard.for_each(|one| self.directory.apply(node, one));
        }
        if !changes.is_empty() {
            let batch = self.streams[node].publish(self.now, changes);
            self.send(node, StreamMessage::PublishedBatch(batch));
        }
    }

    fn is_lost(&mut self) -> bool {
        self.config.events.loss > 0.0 && self.losses.share() < self.config.events.loss
    }

    fn send(&mut self, node: usize, message: StreamMessage) {
        if self.config.events.lag == Micros::ZERO {
            return self.deliver(node, &message);
        }
        self.streams[node].in_transit.push_back(message);
        self.queue.push(self.now + self.config.events.lag, Event::StreamMessage { node: node as u32 });
    }

    /// Delivers the oldest message in transit from an engine.
    pub(super) fn receive_stream_message(&mut self, node: usize) {
        let message =
            self.streams[node].in_transit.pop_front().expect("every message in transit has its own event");
        self.deliver(node, &message);
    }

    /// Delivers a message to every router. Connection changes always arrive; batches are lost per router.
    fn deliver(&mut self, node: usize, message: &StreamMessage) {
        for router in 0..self.routers.len() {
            if matches!(message, StreamMessage::PublishedBatch(_)) && self.is_lost() {
                continue;
            }
            let request = self.routers[router].receive(node, message, self.now);
            self.request_replay(router, node, request);
        }
    }

    pub(super) fn request_replay(&mut self, router: usize, node: usize, request: Option<ReplayRequest>) {
        if let Some(ReplayRequest { number, leaves, .. }) = request {
            let (router, node) = (router as u16, node as u16);
            self.queue.push(leaves + self.config.hop, Event::Replay { router, node, number });
        }
    }

    /// Answers a replay request with the batches that the engine still keeps.
    pub(super) fn replay(&mut self, router: usize, node: usize, number: u32) {
        let Some(from_seq) = self.routers[router].wanted_seq(node, number) else { return };
        let reply = match self.nodes[node].state {
            NodeState::Up => ReplayReply::Batches(self.streams[node].replay(from_seq)),
            NodeState::Down | NodeState::Absent => ReplayReply::Nothing,
        };
        self.routers[router].send_reply(node, reply);
        let back = self.config.events.lag.max(self.config.hop);
        self.queue
            .push(self.now + back, Event::Replayed { router: router as u16, node: node as u16, number });
    }

    /// Delivers a replay to its router.
    pub(super) fn replayed(&mut self, router: usize, node: usize, number: u32) {
        let request = self.routers[router].receive_reply(node, number, self.now);
        self.request_replay(router, node, request);
    }

    /// Connects routers to an engine at the start of a run, whose stream is still empty.
    pub(super) fn open_stream(&mut self, node: usize) {
        let message = StreamMessage::Up(self.streams[node].process);
        for router in &mut self.routers {
            if let Some(request) = router.receive(node, &message, self.now) {
                router.send_reply(node, ReplayReply::Batches(Vec::new()));
                router.receive_reply(node, request.number, self.now);
            }
        }
    }

    /// Connects routers to an engine's stream.
    pub(super) fn connect(&mut self, node: usize) {
        if !self.has_feeds() {
            return;
        }
        let process = self.streams[node].process;
        self.send(node, StreamMessage::Up(process));
    }

    /// Handles the death of an engine: unpublished changes are dropped, and its cache counts as empty. A
    /// directory learns this with the usual delay.
    pub(super) fn disconnect(&mut self, node: usize) {
        self.transit.forget(node);
        if !self.has_feeds() {
            return self.send_changes(node, &[Happened::Cleared]);
        }
        self.streams[node].restart();
        self.send(node, StreamMessage::Down);
    }

    /// Ticks all feeds, at multiples of the feed interval.
    pub(super) fn tick_feeds(&mut self) {
        if !self.now.0.is_multiple_of(FEED_TICK.0) {
            return;
        }
        for router in 0..self.routers.len() {
            for (node, request) in self.routers[router].tick_feeds(self.now) {
                self.request_replay(router, node, Some(request));
            }
        }
    }
}
