//! The engine's interface: requests in, steps, events out.
//!
//! It runs one step at a time. Between [`begin_step`](Engine::begin_step) and [`finish_step`](Engine::finish_step)
//! requests come and go as they do while a GPU computes; the step's events are returned at its end. The same calls
//! give the same results: there is no clock and no randomness inside.
//!
//! A driver that does not need every token calls [`begin_run`](Engine::begin_run) instead, and gets all undisturbed
//! steps for the cost of one. Its results are the same, at the same times.

use thiserror::Error;
use warmroute_types::Micros;

use crate::lru_tier::Pool;
use crate::run::Run;
use crate::scheduler::Scheduler;
use crate::step::Step;
use crate::{BlockName, Config, ConfigError, EngineStats, Happened, Rejected, Request, SequenceId, StepCost};

/// A model of one engine.
#[derive(Clone, Debug)]
pub struct Engine {
    config: Config,
    cost: StepCost,
    scheduler: Scheduler,
    step: Step,
    /// When the step in progress ends, or the last one ended.
    step_ends: Micros,
    state: State,
    steps: u64,
    computed_tokens: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    /// One step is in progress.
    Computing,
    /// The step of a run that was in progress when the run ended early. All these sequences decode.
    Decoding {
        sequences: u32,
    },
    /// Several steps are in progress, and none has been carried out.
    Running(Run),
}

/// The cache cannot be cleared while a sequence holds a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the cache is in use by running sequences")]
pub struct Busy;

impl Engine {
    /// An engine with an empty cache. A configured pool is its own.
    pub fn new(config: Config) -> Result<Engine, ConfigError> {
        Engine::made(config, None)
    }

    /// One of several engines that share a pool, which determines the pool's size.
    pub fn sharing(config: Config, pool: Pool) -> Result<Engine, ConfigError> {
        Engine::made(config, Some(pool))
    }

