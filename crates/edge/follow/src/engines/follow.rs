//! Follows one engine's events: finds their sources, checks how to read them, and subscribes.
//!
//! Finding takes seconds, and its result may be out of date: the worker may have left, or a newer query may have
//! started. So [`find`] changes no feed; it only reports the engine's cache size and adapters to the router. The
//! caller checks the result and then calls [`FollowContext::follow`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;
use warmroute_discovery::EventsEntry;
use warmroute_events::{
    BoundListener, Direction, EventSink, EventSource, FeedHandle, Poller, Subscriber, subscribe,
};
use warmroute_fleet::Worker;
use warmroute_gateway::{Gateway, PromptFormat};
use warmroute_router::Change;
use warmroute_tokens::parity::{ConversionEndpoint, PresumedApi};
use warmroute_types::CacheCapacity;
use warmroute_wire::Dialer;

use super::align::{Aligned, MatchingUnit, ModelPaths, align};
use super::engine::{Engine, ServerInfo};
use super::event_sink::RouterSink;
use super::feed_monitor::FeedMonitor;
use super::reasons::{EventPublisher, ViewReason};

/// Interval between polls of an engine that is polled.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// How long one token may take. An engine that needs longer is busy, and publishes its events anyway.
const STEP_WAIT: Duration = Duration::from_secs(2);

/// What following needs, shared by all engines.
pub struct FollowContext {
    pub gateway: Arc<Gateway>,
    pub sink: Arc<RouterSink>,
    pub paths: ModelPaths,
    pub matching: MatchingUnit,
    pub config: warmroute_events::Config,
    /// The listener for engines that connect to the router.
    pub bound_listener: Option<BoundListener>,
    /// Whether `POST /events` is on. If it is, workers without events of their own are aligned as well.
    pub takes_reports: bool,
    /// Connects to engines.
    pub dialer: Dialer,
}

/// An engine's event sources and prompt format.
pub struct Finding {
    engine: Engine,
    format: PromptFormat,
    delivery: Delivery,
}

/// How an engine's events arrive.
enum Delivery {
    Streams(Vec<EventSource>),
    Polls,
    /// By reports to `POST /events`.
    Reports(Rediscovery),
}

/// Whether an engine without events is queried again for events of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rediscovery {
    /// The engine had none; a restart may add some.
    Periodic,
    /// The operator switched its events off.
    Never,
}

/// An engine that is followed until this is dropped.
#[derive(Default)]
pub struct Followed {
    pub monitor: FeedMonitor,
    /// The engine's streams; empty for an engine that is polled or reported.
    pub sources: Vec<EventSource>,
    feeds: Vec<Arc<FeedHandle>>,
    /// Workers without a feed, and the reason.
    silent: Vec<(Arc<Worker>, ViewReason)>,
    _subscribers: Vec<Subscriber>,
    poll: Option<JoinHandle<()>>,
    /// Set for an engine that neither publishes nor is polled.
    rediscovery: Option<Rediscovery>,
}

impl Followed {
    /// Whether the engine had no events and may have some by now.
    pub fn may_publish(&self) -> bool {
        self.rediscovery == Some(Rediscovery::Periodic)
    }

    /// The feed of a worker that publishes events or is polled.
    pub fn feed_of(&self, worker: &Worker) -> Option<Arc<FeedHandle>> {
        self.feeds.iter().find(|feed| feed.worker == worker.address).cloned()
    }

    /// The reason why a worker has no feed.
    pub fn silence_reason(&self, worker: &Worker) -> ViewReason {
        let reason =
            self.silent.iter().find(|(other, _)| **other == *worker).map(|(_, reason)| reason.clone());
        reason.unwrap_or(ViewReason::NoReports)
    }

