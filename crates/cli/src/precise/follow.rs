//! Follows one engine's events: finds out where they are and how to read them, then listens.
//!
//! Finding takes a while and may be overtaken: by a worker that left, by another question. So it changes nothing of what is
//! heard of anybody (only what an engine says of itself, the size of its cache and its adapters, is passed on); whoever asked looks at what was found, and only then begins to follow.

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
use warmroute_types::CacheCapacity;
use warmroute_wire::Dialer;

use super::align::{Aligned, ModelPaths, align};
use super::ear::Ear;
use super::engine::{Engine, ServerInfo};
use super::pulse::Pulse;
use super::why::{Voice, Why};
use crate::options::groups::MatchingUnit;

/// How often an engine that must be polled is.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// What following needs, the same for all engines.
pub struct Means {
    pub gateway: Arc<Gateway>,
    pub ear: Arc<Ear>,
    pub paths: ModelPaths,
    pub matching: MatchingUnit,
    pub config: warmroute_events::Config,
    /// Bound for engines that connect to us.
    pub hub: Option<BoundListener>,
    /// Whether reporters may post: then a worker without events of its own is aligned too.
    pub takes_posts: bool,
    /// How engines are reached.
    pub dialer: Dialer,
}

/// What was found out about an engine's events.
pub struct Finding {
    engine: Engine,
    writing: PromptFormat,
    way: Way,
}

/// How events come.
enum Way {
    Streams(Vec<EventSource>),
    Polls,
    /// By a reporter's posts, if at all.
    Posts(Asked),
}

/// Whether an engine for which reporters may speak is asked for events of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It had none, and may be restarted with some.
    Again,
    /// The operator said no.
    Never,
}

/// An engine that is followed. Dropped, it is not any more.
#[derive(Default)]
pub struct Followed {
    pub pulse: Pulse,
    /// Where its streams were found; none for one that is polled or reported.
    pub sources: Vec<EventSource>,
    desks: Vec<Arc<FeedHandle>>,
    /// Workers that nothing is heard of, and why.
    unheard: Vec<(Arc<Worker>, Why)>,
    _subscribers: Vec<Subscriber>,
    poll: Option<JoinHandle<()>>,
    /// Of one that has nothing to be listened to.
    asked: Option<Asked>,
}

impl Followed {
    /// Whether it had no events and may have some by now.
    pub fn may_publish(&self) -> bool {
        self.asked == Some(Asked::Again)
    }

    /// The feed of a worker that publishes itself, or is polled.
    pub fn desk_of(&self, worker: &Worker) -> Option<Arc<FeedHandle>> {
        self.desks.iter().find(|desk| desk.worker == worker.address).cloned()
    }

    /// Why nothing is heard of a worker.
    pub fn unheard(&self, worker: &Worker) -> Why {
        let why = self.unheard.iter().find(|(other, _)| **other == *worker).map(|(_, why)| why.clone());
        why.unwrap_or(Why::NoPosts)
    }

    /// Where a worker's events come from, for people.
    pub fn origin(&self, worker: &Worker) -> String {
        let rank = worker.address.rank.unwrap_or(0);
        match self.sources.iter().find(|source| source.rank == rank) {
            Some(source) if source.topic.is_empty() => source.endpoint.to_string(),
            Some(source) => format!("{}, topic `{}`", source.endpoint, source.topic),
            None if self.poll.is_some() => format!("POST {}/kv_cache_events", worker.address.url),
            None => "its reporter".to_owned(),
        }
    }

    /// Who tells what a worker does.
    pub fn voice(&self, worker: &Worker) -> Voice {
        let rank = worker.address.rank.unwrap_or(0);
        let speaks_itself = self.poll.is_some() || self.sources.iter().any(|source| source.rank == rank);
        if speaks_itself { Voice::Engine } else { Voice::Reporter }
    }

    /// Whether some worker's topic turned out to be another's too.
    pub fn is_contested(&self) -> bool {
        self.desks.iter().any(|desk| desk.is_contested())
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.poll.iter().for_each(JoinHandle::abort);
    }
}

