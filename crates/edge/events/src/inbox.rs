//! Events that a reporter posts, for engines without ZeroMQ: `POST /events` on the admin listener.
//!
//! The source numbers its posts from 0. A known post is accepted again and changes nothing. A post that is too early
//! is refused with the expected number; the reporter then sends what is missing, or a snapshot. The feed is the same
//! as behind a socket. With several routers a reporter posts to each of them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use thiserror::Error;
use warmroute_types::{Address, MAX_WORKERS};
use xxhash_rust::xxh3::xxh3_64;

use crate::feed_handle::FeedHandle;
use crate::json::{Post, read_json, read_msgpack};
use crate::posts::{Outcome, Reporter};
use crate::sink::EventSink;

/// Limits of an inbox.
#[derive(Clone, Debug)]
pub struct InboxConfig {
    /// Timeouts and limits of each feed.
    pub feed: warmroute_feed::Config,
    /// Largest post in bytes.
    pub body_bytes_max: usize,
    /// Most workers that may report.
    pub workers_max: usize,
}

impl Default for InboxConfig {
    fn default() -> InboxConfig {
        InboxConfig {
            feed: warmroute_feed::Config::default(),
            body_bytes_max: 32 << 20,
            workers_max: MAX_WORKERS,
        }
    }
}

/// The result of an accepted post: the response is 200 with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The number that is expected next.
    pub next_seq: u64,
    /// Events that could not be read.
    pub unreadable: u32,
}

/// Why a post was refused, and its HTTP status.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PostRefused {
    /// 409: earlier posts are missing. Send them, or a snapshot: a post with `reset`.
    #[error("expected post {expected}; send the posts from there on, or a snapshot (`reset`: true)")]
    Gap {
        /// The number that is expected.
        expected: u64,
    },
    /// 400: the body is not a post.
    #[error("{0}")]
    Malformed(String),
    /// 413: the body is too large.
    #[error("the post is larger than {0} bytes; split it into several posts")]
    TooLarge(usize),
    /// 503: too many workers report.
    #[error("{0} workers report already, which is the limit")]
    Full(usize),
}

impl PostRefused {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            PostRefused::Gap { .. } => 409,
            PostRefused::Malformed(_) => 400,
            PostRefused::TooLarge(_) => 413,
            PostRefused::Full(_) => 503,
        }
    }
}

/// Each reporter's posts reset those of the other.
const SEVERAL_REPORTERS: &str = "several reporters post for this worker: start one for each";

/// The longest name of a source.
const SOURCE_BYTES_MAX: usize = 128;

/// All workers that report.
pub struct ReportInbox {
    config: InboxConfig,
    sink: Arc<dyn EventSink>,
    feeds: Mutex<HashMap<Address, Arc<FeedHandle>>>,
}

impl ReportInbox {
    /// An inbox without reports.
    pub fn new(config: InboxConfig, sink: Arc<dyn EventSink>) -> ReportInbox {
        ReportInbox { config, sink, feeds: Mutex::default() }
    }

    /// Accepts a post for a worker. The caller has authenticated it and knows the worker.
    pub fn post(&self, worker: &Address, content_type: &str, body: &[u8]) -> Result<Accepted, PostRefused> {
        if body.len() > self.config.body_bytes_max {
            return Err(PostRefused::TooLarge(self.config.body_bytes_max));
        }
        let is_msgpack = content_type.contains("msgpack");
        let post =
            if is_msgpack { read_msgpack(body) } else { read_json(body) }.map_err(PostRefused::Malformed)?;
        if post.source.is_empty() || post.source.len() > SOURCE_BYTES_MAX {
            return Err(PostRefused::Malformed(format!("source must have 1 to {SOURCE_BYTES_MAX} bytes")));
        }
        // The inbox is unlocked: posts of other workers do not wait for this one.
        self.feed(worker)?.posted(post)
    }

    /// Drops the feed of a worker that has left.
    pub fn forget(&self, worker: &Address) {
        self.feeds.lock().remove(worker);
    }

    /// Lets time pass. Call it about once a second.
    pub fn tick(&self) {
        let feeds: Vec<_> = self.feeds.lock().values().cloned().collect();
        for feed_handle in feeds {
            feed_handle.update_without_replay(|feed, at, steps| feed.tick(at.now, steps));
        }
    }

    /// The feed behind a worker's posts; `None` where it never reported.
    pub fn feed_of(&self, worker: &Address) -> Option<Arc<FeedHandle>> {
        self.feeds.lock().get(worker).cloned()
    }

    /// The same, created where it is missing.
    fn feed(&self, worker: &Address) -> Result<Arc<FeedHandle>, PostRefused> {
        let mut feeds = self.feeds.lock();
        if let Some(feed_handle) = feeds.get(worker) {
            return Ok(Arc::clone(feed_handle));
        }
        if feeds.len() >= self.config.workers_max {
            return Err(PostRefused::Full(feeds.len()));
        }
        let feed_handle =
            Arc::new(FeedHandle::new(worker.clone(), self.config.feed.clone(), Arc::clone(&self.sink)));
        feeds.insert(worker.clone(), Arc::clone(&feed_handle));
        Ok(feed_handle)
    }
}

