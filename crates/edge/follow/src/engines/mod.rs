//! Precise routing: follows the KV events of every engine that publishes them, and compares them with answers.
//!
//! ```text
//!  a worker is ready ──▶ follow: where are its events? ──▶ align: do its tokens spell our bytes? ──▶ subscribe
//!                                                                                                      │
//!  router ◀── event_sink: events, restarts, trust in the stream ◀───────────────────────────────────────┘
//!     └── feed_monitor, every half second: is it silent? do answers contradict it? ──▶ its feed
//! ```
//!
//! An engine that restarted or fell silent is queried again for its event sources. An engine without events, or whose
//! prompts cannot be compared, keeps a presumed view and is queried again later.

mod align;
mod endpoints;
mod engine;
mod event_sink;
mod feed_monitor;
mod follow;
mod reason_log;
mod reasons;
mod reports;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use warmroute_discovery::EventsEntry;
use warmroute_events::{BoundListener, EventSink, EventSource, FeedHandle, Publishers, ReportInbox};
use warmroute_fleet::{Models, Worker, WorkerView};
use warmroute_gateway::Gateway;
use warmroute_router::Change;
use warmroute_types::OptionValue;
use warmroute_wire::Dialer;

use crate::boxed_task::BoxedTask;
pub use align::{Aligned, MatchingUnit, ModelPaths, align};
pub(crate) use endpoints::check_endpoints;
pub use engine::{Card, Engine, UnexpectedStatus};
use event_sink::RouterSink;
use feed_monitor::FeedHealth;
use follow::{Finding, FollowContext, Followed, find, find_sources};
use reason_log::ReasonLog;
use reasons::{FeedStatus, ViewReason};
pub use reports::ReportEndpoint;

/// Interval between checks of the fleet.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// How often an engine without usable events is queried again: a restart may have changed its flags.
const RETRY_EVERY: Duration = Duration::from_secs(15);
/// How often the retry interval doubles at most. A query compares a model's files with the engine, which takes
/// seconds of CPU.
const RETRY_DOUBLINGS: u32 = 3;

/// The operator's event settings, by engine URL.
pub type Configured = Arc<RwLock<BTreeMap<String, EventsEntry>>>;

/// How engines' events are followed.
pub struct FollowSettings {
    /// Whether events are followed.
    pub following: Following,
    /// Where to look for tokenizer files.
    pub paths: ModelPaths,
    /// Unit in which prompts are compared with events.
    pub matching: MatchingUnit,
    /// Endpoint that engines connect to; `None`: engines bind their own.
    pub bind: Option<String>,
    /// Who may publish there.
    pub publishers: Publishers,
    /// Whether `POST /events` is on.
    pub takes_reports: bool,
    /// The operator's settings of single engines.
    pub configured: Configured,
    /// Connects to engines.
    pub dialer: Dialer,
}

impl Default for FollowSettings {
    fn default() -> FollowSettings {
        FollowSettings {
            following: Following::Auto,
            paths: ModelPaths::new(&[]),
            matching: MatchingUnit::Auto,
            bind: None,
            publishers: Publishers::WorkerHosts,
            takes_reports: false,
            configured: Configured::default(),
            dialer: Dialer::default(),
        }
    }
}

/// Whether KV events are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Following {
    /// Those of engines that publish them.
    Auto,
    /// None: all caches are presumed.
    Off,
}

impl OptionValue for Following {
    const VALUES: &'static [(Following, &'static str, &'static str)] = &[
        (Following::Auto, "auto", "Follow KV events of engines that publish them"),
        (Following::Off, "off", "Ignore KV events: all caches are presumed"),
    ];
}

/// Follows the fleet's events until dropped.
pub struct EngineFollower {
    context: Arc<FollowContext>,
    configured: Configured,
    inbox: Arc<ReportInbox>,
    engines: BTreeMap<String, EngineState>,
    reasons: ReasonLog,
    replies: JoinSet<EngineReply>,
    queries_sent: u64,
}

/// An engine's reply. Replies to any query but the engine's last are ignored.
struct EngineReply {
    url: String,
    query: u64,
    reply: Reply,
}

