//! Precise routing: for every engine that publishes what its cache holds, listen, and compare with answers.
//!
//! ```text
//!  a worker is ready ──▶ follow: where are its events? ──▶ align: do its tokens spell our bytes? ──▶ subscribe
//!                                                                                                      │
//!  router ◀── ear: events, restarts, what the stream is worth ◀────────────────────────────────────────┘
//!     └── every half second: did it work in silence? do answers contradict it? ──▶ its feed
//! ```
//!
//! An engine that has no events, or whose prompts cannot be followed, stays presumed, and is asked again later.

mod align;
mod ear;
mod engine;
mod follow;
mod posts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use tokio::task::JoinSet;
use warmroute_discovery::EventsEntry;
use warmroute_events::{Inbox, Listener, View};
use warmroute_fleet::{Models, Worker, WorkerView};
use warmroute_gateway::Gateway;
use warmroute_router::Change;
use warmroute_types::{CacheView, WorkerId, WorkerState};

pub use align::ModelPaths;
use ear::Ear;
use follow::{Followed, Means, Unfollowed, follow};
use posts::Posts;

use crate::options::groups::MatchingUnit;

/// How often the fleet is compared with what is followed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// An engine without usable events is asked again this often: it may have been restarted with other flags.
const RETRY_EVERY: Duration = Duration::from_secs(15);
/// So many answers that found something where events promised nothing, and none where they did: the two never meet.
const STRANGERS_MAX: u64 = 8;

/// What the operator said about events, by the engine's URL.
pub type Configured = Arc<RwLock<BTreeMap<String, EventsEntry>>>;

/// What precise routing needs to know.
pub struct Settings {
    pub paths: ModelPaths,
    pub matching: MatchingUnit,
    pub bind: Option<String>,
    pub takes_posts: bool,
    pub configured: Configured,
}

/// Follows the fleet's events until dropped.
pub struct Precise {
    means: Arc<Means>,
    configured: Configured,
    inbox: Arc<Inbox>,
    engines: BTreeMap<String, Standing>,
    followed: JoinSet<(String, Result<Followed, Unfollowed>)>,
}

/// Where we stand with an engine.
struct Standing {
    workers: Vec<Arc<Worker>>,
    models: Models,
    state: State,
    /// Per worker, what was answered when we looked last.
    fillings: BTreeMap<WorkerId, u32>,
    last_trouble: String,
}

enum State {
    Asking,
    Following(Followed),
    Presumed(Instant),
}

impl Precise {
    /// Binds what is to be bound.
    pub async fn new(gateway: Arc<Gateway>, settings: Settings) -> anyhow::Result<Precise> {
        let config = warmroute_events::Config::default();
        let ear = Arc::new(Ear::new(Arc::clone(gateway.router())));
        let hub = match &settings.bind {
            Some(endpoint) => Some(warmroute_events::Hub::bind(&endpoint.parse()?, config.clone()).await?),
            None => None,
        };
        let listener = Arc::clone(&ear) as Arc<dyn Listener>;
        let inbox = Arc::new(Inbox::new(warmroute_events::InboxConfig::default(), listener));
        let Settings { paths, matching, takes_posts, configured, .. } = settings;
        let means = Means { gateway, ear, paths, matching, config, hub, takes_posts };
        Ok(Precise {
            means: Arc::new(means),
            configured,
            inbox,
            engines: BTreeMap::new(),
            followed: JoinSet::new(),
        })
    }

    /// Where reporters' posts go.
    pub fn posts(&self) -> Posts {
        Posts { inbox: Arc::clone(&self.inbox), ear: Arc::clone(&self.means.ear) }
    }

    /// Until dropped.
    pub async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                _ = look.tick() => self.look(),
                Some(Ok((url, outcome))) = self.followed.join_next() => self.found(&url, outcome),
            }
        }
    }

    fn look(&mut self) {
        let mut by_url: BTreeMap<String, Vec<WorkerView>> = BTreeMap::new();
        for view in self.means.gateway.router().workers() {
            by_url.entry(view.worker.address.url.clone()).or_default().push(view);
        }
        let (ear, inbox) = (Arc::clone(&self.means.ear), Arc::clone(&self.inbox));
        self.engines.retain(|url, standing| {
            let stays =
                by_url.get(url).is_some_and(|views| standing.is_of(views)) && standing.is_understood(&ear);
            if !stays {
                standing.let_go(&ear, &inbox);
            }
            stays
        });
        for (url, views) in by_url {
            let is_due = self.engines.get(&url).is_none_or(Standing::is_due);
            if is_due && views.iter().any(|view| view.desk.state == WorkerState::Ready) {
                self.ask(url.clone(), &views);
            }
            if let Some(standing) = self.engines.get_mut(&url) {
                standing.pulse(&self.means.ear, &self.inbox, &views);
            }
        }
        self.inbox.tick();
    }

    /// Asks an engine about its events, in the background.
    fn ask(&mut self, url: String, views: &[WorkerView]) {
        let workers: Vec<_> = views.iter().map(|view| Arc::clone(&view.worker)).collect();
        let standing = self.engines.entry(url.clone()).or_insert_with(|| Standing::new(views));
        standing.state = State::Asking;
        let means = Arc::clone(&self.means);
        let configured = self.configured.read().get(&url).cloned();
        self.followed.spawn(async move {
            let outcome = follow(&means, &url, &workers, configured).await;
            (url, outcome)
        });
    }

    fn found(&mut self, url: &str, outcome: Result<Followed, Unfollowed>) {
        let Some(standing) = self.engines.get_mut(url) else { return };
        standing.state = match outcome {
            Ok(followed) => State::Following(followed),
            Err(unfollowed) => {
                standing.note(url, unfollowed);
                State::Presumed(Instant::now())
            }
        };
    }
}

