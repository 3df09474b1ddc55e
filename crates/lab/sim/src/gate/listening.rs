//! A router in the lab listens to its engines' events: what `events` and the pulse of `cli/precise` do in production.

use std::rc::Rc;

use warmroute_feed::{Feed, Moment, ReplayEnd, Step};
use warmroute_router::Change;
use warmroute_types::Micros;

use super::Gate;
use crate::follower::{Ask, Reply};
use crate::stream::{Batch, Letter};

impl Gate {
    /// Something has come from an engine.
    pub fn hear(&mut self, node: usize, letter: &Letter, now: Micros) -> Option<Ask> {
        match letter {
            Letter::Up(process) => self.connected(node, *process, now),
            Letter::Batch(batch) => self.heard(node, batch, now),
            Letter::Down => self.disconnected(node, now),
        }
    }

    fn connected(&mut self, node: usize, process: u32, now: Micros) -> Option<Ask> {
        let follower = self.followers.get_mut(node)?;
        follower.hang_up();
        follower.line = Some(process);
        self.tell_feed(node, now, |feed, steps| feed.connected(now, steps))
    }

    fn disconnected(&mut self, node: usize, now: Micros) -> Option<Ask> {
        self.followers.get_mut(node)?.hang_up();
        self.tell_feed(node, now, |feed, steps| feed.disconnected(now, steps))
    }

    fn heard(&mut self, node: usize, batch: &Rc<Batch>, now: Micros) -> Option<Ask> {
        let line = self.followers.get(node)?.line;
        if line != Some(batch.process) {
            return None;
        }
        let events = batch.event_batch(self.block_tokens);
        let at = Moment { now, unix_s: now.as_secs_f64() };
        self.tell_feed(node, now, |feed, steps| feed.received_live(batch.seq, events, at, steps))
    }

    /// The first batch that a question wants, if it still does.
    pub fn wanted(&self, node: usize, number: u32) -> Option<u64> {
        self.followers.get(node)?.wanted(number)
    }

    /// An engine's answer to it leaves.
    pub fn reply(&mut self, node: usize, reply: Reply) {
        self.followers[node].send(reply);
    }

    /// The answer has come. A feed that asks anew meanwhile wants the rest no more.
    pub fn replied(&mut self, node: usize, number: u32, now: Micros) -> Option<Ask> {
        let reply = self.followers.get_mut(node)?.receive(number)?;
        let end = match reply {
            Reply::Nothing => ReplayEnd::Failed,
            Reply::Batches(batches) => {
                for batch in batches {
                    let events = batch.event_batch(self.block_tokens);
                    let replayed = |feed: &mut Feed, steps: &mut Vec<Step>| {
                        feed.replayed(batch.seq, events, now, steps);
                    };
                    if let Some(ask) = self.tell_feed(node, now, replayed) {
                        return Some(ask);
                    }
                }
                ReplayEnd::Complete
            }
        };
        self.tell_feed(node, now, |feed, steps| feed.replay_ended(end, now, steps))
    }

    /// Lets every feed know what answers have shown, and that time has passed.
    pub fn pulse(&mut self, now: Micros) -> Vec<(usize, Ask)> {
        let mut asks = Vec::new();
        if self.followers.is_empty() {
            return asks;
        }
        for view in self.router.workers() {
            let (node, fillings) = (self.nodes[view.worker.id.index()], view.load.block_filling_answers);
            if std::mem::replace(&mut self.followers[node].fillings, fillings) != fillings {
                self.tell_feed(node, now, |feed, steps| feed.answered(now, steps));
            }
            let view = self.router.cache_view(view.worker.id).into();
            self.tell_feed(node, now, |feed, steps| feed.corrected(view, now, steps));
            let ask = self.tell_feed(node, now, |feed, steps| feed.tick(now, steps));
            asks.extend(ask.map(|ask| (node, ask)));
        }
        asks
    }

    fn tell_feed(
        &mut self,
        node: usize,
        now: Micros,
        input: impl FnOnce(&mut Feed, &mut Vec<Step>),
    ) -> Option<Ask> {
        let (worker, router) = (self.workers[node].as_ref()?, &self.router);
        let apply = |step| {
            let changes = Change::from_feed(worker, step).into_iter();
            changes.for_each(|change| router.apply(change).expect("only joining needs a seat"));
        };
        self.followers[node].tell(now, input, apply)
    }
}