enum Reply {
    Found(Box<Result<Finding, ViewReason>>),
    /// The engine's current event sources.
    Sources(anyhow::Result<Vec<EventSource>>),
}

/// The state of following one engine.
struct EngineState {
    workers: Vec<Arc<Worker>>,
    models: Models,
    phase: Phase,
    query: Option<PendingQuery>,
    /// Consecutive queries that found nothing usable.
    failures: u32,
}

enum Phase {
    Querying,
    Following(Box<Followed>),
    Presumed(Instant),
}

/// A query under way. Dropping it cancels the query.
struct PendingQuery {
    number: u64,
    asked: Instant,
    task: AbortHandle,
}

impl PendingQuery {
    fn is_overdue(&self) -> bool {
        self.task.is_finished() && self.asked.elapsed() >= RETRY_EVERY
    }
}

impl Drop for PendingQuery {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EngineFollower {
    /// Creates the follower. It binds the listener for engines that connect to the router, unless it inherits one.
    pub async fn new(
        gateway: Arc<Gateway>,
        settings: FollowSettings,
        tcp_listener: Option<TcpListener>,
    ) -> anyhow::Result<EngineFollower> {
        let config = warmroute_events::Config {
            publishers: settings.publishers,
            ..warmroute_events::Config::default()
        };
        let sink = Arc::new(RouterSink::new(Arc::clone(&gateway)));
        let bound_listener = match (&settings.bind, tcp_listener) {
            (Some(_), Some(tcp)) => Some(BoundListener::on(tcp, config.clone())?),
            (Some(endpoint), None) => {
                let bound_listener = BoundListener::bind(&endpoint.parse()?, config.clone()).await;
                Some(bound_listener.with_context(|| format!("cannot bind kv-events-bind at {endpoint}"))?)
            }
            (None, _) => None,
        };
        let events = Arc::clone(&sink) as Arc<dyn EventSink>;
        let inbox = Arc::new(ReportInbox::new(warmroute_events::InboxConfig::default(), events));
        let FollowSettings { paths, matching, takes_reports, configured, dialer, .. } = settings;
        let reasons = ReasonLog::new(Arc::clone(&gateway));
        let context =
            FollowContext { gateway, sink, paths, matching, config, bound_listener, takes_reports, dialer };
        Ok(EngineFollower {
            context: Arc::new(context),
            configured,
            inbox,
            engines: BTreeMap::new(),
            reasons,
            replies: JoinSet::new(),
            queries_sent: 0,
        })
    }

    /// The receiver of `POST /events`.
    pub fn report_endpoint(&self) -> ReportEndpoint {
        ReportEndpoint { inbox: Arc::clone(&self.inbox), sink: Arc::clone(&self.context.sink) }
    }

    /// Runs until dropped.
    pub fn run(self) -> BoxedTask {
        Box::pin(self.follow())
    }