    /// Where a worker's events come from, as text for people.
    pub fn origin(&self, worker: &Worker) -> String {
        let rank = worker.address.rank.unwrap_or(0);
        match self.sources.iter().find(|source| source.rank == rank) {
            Some(source) if source.topic.is_empty() => source.endpoint.to_string(),
            Some(source) => format!("{}, topic `{}`", source.endpoint, source.topic),
            None if self.poll.is_some() => format!("POST {}/kv_cache_events", worker.address.url),
            None => "its reporter".to_owned(),
        }
    }

    /// Who publishes a worker's events.
    pub fn publisher(&self, worker: &Worker) -> EventPublisher {
        let rank = worker.address.rank.unwrap_or(0);
        let is_engine = self.poll.is_some() || self.sources.iter().any(|source| source.rank == rank);
        if is_engine { EventPublisher::Engine } else { EventPublisher::Reporter }
    }

    /// Whether two workers turned out to share a topic.
    pub fn is_contested(&self) -> bool {
        self.feeds.iter().any(|feed| feed.is_contested())
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.poll.iter().for_each(JoinHandle::abort);
    }
}

/// Queries an engine whose ranks are `workers` about its events. `Err`: its cache view stays presumed, for this
/// reason.
pub async fn find(
    context: &FollowContext,
    url: &str,
    workers: &[Arc<Worker>],
    configured: Option<EventsEntry>,
) -> Result<Finding, ViewReason> {
    let engine = Engine::new(url, &context.dialer);
    let delivery = find_delivery(context, &engine, workers, configured.as_ref()).await?;
    if let Delivery::Streams(sources) = &delivery {
        check_ranks(url, sources, workers)?;
    }
    note_capacity(&engine, context, workers).await;
    let cards = engine.cards().await.map_err(|error| error.to_string())?;
    let card = cards.first().ok_or_else(|| "the engine lists no model".to_owned())?;
    let adapters = cards.iter().filter(|card| card.parent.is_some());
    let names = adapters.map(|adapter| adapter.id.as_str().into());
    names.for_each(|name| context.gateway.router().apply(Change::Adapter { name }));
    let Aligned { matching, fingerprint, presumed_apis } =
        align(&engine, card, &context.paths, context.matching).await?;
    for PresumedApi { api, why } in &presumed_apis {
        tracing::info!(
            worker = url,
            api = api.path(),
            why,
            "requests of this API are not compared with KV events"
        );
    }
    if let Delivery::Streams(sources) = &delivery {
        publish_held_events(context, &engine, &card.id, sources).await;
    }
    let names = cards.iter().map(|card| card.id.clone()).collect();
    let format = PromptFormat { names, fingerprint, matching, presumed_apis };
    Ok(Finding { engine, format, delivery })
}

/// Has an engine that can replay its events take a step, by asking it for one token. vLLM publishes events with steps only: an
/// idle one whose cache was reset has not said so, and its replay would describe blocks that are gone.
async fn publish_held_events(context: &FollowContext, engine: &Engine, model: &str, sources: &[EventSource]) {
    if sources.iter().all(|source| source.replay.is_none()) || engine.version().await.is_none() {
        return;
    }
    let body = serde_json::json!({ "model": model, "prompt": ".", "max_tokens": 1 });
    // A connection of its own: one that is given up in the middle of an answer cannot be used again.
    let once = Engine::new(&engine.url, &context.dialer);
    for _ in sources {
        let answer = tokio::time::timeout(STEP_WAIT, once.post("/v1/completions", &body)).await;
        if !matches!(answer, Ok(Ok(_))) {
            tracing::debug!(worker = engine.url, "no token to have held events published: {answer:?}");
            return;
        }
    }
}

