//! Events that a reporter posts, for engines without ZeroMQ: `POST /events` on the admin listener.
//!
//! Posts are numbered by their source, from 0. A post that was seen is accepted again and changes nothing; one that is too
//! early is refused with the number that is expected, and the reporter sends what is missing, or a snapshot. Where there are
//! other routers one that is a little early waits: they may have what is missing. The same feed stands behind it as behind a socket.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use thiserror::Error;
use warmroute_types::{Address, MAX_WORKERS};

use crate::desk::Desk;
use crate::json::{read_json, read_msgpack};
use crate::listener::Listener;

/// Bounds of an inbox.
#[derive(Clone, Debug)]
pub struct InboxConfig {
    /// Patience and bounds of each feed.
    pub feed: warmroute_feed::Config,
    /// The largest post.
    pub body_bytes_max: usize,
    /// Workers that may report.
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

/// What became of a post: the answer is 200 with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The number that is expected next.
    pub next_seq: u64,
    /// Events that could not be read.
    pub unreadable: u32,
}

/// Why a post was not taken, with the HTTP status it deserves.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// 409: posts are missing. Send them, or a snapshot: a post with `reset`.
    #[error("expected post {expected}")]
    Gap {
        /// The number that is expected.
        expected: u64,
    },
    /// 400: it is no post.
    #[error("{0}")]
    Malformed(String),
    /// 413: it is too large.
    #[error("a post of more than {0} bytes")]
    TooLarge(usize),
    /// 503: too many workers report.
    #[error("{0} workers report already")]
    Full(usize),
}

impl Refused {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Refused::Gap { .. } => 409,
            Refused::Malformed(_) => 400,
            Refused::TooLarge(_) => 413,
            Refused::Full(_) => 503,
        }
    }
}

/// The longest name of a source.
const SOURCE_BYTES_MAX: usize = 128;

/// All workers that report.
pub struct Inbox {
    config: InboxConfig,
    listener: Arc<dyn Listener>,
    desks: Mutex<HashMap<Address, Arc<Desk>>>,
}

impl Inbox {
    /// Nobody has reported.
    pub fn new(config: InboxConfig, listener: Arc<dyn Listener>) -> Inbox {
        Inbox { config, listener, desks: Mutex::default() }
    }

    /// Takes a post for a worker. The caller has authenticated it and knows the worker.
    pub fn post(&self, worker: &Address, content_type: &str, body: &[u8]) -> Result<Accepted, Refused> {
        if body.len() > self.config.body_bytes_max {
            return Err(Refused::TooLarge(self.config.body_bytes_max));
        }
        let is_msgpack = content_type.contains("msgpack");
        let post =
            if is_msgpack { read_msgpack(body) } else { read_json(body) }.map_err(Refused::Malformed)?;
        if post.source.is_empty() || post.source.len() > SOURCE_BYTES_MAX {
            return Err(Refused::Malformed(format!("source must have 1 to {SOURCE_BYTES_MAX} bytes")));
        }
        // Another worker's post does not wait for this one.
        self.desk(worker)?.posted(post)
    }

    /// A worker has left: whatever it reported is not spoken for any more.
    pub fn forget(&self, worker: &Address) {
        self.desks.lock().remove(worker);
    }

    /// Time has passed. To be called about once a second.
    pub fn tick(&self) {
        let desks: Vec<_> = self.desks.lock().values().cloned().collect();
        for desk in desks {
            desk.tell_without_replay(|feed, at, steps| feed.tick(at.now, steps));
        }
    }

    /// The feed behind a worker's posts; none where it never reported.
    pub fn desk_of(&self, worker: &Address) -> Option<Arc<Desk>> {
        self.desks.lock().get(worker).cloned()
    }

