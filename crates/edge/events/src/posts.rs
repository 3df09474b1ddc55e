//! A reporter's posts as a stream: the source numbers them from 0, and a snapshot begins the stream anew.

use warmroute_feed::{Feed, Moment, ReplayEnd, Step};
use warmroute_types::EventBatch;

use crate::json::PostKind;

/// The processes that post for a worker: hashes of their names, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reporter {
    pub current: u64,
    pub previous: u64,
}

/// What became of a post.
pub(crate) enum Outcome {
    Applied,
    /// The post was known already.
    Known,
    /// Earlier posts are missing, from this one on.
    Gap(u64),
}

impl Reporter {
    /// Applies a post to the worker's feed.
    pub fn post(
        &mut self,
        feed: &mut Feed,
        source: u64,
        (seq, kind, batch): (u64, PostKind, EventBatch),
        at: Moment,
        steps: &mut Vec<Step>,
    ) -> Outcome {
        let next = feed.counters().next_seq.filter(|_| self.current == source);
        match next {
            _ if kind == PostKind::Snapshot => self.begin(feed, source, (seq, batch), at, steps),
            Some(next) if seq < next => return Outcome::Known,
            Some(next) if seq == next => feed.received_live(seq, batch, at, steps),
            Some(expected) => return Outcome::Gap(expected),
            None if seq == 0 => self.begin(feed, source, (seq, batch), at, steps),
            None => return Outcome::Gap(0),
        }
        Outcome::Applied
    }

    /// A new process or a snapshot: what was known is forgotten, and the stream begins here.
    fn begin(
        &mut self,
        feed: &mut Feed,
        source: u64,
        (seq, batch): (u64, EventBatch),
        at: Moment,
        steps: &mut Vec<Step>,
    ) {
        match self.current {
            0 => feed.begin(at.now, steps),
            same if same == source => {
                steps.push(Step::Forget);
                feed.begin(at.now, steps);
            }
            _ => feed.restarted(at.now, steps),
        }
        if self.current != source {
            self.previous = std::mem::replace(&mut self.current, source);
        }
        feed.replayed(seq, batch, at.now, steps);
        feed.replay_ended(ReplayEnd::Complete, at.now, steps);
        // The beginning is in this batch, so no replay is needed.
        steps.retain(|step| !matches!(step, Step::AskReplay { .. }));
    }
}