impl Standing {
    fn new(views: &[WorkerView]) -> Standing {
        Standing {
            workers: views.iter().map(|view| Arc::clone(&view.worker)).collect(),
            models: views[0].models.clone(),
            state: State::Asking,
            fillings: BTreeMap::new(),
            last_trouble: String::new(),
        }
    }

    /// Whether these are still the workers, with the models, that were asked about.
    fn is_of(&self, views: &[WorkerView]) -> bool {
        let is_same = |(worker, view): (&Arc<Worker>, &WorkerView)| *worker == view.worker;
        self.workers.len() == views.len()
            && self.workers.iter().zip(views).all(is_same)
            && self.models == views[0].models
    }

    /// Says why the worker stays presumed: once for each trouble, not at every try.
    fn note(&mut self, url: &str, unfollowed: Unfollowed) {
        let (why, is_trouble) = match unfollowed {
            Unfollowed::Nothing(why) => (why.to_owned(), false),
            Unfollowed::Trouble(why) => (why, true),
        };
        match self.last_trouble != why {
            true if is_trouble => {
                tracing::warn!(worker = url, why, "its events cannot be used: its cache is presumed")
            }
            true => tracing::info!(worker = url, why, "its cache is presumed"),
            false => {}
        }
        self.last_trouble = why;
    }

    fn is_due(&self) -> bool {
        matches!(self.state, State::Presumed(since) if since.elapsed() >= RETRY_EVERY)
    }

    /// Lets the feeds know what answers have shown, and the router how the feeds fare.
    fn pulse(&mut self, ear: &Ear, inbox: &Inbox, views: &[WorkerView]) {
        let State::Following(followed) = &self.state else { return };
        let mut are_strangers = false;
        for view in views {
            let worker = &view.worker;
            let worked = self.fillings.insert(worker.id, view.desk.fillings) != Some(view.desk.fillings);
            let stream = followed.streams.iter().find(|stream| stream.worker == *worker);
            let state = match stream {
                Some(stream) => Some((stream.subscriber.view(), stream.subscriber.counters())),
                None => inbox.state_of(&worker.address),
            };
            let Some((told, counters)) = state else { continue };
            ear.tell(Change::Fed { worker: Arc::clone(worker), counters });
            let (doubts, vouches) = (
                told == View::Reported && view.desk.view == CacheView::Uncertain,
                told == View::Uncertain && view.desk.view == CacheView::Reported,
            );
            match stream.map(|stream| &stream.subscriber) {
                Some(subscriber) if worked => subscriber.worked(),
                None if worked => inbox.worked(&worker.address),
                _ => {}
            }
            match stream.map(|stream| &stream.subscriber) {
                Some(subscriber) if doubts => subscriber.doubt(),
                Some(subscriber) if vouches => subscriber.vouch(),
                None if doubts => inbox.doubt(&worker.address),
                None if vouches => inbox.vouch(&worker.address),
                _ => {}
            }
            are_strangers |= ear.is_stranger(worker.id);
        }
        if are_strangers {
            self.give_up(ear, inbox);
        }
    }

    /// The engine's events never match what it is asked: whatever was read of its model is wrong.
    fn give_up(&mut self, ear: &Ear, inbox: &Inbox) {
        let url = &self.workers[0].address.url;
        tracing::warn!(
            worker = url,
            "its events match none of its prompts: its cache is presumed; are the model's files the ones it serves?"
        );
        self.let_go(ear, inbox);
        self.state = State::Presumed(Instant::now());
    }

    /// Nothing that was heard of these workers counts any more.
    fn let_go(&self, ear: &Ear, inbox: &Inbox) {
        for worker in &self.workers {
            ear.tell(Change::Aligned { worker: Arc::clone(worker), matching: None });
            ear.forget(&worker.address);
            inbox.forget(&worker.address);
        }
    }

    /// One that left and came back between two looks is forgotten by the router, and must be followed anew.
    fn is_understood(&self, ear: &Ear) -> bool {
        let is_following = matches!(self.state, State::Following(_));
        !is_following || self.workers.iter().all(|worker| ear.is_aligned(worker.id))
    }
}
