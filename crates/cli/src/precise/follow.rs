//! Follows one engine's events: finds out where they are and how to read them, then listens.
//!
//! Finding takes a while and may be overtaken: by a worker that left, by another question. So it changes nothing of what is
//! heard of anybody; whoever asked looks at what was found, and only then begins to follow.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use warmroute_discovery::EventsEntry;
use warmroute_events::{Desk, Direction, Hub, Listener, Poller, Source, Subscriber, subscribe};
use warmroute_fleet::Worker;
use warmroute_gateway::{Gateway, ModelMatching};
use warmroute_router::{Change, Matching};
use warmroute_tokens::EncoderPool;
use warmroute_types::CacheCapacity;

use super::align::{Aligned, ModelPaths, align};
use super::ear::Ear;
use super::engine::{Card, Engine, ServerInfo};
use super::pulse::Pulse;
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
    pub hub: Option<Hub>,
    /// Whether reporters may post: then a worker without events of its own is aligned too.
    pub takes_posts: bool,
}

/// What was found out about an engine's events.
pub struct Finding {
    engine: Engine,
    matching: Matching,
    way: Way,
}

/// How events come.
enum Way {
    Streams(Vec<Source>),
    Polls,
}

/// An engine that is followed. Dropped, it is not any more.
pub struct Followed {
    pub pulse: Pulse,
    /// Where its streams were found; none for one that is polled or reported.
    pub sources: Vec<Source>,
    desks: Vec<Arc<Desk>>,
    _subscribers: Vec<Subscriber>,
    poll: Option<JoinHandle<()>>,
}

impl Followed {
    /// The feed of a worker that publishes itself, or is polled.
    pub fn desk_of(&self, worker: &Worker) -> Option<Arc<Desk>> {
        self.desks.iter().find(|desk| desk.worker == worker.address).cloned()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.poll.iter().for_each(JoinHandle::abort);
    }
}

/// Why an engine is not followed.
pub enum Unfollowed {
    /// There is nothing to follow.
    Nothing(&'static str),
    /// There is, but it cannot be used.
    Trouble(String),
}

impl From<String> for Unfollowed {
    fn from(why: String) -> Unfollowed {
        Unfollowed::Trouble(why)
    }
}

/// Asks an engine with these workers, its ranks, about its events. `Err`: its caches stay presumed, and why.
pub async fn find(
    means: &Means,
    url: &str,
    workers: &[Arc<Worker>],
    configured: Option<EventsEntry>,
) -> Result<Finding, Unfollowed> {
    let engine = Engine::new(url);
    let is_polled = configured.as_ref().is_some_and(|events| events.endpoint == "poll");
    let sources = match configured.as_ref().filter(|_| !is_polled) {
        Some(events) if events.endpoint == "off" && means.takes_posts => Vec::new(),
        Some(events) if events.endpoint == "off" => return Err(Unfollowed::Nothing("switched off")),
        configured => engine.sources(configured, ranks(workers)).await.map_err(|error| error.to_string())?,
    };
    if sources.is_empty() && !is_polled && !means.takes_posts {
        return Err(Unfollowed::Nothing(
            "the engine publishes no KV events; docs/precise.md says which flags it needs",
        ));
    }
    if sources.len() > 1 && workers.iter().any(|worker| worker.address.rank.is_none()) {
        let ranks = sources.len();
        return Err(
            format!("the engine has {ranks} data-parallel ranks: list it with ranks = {ranks}").into()
        );
    }
    note_capacity(&engine, means, workers).await;
    let cards = engine.cards().await.map_err(|error| error.to_string())?;
    let card = cards.first().ok_or_else(|| "the engine lists no model".to_owned())?;
    let adapters = cards.iter().filter(|card| card.parent.is_some());
    adapters.for_each(|adapter| means.gateway.router().know_lora(&adapter.id));
    let matching = means.align(&engine, card, &cards).await?;
    let way = if is_polled { Way::Polls } else { Way::Streams(sources) };
    Ok(Finding { engine, matching, way })
}

/// Asks an engine again where its events are: it may have been restarted with other flags or ports.
pub async fn find_sources(
    url: &str,
    workers: &[Arc<Worker>],
    configured: Option<EventsEntry>,
) -> anyhow::Result<Vec<Source>> {
    Engine::new(url).sources(configured.as_ref(), ranks(workers)).await
}

fn ranks(workers: &[Arc<Worker>]) -> u16 {
    workers.iter().filter_map(|worker| worker.address.rank).max().map_or(1, |last| last + 1)
}

impl Means {
    /// Begins to follow an engine as it was found.
    pub fn follow(&self, finding: Finding, workers: &[Arc<Worker>]) -> Followed {
        let Finding { engine, matching, way } = finding;
        for worker in workers {
            self.ear.listen_for(Arc::clone(worker));
            let (worker, matching) = (Arc::clone(worker), Some(matching.clone()));
            self.ear.tell(Change::Aligned { worker, matching });
        }
        let pulse = Pulse::default();
        match way {
            Way::Streams(sources) => {
                let streams = workers.iter().filter_map(|worker| self.stream(worker, &sources));
                let subscribers: Vec<Subscriber> = streams.collect();
                let desks = subscribers.iter().map(Subscriber::desk).collect();
                Followed { pulse, sources, desks, _subscribers: subscribers, poll: None }
            }
            Way::Polls => {
                let (task, desks) = self.poll(engine, workers);
                let (sources, subscribers) = (Vec::new(), Vec::new());
                Followed { pulse, sources, desks, _subscribers: subscribers, poll: Some(task) }
            }
        }
    }

