//! A router's side of one engine's stream: the production feed, and the replays that it asks for.
//!
//! What `events` does with sockets and tasks is done here with numbers: one replay at a time, none sooner than a tenth of a
//! second after the last, and where nobody can be asked every replay has failed before it began.

use std::rc::Rc;

use warmroute_feed::{Config, Feed, ReplayEnd, Step};
use warmroute_types::Micros;

use crate::stream::Batch;

/// Replays follow each other no faster, as in production.
const ASK_EVERY: Micros = Micros::from_millis(100);

/// One engine's feed.
#[derive(Debug)]
pub struct Follower {
    feed: Feed,
    steps: Vec<Step>,
    replays: Replays,
    /// The process at the other end, while there is a connection.
    pub line: Option<u32>,
    /// Answers that must have filled a block, as last seen.
    pub fillings: u32,
    asked: Option<Ask>,
    asks: u32,
    asked_at: Option<Micros>,
    reply: Reply,
}

/// Whether engines answer when they are asked for what was missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replays {
    /// They do.
    Answered,
    /// They have no place to ask.
    None,
}

/// A replay that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Only the newest counts.
    pub number: u32,
    /// The first batch wanted.
    pub from_seq: u64,
    /// When the question leaves.
    pub leaves: Micros,
}

/// What an engine says to it.
#[derive(Clone, Debug)]
pub enum Reply {
    /// These, and that was all.
    Batches(Vec<Rc<Batch>>),
    /// Nobody answers.
    Nothing,
}

impl Follower {
    /// One that has heard nothing.
    pub fn new(replays: Replays) -> Follower {
        Follower {
            feed: Feed::new(Config::default()),
            steps: Vec::new(),
            replays,
            line: None,
            fillings: 0,
            asked: None,
            asks: 0,
            asked_at: None,
            reply: Reply::Nothing,
        }
    }

    /// The worker is another one. Questions go on being counted, so that late answers to the old ones are known.
    pub fn renew(&mut self) {
        *self = Follower { asks: self.asks, ..Follower::new(self.replays) };
    }

    /// Tells the feed something, and `apply` what follows from it; says what is to be asked for.
    pub fn tell(
        &mut self,
        now: Micros,
        input: impl FnOnce(&mut Feed, &mut Vec<Step>),
        mut apply: impl FnMut(Step),
    ) -> Option<Ask> {
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
                Replays::Answered => return Some(self.ask(from_seq, now)),
                Replays::None => self.feed.replay_ended(ReplayEnd::Failed, now, &mut self.steps),
            }
        }
    }

    fn ask(&mut self, from_seq: u64, now: Micros) -> Ask {
        let leaves = self.asked_at.map_or(now, |last| now.max(last + ASK_EVERY));
        self.asks += 1;
        let ask = Ask { number: self.asks, from_seq, leaves };
        (self.asked, self.asked_at) = (Some(ask), Some(leaves));
        ask
    }

    /// The connection is gone, and with it whatever was asked.
    pub fn hang_up(&mut self) {
        (self.line, self.asked) = (None, None);
    }

    /// The first batch that a question wants, if it still does.
    pub fn wanted(&self, number: u32) -> Option<u64> {
        self.asked.filter(|ask| ask.number == number).map(|ask| ask.from_seq)
    }

    /// What the engine says leaves it.
    pub fn send(&mut self, reply: Reply) {
        self.reply = reply;
    }

    /// It arrives, if it is still wanted.
    pub fn receive(&mut self, number: u32) -> Option<Reply> {
        self.asked.take_if(|ask| ask.number == number)?;
        Some(std::mem::replace(&mut self.reply, Reply::Nothing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_keep_their_distance_and_only_the_newest_counts() {
        let mut follower = Follower::new(Replays::Answered);
        let mut ask = |at| {
            let now = Micros::from_millis(at);
            follower.tell(now, |feed, steps| feed.connected(now, steps), |_| {}).unwrap()
        };
        let (first, second) = (ask(5), ask(10));
        assert_eq!(first, Ask { number: 1, from_seq: 0, leaves: Micros::from_millis(5) });
        assert_eq!(second, Ask { number: 2, from_seq: 0, leaves: Micros::from_millis(105) });
        assert_eq!((follower.wanted(1), follower.wanted(2)), (None, Some(0)));
        assert!(follower.receive(1).is_none());
        assert!(follower.receive(2).is_some());
        assert!(follower.receive(2).is_none(), "once");
    }

    #[test]
    fn where_nobody_can_be_asked_nothing_is() {
        let mut follower = Follower::new(Replays::None);
        let asked = follower.tell(Micros::ZERO, |feed, steps| feed.connected(Micros::ZERO, steps), |_| {});
        assert_eq!(asked, None);
    }
}
