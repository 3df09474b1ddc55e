//! The router under test, its workers, and what they hold.

use std::sync::Arc;

use warmroute_fleet::{Models, ProbeResult, Worker};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_peers::Config as PeersConfig;
use warmroute_policy::Standard;
use warmroute_router::{
    Change, Config, Family, Matching, Outcome, PromptChunks, PromptText, Request, Router, Scratch, Unit,
};
use warmroute_types::{Address, CacheEvent, CacheView, Micros, RouterId, StoredBlocks};

pub const WORKERS: usize = 16;
pub const BEGIN: Micros = Micros::from_secs(1_000);
/// Blocks of a full cache.
pub const FULL: usize = 1_000_000;
const BLOCK_TOKENS: usize = 16;
/// Blocks of one reported prompt.
const RUN: usize = 500;
const CHUNK: u32 = 256;
/// Chunks of a routed prompt.
const CHUNKS: u64 = 40;

/// The model that requests name.
pub const MODEL: &str = "m";

/// A router and the workers that events touch.
pub struct World {
    pub router: Arc<Router<Standard>>,
    /// A second router, where an event needs one.
    pub peer: Option<Arc<Router<Standard>>>,
}

impl World {
    pub fn router(&self) -> Arc<Router<Standard>> {
        Arc::clone(&self.router)
    }

    /// A router whose first worker reports its cache.
    pub fn reported() -> World {
        let router = router(warmroute_index::Config::default());
        join_reported(&router, 0);
        (1..WORKERS).for_each(|number| _ = join(&router, number, &Models::named(&[MODEL])));
        World { router, peer: None }
    }

    /// A router whose workers have no events.
    pub fn presumed() -> World {
        World::presumed_within(warmroute_index::Config::default().budget_bytes)
    }

    pub fn presumed_within(budget_bytes: usize) -> World {
        let index = warmroute_index::Config {
            budget_bytes,
            presumed_tokens: 1 << 40,
            presumed_ttl: Micros::from_secs(600),
            ..warmroute_index::Config::default()
        };
        let router = router(index);
        (0..WORKERS).for_each(|number| _ = join(&router, number, &Models::named(&[MODEL])));
        World { router, peer: None }
    }

    /// The same, with a million presumed chunks.
    pub fn presume_full(self, at: Micros) -> World {
        presume_full(&self.router, 0, at);
        self
    }

    /// The same, sharing with peers.
    pub fn share(self, id: u64) -> World {
        self.router.peering().start(RouterId(id), PeersConfig::default());
        self
    }

    /// Sixty-four workers that serve 1,024 models each.
    pub fn with_models() -> World {
        let router = router(warmroute_index::Config::default());
        let models = many_models();
        (0..64).for_each(|number| _ = join(&router, number, &models));
        World { router, peer: None }
    }
}

