//! Engine in the lab: the engine model, the jobs it runs, and its totals.

use warmroute_engine::{
    BlockName, Config as EngineConfig, Engine, EngineStats, Happened, Pool, Rejected, Request, SequenceId,
};
use warmroute_types::Micros;

use crate::load::WorkerSample;

/// One engine.
pub struct Node {
    pub engine: Engine,
    /// Stamp of the newest [`Event::Due`](crate::queue::Event::Due).
    pub stamp: u32,
    due: Option<Micros>,
    /// Job per sequence slot of the engine.
    jobs: Vec<u32>,
    pub state: NodeState,
    /// Requests sent to this engine that have not ended, including those in transit.
    pub in_flight: u32,
    pub totals: Totals,
    /// The engine's counters at the start of the run.
    before: EngineStats,
    /// Whether the cache is reset once no request runs.
    wants_reset: bool,
}

/// Whether an engine serves requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The engine serves requests.
    Up,
    /// The engine is dead.
    Down,
    /// The engine has not joined yet.
    Absent,
}

/// Totals of one engine in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests started.
    pub requests: u64,
    /// Prompt tokens that were not in the cache.
    pub uncached_tokens: u64,
    /// Tokens computed for prompts and answers, including recomputation.
    pub computed_tokens: u64,
    /// Prompt tokens restored from host memory.
    pub host_tokens: u64,
    /// Prompt tokens restored from the shared pool.
    pub pool_tokens: u64,
    /// Preempted sequences.
    pub preemptions: u64,
}

impl Node {
    /// Creates an engine with an empty cache and a shared pool. The config must be valid.
    pub fn new(config: EngineConfig, pool: Pool) -> Node {
        Node {
            engine: Engine::sharing(config, pool).expect("the config was validated"),
            stamp: 0,
            due: None,
            jobs: Vec::new(),
            state: NodeState::Up,
            in_flight: 0,
            totals: Totals::default(),
            before: EngineStats::default(),
            wants_reset: false,
        }
    }

    /// Resets the totals; earlier work belongs to the history.
    pub fn begin_run(&mut self) {
        (self.totals, self.before) = (Totals::default(), self.engine.stats());
    }

    /// Resets the cache now, or once no request runs.
    pub fn reset(&mut self) {
        self.wants_reset = self.engine.clear_cache().is_err();
    }

    /// Submits a request.
    pub fn submit(&mut self, now: Micros, request: Request, job: u32) -> Result<(), Rejected> {
        let id = self.engine.submit(now, request)?;
        let slot = id.slot();
        self.jobs.resize(self.jobs.len().max(slot + 1), u32::MAX);
        self.jobs[slot] = job;
        Ok(())
    }

    /// Job of a sequence.
    pub fn job(&self, id: SequenceId) -> u32 {
        self.jobs[id.slot()]
    }

    /// Finishes the current step or run of steps.
    pub fn finish(&mut self, happened: &mut Vec<Happened>) {
        self.engine.finish_step(happened);
        self.due = None;
        if self.wants_reset {
            self.reset();
        }
    }

    /// Starts the next run of steps. Returns when it is due, if that changed.
    pub fn run(&mut self, now: Micros) -> Option<Micros> {
        let due = self.engine.begin_run(now);
        let is_news = due != self.due;
        self.due = due;
        due.filter(|_| is_news).inspect(|_| self.stamp = self.stamp.wrapping_add(1))
    }

    /// Kills the engine, which loses all its state.
    pub fn die(&mut self) {
        self.count();
        self.engine.restart();
        (self.before, self.wants_reset) = (EngineStats::default(), false);
        self.state = NodeState::Down;
        self.stamp = self.stamp.wrapping_add(1);
        self.due = None;
    }

    /// Adds the engine's counters to the totals. A restart clears the counters.
    pub fn count(&mut self) {
        let (stats, before) = (self.engine.stats(), &self.before);
        self.totals.computed_tokens += stats.computed_tokens - before.computed_tokens;
        self.totals.host_tokens += stats.host_hits_tokens - before.host_hits_tokens;
        self.totals.pool_tokens += stats.pool_hits_tokens - before.pool_hits_tokens;
        self.totals.preemptions += stats.preemptions - before.preemptions;
    }

    /// The present state, for the timeline.
    pub fn sample(&self) -> WorkerSample {
        let stats = self.engine.stats();
        WorkerSample {
            in_flight: self.in_flight,
            waiting: stats.waiting,
            kv_use: stats.kv_use as f32,
            looked_up_tokens: stats.prefix_queries_tokens,
            hit_tokens: stats.prefix_hits_tokens,
        }
    }

    /// Prompt tokens that the cache holds.
    pub fn held_tokens(&self, chain: &[BlockName], prompt_tokens: u32) -> u32 {
        self.engine.cached_tokens(chain, prompt_tokens)
    }
}
