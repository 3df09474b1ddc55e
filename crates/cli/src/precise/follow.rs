//! Follows one engine's events: finds out where they are and how to read them, then listens.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use warmroute_discovery::EventsEntry;
use warmroute_events::{Direction, Hub, Listener, Poller, Source, Subscriber, subscribe};
use warmroute_fleet::Worker;
use warmroute_gateway::{Gateway, ModelMatching};
use warmroute_router::{Change, Matching};
use warmroute_tokens::EncoderPool;
use warmroute_types::CacheCapacity;

use super::align::{Aligned, ModelPaths, align};
use super::ear::Ear;
use super::engine::{Card, Engine, ServerInfo};
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

/// An engine that is followed. Dropped, it is not any more.
#[derive(Default)]
pub struct Followed {
    pub streams: Vec<Stream>,
    poll: Option<JoinHandle<()>>,
}

/// One rank's stream.
pub struct Stream {
    pub worker: Arc<Worker>,
    pub subscriber: Subscriber,
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

/// Begins to follow an engine with these workers, its ranks. `Err`: its caches stay presumed, and why.
pub async fn follow(
    means: &Means,
    url: &str,
    workers: &[Arc<Worker>],
    configured: Option<EventsEntry>,
) -> Result<Followed, Unfollowed> {
    let engine = Engine::new(url);
    let is_polled = configured.as_ref().is_some_and(|events| events.endpoint == "poll");
    let ranks = workers.iter().filter_map(|worker| worker.address.rank).max().map_or(1, |last| last + 1);
    let sources = match configured.as_ref().filter(|_| !is_polled) {
        Some(events) if events.endpoint == "off" && means.takes_posts => Vec::new(),
        Some(events) if events.endpoint == "off" => return Err(Unfollowed::Nothing("switched off")),
        configured => engine.sources(configured, ranks).await.map_err(|error| error.to_string())?,
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
    for worker in workers {
        means.ear.listen_for(Arc::clone(worker));
        let (worker, matching) = (Arc::clone(worker), Some(matching.clone()));
        means.ear.tell(Change::Aligned { worker, matching });
    }
    if is_polled {
        return Ok(Followed { streams: Vec::new(), poll: Some(means.poll(engine, workers)) });
    }
    let streams = workers.iter().filter_map(|worker| means.stream(worker, &sources));
    Ok(Followed { streams: streams.collect(), poll: None })
}

impl Means {
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

    fn stream(&self, worker: &Arc<Worker>, sources: &[Source]) -> Option<Stream> {
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
        Some(Stream { worker: Arc::clone(worker), subscriber })
    }

    fn poll(&self, engine: Engine, workers: &[Arc<Worker>]) -> JoinHandle<()> {
        let addresses = workers.iter().map(|worker| worker.address.clone()).collect();
        let listener = Arc::clone(&self.ear) as Arc<dyn Listener>;
        let mut poller = Poller::new(addresses, &self.config.feed, &listener);
        tokio::spawn(async move {
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
        })
    }
}

/// SGLang says how much its cache holds here, not in its metrics.
async fn note_capacity(engine: &Engine, means: &Means, workers: &[Arc<Worker>]) {
    let Some(body) = engine.server_info().await else { return };
    let Ok(info) = serde_json::from_slice::<ServerInfo>(&body) else { return };
    let Some(tokens) = info.max_total_num_tokens else { return };
    let capacity = CacheCapacity { tokens, block_tokens: info.page_size.unwrap_or(1).max(1) };
    for worker in workers {
        means.ear.tell(Change::Capacity { worker: Arc::clone(worker), capacity });
    }
}
