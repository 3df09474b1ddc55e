//! The router: pools of workers by model, one policy, and the three verbs.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use warmroute_fleet::{Booking, Fleet, FleetFull, HealthConfig, Models, Worker, WorkerView};
use warmroute_index::{Digester, Index, Overlaps, Prompt, Span};
use warmroute_policy::{Ask, Policy};
use warmroute_types::{Micros, Usage, WorkerId, WorkerState};

use crate::feedback::{Answered, Content, Silence};
use crate::pool::{PRESUMED_CHUNKS_MAX, Placed, Pool, Terms};
use crate::presumed::Presumed;
use crate::{Change, Feedback, Outcome, PromptChunks, Scratch};

/// Tokens of an engine's block where it has not said so: vLLM's default on GPUs. It is part of the margin within which
/// prediction and report agree.
const BLOCK_TOKENS: u32 = 16;

/// The router's own few settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// When a worker counts as unhealthy.
    pub health: HealthConfig,
    /// A load report older than this is not believed.
    pub report_age_max: Micros,
    /// Bounds of what is remembered about caches.
    pub index: warmroute_index::Config,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            health: HealthConfig::default(),
            report_age_max: Micros::from_secs(5),
            index: warmroute_index::Config::default(),
        }
    }
}

/// What a request asks of the router.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The model it names; `None` is content with any worker.
    pub model: Option<&'a str>,
    /// Tokens of its prompt, as far as known; where the prompt is given too, they are estimated from that.
    pub prompt_tokens: u32,
    /// Its prompt, where caches shall be looked at.
    pub prompt: Option<PromptChunks<'a>>,
    /// Hash of its session, if it names one.
    pub session_key: Option<u64>,
    /// Hash of its prompt's beginning, if it has one.
    pub prefix_key: Option<u64>,
    /// Workers that have already failed it.
    pub avoid: &'a [WorkerId],
}

/// Where a request goes. The booking inside keeps the work on the worker's desk until it is dropped.
#[derive(Debug)]
pub struct Decision {
    /// Who.
    pub worker: Arc<Worker>,
    /// By which policy.
    pub policy: &'static str,
    /// And why, in a word.
    pub reason: &'static str,
    /// Prompt tokens expected in the worker's cache; `None` when nothing is known of its cache.
    pub cached_tokens: Option<u32>,
    /// The same in bytes, which do not depend on how many tokens a byte is believed to be.
    cached_bytes: Option<u32>,
    /// How many bookings its worker had had when this one was made.
    bookings: u32,
    /// The work, on the worker's desk.
    pub booking: Booking,
    /// What is presumed about the worker's cache from now on.
    presumed: Option<Presumed>,
}

/// Why a request can go nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// No worker serves this model, and all have said what they serve.
    #[error("the model does not exist")]
    UnknownModel,
    /// Workers exist, but none is ready now.
    #[error("no worker is ready")]
    NotReady,
    /// There is no worker at all.
    #[error("the fleet is empty")]
    NoWorkers,
}

/// The routing core, generic over its policy so that the lab can run rules of other routers.
pub struct Router<P> {
    fleet: Arc<Fleet>,
    index: Arc<Index>,
    policy: P,
    config: Config,
    pools: RwLock<Pools>,
}

/// Who serves what. Rebuilt from the fleet whenever somebody comes, goes or changes models.
#[derive(Default)]
struct Pools {
    by_model: BTreeMap<Arc<str>, Pool>,
    /// Workers that take any model.
    any: Pool,
    /// All workers, for requests that name no model.
    all: Pool,
    /// Some worker has not said yet what it serves.
    some_unknown: bool,
}

impl<P: Policy> Router<P> {
    /// A router without workers.
    pub fn new(policy: P, config: Config) -> Router<P> {
        let fleet = Arc::new(Fleet::new(config.health));
        let index = Arc::new(Index::new(&config.index));
        Router { fleet, index, policy, config, pools: RwLock::default() }
    }

    /// Chooses a worker and books the request there. `random` is fresh for every call; `scratch` is kept by the caller.
    pub fn route(
        &self,
        request: &Request<'_>,
        scratch: &mut Scratch,
        now: Micros,
        random: u64,
    ) -> Result<Decision, NoRoute> {
        let pools = self.pools.read();
        let pool = pools.serving(request.model)?;
        let counted = request.prompt.map(|prompt| pool.tokens.tokens_in(prompt.bytes));
        let ask = Ask {
            prompt_tokens: counted.unwrap_or(request.prompt_tokens),
            session_key: request.session_key,
            prefix_key: request.prefix_key,
            random,
            turn: 0,
        };
        let report_age_max = self.config.report_age_max;
        let terms = Terms { ask, prompt: request.prompt, avoid: request.avoid, now, report_age_max };
        let placed = pool.place(&self.fleet, &self.index, &self.policy, terms, scratch);
        let placed = placed.ok_or_else(|| pools.why_nobody())?;
        let Placed { worker, reason, cached_tokens, cached_bytes, bookings, booking, presumed } = placed;
        let policy = self.policy.name();
        Ok(Decision { worker, policy, reason, cached_tokens, cached_bytes, bookings, booking, presumed })
    }