/// Asks an engine with these workers, its ranks, about its events. `Err`: its caches stay presumed, and why.
pub async fn find(
    means: &Means,
    url: &str,
    workers: &[Arc<Worker>],
    configured: Option<EventsEntry>,
) -> Result<Finding, Why> {
    let engine = Engine::new(url, &means.dialer);
    let way = find_way(means, &engine, workers, configured.as_ref()).await?;
    if let Way::Streams(sources) = &way {
        check_ranks(url, sources, workers)?;
    }
    note_capacity(&engine, means, workers).await;
    let cards = engine.cards().await.map_err(|error| error.to_string())?;
    let card = cards.first().ok_or_else(|| "the engine lists no model".to_owned())?;
    let adapters = cards.iter().filter(|card| card.parent.is_some());
    adapters.for_each(|adapter| means.gateway.router().know_lora(&adapter.id));
    let Aligned { matching, print } = align(&engine, card, &means.paths, means.matching).await?;
    let writing = PromptFormat {
        names: cards.iter().map(|card| card.id.clone()).collect(),
        fingerprint: print,
        matching,
    };
    Ok(Finding { engine, writing, way })
}

/// How an engine's events come, by what the operator says or by what it says itself.
async fn find_way(
    means: &Means,
    engine: &Engine,
    workers: &[Arc<Worker>],
    configured: Option<&EventsEntry>,
) -> Result<Way, Why> {
    match configured.map(|events| (events.endpoint.as_str(), events)) {
        Some(("poll", _)) => return Ok(Way::Polls),
        Some(("off", _)) if means.takes_posts => return Ok(Way::Posts(Asked::Never)),
        Some(("off", _)) => return Err(Why::SwitchedOff),
        Some(("bind", events)) => {
            return means.awaited(events, ranks(workers), &engine.url).map(Way::Streams);
        }
        _ => {}
    }
    let sources = engine.sources(configured, ranks(workers)).await.map_err(|error| error.to_string())?;
    match sources.is_empty() {
        false => Ok(Way::Streams(sources)),
        true if means.takes_posts => Ok(Way::Posts(Asked::Again)),
        true => Err(Why::NoEvents),
    }
}

/// Ranks that are listed and ranks that there are must be the same.
fn check_ranks(url: &str, sources: &[EventSource], workers: &[Arc<Worker>]) -> Result<(), Why> {
    let has = sources.len();
    if has > 1 && workers.iter().any(|worker| worker.address.rank.is_none()) {
        return Err(Why::Ranks(has));
    }
    if has > workers.len() {
        tracing::warn!(worker = url, why = %Why::Ranks(has), "ranks that are not listed get no requests");
    }
    Ok(())
}

/// Asks an engine again where its events are: it may have been restarted with other flags or ports.
pub async fn find_sources(
    means: &Means,
    url: &str,
    workers: &[Arc<Worker>],
    configured: Option<EventsEntry>,
) -> anyhow::Result<Vec<EventSource>> {
    Engine::new(url, &means.dialer).sources(configured.as_ref(), ranks(workers)).await
}

fn ranks(workers: &[Arc<Worker>]) -> u16 {
    workers.iter().filter_map(|worker| worker.address.rank).max().map_or(1, |last| last + 1)
}

impl Means {
    /// Begins to follow an engine as it was found.
    pub fn follow(&self, finding: Finding, workers: &[Arc<Worker>]) -> Result<Followed, Why> {
        let Finding { engine, writing, way } = finding;
        let matching = self.gateway.align(&engine.url, writing).map_err(|error| error.to_string())?;
        let (family, by) = (matching.family(), matching.unit().as_str());
        tracing::info!(worker = engine.url, %family, by, "prompts are compared with KV events");
        for worker in workers {
            self.ear.listen_for(Arc::clone(worker));
            let (worker, matching) = (Arc::clone(worker), Some(matching.clone()));
            self.ear.tell(Change::Aligned { worker, matching });
        }
        let mut followed = Followed::default();
        match way {
            Way::Streams(sources) => self.listen(&mut followed, sources, workers),
            Way::Posts(asked) => followed.asked = Some(asked),
            Way::Polls => {
                let (task, desks) = self.poll(engine, workers);
                (followed.poll, followed.desks) = (Some(task), desks);
            }
        }
        Ok(followed)
    }

    fn listen(&self, followed: &mut Followed, sources: Vec<EventSource>, workers: &[Arc<Worker>]) {
        for worker in workers {
            match self.stream(worker, &sources) {
                Ok(subscriber) => {
                    followed.desks.push(subscriber.feed());
                    followed._subscribers.push(subscriber);
                }
                Err(why) => followed.unheard.push((Arc::clone(worker), why)),
            }
        }
        followed.sources = sources;
    }

