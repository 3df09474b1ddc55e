//! News of caches, from engines to those who look: a directory, or the routers' own feeds.
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

use super::World;
use crate::config::{EvictionNews, TierNews, View};
use crate::directory::News;
use crate::follower::{Ask, Reply};
use crate::node::NodeState;
use crate::post;
use crate::prompt::Excerpt;
use crate::queue::Event;
use crate::session::Session;
use crate::stream::Letter;

/// How often feeds are told what answers have shown and that time has passed, as in production. A multiple of the tick.
const PULSE: Micros = Micros::from_millis(500);

impl<S: Iterator<Item = Session>> World<'_, S> {
    /// Whether routers follow the engines' streams.
    fn has_feeds(&self) -> bool {
        self.config.view == View::Reported && (self.needs_overlap || self.publishes_unheard)
    }

    /// Sends what happened to a cache on its way, where somebody listens.
    pub(super) fn post_news(&mut self, index: usize, happened: &[Happened]) {
        if !self.config.needs_news() || !(self.needs_overlap || self.publishes_unheard) {
            return;
        }
        let (nodes, jobs, block_tokens) = (&self.nodes, &self.jobs, self.config.fleet[0].block_size);
        let has_feeds = self.has_feeds();
        let stored = |id, blocks: Range<usize>| {
            let job = &jobs[nodes[index].job(id) as usize];
            let mut stored = post::stored(&job.chain, blocks.clone())?;
            if has_feeds {
                let turn = &job.session.turns[job.turn];
                let tokens = blocks.start as u32 * block_tokens..blocks.end as u32 * block_tokens;
                stored.content = Excerpt::of(turn.prompt.iter().chain(&turn.answer), tokens);
            }
            Some(stored)
        };
        let is_told = |one: &Happened| match one {
            Happened::Kept { .. } | Happened::Dropped { .. } => self.config.tier_news == TierNews::Told,
            Happened::Removed { .. } => self.config.eviction_news == EvictionNews::Told,
            _ => true,
        };
        let happened: Vec<Happened> = happened.iter().copied().filter(is_told).collect();
        let path = &self.config.news;
        let at = if has_feeds { path.departure(self.now) } else { path.arrival(self.now) };
        if let Some(delivery) = self.post.send(index, at, &happened, stored) {
            self.queue.push(at, Event::News { delivery });
        }
    }

    /// News have reached the directory; or they leave their engine, as one batch.
    pub(super) fn pass_news(&mut self, delivery: u32) {
        let (node, news) = self.post.receive(delivery);
        if !self.has_feeds() {
            let is_lost = self.is_lost();
            // That an engine is gone, everybody sees sooner or later.
            let heard = news.iter().filter(|one| !is_lost || **one == News::Cleared);
            return heard.for_each(|one| self.directory.hear(node, one));
        }
        if !news.is_empty() {
            let batch = self.streams[node].publish(self.now, news);
            self.send(node, Letter::Batch(batch));
        }
    }

    fn is_lost(&mut self) -> bool {
        self.config.news.loss > 0.0 && self.losses.share() < self.config.news.loss
    }

    fn send(&mut self, node: usize, letter: Letter) {
        if self.config.news.lag == Micros::ZERO {
            return self.deliver(node, &letter);
        }
        self.streams[node].under_way.push_back(letter);
        self.queue.push(self.now + self.config.news.lag, Event::Letter { node: node as u32 });
    }

    /// What left an engine first is there.
    pub(super) fn receive(&mut self, node: usize) {
        let letter = self.streams[node].under_way.pop_front().expect("each has an event of its own");
        self.deliver(node, &letter);
    }

    /// Connections do not get lost, batches do, to each router by itself.
    fn deliver(&mut self, node: usize, letter: &Letter) {
        for gate in 0..self.gates.len() {
            if matches!(letter, Letter::Batch(_)) && self.is_lost() {
                continue;
            }
            let ask = self.gates[gate].hear(node, letter, self.now);
            self.ask_replay(gate, node, ask);
        }
    }

    pub(super) fn ask_replay(&mut self, gate: usize, node: usize, ask: Option<Ask>) {
        if let Some(Ask { number, leaves, .. }) = ask {
            let (gate, node) = (gate as u16, node as u16);
            self.queue.push(leaves + self.config.hop, Event::Replay { gate, node, number });
        }
    }

    /// A router's question has reached the engine: all that it remembers goes back.
    pub(super) fn replay(&mut self, gate: usize, node: usize, number: u32) {
        let Some(from_seq) = self.gates[gate].wanted(node, number) else { return };
        let reply = match self.nodes[node].state {
            NodeState::Up => Reply::Batches(self.streams[node].replay(from_seq)),
            NodeState::Down | NodeState::Absent => Reply::Nothing,
        };
        self.gates[gate].reply(node, reply);
        let back = self.config.news.lag.max(self.config.hop);
        self.queue.push(self.now + back, Event::Replayed { gate: gate as u16, node: node as u16, number });
    }

    /// And is there.
    pub(super) fn replayed(&mut self, gate: usize, node: usize, number: u32) {
        let ask = self.gates[gate].replied(node, number, self.now);
        self.ask_replay(gate, node, ask);
    }

    /// The fleet that was there before the first request is connected, and has told that it has told nothing yet.
    pub(super) fn open_stream(&mut self, node: usize) {
        let letter = Letter::Up(self.streams[node].process);
        for gate in &mut self.gates {
            if let Some(ask) = gate.hear(node, &letter, self.now) {
                gate.reply(node, Reply::Batches(Vec::new()));
                gate.replied(node, ask.number, self.now);
            }
        }
    }

    /// Routers connect to an engine.
    pub(super) fn connect(&mut self, node: usize) {
        if !self.has_feeds() {
            return;
        }
        let process = self.streams[node].process;
        self.send(node, Letter::Up(process));
    }

    /// An engine has died: what it has not published yet died with it, and its cache is empty, which a directory hears as late
    /// as anything else.
    pub(super) fn disconnect(&mut self, node: usize) {
        self.post.forget(node);
        if !self.has_feeds() {
            return self.post_news(node, &[Happened::Cleared]);
        }
        self.streams[node].restart();
        self.send(node, Letter::Down);
    }

    /// Feeds are told that time has passed.
    pub(super) fn pulse(&mut self) {
        if !self.now.0.is_multiple_of(PULSE.0) {
            return;
        }
        for gate in 0..self.gates.len() {
            for (node, ask) in self.gates[gate].pulse(self.now) {
                self.ask_replay(gate, node, Some(ask));
            }
        }
    }
}