    async fn follow(mut self) {
        let mut ticks = tokio::time::interval(CHECK_EVERY);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.check_fleet(),
                // Cancelled and failed queries have no reply.
                Some(Ok(reply)) = self.replies.join_next() => self.accept(reply),
            }
        }
    }

    fn check_fleet(&mut self) {
        let mut by_url: BTreeMap<String, Vec<WorkerView>> = BTreeMap::new();
        for view in self.context.gateway.router().inspect().workers() {
            by_url.entry(view.worker.address.url.clone()).or_default().push(view);
        }
        let (sink, inbox, bound_listener) =
            (Arc::clone(&self.context.sink), Arc::clone(&self.inbox), &self.context.bound_listener);
        let reasons = &mut self.reasons;
        self.engines.retain(|url, engine| {
            let stays =
                by_url.get(url).is_some_and(|views| engine.matches(views)) && engine.is_aligned(&sink);
            if !stays {
                engine.release(&sink, &inbox);
                for worker in &engine.workers {
                    reasons.forget(&worker.address);
                    bound_listener.iter().for_each(|bound_listener| bound_listener.release(&worker.address));
                }
            }
            stays
        });
        for (url, views) in by_url {
            let is_due = self.engines.get(&url).is_none_or(EngineState::is_due);
            if is_due && views.iter().any(|view| view.load.state.takes_requests()) {
                self.query_engine(url.clone(), &views);
            }
            if let Some(engine) = self.engines.get_mut(&url)
                && engine.check_feeds(&self.context.sink, &self.inbox, &views, &mut self.reasons)
                    == Requery::Now
            {
                self.query_sources(url);
            }
        }
        self.inbox.tick();
    }

    /// Queries an engine about its events, in the background.
    fn query_engine(&mut self, url: String, views: &[WorkerView]) {
        let workers: Vec<_> = views.iter().map(|view| Arc::clone(&view.worker)).collect();
        let engine = self.engines.entry(url.clone()).or_insert_with(|| EngineState::new(views));
        engine.phase = Phase::Querying;
        let context = Arc::clone(&self.context);
        let configured = self.configured.read().get(&url).cloned();
        self.spawn_query(url.clone(), async move {
            Reply::Found(Box::new(find(&context, &url, &workers, configured).await))
        });
    }

    /// Queries an engine that is followed for its current event sources.
    fn query_sources(&mut self, url: String) {
        let Some(engine) = self.engines.get(&url) else { return };
        let (workers, configured) = (engine.workers.clone(), self.configured.read().get(&url).cloned());
        let context = Arc::clone(&self.context);
        self.spawn_query(url.clone(), async move {
            Reply::Sources(find_sources(&context, &url, &workers, configured).await)
        });
    }

    fn spawn_query(&mut self, url: String, reply: impl Future<Output = Reply> + Send + 'static) {
        self.queries_sent += 1;
        let (number, asked) = (self.queries_sent, Instant::now());
        let Some(engine) = self.engines.get_mut(&url) else { return };
        let task = async move { EngineReply { url, query: number, reply: reply.await } };
        engine.query = Some(PendingQuery { number, asked, task: self.replies.spawn(task) });
    }

    fn accept(&mut self, EngineReply { url, query, reply }: EngineReply) {
        let is_last = |pending: &PendingQuery| pending.number == query;
        let engine = self.engines.get_mut(&url).filter(|one| one.query.as_ref().is_some_and(is_last));
        let Some(engine) = engine else { return };
        match reply {
            Reply::Found(found) => engine.start_following(&self.context, *found, &mut self.reasons),
            Reply::Sources(Ok(sources)) if engine.has_moved(&sources) => {
                tracing::info!(worker = url, "the engine's event sources changed; querying it again");
                engine.release(&self.context.sink, &self.inbox);
                for worker in &engine.workers {
                    self.reasons.forget(&worker.address);
                    self.context
                        .bound_listener
                        .iter()
                        .for_each(|bound_listener| bound_listener.release(&worker.address));
                }
                self.engines.remove(&url);
            }
            // The engine does not answer now. It is queried again while its feed is silent.
            Reply::Sources(_) => {}
        }
    }
}

/// Whether to query an engine again for its event sources.
#[derive(PartialEq, Eq)]
enum Requery {
    Now,
    No,
}

impl EngineState {
    fn new(views: &[WorkerView]) -> EngineState {
        EngineState {
            workers: views.iter().map(|view| Arc::clone(&view.worker)).collect(),
            models: views[0].models.clone(),
            phase: Phase::Querying,
            query: None,
            failures: 0,
        }
    }

    /// Whether the engine still has these workers and models.
    fn matches(&self, views: &[WorkerView]) -> bool {
        let is_same = |(worker, view): (&Arc<Worker>, &WorkerView)| *worker == view.worker;
        self.workers.len() == views.len()
            && self.workers.iter().zip(views).all(is_same)
            && self.models == views[0].models
    }

    /// Whether to query the engine, for the first time or again. A query that ended without a reply is repeated. The pauses are
    /// multiples of `RETRY_EVERY`; the jitter of `types::backoff` is for connections that were lost together, and a query is one.
    fn is_due(&self) -> bool {
        match &self.phase {
            Phase::Presumed(since) => {
                since.elapsed() >= RETRY_EVERY * (1 << self.failures.saturating_sub(1).min(RETRY_DOUBLINGS))
            }
            Phase::Querying => self.query.as_ref().is_none_or(PendingQuery::is_overdue),
            Phase::Following(_) => false,
        }
    }

