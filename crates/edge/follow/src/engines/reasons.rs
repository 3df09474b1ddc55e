//! Reasons why an engine's cache is not known better, for the log and for `GET /workers`.
//!
//! A wrong setting must never look like an empty cache. So everything that keeps events from being used has a
//! sentence here, with the remedy where there is one.

use warmroute_events::{Counters, Doubt, GroupObstacle, SharedTopic, View};
use warmroute_types::CacheView;

/// Why a worker's view is not a trusted, reported one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewReason {
    #[error("its events are switched off: kv-events = {{ endpoint = \"off\" }}")]
    SwitchedOff,
    #[error("the engine publishes no KV events; docs/precise.md says which flags it needs")]
    NoEvents,
    #[error("no KV events of its own are listened to, and no reporter has posted any for it yet")]
    NoReports,
    /// Files, templates or endpoints that cannot be used, in the words of the check that failed.
    #[error("{0}")]
    Unusable(String),
    #[error("the engine has {0} data-parallel ranks: list it with ranks = {0}, or --dp-size {0}")]
    Ranks(usize),
    #[error(
        "the engine has no rank {rank}: it has {has}, counted from 0; list it with ranks = {has}, or --dp-size {has}"
    )]
    NoRank { rank: u16, has: usize },
    #[error("the engine connects to {0}, where nothing listens: bind that address with --kv-events-bind")]
    NotBound(String),
    #[error("engines that connect to the router share one endpoint: give every engine its own topic")]
    NoTopic,
    #[error(transparent)]
    SharedTopic(#[from] SharedTopic),
    /// The subscriber's own error.
    #[error("{0}")]
    Disconnected(String),
    #[error("nothing has come yet from {0}")]
    NothingYet(String),
    #[error(
        "it gets requests, but nothing has come from {0}: does its --kv-events-config say the same, and is its prefix cache on (--enable-prefix-caching)?"
    )]
    Silent(String),
    #[error(
        "its events do not come from {0}, they are fetched from its replay: does its --kv-events-config say the same?"
    )]
    Fetched(String),
    #[error("its reporter has posted nothing yet")]
    NothingReported,
    #[error(
        "it gets requests, but its reporter posts nothing: check that the reporter runs and has this router's --url"
    )]
    SilentReporter,
    #[error("it gets requests, but its events have stopped")]
    Stopped,
    #[error(
        "events were lost, and no replay has them: give the engine a replay_endpoint, or a larger buffer_steps"
    )]
    Lost,
    #[error(
        "posts of its reporter were lost: the next post is answered with 409, and the reporter then sends a snapshot (reset)"
    )]
    LostReports,
    #[error("events could not be read: is the engine newer than this router?")]
    Unreadable,
    #[error("missed events are being fetched from the engine's replay")]
    Asking,
    #[error("answers found less in its cache than its events had promised")]
    Contradicted,
    #[error("its events do not show what it can reuse: {0}")]
    Groups(GroupObstacle),
    #[error("its events match none of its prompts: are the model's files the ones it serves?")]
    Unrelated,
}

/// Requests after which an engine that publishes nothing counts as silent rather than idle.
const SILENT_AFTER_REQUESTS: u32 = 8;

/// The state of one worker's feed.
pub struct FeedStatus {
    pub view: View,
    pub doubt: Option<Doubt>,
    pub counters: Counters,
    /// Why no events can arrive.
    pub trouble: Option<String>,
    /// Where its events come from, as text for people.
    pub origin: String,
    pub publisher: EventPublisher,
}

/// Who publishes an engine's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPublisher {
    /// The engine.
    Engine,
    /// A reporter, by `POST /events`.
    Reporter,
}

impl From<String> for ViewReason {
    fn from(why: String) -> ViewReason {
        ViewReason::Unusable(why)
    }
}

impl ViewReason {
    /// Whether an operator should act. Other reasons are intended or pass by themselves.
    pub fn is_trouble(&self) -> bool {
        !matches!(
            self,
            ViewReason::SwitchedOff
                | ViewReason::NoEvents
                | ViewReason::NoReports
                | ViewReason::NothingYet(_)
                | ViewReason::NothingReported
                | ViewReason::Asking
                | ViewReason::Groups(_)
        )
    }

