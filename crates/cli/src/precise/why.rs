//! Why an engine's cache is known no better than it is: one vocabulary for the log and for `GET /workers`.
//!
//! A wrong setting must never look like an empty cache. So whatever keeps events from being used has a sentence here, with
//! what to do about it where there is something to do.

use warmroute_events::{Counters, Doubt, SharedTopic, View};
use warmroute_types::CacheView;

/// Why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    #[error("its events are switched off: kv-events = {{ endpoint = \"off\" }}")]
    SwitchedOff,
    #[error("the engine publishes no KV events; docs/precise.md says which flags it needs")]
    NoEvents,
    #[error("no KV events of its own are listened to, and no reporter has posted any for it yet")]
    NoPosts,
    /// As whoever found out says it: files, templates, endpoints.
    #[error("{0}")]
    Unusable(String),
    #[error("the engine has {0} data-parallel ranks: list it with ranks = {0}, or --dp-size {0}")]
    Ranks(usize),
    #[error(
        "the engine has no rank {rank}: it has {has}, counted from 0; list it with ranks = {has}, or --dp-size {has}"
    )]
    NoRank { rank: u16, has: usize },
    #[error("the engine connects to {0}, where nobody listens: bind that with --kv-events-bind")]
    NotBound(String),
    #[error("engines that connect to the router need a topic each to be told apart")]
    NoTopic,
    #[error(transparent)]
    SharedTopic(#[from] SharedTopic),
    /// As the subscriber says it.
    #[error("{0}")]
    NoLine(String),
    #[error("nothing has come yet from {0}")]
    NothingYet(String),
    #[error("it gets requests, but nothing has come from {0}: does its --kv-events-config say the same?")]
    Mute(String),
    #[error(
        "its events do not come from {0}, they are fetched from its replay: does its --kv-events-config say the same?"
    )]
    Fetched(String),
    #[error("its reporter has posted nothing yet, and no other router has heard of it")]
    NothingPosted,
    #[error(
        "it gets requests, but its reporter posts nothing: does it run, and do its posts reach one of the routers?"
    )]
    MuteReporter,
    #[error("it gets requests, but its events have stopped")]
    Stopped,
    #[error(
        "events were lost, and no replay has them: give the engine a replay_endpoint, or a larger buffer_steps"
    )]
    Lost,
    #[error(
        "posts of its reporter were lost, and no router has them: its next post is answered by 409, and a snapshot (reset) mends it"
    )]
    LostPosts,
    #[error("events could not be read: is the engine newer than this router?")]
    Unreadable,
    #[error("what of its events was not heard here is being asked for, of its replay or of another router")]
    Asking,
    #[error("answers found less in its cache than its events had promised")]
    Contradicted,
    #[error("its events match none of its prompts: are the model's files the ones it serves?")]
    Strangers,
}

/// Requests after which an engine that tells nothing is not just idle, or asked for a few words only.
const MUTE_AFTER: u32 = 8;

/// What is known of one worker's feed.
pub struct Heard {
    pub told: View,
    pub doubt: Option<Doubt>,
    pub counters: Counters,
    /// Why nothing can come.
    pub trouble: Option<String>,
    /// Where it comes from.
    pub from: String,
    pub voice: Voice,
}

/// Who tells what an engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// It does.
    Engine,
    /// Somebody beside it, by `POST /events`.
    Reporter,
}

impl From<String> for Why {
    fn from(why: String) -> Why {
        Why::Unusable(why)
    }
}

impl Why {
    /// Whether somebody should look after it. The others are how things are, or pass.
    pub fn is_trouble(&self) -> bool {
        !matches!(
            self,
            Why::SwitchedOff
                | Why::NoEvents
                | Why::NoPosts
                | Why::NothingYet(_)
                | Why::NothingPosted
                | Why::Asking
        )
    }

    /// Why a feed is worth less than it could be, `None` where it is not. `requests`: so many were sent.
    pub fn of_feed(known: CacheView, heard: &Heard, requests: u32) -> Option<Why> {
        let Heard { told, doubt, counters, trouble, from, voice } = heard;
        let is_posted = *voice == Voice::Reporter;
        match (told, trouble) {
            (View::Reported, Some(trouble)) => Some(Why::NoLine(trouble.clone())),
            (View::Reported, _) if known == CacheView::Uncertain => Some(Why::Contradicted),
            (View::Reported, _) => {
                (counters.missed_live > 0 && counters.live == 0).then(|| Why::Fetched(from.clone()))
            }
            (_, Some(trouble)) => Some(Why::NoLine(trouble.clone())),
            (View::Silent, None) if counters.batches > 0 => Some(Why::Stopped),
            (View::Silent, None) if is_posted && requests >= MUTE_AFTER => Some(Why::MuteReporter),
            (View::Silent, None) if is_posted => Some(Why::NothingPosted),
            (View::Silent, None) if requests >= MUTE_AFTER => Some(Why::Mute(from.clone())),
            (View::Silent, None) => Some(Why::NothingYet(from.clone())),
            (View::Uncertain, None) => match doubt {
                Some(Doubt::Contradicted) => Some(Why::Contradicted),
                Some(Doubt::Lost) if is_posted => Some(Why::LostPosts),
                Some(Doubt::Lost) => Some(Why::Lost),
                Some(Doubt::Unreadable) => Some(Why::Unreadable),
                None => (known == CacheView::Uncertain).then_some(Why::Asking),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_says_what_keeps_it_from_being_believed() {
        let said_by = |voice, told, known, doubt, trouble: Option<&str>, requests| {
            let heard = Heard {
                told,
                doubt,
                counters: Counters::default(),
                trouble: trouble.map(str::to_owned),
                from: "tcp://a:1, topic `kv`".to_owned(),
                voice,
            };
            Why::of_feed(known, &heard, requests).map_or(String::new(), |why| why.to_string())
        };
        let why = |told, known, doubt, trouble, requests| {
            said_by(Voice::Engine, told, known, doubt, trouble, requests)
        };
        assert_eq!(why(View::Reported, CacheView::Reported, None, None, 9), "");
        assert!(why(View::Reported, CacheView::Uncertain, None, None, 9).contains("less in its cache"));
        assert_eq!(why(View::Silent, CacheView::Presumed, None, Some("no connection"), 0), "no connection");
        assert!(why(View::Silent, CacheView::Presumed, None, None, 0).contains("nothing has come yet"));
        assert!(
            why(View::Silent, CacheView::Presumed, None, None, 8)
                .contains("topic `kv`: does its --kv-events-config")
        );
        let uncertain = |doubt| why(View::Uncertain, CacheView::Uncertain, Some(doubt), None, 1);
        assert!(uncertain(Doubt::Lost).contains("replay_endpoint"));
        assert!(uncertain(Doubt::Contradicted).contains("less in its cache"));
        assert!(uncertain(Doubt::Unreadable).contains("could not be read"));
        let late = why(View::Uncertain, CacheView::Uncertain, None, None, 1);
        assert!(late.contains("of its replay or of another router"), "{late}");
        // A reporter has no flags of an engine's.
        for (told, known, doubt, requests, words) in [
            (View::Uncertain, CacheView::Uncertain, Some(Doubt::Lost), 1, "answered by 409"),
            (View::Silent, CacheView::Presumed, None, 0, "posted nothing yet"),
            (View::Silent, CacheView::Presumed, None, MUTE_AFTER, "reach one of the routers"),
        ] {
            let said = said_by(Voice::Reporter, told, known, doubt, None, requests);
            assert!(
                said.contains(words) && !said.contains("replay_endpoint") && !said.contains("--kv-events"),
                "{said}"
            );
        }
    }
}