    fn start_following(
        &mut self,
        context: &FollowContext,
        found: Result<Finding, ViewReason>,
        reasons: &mut ReasonLog,
    ) {
        self.phase = match found.and_then(|finding| context.follow(finding, &self.workers)) {
            Ok(followed) => {
                self.failures = 0;
                Phase::Following(Box::new(followed))
            }
            Err(reason) => {
                self.failures += 1;
                self.workers.iter().for_each(|worker| reasons.set(worker, Some(reason.clone())));
                Phase::Presumed(Instant::now())
            }
        };
    }

    /// Whether the engine's streams differ from those that are followed.
    fn has_moved(&self, sources: &[EventSource]) -> bool {
        matches!(&self.phase, Phase::Following(followed) if followed.sources != sources)
    }

    /// Tells the feeds what answers have shown, and the router how the feeds are.
    fn check_feeds(
        &mut self,
        sink: &RouterSink,
        inbox: &ReportInbox,
        views: &[WorkerView],
        reasons: &mut ReasonLog,
    ) -> Requery {
        let Phase::Following(followed) = &mut self.phase else { return Requery::No };
        let mut worst = FeedHealth::Good;
        for view in views {
            let feed = followed.feed_of(&view.worker).or_else(|| inbox.feed_of(&view.worker.address));
            reasons.set(&view.worker, view_reason(followed, view, feed.as_deref(), sink));
            if let Some(feed) = feed {
                worst = worst.max(followed.monitor.check(sink, view, &feed));
            }
        }
        let has_streams = !followed.sources.is_empty();
        let may_query = self.query.as_ref().is_none_or(|last| last.asked.elapsed() >= RETRY_EVERY);
        match worst {
            _ if followed.is_contested() => self.give_up(sink, inbox),
            FeedHealth::Unrelated => {
                self.workers.iter().for_each(|worker| reasons.set(worker, Some(ViewReason::Unrelated)));
                self.give_up(sink, inbox);
            }
            FeedHealth::Restarted if has_streams => return Requery::Now,
            FeedHealth::Silent if has_streams && may_query => return Requery::Now,
            // Only reports can describe this engine, but a restart may give it events of its own.
            _ if followed.may_publish() && may_query => return Requery::Now,
            FeedHealth::Good | FeedHealth::Silent | FeedHealth::Restarted => {}
        }
        Requery::No
    }

    /// Stops using the engine's events; a later check queries it again.
    fn give_up(&mut self, sink: &RouterSink, inbox: &ReportInbox) {
        self.release(sink, inbox);
        self.phase = Phase::Presumed(Instant::now());
    }

    /// Removes these workers' events from the router.
    fn release(&self, sink: &RouterSink, inbox: &ReportInbox) {
        sink.unalign(&self.workers[0].address.url);
        for worker in &self.workers {
            sink.apply_change(Change::Aligned { worker: Arc::clone(worker), matching: None });
            sink.forget(&worker.address);
            inbox.forget(&worker.address);
        }
    }

    /// Whether the router still reads the events. It forgets a worker that left and returned between two checks.
    fn is_aligned(&self, sink: &RouterSink) -> bool {
        let is_following = matches!(self.phase, Phase::Following(_));
        !is_following || self.workers.iter().all(|worker| sink.is_aligned(worker.id))
    }
}

/// The reason why a worker's cache is not known better.
fn view_reason(
    followed: &Followed,
    view: &WorkerView,
    feed: Option<&FeedHandle>,
    sink: &RouterSink,
) -> Option<ViewReason> {
    let Some(feed) = feed else { return Some(followed.silence_reason(&view.worker)) };
    let status = FeedStatus {
        view: feed.view(),
        doubt: feed.doubt(),
        counters: feed.counters(),
        trouble: feed.trouble(),
        origin: followed.origin(&view.worker),
        publisher: followed.publisher(&view.worker),
    };
    ViewReason::of_feed(view.load.view, &status, sink.requests(view.worker.id))
}