    /// Engines that connect to us, where the operator says so without naming where.
    fn awaited(&self, events: &EventsEntry, ranks: u16, url: &str) -> Result<Vec<EventSource>, Why> {
        let hub = self.hub.as_ref().ok_or_else(|| Why::NotBound("the router".to_owned()))?;
        let replay = events.replay.as_deref();
        let sources = EventSource::configured(&hub.endpoint().to_string(), replay, &events.topic, ranks, url);
        let mut sources = sources.map_err(|error| error.to_string())?;
        for source in &mut sources {
            (source.direction, source.endpoint) = (Direction::TheyConnect, hub.endpoint().clone());
        }
        Ok(sources)
    }

    fn stream(&self, worker: &Arc<Worker>, sources: &[EventSource]) -> Result<Subscriber, Why> {
        let rank = worker.address.rank.unwrap_or(0);
        let no_rank = || Why::NoRank { rank, has: sources.len() };
        let source = sources.iter().find(|source| source.rank == rank).ok_or_else(no_rank)?.clone();
        let address = worker.address.clone();
        let listener = Arc::clone(&self.ear) as Arc<dyn EventSink>;
        // Who binds an endpoint on this machine cannot be told by its name: not the engine, if we did.
        let is_meant = |hub: &BoundListener| hub.is_meant_by(&source.endpoint, &worker.address.url);
        let is_ours = self.hub.as_ref().is_some_and(is_meant);
        let direction = if is_ours { Direction::TheyConnect } else { source.direction };
        let subscriber = match (direction, &self.hub) {
            (Direction::WeConnect, _) => subscribe(address, source, listener, self.config.clone()),
            (Direction::TheyConnect, Some(_)) if !is_ours => {
                return Err(Why::NotBound(source.endpoint.to_string()));
            }
            (Direction::TheyConnect, Some(_)) if source.topic.is_empty() => return Err(Why::NoTopic),
            (Direction::TheyConnect, Some(hub)) => {
                hub.expect_worker(address, &source.topic, source.replay.clone(), listener)?
            }
            (Direction::TheyConnect, None) => return Err(Why::NotBound(source.endpoint.to_string())),
        };
        self.ear.follows(subscriber.feed());
        Ok(subscriber)
    }

    fn poll(&self, engine: Engine, workers: &[Arc<Worker>]) -> (JoinHandle<()>, Vec<Arc<FeedHandle>>) {
        let addresses = workers.iter().map(|worker| worker.address.clone()).collect();
        let listener = Arc::clone(&self.ear) as Arc<dyn EventSink>;
        let mut poller = Poller::new(addresses, &self.config.feed, &listener);
        let desks = poller.feeds();
        desks.iter().for_each(|desk| self.ear.follows(Arc::clone(desk)));
        let ear = Arc::clone(&self.ear);
        let task = tokio::spawn(async move {
            loop {
                // Each poll takes the events away. Where there are several routers, one polls and tells the others.
                match ear.polls() {
                    true => take_poll(&mut poller, engine.poll_events().await),
                    false => poller.pause(),
                }
                tokio::time::sleep(POLL_EVERY).await;
            }
        });
        (task, desks)
    }
}

fn take_poll(poller: &mut Poller, answer: anyhow::Result<Bytes>) {
    if let Err(error) = answer.and_then(|body| Ok(poller.polled(&body)?)) {
        poller.failed(&format!(
            "polls fail: {error}; TensorRT-LLM needs kv_cache_config.event_buffer_max_size above 0"
        ));
    }
}

/// SGLang says how much its cache holds here, not in its metrics.
async fn note_capacity(engine: &Engine, means: &Means, workers: &[Arc<Worker>]) {
    let Ok(Some(body)) = engine.server_info().await else { return };
    let Ok(info) = serde_json::from_slice::<ServerInfo>(&body) else { return };
    let Some(tokens) = info.max_total_num_tokens else { return };
    let capacity = CacheCapacity { tokens, block_tokens: info.page_size.unwrap_or(1).max(1) };
    for worker in workers {
        means.ear.tell(Change::Capacity { worker: Arc::clone(worker), capacity });
    }
}
