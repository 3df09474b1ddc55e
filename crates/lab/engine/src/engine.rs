//! The engine as its driver sees it: requests in, steps, what happened out.
//!
//! It runs one step at a time. Between [`begin_step`](Engine::begin_step) and [`finish_step`](Engine::finish_step)
//! requests come and go as they do while a GPU computes; what the step brings about is told when it ends. The same
//! calls give the same results: there is no clock and no randomness inside.
//!
//! A driver that need not hear every token says [`begin_run`](Engine::begin_run) instead, and gets as many steps as
//! nothing can disturb for the price of one. What it then sees is the same, at the same times.

use thiserror::Error;
use warmroute_types::Micros;

use crate::leaf::Span;
use crate::run::Run;
use crate::scheduler::Scheduler;
use crate::shelf::Pool;
use crate::step::Step;
use crate::{BlockName, Config, ConfigError, Happened, Rejected, Request, SequenceId, Stats, StepCost};

/// A model of one engine.
#[derive(Clone, Debug)]
pub struct Engine {
    config: Config,
    cost: StepCost,
    scheduler: Scheduler,
    step: Step,
    /// When the step under way ends, or the last one did.
    step_ends: Micros,
    state: State,
    steps: u64,
    computed_tokens: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    /// A step is under way.
    Computing,
    /// Several are, and none of them has been carried out.
    Running(Run),
}

/// The cache cannot be cleared while a sequence holds a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the cache is in use by running sequences")]
pub struct Busy;

impl Engine {
    /// An engine with an empty cache. A pool that it is configured with is its own.
    pub fn new(config: Config) -> Result<Engine, ConfigError> {
        Engine::made(config, None)
    }

    /// One of several engines that share a pool; its size is the pool's.
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

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Queues a request. It is looked at by the next [`begin_step`](Engine::begin_step); only the order of calls
    /// matters for that, `now` is where its queueing time is counted from.
    pub fn submit(&mut self, now: Micros, request: Request) -> Result<SequenceId, Rejected> {
        self.examine(&request)?;
        self.catch_up(now);
        Ok(self.scheduler.enqueue(now, request))
    }

    /// The client is gone. The sequence's blocks are free and what it has cached stays; it is not heard of again, but
    /// for what a step under way has already done in its name: [`Happened::Started`], [`Happened::Stored`] and
    /// [`Happened::Preempted`]. An unknown id is ignored. A run must have been [caught up](Engine::catch_up) with.
    pub fn cancel(&mut self, id: SequenceId) {
        self.scheduler.cancel(id);
    }

    /// Schedules a step and says when it ends; `None` when there is nothing to do. A driver may be late or early: the
    /// step starts now, but not before the last one ended. While a step is under way, says when that one ends.
    pub fn begin_step(&mut self, now: Micros) -> Option<Micros> {
        match self.state {
            State::Idle => self.open_step(now.max(self.step_ends)),
            State::Computing => Some(self.step_ends),
            State::Running(run) => Some(run.ends),
        }
    }

    /// Schedules steps up to the next one in which anything but decoding happens, and says when the last of them ends.
    /// Until then nothing needs to be called: a request that comes in between cuts the run short, after which this
    /// says when the step under way ends. In a run no [`Happened::Token`] is told, and no first token comes out;
    /// what happened to the cache is told when it ends.
    pub fn begin_run(&mut self, now: Micros) -> Option<Micros> {
        if let State::Idle = self.state
            && let Some((steps, batch)) = self.scheduler.calm_steps(self.config.step_tokens_max)
        {
            let run = Run::plan(&self.cost, batch, now.max(self.step_ends), steps);
            self.state = State::Running(run);
        }
        self.begin_step(now)
    }

    /// Cuts a run at `now`: the steps that have ended are carried out, and the one under way is as if it had been begun
    /// by itself. Without a run it does nothing.
    pub fn catch_up(&mut self, now: Micros) {
        let State::Running(run) = self.state else { return };
        let (ended, began) = run.ended(&self.cost, now);
        self.carry_out(&run, ended);
        self.state = State::Idle;
        self.open_step(began);
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

    /// Ends the step under way, or the whole run, and appends what it brought about, in order. Without one it does
    /// nothing.
    pub fn finish_step(&mut self, happened: &mut Vec<Happened>) {
        match self.state {
            State::Idle => return,
            State::Computing => {
                self.scheduler.settle(&mut self.step);
                self.steps += 1;
                self.computed_tokens += self.step.tokens;
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

    /// Empties the cache (vLLM's `reset_prefix_cache`); refused while a sequence holds a block. As in vLLM the world
    /// hears of it, by [`Happened::Cleared`], only with the next step.
    pub fn clear_cache(&mut self) -> Result<(), Busy> {
        if self.scheduler.pool.used() > 0 {
            return Err(Busy);
        }
        self.scheduler.forget_names();
        self.step.happened.push(Happened::Cleared);
        Ok(())
    }

    /// Forgets everything, also running sequences and the counters, as a process that was killed and started again.
    /// Nobody hears of it. Ids are not used again.
    pub fn restart(&mut self) {
        self.scheduler.cancel_all();
        self.scheduler.forget_names();
        self.step.happened.clear();
        self.state = State::Idle;
        (self.step_ends, self.steps, self.computed_tokens) = (Micros::ZERO, 0, 0);
    }

    /// Prompt tokens, from the start, that a request with this chain would find in the GPU's cache now. The last token is
    /// never taken from the cache.
    pub fn cached_tokens(&self, chain: &[BlockName], prompt_tokens: u32) -> u32 {
        let blocks_max = (prompt_tokens.saturating_sub(1) / self.config.block_size) as usize;
        let mut found = Vec::new();
        self.scheduler.pool.find_chain(&chain[..blocks_max.min(chain.len())], &mut found);
        found.iter().map(Span::len).sum::<u32>() * self.config.block_size
    }

    /// Prompt tokens after those that it could fetch from slower memories now, whether that pays or not.
    pub fn restorable_tokens(&self, chain: &[BlockName], prompt_tokens: u32) -> u32 {
        let blocks_max = (prompt_tokens.saturating_sub(1) / self.config.block_size) as usize;
        let found = (self.cached_tokens(chain, prompt_tokens) / self.config.block_size) as usize;
        let chain = &chain[..blocks_max.min(chain.len())];
        self.scheduler.restorable_blocks(&chain[found..]) * self.config.block_size
    }

    /// Every name that can be found in the cache now, each once, in no order to rely on.
    pub fn cached_names(&self) -> impl Iterator<Item = BlockName> {
        self.scheduler.pool.names()
    }

    /// How it stands. In a run: how it stood when the run began; see [`catch_up`](Engine::catch_up).
    pub fn stats(&self) -> Stats {
        let (pool, counts) = (&self.scheduler.pool, &self.scheduler.counts);
        Stats {
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
            _ if tokens > kv_tokens.min(TOKENS_MAX) => Err(Rejected::TooLong { tokens, kv_tokens }),
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