impl FeedHandle {
    /// Gives a post to the feed, if it continues the posts before it.
    fn posted(&self, post: Post) -> Result<Accepted, PostRefused> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_feed::Step;
    use warmroute_types::CacheEvent;

    #[derive(Default)]
    struct RecordingSink(Mutex<Vec<String>>);

    impl EventSink for RecordingSink {
        fn apply(&self, _: &Address, steps: &mut Vec<Step>) {
            let words = steps.drain(..).map(|step| match step {
                Step::Apply(events) => events.iter().map(word).collect::<Vec<_>>().join(","),
                Step::Forget => "!".to_owned(),
                Step::View(view) => view.to_string(),
                Step::AskReplay { .. } => panic!("no replay can be requested"),
            });
            self.0.lock().extend(words);
        }
    }

    fn word(event: &CacheEvent) -> String {
        match event {
            CacheEvent::Stored(stored) => format!("+{}", stored.names[0]),
            CacheEvent::Removed(removed) => format!("-{}", removed.names[0]),
            CacheEvent::Cleared => "0".to_owned(),
        }
    }

    struct Harness {
        inbox: ReportInbox,
        notes: Arc<RecordingSink>,
    }

    impl Harness {
        fn new(config: InboxConfig) -> Harness {
            let notes = Arc::new(RecordingSink::default());
            Harness { inbox: ReportInbox::new(config, Arc::clone(&notes) as Arc<dyn EventSink>), notes }
        }

        fn post(&self, source: &str, seq: u64, name: u64, reset: &str) -> Result<Accepted, PostRefused> {
            let body = format!(
                r#"{{"source":"{source}","seq":{seq},"reset":{reset},"events":[{{"type":"BlockRemoved","block_hashes":[{name}]}}]}}"#
            );
            self.inbox.post(&Address::new("http://w"), "application/json", body.as_bytes())
        }

        #[track_caller]
        fn expect(&self, words: &str) {
            assert_eq!(std::mem::take(&mut *self.notes.0.lock()).join(" "), words);
        }
    }

    #[test]
    fn posts_are_applied_once_and_in_order() {
        let harness = Harness::new(InboxConfig::default());
        assert_eq!(harness.post("a", 0, 1, "false"), Ok(Accepted { next_seq: 1, unreadable: 0 }));
        assert_eq!(harness.post("a", 1, 2, "false"), Ok(Accepted { next_seq: 2, unreadable: 0 }));
        assert_eq!(harness.post("a", 0, 1, "false"), Ok(Accepted { next_seq: 2, unreadable: 0 }));
        assert_eq!(harness.post("a", 4, 9, "false"), Err(PostRefused::Gap { expected: 2 }));
        harness.expect("-1 uncertain reported -2");
    }

    #[test]
    fn a_new_process_begins_at_zero_or_with_a_snapshot() {
        let harness = Harness::new(InboxConfig::default());
        assert_eq!(harness.post("a", 5, 1, "false"), Err(PostRefused::Gap { expected: 0 }));
        assert_eq!(harness.post("a", 5, 1, "true").unwrap().next_seq, 6);
        assert_eq!(harness.post("b", 3, 2, "false"), Err(PostRefused::Gap { expected: 0 }));
        assert_eq!(harness.post("b", 0, 2, "false").unwrap().next_seq, 1);
        assert_eq!(harness.post("b", 9, 3, "true").unwrap().next_seq, 10);
        harness.expect("-1 uncertain reported ! silent -2 uncertain reported ! silent -3 uncertain reported");
        let restarts = harness.inbox.feed_of(&Address::new("http://w")).unwrap().counters().restarts;
        assert_eq!(restarts, 1, "a snapshot of the same process is none");
    }

    #[test]
    fn invalid_posts_are_refused_with_a_status() {
        let config = InboxConfig { body_bytes_max: 200, workers_max: 1, ..InboxConfig::default() };
        let harness = Harness::new(config);
        let post = |worker: &str, body: &[u8]| {
            harness.inbox.post(&Address::new(worker), "application/json", body).unwrap_err().status()
        };
        assert_eq!(post("http://w", b"{}"), 400);
        assert_eq!(post("http://w", br#"{"source":"","seq":0,"events":[]}"#), 400);
        assert_eq!(post("http://w", &[b' '; 201]), 413);
        harness.post("a", 0, 1, "false").unwrap();
        assert_eq!(post("http://x", br#"{"source":"s","seq":0,"events":[]}"#), 503);
        harness.inbox.forget(&Address::new("http://w"));
        assert!(harness.inbox.feed_of(&Address::new("http://w")).is_none());
    }
}
