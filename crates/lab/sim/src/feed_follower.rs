//! A router's side of one engine's event stream: the production feed and its replay requests.
//!
//! Models the sockets and tasks of the `events` crate: one replay at a time, at most one every 100 ms.
//! Without a replay endpoint every replay fails at once.

use std::rc::Rc;

use warmroute_feed::{Config, Feed, ReplayEnd, Step};
use warmroute_types::Micros;

use crate::event_stream::PublishedBatch;

/// Minimum time between replay requests, as in production.
const REPLAY_INTERVAL_MIN: Micros = Micros::from_millis(100);

/// Feed of one engine, with its pending replay.
#[derive(Debug)]
pub struct FeedFollower {
    feed: Feed,
    steps: Vec<Step>,
    replays: Replays,
    /// Process of the connected engine; `None` while disconnected.
    pub connected_process: Option<u32>,
    /// Last seen count of answers that must have filled a block.
    pub fillings: u16,
    pending: Option<ReplayRequest>,
    requests: u32,
    requested_at: Option<Micros>,
    reply: ReplayReply,
}

/// Whether engines answer replay requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replays {
    /// Engines answer.
    Answered,
    /// Engines have no replay endpoint.
    None,
}

/// A replay request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayRequest {
    /// Number of the request; only the newest is valid.
    pub number: u32,
    /// First sequence number wanted.
    pub from_seq: u64,
    /// Time at which the request is sent.
    pub leaves: Micros,
}

/// Reply to a replay request.
#[derive(Clone, Debug)]
pub enum ReplayReply {
    /// Kept batches, complete.
    Batches(Vec<Rc<PublishedBatch>>),
    /// No answer: the engine is down.
    Nothing,
}

impl FeedFollower {
    /// Follower without a connection.
    pub fn new(replays: Replays) -> FeedFollower {
        FeedFollower {
            feed: Feed::new(Config::default()),
            steps: Vec::new(),
            replays,
            connected_process: None,
            fillings: 0,
            pending: None,
            requests: 0,
            requested_at: None,
            reply: ReplayReply::Nothing,
        }
    }

    /// Resets the state for a new worker. Request numbers continue, so that late replies to old requests are
    /// recognised.
    pub fn renew(&mut self) {
        *self = FeedFollower { requests: self.requests, ..FeedFollower::new(self.replays) };
    }

    /// Gives the feed an input and passes the resulting steps to `apply`. Returns a replay request to send,
    /// if the feed wants one.
    pub fn update(
        &mut self,
        now: Micros,
        input: impl FnOnce(&mut Feed, &mut Vec<Step>),
        mut apply: impl FnMut(Step),
    ) -> Option<ReplayRequest> {
        input(&mut self.feed, &mut self.steps);
        loop {
            let mut wanted = None;
            for step in self.steps.drain(..) {
                match step {
                    Step::AskReplay { from_seq } => wanted = Some(from_seq),
                    step => apply(step),
                }
            }
            let from_seq = wanted?;
            match self.replays {
                Replays::Answered => return Some(self.request(from_seq, now)),
                Replays::None => self.feed.replay_ended(ReplayEnd::Failed, now, &mut self.steps),
            }
        }
    }

    fn request(&mut self, from_seq: u64, now: Micros) -> ReplayRequest {
        let leaves = self.requested_at.map_or(now, |last| now.max(last + REPLAY_INTERVAL_MIN));
        self.requests += 1;
        let request = ReplayRequest { number: self.requests, from_seq, leaves };
        (self.pending, self.requested_at) = (Some(request), Some(leaves));
        request
    }

    /// Drops the connection and the pending replay.
    pub fn disconnect(&mut self) {
        (self.connected_process, self.pending) = (None, None);
    }

    /// First sequence number that a request wants, if it is still pending.
    pub fn wanted_seq(&self, number: u32) -> Option<u64> {
        self.pending.filter(|request| request.number == number).map(|request| request.from_seq)
    }

    /// Stores the engine's reply until it arrives.
    pub fn send(&mut self, reply: ReplayReply) {
        self.reply = reply;
    }

    /// Takes the reply, if its request is still pending.
    pub fn receive(&mut self, number: u32) -> Option<ReplayReply> {
        self.pending.take_if(|request| request.number == number)?;
        Some(std::mem::replace(&mut self.reply, ReplayReply::Nothing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_requests_keep_their_interval_and_only_the_newest_is_valid() {
        let mut follower = FeedFollower::new(Replays::Answered);
        let mut request = |at| {
            let now = Micros::from_millis(at);
            follower.update(now, |feed, steps| feed.connected(now, steps), |_| {}).unwrap()
        };
        let (first, second) = (request(5), request(10));
        assert_eq!(first, ReplayRequest { number: 1, from_seq: 0, leaves: Micros::from_millis(5) });
        assert_eq!(second, ReplayRequest { number: 2, from_seq: 0, leaves: Micros::from_millis(105) });
        assert_eq!((follower.wanted_seq(1), follower.wanted_seq(2)), (None, Some(0)));
        assert!(follower.receive(1).is_none());
        assert!(follower.receive(2).is_some());
        assert!(follower.receive(2).is_none(), "once");
    }

    #[test]
    fn without_a_replay_endpoint_no_replay_is_requested() {
        let mut follower = FeedFollower::new(Replays::None);
        let pending =
            follower.update(Micros::ZERO, |feed, steps| feed.connected(Micros::ZERO, steps), |_| {});
        assert_eq!(pending, None);
    }
}