    /// Aligns the gateway with an engine's model, under all of its names.
    async fn align(&self, engine: &Engine, card: &Card, cards: &[Card]) -> Result<Matching, String> {
        let (model, matching) = match align(engine, card, &self.paths, self.matching).await? {
            Aligned::Bytes(alignment) => {
                let vocabulary = Arc::new(alignment.vocabulary().clone());
                (ModelMatching::Bytes(Arc::from(alignment)), Matching::Bytes(vocabulary))
            }
            Aligned::Tokens(renderer, encoder) => {
                let pool = EncoderPool::new(Arc::from(encoder), warmroute_tokens::Config::default());
                let pool = Arc::new(pool.map_err(|error| error.to_string())?);
                (ModelMatching::Tokens { renderer: Arc::from(renderer), pool }, Matching::Tokens)
            }
        };
        for card in cards {
            self.gateway.align(&card.id, Some(model.clone()));
        }
        tracing::info!(worker = engine.url, model = card.id, by = %model, "prompts are compared with KV events");
        Ok(matching)
    }

    fn stream(&self, worker: &Arc<Worker>, sources: &[Source]) -> Option<Subscriber> {
        let rank = worker.address.rank.unwrap_or(0);
        let source = sources.iter().find(|source| source.rank == rank)?.clone();
        let address = worker.address.clone();
        let listener = Arc::clone(&self.ear) as Arc<dyn Listener>;
        // Who binds an endpoint on this machine cannot be told by its name: not the engine, if we did.
        let is_ours = self.hub.as_ref().is_some_and(|hub| *hub.endpoint() == source.endpoint);
        let direction = if is_ours { Direction::TheyConnect } else { source.direction };
        let subscriber = match (direction, &self.hub) {
            (Direction::WeConnect, _) => subscribe(address, source, listener, self.config.clone()),
            (Direction::TheyConnect, Some(_)) if source.topic.is_empty() => {
                tracing::warn!(worker = %worker.label, "engines that connect need a topic each to be told apart");
                return None;
            }
            (Direction::TheyConnect, Some(hub)) => {
                hub.await_worker(address, &source.topic, source.replay.clone(), listener)
            }
            (Direction::TheyConnect, None) => {
                tracing::warn!(
                    worker = %worker.label, endpoint = %source.endpoint,
                    "this engine connects to its events' endpoint: bind it with --kv-events-bind",
                );
                return None;
            }
        };
        self.ear.follows(&worker.address);
        Some(subscriber)
    }

    fn poll(&self, engine: Engine, workers: &[Arc<Worker>]) -> (JoinHandle<()>, Vec<Arc<Desk>>) {
        let addresses = workers.iter().map(|worker| worker.address.clone()).collect();
        let listener = Arc::clone(&self.ear) as Arc<dyn Listener>;
        let mut poller = Poller::new(addresses, &self.config.feed, &listener);
        let desks = poller.desks();
        let task = tokio::spawn(async move {
            loop {
                let polled = match engine.poll_events().await {
                    Ok(body) => poller.polled(&body).map(drop).map_err(anyhow::Error::new),
                    Err(error) => Err(error),
                };
                if let Err(error) = polled {
                    tracing::debug!(worker = engine.url, %error, "poll failed");
                    poller.failed();
                }
                tokio::time::sleep(POLL_EVERY).await;
            }
        });
        (task, desks)
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