    /// Takes in how a request fared. After `Ended` and `Refused` the caller drops the decision.
    pub fn observe(&self, decision: &mut Decision, outcome: Outcome) {
        if outcome != Outcome::Refused {
            decision.presumed.iter_mut().for_each(Presumed::confirm);
        }
        match outcome {
            Outcome::FirstToken => decision.booking.first_token(),
            Outcome::Ended | Outcome::Refused => self.fleet.answered(&decision.worker),
        }
    }

    /// Compares what an engine found in its cache with what was expected. For one prompt with one answer only: of
    /// several, nobody can say which was meant.
    pub fn feedback(&self, decision: &Decision, asked: Answered<'_>, now: Micros) -> Feedback {
        let said = asked.usage.cached_tokens;
        let cached_tokens = match asked.silence {
            Silence::MeansZero => self.fleet.cached_tokens(&decision.worker, said),
            Silence::MeansNothing => said,
        };
        let usage = Usage { cached_tokens, ..asked.usage };
        let block_tokens = self.fleet.block_tokens(decision.worker.id).unwrap_or(BLOCK_TOKENS);
        let Some(prompt) = asked.prompt.filter(|_| asked.content == Content::Text) else {
            // Where in a prompt with images the cache ends, its bytes do not tell.
            return Feedback::of(usage, None, block_tokens);
        };
        self.learn(asked.model, prompt, usage);
        // The engine has counted: what was expected, in this prompt's own tokens.
        let scale = f64::from(usage.prompt_tokens) / f64::from(prompt.bytes.max(1));
        let tokens = |bytes: u32| (f64::from(bytes) * scale) as u32;
        let expected =
            decision.cached_bytes.map(|bytes| tokens(bytes).min(usage.prompt_tokens.saturating_sub(1)));
        let feedback = Feedback::of(usage, expected, tokens(prompt.chunk_bytes) + block_tokens);
        if let (Some(found), true) = (feedback.cached, feedback.stale > 0) {
            self.correct(decision, prompt, (f64::from(found) / scale) as u32, now);
        }
        feedback
    }

    /// Cuts the view of a worker's cache at what was found, with everything that continued it, and presumes again what the
    /// request itself has put there. Only while nobody else has been sent there since: what they have put into the cache
    /// would be cut too, though it came after.
    fn correct(&self, decision: &Decision, prompt: PromptChunks<'_>, found_bytes: u32, now: Micros) {
        let id = decision.worker.id;
        if self.fleet.bookings(id) != decision.bookings || !self.fleet.is_member(&decision.worker) {
            return;
        }
        let kept = prompt.digests.len().min(found_bytes.div_ceil(prompt.chunk_bytes) as usize);
        let mut overlaps = Overlaps::new();
        self.index.lookup(prompt.root, Prompt::Chunks(&prompt.digests[..kept]), &mut overlaps);
        self.index.cut(id, prompt.root, Prompt::Chunks(prompt.digests), overlaps.of(id).tokens);
        let tokens = (prompt.chunk_bytes / 4).max(1);
        let span = |&digest: &u64| Span { digest, bytes: prompt.chunk_bytes, tokens };
        let spans: Vec<Span> = prompt.digests.iter().take(PRESUMED_CHUNKS_MAX).map(span).collect();
        if let Some(mut presumed) = Presumed::make(&self.index, id, prompt.root, &spans, now) {
            presumed.confirm();
        }
    }

    /// Learns how many tokens the model makes of a byte.
    fn learn(&self, model: Option<&str>, prompt: PromptChunks<'_>, usage: Usage) {
        if let Ok(pool) = self.pools.read().serving(model) {
            pool.tokens.learn(prompt.bytes, usage.prompt_tokens);
        }
    }

    /// Forgets what is too old to be believed. To be called every now and then.
    pub fn tick(&self, now: Micros) {
        self.index.expire(now);
    }

    /// What is remembered about caches, in numbers.
    pub fn index_stats(&self) -> warmroute_index::Stats {
        self.index.stats()
    }

    /// What digests a prompt's chunks.
    pub fn digester(&self) -> &Digester {
        self.index.digester()
    }