    /// Why a feed is worth less than it could be; `None` if it is not. `requests` is the number of requests sent to
    /// the worker.
    pub fn of_feed(known: CacheView, status: &FeedStatus, requests: u32) -> Option<ViewReason> {
        let FeedStatus { view, doubt, counters, trouble, origin, publisher } = status;
        let is_posted = *publisher == EventPublisher::Reporter;
        if let (View::Silent, Some(Doubt::Groups(obstacle))) = (view, doubt) {
            return Some(ViewReason::Groups(*obstacle));
        }
        match (view, trouble) {
            (View::Reported, Some(trouble)) => Some(ViewReason::Disconnected(trouble.clone())),
            (View::Reported, _) if known == CacheView::Uncertain => Some(ViewReason::Contradicted),
            (View::Reported, _) => {
                (counters.missed_live > 0 && counters.live == 0).then(|| ViewReason::Fetched(origin.clone()))
            }
            (_, Some(trouble)) => Some(ViewReason::Disconnected(trouble.clone())),
            (View::Silent, None) if counters.batches > 0 => Some(ViewReason::Stopped),
            (View::Silent, None) if is_posted && requests >= SILENT_AFTER_REQUESTS => {
                Some(ViewReason::SilentReporter)
            }
            (View::Silent, None) if is_posted => Some(ViewReason::NothingReported),
            (View::Silent, None) if requests >= SILENT_AFTER_REQUESTS => {
                Some(ViewReason::Silent(origin.clone()))
            }
            (View::Silent, None) => Some(ViewReason::NothingYet(origin.clone())),
            (View::Uncertain, None) => match doubt {
                Some(Doubt::Contradicted) => Some(ViewReason::Contradicted),
                Some(Doubt::Lost) if is_posted => Some(ViewReason::LostReports),
                Some(Doubt::Lost) => Some(ViewReason::Lost),
                Some(Doubt::Unreadable) => Some(ViewReason::Unreadable),
                Some(Doubt::Groups(obstacle)) => Some(ViewReason::Groups(*obstacle)),
                None => (known == CacheView::Uncertain).then_some(ViewReason::Asking),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::UnfollowedKind;

    #[test]
    fn each_feed_problem_has_its_reason() {
        let reason_from = |publisher, view, known, doubt, trouble: Option<&str>, requests| {
            let status = FeedStatus {
                view,
                doubt,
                counters: Counters::default(),
                trouble: trouble.map(str::to_owned),
                origin: "tcp://a:1, topic `kv`".to_owned(),
                publisher,
            };
            ViewReason::of_feed(known, &status, requests).map_or(String::new(), |reason| reason.to_string())
        };
        let reason = |view, known, doubt, trouble, requests| {
            reason_from(EventPublisher::Engine, view, known, doubt, trouble, requests)
        };
        assert_eq!(reason(View::Reported, CacheView::Reported, None, None, 9), "");
        assert!(reason(View::Reported, CacheView::Uncertain, None, None, 9).contains("less in its cache"));
        assert_eq!(
            reason(View::Silent, CacheView::Presumed, None, Some("no connection"), 0),
            "no connection"
        );
        assert!(reason(View::Silent, CacheView::Presumed, None, None, 0).contains("nothing has come yet"));
        assert!(
            reason(View::Silent, CacheView::Presumed, None, None, 8)
                .contains("topic `kv`: does its --kv-events-config say the same, and is its prefix cache on")
        );
        let uncertain = |doubt| reason(View::Uncertain, CacheView::Uncertain, Some(doubt), None, 1);
        assert!(uncertain(Doubt::Lost).contains("replay_endpoint"));
        assert!(uncertain(Doubt::Contradicted).contains("less in its cache"));
        assert!(uncertain(Doubt::Unreadable).contains("could not be read"));
        let group = GroupObstacle::Unfollowed { group: 1, kind: UnfollowedKind::ChunkedLocal };
        let chunked = reason(View::Silent, CacheView::Presumed, Some(Doubt::Groups(group)), None, 9);
        assert!(chunked.contains("KV cache group 1 is chunked_local_attention"), "{chunked}");
        let late = reason(View::Uncertain, CacheView::Uncertain, None, None, 1);
        assert!(late.contains("engine's replay"), "{late}");
        // Advice about a reporter names no engine flags.
        for (view, known, doubt, requests, words) in [
            (View::Uncertain, CacheView::Uncertain, Some(Doubt::Lost), 1, "answered with 409"),
            (View::Silent, CacheView::Presumed, None, 0, "posted nothing yet"),
            (View::Silent, CacheView::Presumed, None, SILENT_AFTER_REQUESTS, "this router's --url"),
        ] {
            let text = reason_from(EventPublisher::Reporter, view, known, doubt, None, requests);
            assert!(
                text.contains(words) && !text.contains("replay_endpoint") && !text.contains("--kv-events"),
                "{text}"
            );
        }
    }
}