/// How an engine's events arrive, as configured or as the engine says.
async fn find_delivery(
    context: &FollowContext,
    engine: &Engine,
    workers: &[Arc<Worker>],
    configured: Option<&EventsEntry>,
) -> Result<Delivery, ViewReason> {
    match configured.map(|events| (events.endpoint.as_str(), events)) {
        Some(("poll", _)) => return Ok(Delivery::Polls),
        Some(("off", _)) if context.takes_reports => return Ok(Delivery::Reports(Rediscovery::Never)),
        Some(("off", _)) => return Err(ViewReason::SwitchedOff),
        Some(("bind", events)) => {
            return context.bound_sources(events, ranks(workers), &engine.url).map(Delivery::Streams);
        }
        _ => {}
    }
    let sources = engine.sources(configured, ranks(workers)).await.map_err(|error| error.to_string())?;
    match sources.is_empty() {
        false => Ok(Delivery::Streams(sources)),
        true if context.takes_reports => Ok(Delivery::Reports(Rediscovery::Periodic)),
        true => Err(ViewReason::NoEvents),
    }
}

/// Checks that the configured ranks are the engine's ranks.
fn check_ranks(url: &str, sources: &[EventSource], workers: &[Arc<Worker>]) -> Result<(), ViewReason> {
    let listed = sources.len();
    if listed > 1 && workers.iter().any(|worker| worker.address.rank.is_none()) {
        return Err(ViewReason::Ranks(listed));
    }
    if listed > workers.len() {
        tracing::warn!(worker = url, why = %ViewReason::Ranks(listed), "ranks that are not listed get no requests");
    }
    Ok(())
}

/// Queries an engine again for its event sources: a restart may have changed flags or ports.
pub async fn find_sources(
    context: &FollowContext,
    url: &str,
    workers: &[Arc<Worker>],
    configured: Option<EventsEntry>,
) -> anyhow::Result<Vec<EventSource>> {
    Engine::new(url, &context.dialer).sources(configured.as_ref(), ranks(workers)).await
}

fn ranks(workers: &[Arc<Worker>]) -> u16 {
    workers.iter().filter_map(|worker| worker.address.rank).max().map_or(1, |last| last + 1)
}

impl FollowContext {
    /// Starts to follow an engine.
    pub fn follow(&self, finding: Finding, workers: &[Arc<Worker>]) -> Result<Followed, ViewReason> {
        let Finding { engine, format, delivery } = finding;
        let matching = self.gateway.align(&engine.url, format).map_err(|error| error.to_string())?;
        let (family, by) = (matching.family(), matching.unit().as_str());
        tracing::info!(worker = engine.url, %family, by, "prompts are compared with KV events");
        for worker in workers {
            self.sink.add_worker(Arc::clone(worker));
            let (worker, matching) = (Arc::clone(worker), Some(matching.clone()));
            self.sink.apply_change(Change::Aligned { worker, matching });
        }
        let mut followed = Followed::default();
        match delivery {
            Delivery::Streams(sources) => self.subscribe_all(&mut followed, sources, workers),
            Delivery::Reports(rediscovery) => followed.rediscovery = Some(rediscovery),
            Delivery::Polls => {
                let (task, feeds) = self.start_polling(engine, workers);
                (followed.poll, followed.feeds) = (Some(task), feeds);
            }
        }
        Ok(followed)
    }

    fn subscribe_all(&self, followed: &mut Followed, sources: Vec<EventSource>, workers: &[Arc<Worker>]) {
        for worker in workers {
            match self.subscribe_to(worker, &sources) {
                Ok(subscriber) => {
                    followed.feeds.push(subscriber.feed());
                    followed._subscribers.push(subscriber);
                }
                Err(reason) => followed.silent.push((Arc::clone(worker), reason)),
            }
        }
        followed.sources = sources;
    }

    /// Sources for an engine that connects to the router, configured as `bind`.
    fn bound_sources(
        &self,
        events: &EventsEntry,
        ranks: u16,
        url: &str,
    ) -> Result<Vec<EventSource>, ViewReason> {
        let bound_listener =
            self.bound_listener.as_ref().ok_or_else(|| ViewReason::NotBound("the router".to_owned()))?;
        let replay = events.replay.as_deref();
        let sources = EventSource::configured(
            &bound_listener.endpoint().to_string(),
            replay,
            &events.topic,
            ranks,
            url,
        );
        let mut sources = sources.map_err(|error| error.to_string())?;
        for source in &mut sources {
            (source.direction, source.endpoint) = (Direction::TheyConnect, bound_listener.endpoint().clone());
        }
        Ok(sources)
    }

