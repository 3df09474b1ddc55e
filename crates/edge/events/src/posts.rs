//! A reporter's posts as a stream: the source numbers them from 0, and a snapshot begins the stream anew.

use warmroute_feed::{Feed, Moment, ReplayEnd, Step};
use warmroute_types::EventBatch;
use xxhash_rust::xxh3::xxh3_64;

use crate::feed_handle::FeedHandle;
use crate::inbox::{Accepted, PostRefused};
use crate::json::{Post, PostKind};

/// Each reporter's posts reset those of the other.
const SEVERAL_REPORTERS: &str = "several reporters post for this worker: start one for each";

/// The processes that post for a worker: hashes of their names, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reporter {
    current: u64,
    previous: u64,
}

/// What became of a post.
enum Outcome {
    Applied,
    /// The post was known already.
    Known,
    /// Earlier posts are missing, from this one on.
    Gap(u64),
}

impl Reporter {
    fn post(
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

impl FeedHandle {
    /// Accepts a post.
    pub(crate) fn posted(&self, post: Post) -> Result<Accepted, PostRefused> {
        let Post { source, seq, kind, batch } = post;
        let (source, unreadable) = (xxh3_64(source.as_bytes()).max(1), batch.unreadable);
        let ((before, outcome), asked) = self.update_state(|feed, reporter, at, steps| {
            let before = *reporter;
            (before, reporter.post(feed, source, (seq, kind, batch), at, steps))
        });
        self.fail_replay(asked);
        let next_seq = match outcome {
            Outcome::Gap(expected) => return Err(PostRefused::Gap { expected }),
            Outcome::Known => self.counters().next_seq.unwrap_or(0),
            Outcome::Applied => {
                self.check_reporters(before, source);
                seq.saturating_add(1)
            }
        };
        Ok(Accepted { next_seq, unreadable })
    }

    /// A reporter that posts again after another one did is a second one.
    fn check_reporters(&self, before: Reporter, source: u64) {
        if before.current != 0 && before.current != source {
            self.set_trouble((before.previous == source).then(|| SEVERAL_REPORTERS.to_owned()));
        }
    }
}