    /// The same, where other routers may hear a worker that has never reported here.
    pub fn desk(&self, worker: &Address) -> Result<Arc<Desk>, Refused> {
        let mut desks = self.desks.lock();
        if let Some(desk) = desks.get(worker) {
            return Ok(Arc::clone(desk));
        }
        if desks.len() >= self.config.workers_max {
            return Err(Refused::Full(desks.len()));
        }
        let desk = Arc::new(Desk::new(worker.clone(), self.config.feed.clone(), Arc::clone(&self.listener)));
        desks.insert(worker.clone(), Arc::clone(&desk));
        Ok(desk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_feed::Step;
    use warmroute_types::CacheEvent;

    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>);

    impl Listener for Notes {
        fn hear(&self, _: &Address, steps: &mut Vec<Step>) {
            let words = steps.drain(..).map(|step| match step {
                Step::Apply(events) => events.iter().map(word).collect::<Vec<_>>().join(","),
                Step::Forget => "!".to_owned(),
                Step::View(view) => view.to_string(),
                Step::AskReplay { .. } => panic!("nobody can be asked"),
            });
            self.0.lock().extend(words);
        }
    }

    fn word(event: &CacheEvent) -> String {
        match event {
            CacheEvent::Stored(stored) => format!("+{}", stored.names[0]),
            CacheEvent::Removed(removed) => format!("-{}", removed.names[0]),
            CacheEvent::Cleared => "0".to_owned(),
            CacheEvent::Restored(_) => "=".to_owned(),
        }
    }

    struct Office {
        inbox: Inbox,
        notes: Arc<Notes>,
    }

    impl Office {
        fn new(config: InboxConfig) -> Office {
            let notes = Arc::new(Notes::default());
            Office { inbox: Inbox::new(config, Arc::clone(&notes) as Arc<dyn Listener>), notes }
        }

        fn post(&self, source: &str, seq: u64, name: u64, reset: &str) -> Result<Accepted, Refused> {
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
    fn posts_are_taken_once_and_in_order() {
        let desk = Office::new(InboxConfig::default());
        assert_eq!(desk.post("a", 0, 1, "false"), Ok(Accepted { next_seq: 1, unreadable: 0 }));
        assert_eq!(desk.post("a", 1, 2, "false"), Ok(Accepted { next_seq: 2, unreadable: 0 }));
        assert_eq!(desk.post("a", 0, 1, "false"), Ok(Accepted { next_seq: 2, unreadable: 0 }));
        assert_eq!(desk.post("a", 4, 9, "false"), Err(Refused::Gap { expected: 2 }));
        desk.expect("-1 uncertain reported -2");
    }

    #[test]
    fn a_new_process_begins_at_zero_or_with_a_snapshot() {
        let desk = Office::new(InboxConfig::default());
        assert_eq!(desk.post("a", 5, 1, "false"), Err(Refused::Gap { expected: 0 }));
        assert_eq!(desk.post("a", 5, 1, "true").unwrap().next_seq, 6);
        assert_eq!(desk.post("b", 3, 2, "false"), Err(Refused::Gap { expected: 0 }));
        assert_eq!(desk.post("b", 0, 2, "false").unwrap().next_seq, 1);
        assert_eq!(desk.post("b", 9, 3, "true").unwrap().next_seq, 10);
        desk.expect("-1 uncertain reported ! silent -2 uncertain reported ! silent -3 uncertain reported");
        let restarts = desk.inbox.desk_of(&Address::new("http://w")).unwrap().counters().restarts;
        assert_eq!(restarts, 1, "a snapshot of the same process is none");
    }

    #[test]
    fn what_is_no_post_is_refused_with_a_status() {
        let config = InboxConfig { body_bytes_max: 200, workers_max: 1, ..InboxConfig::default() };
        let desk = Office::new(config);
        let post = |worker: &str, body: &[u8]| {
            desk.inbox.post(&Address::new(worker), "application/json", body).unwrap_err().status()
        };
        assert_eq!(post("http://w", b"{}"), 400);
        assert_eq!(post("http://w", br#"{"source":"","seq":0,"events":[]}"#), 400);
        assert_eq!(post("http://w", &[b' '; 201]), 413);
        desk.post("a", 0, 1, "false").unwrap();
        assert_eq!(post("http://x", br#"{"source":"s","seq":0,"events":[]}"#), 503);
        desk.inbox.forget(&Address::new("http://w"));
        assert!(desk.inbox.desk_of(&Address::new("http://w")).is_none());
    }
}