    fn subscribe_to(&self, worker: &Arc<Worker>, sources: &[EventSource]) -> Result<Subscriber, ViewReason> {
        let rank = worker.address.rank.unwrap_or(0);
        let no_rank = || ViewReason::NoRank { rank, has: sources.len() };
        let source = sources.iter().find(|source| source.rank == rank).ok_or_else(no_rank)?.clone();
        let address = worker.address.clone();
        let events = Arc::clone(&self.sink) as Arc<dyn EventSink>;
        // Both the engine and the router may be the one that binds a local endpoint. The router's own bound endpoint
        // settles it.
        let is_named = |bound_listener: &BoundListener| {
            bound_listener.is_meant_by(&source.endpoint, &worker.address.url)
        };
        let is_ours = self.bound_listener.as_ref().is_some_and(is_named);
        let direction = if is_ours { Direction::TheyConnect } else { source.direction };
        let subscriber = match (direction, &self.bound_listener) {
            (Direction::WeConnect, _) => subscribe(address, source, events, self.config.clone()),
            (Direction::TheyConnect, Some(_)) if !is_ours => {
                return Err(ViewReason::NotBound(source.endpoint.to_string()));
            }
            (Direction::TheyConnect, Some(_)) if source.topic.is_empty() => return Err(ViewReason::NoTopic),
            (Direction::TheyConnect, Some(bound_listener)) => {
                bound_listener.expect_worker(address, &source.topic, source.replay.clone(), events)?
            }
            (Direction::TheyConnect, None) => return Err(ViewReason::NotBound(source.endpoint.to_string())),
        };
        self.sink.follow_stream(worker.address.clone());
        Ok(subscriber)
    }

    fn start_polling(
        &self,
        engine: Engine,
        workers: &[Arc<Worker>],
    ) -> (JoinHandle<()>, Vec<Arc<FeedHandle>>) {
        let addresses = workers.iter().map(|worker| worker.address.clone()).collect();
        let events = Arc::clone(&self.sink) as Arc<dyn EventSink>;
        let mut poller = Poller::new(addresses, &self.config.feed, &events);
        let feeds = poller.feeds();
        feeds.iter().for_each(|feed| self.sink.follow_stream(feed.worker.clone()));
        if self.gateway.router().peering().is_sharing() {
            tracing::warn!(
                worker = engine.url,
                "a poll removes the events from the engine: of several routers, configure kv-events = \"poll\" for this \
                 worker on one only"
            );
        }
        let task = tokio::spawn(async move {
            loop {
                apply_poll(&mut poller, engine.poll_events().await);
                tokio::time::sleep(POLL_EVERY).await;
            }
        });
        (task, feeds)
    }
}

fn apply_poll(poller: &mut Poller, answer: anyhow::Result<Bytes>) {
    if let Err(error) = answer.and_then(|body| Ok(poller.polled(&body)?)) {
        poller.failed(&format!(
            "polls fail: {error}; TensorRT-LLM needs kv_cache_config.event_buffer_max_size above 0"
        ));
    }
}

/// Reads SGLang's cache size, which its metrics do not include.
async fn note_capacity(engine: &Engine, context: &FollowContext, workers: &[Arc<Worker>]) {
    let Ok(Some(body)) = engine.server_info().await else { return };
    let Ok(info) = serde_json::from_slice::<ServerInfo>(&body) else { return };
    let Some(tokens) = info.max_total_num_tokens else { return };
    let capacity = CacheCapacity { tokens, block_tokens: info.page_size.unwrap_or(1).max(1) };
    for worker in workers {
        context.sink.apply_change(Change::Capacity { worker: Arc::clone(worker), capacity });
    }
}
