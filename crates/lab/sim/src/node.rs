//! An engine in the lab: the model, who of ours is in it, and what it did.

use warmroute_engine::{
    BlockName, Config as EngineConfig, Engine, Happened, Pool, Rejected, Request, SequenceId, Stats,
};
use warmroute_types::Micros;

/// One engine.
pub struct Node {
    pub engine: Engine,
    /// Of its newest [`Event::Due`](crate::queue::Event::Due).
    pub stamp: u32,
    due: Option<Micros>,
    /// By the engine's slot: whose sequence it is.
    jobs: Vec<u32>,
    pub state: NodeState,
    /// Requests sent to it that have not ended, in transit included.
    pub in_flight: u32,
    pub totals: Totals,
    /// The engine's counters when the run began.
    before: Stats,
    /// Its cache is to be reset as soon as no request runs.
    wants_reset: bool,
}

/// Whether an engine answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It does.
    Up,
    /// It is dead.
    Down,
    /// It has not come yet.
    Absent,
}

/// What an engine did in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that it began.
    pub requests: u64,
    /// Tokens of their prompts that it had to compute.
    pub uncached_tokens: u64,
    /// Tokens that it computed in all, prompts and answers, recomputed ones again.
    pub computed_tokens: u64,
    /// Tokens of prompts that it fetched from its host's memory instead.
    pub host_tokens: u64,
    /// Tokens of prompts that it fetched from the pool instead.
    pub pool_tokens: u64,
    /// Sequences that lost their blocks.
    pub preemptions: u64,
}

impl Node {
    /// With an empty cache, and a pool that it shares. The config must be valid.
    pub fn new(config: &EngineConfig, pool: Pool) -> Node {
        Node {
            engine: Engine::sharing(config.clone(), pool).expect("the config was validated"),
            stamp: 0,
            due: None,
            jobs: Vec::new(),
            state: NodeState::Up,
            in_flight: 0,
            totals: Totals::default(),
            before: Stats::default(),
            wants_reset: false,
        }
    }

    /// Counts from nothing: what was before belongs to the history of the run.
    pub fn begin_run(&mut self) {
        (self.totals, self.before) = (Totals::default(), self.engine.stats());
    }

    /// Resets the cache, now or as soon as no request runs.
    pub fn reset(&mut self) {
        self.wants_reset = self.engine.clear_cache().is_err();
    }

    /// Takes a request in.
    pub fn submit(&mut self, now: Micros, request: Request, job: u32) -> Result<(), Rejected> {
        let id = self.engine.submit(now, request)?;
        let slot = id.slot();
        self.jobs.resize(self.jobs.len().max(slot + 1), u32::MAX);
        self.jobs[slot] = job;
        Ok(())
    }

    /// Whose sequence it is.
    pub fn job(&self, id: SequenceId) -> u32 {
        self.jobs[id.slot()]
    }

    /// Ends what was due.
    pub fn finish(&mut self, happened: &mut Vec<Happened>) {
        self.engine.finish_step(happened);
        self.due = None;
        if self.wants_reset {
            self.reset();
        }
    }

    /// Goes on; says when the engine is due, if that is news.
    pub fn go_on(&mut self, now: Micros) -> Option<Micros> {
        let due = self.engine.begin_run(now);
        let is_news = due != self.due;
        self.due = due;
        due.filter(|_| is_news).inspect(|_| self.stamp = self.stamp.wrapping_add(1))
    }

    /// It dies and loses everything.
    pub fn die(&mut self) {
        self.count();
        self.engine.restart();
        (self.before, self.wants_reset) = (Stats::default(), false);
        self.state = NodeState::Down;
        self.stamp = self.stamp.wrapping_add(1);
        self.due = None;
    }

    /// Adds the engine's own counters, which die with it, to the totals.
    pub fn count(&mut self) {
        let (stats, before) = (self.engine.stats(), &self.before);
        self.totals.computed_tokens += stats.computed_tokens - before.computed_tokens;
        self.totals.host_tokens += stats.host_hits_tokens - before.host_hits_tokens;
        self.totals.pool_tokens += stats.pool_hits_tokens - before.pool_hits_tokens;
        self.totals.preemptions += stats.preemptions - before.preemptions;
    }

    /// Tokens of a prompt that its cache holds.
    pub fn held_tokens(&self, chain: &[BlockName], prompt_tokens: u32) -> u32 {
        self.engine.cached_tokens(chain, prompt_tokens)
    }
}
