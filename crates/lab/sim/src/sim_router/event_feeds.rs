//! Engine events of a simulated router: what the `events` crate and the feed ticks do in production.

use std::rc::Rc;

use warmroute_feed::{Feed, Moment, ReplayEnd, Step};
use warmroute_router::Change;
use warmroute_types::Micros;

use super::SimRouter;
use crate::event_stream::{PublishedBatch, StreamMessage};
use crate::feed_follower::{ReplayReply, ReplayRequest};

impl SimRouter {
    /// Handles a message from an engine. Returns a replay request to send, if any.
    pub fn receive(&mut self, node: usize, message: &StreamMessage, now: Micros) -> Option<ReplayRequest> {
        match message {
            StreamMessage::Up(process) => self.connected(node, *process, now),
            StreamMessage::PublishedBatch(batch) => self.receive_batch(node, batch, now),
            StreamMessage::Down => self.disconnected(node, now),
        }
    }

    fn connected(&mut self, node: usize, process: u32, now: Micros) -> Option<ReplayRequest> {
        let follower = self.followers.get_mut(node)?;
        follower.disconnect();
        follower.connected_process = Some(process);
        self.update_feed(node, now, |feed, steps| feed.connected(now, steps))
    }

    fn disconnected(&mut self, node: usize, now: Micros) -> Option<ReplayRequest> {
        self.followers.get_mut(node)?.disconnect();
        self.update_feed(node, now, |feed, steps| feed.disconnected(now, steps))
    }

    fn receive_batch(
        &mut self,
        node: usize,
        batch: &Rc<PublishedBatch>,
        now: Micros,
    ) -> Option<ReplayRequest> {
        let line = self.followers.get(node)?.connected_process;
        if line != Some(batch.process) {
            return None;
        }
        let events = batch.event_batch(self.block_tokens);
        let at = Moment { now, unix_s: now.as_secs_f64() };
        self.update_feed(node, now, |feed, steps| feed.received_live(batch.seq, events, at, steps))
    }

    /// First sequence number that a replay request wants, if it is still pending.
    pub fn wanted_seq(&self, node: usize, number: u32) -> Option<u64> {
        self.followers.get(node)?.wanted_seq(number)
    }

    /// Stores an engine's reply until it arrives.
    pub fn send_reply(&mut self, node: usize, reply: ReplayReply) {
        self.followers[node].send(reply);
    }

    /// Handles a replay that arrived. If the feed requests another replay meanwhile, the rest is dropped.
    pub fn receive_reply(&mut self, node: usize, number: u32, now: Micros) -> Option<ReplayRequest> {
        let reply = self.followers.get_mut(node)?.receive(number)?;
        let end = match reply {
            ReplayReply::Nothing => ReplayEnd::Failed,
            ReplayReply::Batches(batches) => {
                for batch in batches {
                    let events = batch.event_batch(self.block_tokens);
                    let replayed = |feed: &mut Feed, steps: &mut Vec<Step>| {
                        feed.replayed(batch.seq, events, now, steps);
                    };
                    if let Some(request) = self.update_feed(node, now, replayed) {
                        return Some(request);
                    }
                }
                ReplayEnd::Complete
            }
        };
        self.update_feed(node, now, |feed, steps| feed.replay_ended(end, now, steps))
    }

    /// Tells every feed of new answers and of the time. Returns the replay requests to send, by engine.
    pub fn tick_feeds(&mut self, now: Micros) -> Vec<(usize, ReplayRequest)> {
        let mut requests = Vec::new();
        if self.followers.is_empty() {
            return requests;
        }
        for view in self.router.inspect().workers() {
            let (node, fillings) = (self.nodes[view.worker.id.index()], view.load.block_filling_answers);
            if std::mem::replace(&mut self.followers[node].fillings, fillings) != fillings {
                self.update_feed(node, now, |feed, steps| feed.answered(now, steps));
            }
            let view = self.router.inspect().cache_view(view.worker.id).into();
            self.update_feed(node, now, |feed, steps| feed.corrected(view, now, steps));
            let request = self.update_feed(node, now, |feed, steps| feed.tick(now, steps));
            requests.extend(request.map(|request| (node, request)));
        }
        requests
    }

    fn update_feed(
        &mut self,
        node: usize,
        now: Micros,
        input: impl FnOnce(&mut Feed, &mut Vec<Step>),
    ) -> Option<ReplayRequest> {
        let (worker, router) = (self.workers[node].as_ref()?, &self.router);
        let apply = |step| {
            let changes = Change::from_feed(worker, step).into_iter();
            changes.for_each(|change| router.apply(change));
        };
        self.followers[node].update(now, input, apply)
    }
}