pub fn many_models() -> Models {
    let names: Vec<String> = (0..1_023).map(|number| format!("model-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).chain([MODEL]).collect();
    Models::named(&names)
}

/// A router without workers.
pub fn router(index: warmroute_index::Config) -> Arc<Router<Standard>> {
    router_with("expected_ttft", index)
}

/// The same with another policy.
pub fn router_with(policy: &str, index: warmroute_index::Config) -> Arc<Router<Standard>> {
    let policy = policy.parse().expect("it is a policy");
    Arc::new(Router::new(policy, Config { index, ..Config::default() }))
}

pub fn address(number: usize) -> Address {
    Address::new(format!("http://engine-{number}"))
}

pub fn join(router: &Router<Standard>, number: usize, models: &Models) -> Arc<Worker> {
    let worker = router.join(address(number), models.clone()).expect("there is room");
    router.apply(Change::Probed { worker: Arc::clone(&worker), result: ProbeResult::Answered, at: BEGIN });
    worker
}

/// A worker with events joins.
pub fn join_reported(router: &Router<Standard>, number: usize) -> Arc<Worker> {
    let worker = join(router, number, &Models::named(&[MODEL]));
    let matching = Some(Matching::tokens(Family::new(MODEL)));
    router.apply(Change::Aligned { worker: Arc::clone(&worker), matching });
    router.apply(Change::Viewed { worker: Arc::clone(&worker), view: CacheView::Reported });
    worker
}

/// The worker at an address.
pub fn worker(router: &Router<Standard>, number: usize) -> Arc<Worker> {
    let workers = router.inspect().workers().into_iter().map(|view| view.worker);
    workers.rev().find(|worker| worker.address == address(number)).expect("it has joined")
}

/// Events that store this many blocks.
pub fn stored(blocks: usize, seed: u64) -> Vec<CacheEvent> {
    let name = |prompt: usize, block: usize| {
        (seed << 40 | (prompt * RUN + block + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    let prompts = 0..blocks.div_ceil(RUN);
    let event = |prompt: usize| {
        CacheEvent::Stored(StoredBlocks {
            names: (0..RUN).map(|block| name(prompt, block)).collect(),
            tokens: (0..RUN * BLOCK_TOKENS).map(|at| token(prompt, at)).collect(),
            block_tokens: BLOCK_TOKENS as u32,
            text_blocks: RUN as u32,
            ..StoredBlocks::default()
        })
    };
    prompts.map(event).collect()
}

/// The worker reports a full cache, in batches.
pub fn fill(router: &Router<Standard>, worker: &Arc<Worker>) {
    for batch in stored(FULL, 0).chunks(100) {
        router.apply(Change::Cached { worker: Arc::clone(worker), events: batch.to_vec() });
    }
}

/// A million chunks are presumed on the workers, in prompts of 1,000 chunks.
pub fn presume_full(router: &Router<Standard>, seed: u64, at: Micros) {
    let mut scratch = Scratch::default();
    for prompt in 0..FULL as u64 / 1_000 {
        let digests = digests((1 << 40) + (seed << 24) + prompt, 1_000);
        let request = Request { model: Some(MODEL), prompt: Some(chunks(&digests)), ..Request::default() };
        let mut decision = router.route(&request, &mut scratch, at, prompt).expect("workers are ready");
        router.observe(&mut decision, Outcome::FirstToken { at });
    }
}

fn digests(conversation: u64, chunks: u64) -> Vec<u64> {
    (0..chunks).map(|at| (conversation << 20 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

fn chunks(digests: &[u64]) -> PromptChunks<'_> {
    let namespace = Namespace { model: MODEL, lora: None, salt: None, cut: CHUNK, source: Source::Presumed };
    let bytes = digests.len() as u32 * CHUNK;
    PromptChunks { root: RootKey::of(&namespace), digests, chunk_bytes: CHUNK, bytes }
}

/// A request's prompt: chunks, and the text that reported caches are compared with.
#[derive(Default)]
pub struct RequestText {
    digests: Vec<u64>,
    bytes: Vec<u8>,
}

impl RequestText {
    /// A conversation, which begins like one of the reported prompts.
    pub fn fill(&mut self, conversation: u64) {
        self.digests = digests(conversation, CHUNKS);
        self.bytes.clear();
        let tokens = (0..100 * BLOCK_TOKENS).map(|at| token(conversation as usize % (FULL / RUN), at));
        self.bytes.extend(tokens.flat_map(u32::to_le_bytes));
    }

    /// The text, as requests are compared with reported caches.
    pub fn text(&self, router: &Router<Standard>) -> PromptText<'_> {
        let root = router.inspect().text_root(&Family::new(MODEL), Some(MODEL), None, Unit::Token);
        PromptText { root, bytes: &self.bytes, unit: Unit::Token }
    }

    pub fn request<'a>(&'a self, texts: &'a [PromptText<'a>]) -> Request<'a> {
        Request { model: Some(MODEL), prompt: Some(chunks(&self.digests)), texts, ..Request::default() }
    }
}

/// A token of a reported prompt.
fn token(prompt: usize, at: usize) -> u32 {
    ((prompt << 16 | at) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as u32 >> 8
}