    fn made(config: Config, pool: Option<Pool>) -> Result<Engine, ConfigError> {
        config.validate()?;
        Ok(Engine {
            scheduler: Scheduler::new(&config, pool),
            cost: config.profile.cost().at_speed(config.speed_percent),
            config,
            step: Step::default(),
            step_ends: Micros::ZERO,
            state: State::Idle,
            steps: 0,
            computed_tokens: 0,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Queues a request. The next [`begin_step`](Engine::begin_step) considers it. Only the order of calls matters;
    /// `now` starts its queueing time.
    pub fn submit(&mut self, now: Micros, request: Request) -> Result<SequenceId, Rejected> {
        self.examine(&request)?;
        self.catch_up(now);
        Ok(self.scheduler.enqueue(now, request))
    }

    /// Cancels a sequence whose client has left. Its blocks are freed and its cached blocks stay. Later events of it
    /// come only from the step in progress: [`Happened::Started`], [`Happened::Stored`] and [`Happened::Preempted`].
    /// An unknown id is ignored. [Catch up](Engine::catch_up) with a run first.
    pub fn cancel(&mut self, id: SequenceId) {
        self.scheduler.cancel(id);
    }

    /// Schedules a step and returns when it ends; `None` when there is nothing to do. The step starts now, but not
    /// before the last one ended. While a step is in progress, returns its end.
    pub fn begin_step(&mut self, now: Micros) -> Option<Micros> {
        match self.state {
            State::Idle => self.open_step(now.max(self.step_ends)),
            State::Computing | State::Decoding { .. } => Some(self.step_ends),
            State::Running(run) => Some(run.ends),
        }
    }

    /// Schedules all steps before the next one that does more than decode, and returns when the last of them ends. No
    /// call is needed until then. A request that arrives meanwhile ends the run early; this then returns the end of the
    /// step in progress. A run has no [`Happened::Token`] events and produces no first token; its cache events are
    /// returned at its end.
    pub fn begin_run(&mut self, now: Micros) -> Option<Micros> {
        if let State::Idle = self.state
            && let Some((steps, batch)) = self.scheduler.decode_only_steps(self.config.step_tokens_max)
        {
            let run = Run::plan(&self.cost, batch, now.max(self.step_ends), steps);
            self.state = State::Running(run);
        }
        self.begin_step(now)
    }

    /// Ends a run at `now`: finished steps are carried out, and the one in progress continues as a single step, also without
    /// [`Happened::Token`] events. Does nothing without a run.
    pub fn catch_up(&mut self, now: Micros) {
        let State::Running(run) = self.state else { return };
        let (ended, ends) = run.ended(&self.cost, now);
        self.carry_out(&run, ended);
        self.scheduler.begin_decodes(&mut self.step);
        self.state = State::Decoding { sequences: run.batch.sequences };
        self.step_ends = ends;
    }

    fn carry_out(&mut self, run: &Run, steps: u32) {
        self.scheduler.run(steps, &mut self.step);
        self.steps += u64::from(steps);
        self.computed_tokens += u64::from(steps) * u64::from(run.batch.sequences);
    }

    fn open_step(&mut self, starts: Micros) -> Option<Micros> {
        self.step.open(self.config.step_tokens_max);
        self.scheduler.schedule(starts, &mut self.step);
        if self.step.scheduled.is_empty() {
            return None;
        }
        self.state = State::Computing;
        self.step_ends = starts + self.step.fetching + self.cost.of(&self.step.work);
        Some(self.step_ends)
    }

    /// Ends the step or run in progress, and appends its events in order. Does nothing without one.
    pub fn finish_step(&mut self, happened: &mut Vec<Happened>) {
        match self.state {
            State::Idle => return,
            State::Computing => {
                self.scheduler.settle(&mut self.step);
                self.steps += 1;
                self.computed_tokens += self.step.tokens;
            }
            State::Decoding { sequences } => {
                self.scheduler.end_decodes(&mut self.step);
                self.steps += 1;
                self.computed_tokens += u64::from(sequences);
            }
            State::Running(run) => {
                self.carry_out(&run, run.steps);
                self.scheduler.settle_run(&mut self.step);
                self.step_ends = run.ends;
            }
        }
        self.state = State::Idle;
        happened.append(&mut self.step.happened);
    }

    /// Empties the cache (vLLM's `reset_prefix_cache`); refused while a sequence holds a block. As in vLLM,
    /// [`Happened::Cleared`] follows only with the next step.
    pub fn clear_cache(&mut self) -> Result<(), Busy> {
        if self.scheduler.pool.used() > 0 {
            return Err(Busy);
        }
        self.scheduler.forget_names();
        self.step.happened.push(Happened::Cleared);
        Ok(())
    }

    /// Takes the events that wait for the next step, as a step that computes nothing publishes them.
    pub fn take_held_events(&mut self, happened: &mut Vec<Happened>) {
        happened.append(&mut self.step.happened);
    }

    /// Forgets everything, including running sequences and counters, as a killed and restarted process does. There is
    /// no event for it. Ids are not reused.
    pub fn restart(&mut self) {
        self.scheduler.cancel_all();
        self.scheduler.forget_names();
        self.step.happened.clear();
        self.state = State::Idle;
        (self.step_ends, self.steps, self.computed_tokens) = (Micros::ZERO, 0, 0);
    }

    /// Prompt tokens, from the start, that a request with this chain would find in the GPU's cache now. The last
    /// token is never taken from the cache.
    pub fn cached_tokens(&self, chain: &[BlockName], prompt_tokens: u32) -> u32 {
        let blocks_max = (prompt_tokens.saturating_sub(1) / self.config.block_size) as usize;
        self.scheduler.cached_blocks(&chain[..blocks_max.min(chain.len())]) * self.config.block_size
    }

    /// Prompt tokens after those that slower memories could supply now, whether fetching pays or not.
    pub fn restorable_tokens(&self, chain: &[BlockName], prompt_tokens: u32) -> u32 {
        let blocks_max = (prompt_tokens.saturating_sub(1) / self.config.block_size) as usize;
        let found = (self.cached_tokens(chain, prompt_tokens) / self.config.block_size) as usize;
        let chain = &chain[..blocks_max.min(chain.len())];
        self.scheduler.restorable_blocks(&chain[found..]) * self.config.block_size
    }

    /// Every name in the cache, once, in no particular order.
    pub fn cached_names(&self) -> impl Iterator<Item = BlockName> {
        self.scheduler.pool.names()
    }

    /// The present statistics. During a run, those of its beginning; see [`catch_up`](Engine::catch_up).
    pub fn stats(&self) -> EngineStats {
        let (pool, counts) = (&self.scheduler.pool, &self.scheduler.counts);
        EngineStats {
            waiting: self.scheduler.waiting() as u32,
            running: self.scheduler.running() as u32,
            kv_use: f64::from(pool.used()) / f64::from(pool.total()),
            blocks_total: pool.total(),
            blocks_used: pool.used(),
            blocks_cached: pool.named(),
            prefix_queries_tokens: counts.prefix_queries_tokens,
            prefix_hits_tokens: counts.prefix_hits_tokens,
            host_hits_tokens: counts.host_hits_tokens,
            pool_hits_tokens: counts.pool_hits_tokens,
            preemptions: counts.preemptions,
            finished: counts.finished,
            queued: counts.queued,
            steps: self.steps,
            computed_tokens: self.computed_tokens,
        }
    }

    fn examine(&self, request: &Request) -> Result<(), Rejected> {
        let tokens = u64::from(request.prompt_tokens) + u64::from(request.output_tokens);
        let block_size = u64::from(self.config.block_size);
        let kv_tokens = u64::from(self.scheduler.pool.total()) * block_size;
        let expected = tokens / block_size;
        match request {
            Request { prompt_tokens: 0, .. } => Err(Rejected::EmptyPrompt),
            Request { output_tokens: 0, .. } => Err(Rejected::EmptyOutput),
            _ if tokens > TOKENS_MAX
                || self.scheduler.blocks_of(tokens) > u64::from(self.scheduler.pool.total()) =>
            {
                Err(Rejected::TooLong { tokens, kv_tokens })
            }
            Request { chain, .. } if chain.len() as u64 != expected => {
                Err(Rejected::ChainLength { given: chain.len(), expected: expected as usize })
            }
            _ => Ok(()),
        }
    }
}

/// Tokens of a sequence are counted in 32 bits, with room for a block more.
const TOKENS_MAX: u64 = 1 << 31;

#[cfg(test)]
mod tests;
