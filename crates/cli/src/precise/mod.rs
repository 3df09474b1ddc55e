//! Precise routing: for every engine that publishes what its cache holds, listen, and compare with answers.
//!
//! ```text
//!  a worker is ready ──▶ follow: where are its events? ──▶ align: do its tokens spell our bytes? ──▶ subscribe
//!                                                                                                      │
//!  router ◀── ear: events, restarts, what the stream is worth ◀────────────────────────────────────────┘
//!     └── every half second, pulse: did it work in silence? do answers contradict it? ──▶ its feed
//! ```
//!
//! What only one of several routers can hear, `siblings` passes on and takes in.
//! An engine that was restarted, or that has fallen silent, is asked again where its events are.
//! An engine that has no events, or whose prompts cannot be followed, stays presumed, and is asked again later.

mod align;
mod ear;
mod engine;
mod follow;
mod notices;
mod posts;
mod pulse;
mod siblings;
mod why;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use warmroute_discovery::EventsEntry;
use warmroute_events::{BoundListener, EventSink, EventSource, FeedHandle, ReportInbox};
use warmroute_fleet::{Models, Worker, WorkerView};
use warmroute_gateway::Gateway;
use warmroute_router::Change;
use warmroute_types::WorkerState;
use warmroute_wire::Dialer;

pub use align::{Aligned, ModelPaths, align};
use ear::Ear;
pub use engine::{Card, Engine};
use follow::{Finding, Followed, Means, find, find_sources};
use notices::Notices;
use posts::Posts;
use pulse::Symptom;
use siblings::Siblings;
use why::{Heard, Why};

use crate::options::groups::MatchingUnit;

/// How often the fleet is compared with what is followed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// An engine without usable events is asked again this often: it may have been restarted with other flags.
const RETRY_EVERY: Duration = Duration::from_secs(15);
/// So often twice as late as before, while it has none: to compare a model's files with an engine takes seconds of a core.
const RETRY_DOUBLINGS: u32 = 3;

/// What the operator said about events, by the engine's URL.
pub type Configured = Arc<RwLock<BTreeMap<String, EventsEntry>>>;

/// What precise routing needs to know.
pub struct Settings {
    pub paths: ModelPaths,
    pub matching: MatchingUnit,
    pub bind: Option<String>,
    pub takes_posts: bool,
    pub configured: Configured,
    pub dialer: Dialer,
}

/// Follows the fleet's events until dropped.
pub struct Precise {
    means: Arc<Means>,
    configured: Configured,
    inbox: Arc<ReportInbox>,
    engines: BTreeMap<String, Standing>,
    notices: Notices,
    answers: JoinSet<Answer>,
    questions: u64,
}

/// What an engine said, and to which question: only the last one asked of it counts.
struct Answer {
    url: String,
    question: u64,
    said: Said,
}

enum Said {
    Found(Box<Result<Finding, Why>>),
    /// Where its events are by now.
    Sources(anyhow::Result<Vec<EventSource>>),
}

/// Where we stand with an engine.
struct Standing {
    workers: Vec<Arc<Worker>>,
    models: Models,
    state: State,
    question: Option<Question>,
    /// Questions in a row that found nothing usable.
    failures: u32,
}

enum State {
    Asking,
    Following(Box<Followed>),
    Presumed(Instant),
}

/// Something that was asked of an engine. Dropped, its answer is of no interest any more.
struct Question {
    number: u64,
    asked: Instant,
    task: AbortHandle,
}