    /// Takes in news.
    pub fn apply(&self, change: Change) -> Result<(), FleetFull> {
        match change {
            Change::Join { address, models } => {
                self.reseat(|fleet| {
                    let is_known = fleet.members().iter().any(|view| view.worker.address == address);
                    let worker = fleet.join(address, models)?;
                    if !is_known {
                        self.forget(worker.id);
                    }
                    Ok(())
                })?;
            }
            Change::Leave { address } => {
                self.reseat(|fleet| {
                    // What it holds is of no use to anybody from now on.
                    fleet.leave(&address).into_iter().for_each(|worker| self.forget(worker));
                    Ok(())
                })?;
            }
            Change::Probed { worker, result } => {
                // One that was away has most likely been restarted, and its cache is empty.
                if self.fleet.saw(&worker, result) == Some(WorkerState::Ready) {
                    self.index.clear(worker.id);
                }
            }
            Change::Capacity { worker, capacity } => {
                self.fleet.set_block_tokens(&worker, capacity.block_tokens);
                self.set_capacity(worker.id, capacity.tokens);
            }
            Change::Serves { worker, models } => {
                // Probes say this every few seconds, and it is hardly ever news.
                if self.fleet.serves(&worker, models) {
                    self.reseat(|_| Ok(()))?;
                }
            }
            Change::Load { worker, report } => self.fleet.report(&worker, report),
        }
        Ok(())
    }

    /// Every worker, as it is now.
    pub fn workers(&self) -> Vec<WorkerView> {
        self.fleet.workers()
    }

    /// One worker's state.
    pub fn worker_state(&self, worker: WorkerId) -> WorkerState {
        self.fleet.desk_view(worker).state
    }

    /// Whether the operator wrote down what this worker serves.
    pub fn models_are_given(&self, worker: &Worker) -> bool {
        self.fleet.models_are_given(worker)
    }

    /// The policy in use.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Nothing is known any more of the cache of whoever sits here.
    fn forget(&self, worker: WorkerId) {
        self.index.clear(worker);
        self.set_capacity(worker, self.config.index.presumed_tokens);
    }

    fn set_capacity(&self, worker: WorkerId, tokens: u64) {
        self.index.set_capacity(worker, tokens).expect("a worker's seat is below the most there are");
    }

    /// Changes who sits where, and derives the pools anew. No decision is made meanwhile: a request that has chosen a
    /// worker but not booked it yet would otherwise find a newcomer on its seat.
    fn reseat(&self, change: impl FnOnce(&Fleet) -> Result<(), FleetFull>) -> Result<(), FleetFull> {
        let mut pools = self.pools.write();
        let changed = change(&self.fleet);
        pools.seat(&self.fleet.members());
        changed
    }
}

impl Pools {
    fn serving(&self, model: Option<&str>) -> Result<&Pool, NoRoute> {
        let Some(model) = model else { return Ok(&self.all) };
        match self.by_model.get(model) {
            Some(pool) => Ok(pool),
            None if !self.any.is_empty() => Ok(&self.any),
            None if self.all.is_empty() => Err(NoRoute::NoWorkers),
            None if self.some_unknown => Err(NoRoute::NotReady),
            None => Err(NoRoute::UnknownModel),
        }
    }

    fn why_nobody(&self) -> NoRoute {
        if self.all.is_empty() { NoRoute::NoWorkers } else { NoRoute::NotReady }
    }

    /// Pools that stay keep their count of turns; pools without workers go.
    fn seat(&mut self, members: &[WorkerView]) {
        let serving = |wanted: &dyn Fn(&Models) -> bool| -> Vec<Arc<Worker>> {
            let chosen = members.iter().filter(|view| wanted(&view.models));
            chosen.map(|view| Arc::clone(&view.worker)).collect()
        };
        self.all.set_members(serving(&|_| true));
        self.any.set_members(serving(&|models| *models == Models::Any));
        self.some_unknown = members.iter().any(|view| view.models == Models::Unknown);

        let named = |models: &Models| match models {
            Models::Named(names) => names.clone(),
            Models::Unknown | Models::Any => Vec::new(),
        };
        let names: Vec<Arc<str>> = members.iter().flat_map(|view| named(&view.models)).collect();
        self.by_model.retain(|model, _| names.contains(model));
        for name in names {
            if !self.by_model.contains_key(&name) {
                self.by_model.insert(Arc::clone(&name), Pool::default());
            }
        }
        for (model, pool) in &self.by_model {
            pool.set_members(serving(&|models| match models {
                Models::Any => true,
                Models::Named(names) => names.contains(model),
                Models::Unknown => false,
            }));
        }
    }
}

#[cfg(test)]
mod caching_tests;
#[cfg(test)]
mod tests;