impl Question {
    fn is_overdue(&self) -> bool {
        self.task.is_finished() && self.asked.elapsed() >= RETRY_EVERY
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Precise {
    /// Binds what is to be bound, unless it is already.
    pub async fn new(
        gateway: Arc<Gateway>,
        settings: Settings,
        bound: Option<TcpListener>,
    ) -> anyhow::Result<Precise> {
        let config = warmroute_events::Config::default();
        let ear = Arc::new(Ear::new(Arc::clone(&gateway)));
        let hub = match (&settings.bind, bound) {
            (Some(_), Some(bound)) => Some(BoundListener::on(bound, config.clone())?),
            (Some(endpoint), None) => {
                let hub = BoundListener::bind(&endpoint.parse()?, config.clone()).await;
                Some(hub.with_context(|| format!("cannot bind kv-events-bind at {endpoint}"))?)
            }
            (None, _) => None,
        };
        let listener = Arc::clone(&ear) as Arc<dyn EventSink>;
        let inbox = Arc::new(ReportInbox::new(warmroute_events::InboxConfig::default(), listener));
        let Settings { paths, matching, takes_posts, configured, dialer, .. } = settings;
        let notices = Notices::new(Arc::clone(&gateway));
        let means = Means { gateway, ear, paths, matching, config, hub, takes_posts, dialer };
        Ok(Precise {
            means: Arc::new(means),
            configured,
            inbox,
            engines: BTreeMap::new(),
            notices,
            answers: JoinSet::new(),
            questions: 0,
        })
    }

    /// What other routers hear is brought to the feeds, until dropped.
    pub fn siblings(&self, said: Arc<Notify>) -> impl Future<Output = ()> + Send + use<> {
        Siblings::new(Arc::clone(&self.means.ear), Arc::clone(&self.inbox)).run(said)
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
                // One that was given up, or has failed, says nothing.
                Some(Ok(answer)) = self.answers.join_next() => self.take(answer),
            }
        }
    }

    fn look(&mut self) {
        let mut by_url: BTreeMap<String, Vec<WorkerView>> = BTreeMap::new();
        for view in self.means.gateway.router().workers() {
            by_url.entry(view.worker.address.url.clone()).or_default().push(view);
        }
        let (ear, inbox, hub) = (Arc::clone(&self.means.ear), Arc::clone(&self.inbox), &self.means.hub);
        let notices = &mut self.notices;
        self.engines.retain(|url, standing| {
            let stays =
                by_url.get(url).is_some_and(|views| standing.is_of(views)) && standing.is_understood(&ear);
            if !stays {
                standing.let_go(&ear, &inbox);
                for worker in &standing.workers {
                    notices.forget(&worker.address);
                    hub.iter().for_each(|hub| hub.release(&worker.address));
                }
            }
            stays
        });
        for (url, views) in by_url {
            let is_due = self.engines.get(&url).is_none_or(Standing::is_due);
            if is_due && views.iter().any(|view| view.load.state == WorkerState::Ready) {
                self.ask(url.clone(), &views);
            }
            if let Some(standing) = self.engines.get_mut(&url)
                && standing.pulse(&self.means.ear, &self.inbox, &views, &mut self.notices) == Search::Again
            {
                self.search(url);
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
        self.question(url.clone(), async move {
            Said::Found(Box::new(find(&means, &url, &workers, configured).await))
        });
    }

    /// Asks an engine that is followed whether its events are still where they were.
    fn search(&mut self, url: String) {
        let Some(standing) = self.engines.get(&url) else { return };
        let (workers, configured) = (standing.workers.clone(), self.configured.read().get(&url).cloned());
        let means = Arc::clone(&self.means);
        self.question(url.clone(), async move {
            Said::Sources(find_sources(&means, &url, &workers, configured).await)
        });
    }

    fn question(&mut self, url: String, said: impl Future<Output = Said> + Send + 'static) {
        self.questions += 1;
        let (number, asked) = (self.questions, Instant::now());
        let Some(standing) = self.engines.get_mut(&url) else { return };
        let answer = async move { Answer { url, question: number, said: said.await } };
        standing.question = Some(Question { number, asked, task: self.answers.spawn(answer) });
    }

    fn take(&mut self, Answer { url, question, said }: Answer) {
        let is_last = |asked: &Question| asked.number == question;
        let standing = self.engines.get_mut(&url).filter(|one| one.question.as_ref().is_some_and(is_last));
        let Some(standing) = standing else { return };
        match said {
            Said::Found(found) => standing.found(&self.means, *found, &mut self.notices),
            Said::Sources(Ok(sources)) if standing.has_moved(&sources) => {
                tracing::info!(worker = url, "its events are not where they were: it is asked anew");
                standing.let_go(&self.means.ear, &self.inbox);
                for worker in &standing.workers {
                    self.notices.forget(&worker.address);
                    self.means.hub.iter().for_each(|hub| hub.release(&worker.address));
                }
                self.engines.remove(&url);
            }
            // It does not answer now; it is asked again while its feed tells nothing.
            Said::Sources(_) => {}
        }
    }
}

/// Whether an engine that is followed is to be asked again where its events are.
#[derive(PartialEq, Eq)]
enum Search {
    Again,
    No,
}

impl Standing {
    fn new(views: &[WorkerView]) -> Standing {
        Standing {
            workers: views.iter().map(|view| Arc::clone(&view.worker)).collect(),
            models: views[0].models.clone(),
            state: State::Asking,
            question: None,
            failures: 0,
        }
    }

    /// Whether these are still the workers, with the models, that were asked about.
    fn is_of(&self, views: &[WorkerView]) -> bool {
        let is_same = |(worker, view): (&Arc<Worker>, &WorkerView)| *worker == view.worker;
        self.workers.len() == views.len()
            && self.workers.iter().zip(views).all(is_same)
            && self.models == views[0].models
    }

    /// An engine that was asked and has not been heard of (its question failed, with us) is asked again, too.
    fn is_due(&self) -> bool {
        match &self.state {
            State::Presumed(since) => {
                since.elapsed() >= RETRY_EVERY * (1 << self.failures.saturating_sub(1).min(RETRY_DOUBLINGS))
            }
            State::Asking => self.question.as_ref().is_none_or(Question::is_overdue),
            State::Following(_) => false,
        }
    }

    fn found(&mut self, means: &Means, found: Result<Finding, Why>, notices: &mut Notices) {
        self.state = match found.and_then(|finding| means.follow(finding, &self.workers)) {
            Ok(followed) => {
                self.failures = 0;
                State::Following(Box::new(followed))
            }
            Err(why) => {
                self.failures += 1;
                self.workers.iter().for_each(|worker| notices.note(worker, Some(why.clone())));
                State::Presumed(Instant::now())
            }
        };
    }

    /// Whether an engine's streams are elsewhere than those that are followed.
    fn has_moved(&self, sources: &[EventSource]) -> bool {
        matches!(&self.state, State::Following(followed) if followed.sources != sources)
    }

    /// Lets the feeds know what answers have shown, and the router how the feeds fare.
    fn pulse(
        &mut self,
        ear: &Ear,
        inbox: &ReportInbox,
        views: &[WorkerView],
        notices: &mut Notices,
    ) -> Search {
        let State::Following(followed) = &mut self.state else { return Search::No };
        let mut worst = Symptom::Well;
        for view in views {
            let desk = followed.desk_of(&view.worker).or_else(|| inbox.feed_of(&view.worker.address));
            notices.note(&view.worker, why(followed, view, desk.as_deref(), ear));
            if let Some(desk) = desk {
                worst = worst.max(followed.pulse.feel(ear, view, &desk));
            }
        }
        let has_streams = !followed.sources.is_empty();
        let is_answered = self.question.as_ref().is_none_or(|last| last.asked.elapsed() >= RETRY_EVERY);
        match worst {
            _ if followed.is_contested() => self.give_up(ear, inbox),
            Symptom::Stranger => {
                self.workers.iter().for_each(|worker| notices.note(worker, Some(Why::Strangers)));
                self.give_up(ear, inbox);
            }
            Symptom::Restarted if has_streams => return Search::Again,
            Symptom::Silent if has_streams && is_answered => return Search::Again,
            // Only reporters could speak for it. It may have been restarted with events of its own.
            _ if followed.may_publish() && is_answered => return Search::Again,
            Symptom::Well | Symptom::Silent | Symptom::Restarted => {}
        }
        Search::No
    }

    /// What is heard of the engine is of no use; it is asked again later.
    fn give_up(&mut self, ear: &Ear, inbox: &ReportInbox) {
        self.let_go(ear, inbox);
        self.state = State::Presumed(Instant::now());
    }

    /// Nothing that was heard of these workers counts any more.
    fn let_go(&self, ear: &Ear, inbox: &ReportInbox) {
        ear.unalign(&self.workers[0].address.url);
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

/// Why a worker's cache is known no better than it is.
fn why(followed: &Followed, view: &WorkerView, desk: Option<&FeedHandle>, ear: &Ear) -> Option<Why> {
    let Some(desk) = desk else { return Some(followed.unheard(&view.worker)) };
    let heard = Heard {
        told: desk.view(),
        doubt: desk.doubt(),
        counters: desk.counters(),
        trouble: desk.trouble(),
        from: followed.origin(&view.worker),
        voice: followed.voice(&view.worker),
    };
    Why::of_feed(view.load.view, &heard, ear.requests(view.worker.id))
}
