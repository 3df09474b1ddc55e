//! The scheduler: which sequence computes what in the next step, and which blocks it gets. It follows vLLM's V1 scheduler.
//!
//! Running sequences come first, in the order of their admission, each with all remaining tokens or the rest of the step's
//! budget: a decode takes one token, a long prompt is split into chunks. A sequence that finds no free block preempts the
//! sequence admitted last. Only a step without a preemption admits from the queue, first come first served, and the head
//! of the queue blocks the others.
//!
//! A block gets its name when the step that fills it is scheduled, not when it ends, so siblings admitted to the same
//! step share their prompt.

use std::collections::VecDeque;

use warmroute_types::Micros;

use crate::blocks::BlockPool;
use crate::leaf::Span;
use crate::lru_tier::Pool;
use crate::sequence::{Phase, Sequences};
use crate::step::Step;
use crate::tiers::{Offer, Tiers};
use crate::window::WindowGroup;
use crate::{BlockName, Config, Happened, PrefixCaching, Request, SequenceId};

use decode_run::Touch;

mod decode_run;

/// The queue, the batch and the blocks.
#[derive(Clone, Debug)]
pub struct Scheduler {
    block_size: u32,
    sequences_max: usize,
    prefix_caching: PrefixCaching,
    recomputes_last_block: bool,
    reports_blocks: bool,
    pub pool: BlockPool,
    sequences: Sequences,
    waiting: VecDeque<u32>,
    running: Vec<u32>,
    /// Cached blocks found for the sequence that is being admitted.
    hits: Vec<Span>,
    /// Cached blocks of the window group found for it.
    window_hits: Vec<Span>,
    window: Option<WindowGroup>,
    /// The blocks that it fetches after them.
    offer: Offer,
    tiers: Option<Tiers>,
    /// The cache accesses of the current run of steps.
    touches: Vec<Touch>,
    pub counts: Counts,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub prefix_queries_tokens: u64,
    pub prefix_hits_tokens: u64,
    pub host_hits_tokens: u64,
    pub pool_hits_tokens: u64,
    pub preemptions: u64,
    pub finished: u64,
    pub queued: Micros,
}

impl Scheduler {
    /// An empty scheduler. The config must be valid.
    pub fn new(config: &Config, pool: Option<Pool>) -> Scheduler {
        let blocks = config.kv_tokens / u64::from(config.block_size);
        Scheduler {
            block_size: config.block_size,
            sequences_max: config.sequences_max as usize,
            prefix_caching: config.prefix_caching,
            recomputes_last_block: config.recomputes_last_block,
            reports_blocks: config.reports_blocks
                || config.sliding_window.is_some()
                || config.host.is_some()
                || config.pool.is_some(),
            pool: BlockPool::new(u32::try_from(blocks).expect("validated: blocks are numbered in 32 bits")),
            sequences: Sequences::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            hits: Vec::new(),
            window_hits: Vec::new(),
            window: config
                .sliding_window
                .map(|tokens| WindowGroup::new(tokens, config.block_size, config.step_tokens_max)),
            offer: Offer::default(),
            tiers: Tiers::new(config, pool),
            touches: Vec::new(),
            counts: Counts::default(),
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Puts a request at the end of the queue.
    pub fn enqueue(&mut self, now: Micros, request: Request) -> SequenceId {
        let slot = self.sequences.insert(now, request);
        self.waiting.push_back(slot);
        self.sequences[slot].id
    }

    /// Removes a sequence; its cached blocks stay.
    pub fn cancel(&mut self, id: SequenceId) {
        let Some(slot) = self.sequences.find(id) else { return };
        match self.sequences[slot].phase {
            Phase::Running => self.running.retain(|&other| other != slot),
            _ => self.waiting.retain(|&other| other != slot),
        }
        self.dismiss(slot);
    }

    /// Removes every sequence, and the counts.
    pub fn cancel_all(&mut self) {
        while let Some(slot) = self.waiting.pop_front().or_else(|| self.running.pop()) {
            self.dismiss(slot);
        }
        self.counts = Counts::default();
    }

    /// Fills a step that starts at `now`.
    pub fn schedule(&mut self, now: Micros, step: &mut Step) {
        let preemptions_before = self.counts.preemptions;
        self.report_lost(step);
        self.continue_running(step);
        if self.counts.preemptions == preemptions_before {
            self.admit_waiting(now, step);
        }
    }

    /// Completes a step: sequences that computed all their tokens produce a new one.
    pub fn settle(&mut self, step: &mut Step) {
        let finished_before = self.counts.finished;
        for index in 0..step.scheduled.len() {
            if let Some(slot) = self.sequences.find(step.scheduled[index]) {
                self.sample(slot, &mut step.happened);
            }
        }
        if self.counts.finished > finished_before {
            self.forget_finished();
        }
    }

    /// Reports blocks of this engine that others evicted from a shared pool.
    fn report_lost(&mut self, step: &mut Step) {
        self.tiers.iter_mut().for_each(|tiers| {
            tiers.report_lost();
            step.happened.append(&mut tiers.events);
        });
    }

    fn continue_running(&mut self, step: &mut Step) {
        let mut index = 0;
        while index < self.running.len() && step.budget > 0 {
            let slot = self.running[index];
            self.slide(slot);
            let tokens = self.sequences[slot].remaining().min(step.budget);
            if !self.make_room(slot, tokens, step) {
                return;
            }
            self.compute(slot, tokens, step);
            index += 1;
        }
    }

    /// Frees blocks until the sequence has what it needs. Returns false when it had to give up its own.
    ///
    /// The victim is always behind it in the batch, so it is not yet part of the step.
    fn make_room(&mut self, slot: u32, tokens: u32, step: &mut Step) -> bool {
        let needed = self.blocks_for(slot, tokens) * self.groups();
        while self.pool.free() < needed {
            let victim = self.running.pop().expect("the sequence itself is running");
            self.preempt(victim, step);
            if victim == slot {
                return false;
            }
        }
        true
    }

    fn preempt(&mut self, slot: u32, step: &mut Step) {
        let sequence = &mut self.sequences[slot];
        self.pool.release(&mut sequence.hold);
        self.pool.release(&mut sequence.window);
        sequence.computed = 0;
        sequence.phase = Phase::Preempted;
        self.waiting.push_front(slot);
        self.counts.preemptions += 1;
        step.happened.push(Happened::Preempted { id: sequence.id });
    }

    fn admit_waiting(&mut self, now: Micros, step: &mut Step) {
        while step.budget > 0 && self.running.len() < self.sequences_max {
            let Some(&slot) = self.waiting.front() else { return };
            self.look_up(slot);
            if !self.fits(slot) {
                return;
            }
            self.waiting.pop_front();
            self.admit(now, slot, step);
        }
    }

    /// Finds the longest cached prefix, and the blocks after it in slower memories if fetching them pays. The last
    /// token is never taken from the cache: its logits are needed.
    fn look_up(&mut self, slot: u32) {
        self.hits.clear();
        self.window_hits.clear();
        self.offer = Offer::default();
        if self.prefix_caching == PrefixCaching::Off {
            return;
        }
        let sequence = &self.sequences[slot];
        let blocks_max = (sequence.known() - 1) / self.block_size;
        let chain = &sequence.chain[..blocks_max as usize];
        self.pool.find_chain(chain, &mut self.hits);
        let found = self.used(self.hits.iter().map(Span::len).sum());
        truncate(&mut self.hits, found);
        if let Some(window) = &self.window {
            let found = window.longest(&self.pool, chain, found);
            truncate(&mut self.hits, found);
            let first = found.saturating_sub(window.blocks_needed());
            let seen = chain[first as usize..found as usize].iter().map(|&name| WindowGroup::tagged(name));
            self.pool.find_chain(&seen.collect::<Vec<_>>(), &mut self.window_hits);
        }
        if let Some(tiers) = &self.tiers {
            let found: u32 = self.hits.iter().map(Span::len).sum();
            let computed = found * self.block_size;
            let offer = tiers.offer(&chain[found as usize..], computed, sequence.known() - computed);
            self.offer = offer.unwrap_or_default();
        }
    }

    /// Blocks that a prompt uses of those that are cached.
    fn used(&self, cached_blocks: u32) -> u32 {
        cached_blocks.saturating_sub(u32::from(self.recomputes_last_block))
    }

    /// Whether all tokens of the sequence fit, not only its first chunk (vLLM's `scheduler_reserve_full_isl`). A hit
    /// without a holder takes a free block too.
    fn fits(&self, slot: u32) -> bool {
        let blocks = self.sequences[slot].known().div_ceil(self.block_size);
        let shared: u32 = self.hits.iter().map(|&span| span.len() - self.pool.free_in(span)).sum();
        let found: u32 = self.hits.iter().map(Span::len).sum();
        let window = self.window.as_ref().map_or(0, |window| {
            let free: u32 = self.window_hits.iter().map(|&span| self.pool.free_in(span)).sum();
            free + (blocks - found).min(window.blocks_max())
        });
        blocks - shared + window <= self.pool.free()
    }

    fn admit(&mut self, now: Micros, slot: u32, step: &mut Step) {
        self.hits.iter().chain(&self.window_hits).for_each(|&span| self.pool.hold(span));
        let sequence = &mut self.sequences[slot];
        sequence.window.spans.extend_from_slice(&self.window_hits);
        sequence.window.named = self.window_hits.iter().map(Span::len).sum();
        sequence.hold.spans.extend_from_slice(&self.hits);
        sequence.hold.named = self.hits.iter().map(Span::len).sum();
        sequence.computed = sequence.hold.named * self.block_size;
        self.fetch(slot, step);
        let sequence = &mut self.sequences[slot];
        if sequence.phase == Phase::New {
            let queued = now.since(sequence.submitted);
            self.counts.start(sequence.known(), sequence.computed, queued);
            step.happened.push(Happened::Started {
                id: sequence.id,
                cached_tokens: sequence.computed,
                queued,
            });
        }
        sequence.phase = Phase::Running;
        let tokens = sequence.remaining().min(step.budget);
        self.running.push(slot);
        self.compute(slot, tokens, step);
    }

    /// Fetches the offered blocks to the GPU. They leave the other memories first, because making room may evict
    /// blocks into them.
    fn fetch(&mut self, slot: u32, step: &mut Step) {
        let (Offer { takes, .. }, blocks) = (self.offer, self.offer.blocks());
        let sequence = &mut self.sequences[slot];
        let Some(tiers) = self.tiers.as_mut().filter(|_| blocks > 0) else { return };
        let first = sequence.hold.named as usize;
        tiers.fetch(&sequence.chain[first..first + blocks as usize]);
        sequence.computed += blocks * self.block_size;
        let computed = sequence.computed;
        if sequence.phase == Phase::New {
            self.counts.host_hits_tokens += u64::from(self.offer.host_blocks * self.block_size);
            self.counts.pool_hits_tokens += u64::from(self.offer.pool_blocks * self.block_size);
        }
        step.fetching = step.fetching + takes;
        self.take_blocks(slot, blocks, step);
        self.name_full_blocks(slot, computed, step);
    }

    /// How many blocks of a chain, from its start, slower memories have.
    pub fn restorable_blocks(&self, chain: &[BlockName]) -> u32 {
        self.tiers.as_ref().map_or(0, |tiers| tiers.reach(chain).blocks())
    }

    /// Removes every name, also on the host. No block may be held.
    pub fn forget_names(&mut self) {
        self.pool.forget_names();
        self.window.iter_mut().for_each(WindowGroup::clear);
        self.tiers.iter_mut().for_each(Tiers::restart);
    }

    /// Adds the sequence's next tokens to the step. There must be free blocks for them.
    fn compute(&mut self, slot: u32, tokens: u32, step: &mut Step) {
        self.take_blocks(slot, self.blocks_for(slot, tokens), step);
        let sequence = &mut self.sequences[slot];
        step.add(sequence.id, sequence.computed, tokens);
        sequence.computed += tokens;
        let computed = sequence.computed;
        if self.prefix_caching == PrefixCaching::On {
            self.name_full_blocks(slot, computed, step);
        }
    }

    /// Gives the sequence more blocks. That many must be free.
    fn take_blocks(&mut self, slot: u32, blocks: u32, step: &mut Step) {
        if blocks == 0 {
            return;
        }
        self.sequences[slot].hold.nameless += blocks;
        let before = step.happened.len();
        match self.reports_blocks {
            true => {
                self.pool.take(blocks * self.groups(), |name| step.happened.push(Happened::Removed { name }))
            }
            false => return self.pool.take(blocks, |_| {}),
        }
        if let Some(window) = &mut self.window {
            for event in &mut step.happened[before..] {
                let name = event.removed().and_then(|name| window.note_removed(name));
                name.into_iter().for_each(|name| *event = Happened::WindowRemoved { name });
            }
            self.sequences[slot].window.nameless += blocks;
        }
        if let Some(tiers) = &mut self.tiers {
            let evicted = step.happened[before..].iter().filter_map(Happened::removed);
            evicted.filter(|&name| !self.pool.has(name)).for_each(|name| tiers.keep(name));
            // Before the GPU's removals: afterwards the names would be unknown.
            step.happened.splice(before..before, tiers.events.drain(..));
        }
    }

    /// Names the blocks that `computed` tokens fill, as far as they have no name yet.
    fn name_full_blocks(&mut self, slot: u32, computed: u32, step: &mut Step) {
        let sequence = &mut self.sequences[slot];
        let (first, full) = (sequence.hold.named, computed / self.block_size);
        if first == full {
            return;
        }
        let names = &sequence.chain[first as usize..full as usize];
        self.pool.name(&mut sequence.hold, names);
        if !self.reports_blocks {
            return;
        }
        step.happened.push(Happened::Stored { id: sequence.id, first_block: first, blocks: full - first });
        if let Some(window) = &mut self.window {
            window.note_stored(names);
            let tagged: Vec<BlockName> = names.iter().map(|&name| WindowGroup::tagged(name)).collect();
            self.pool.name(&mut sequence.window, &tagged);
            let (id, blocks) = (sequence.id, full - first);
            step.happened.push(Happened::WindowStored { id, first_block: first, blocks });
        }
        if let Some(tiers) = &mut self.tiers {
            tiers.release(names);
            step.happened.append(&mut tiers.events);
        }
    }

    /// Gives up the blocks of the window group that the sequence's next token does not see.
    fn slide(&mut self, slot: u32) {
        let Some(window) = &self.window else { return };
        let sequence = &mut self.sequences[slot];
        let first_held = sequence.hold.named - sequence.window.named;
        let unseen = window.first_seen(sequence.computed).saturating_sub(first_held);
        self.pool.release_front(&mut sequence.window, unseen);
    }

    /// Groups that each hold a sequence's blocks.
    fn groups(&self) -> u32 {
        1 + u32::from(self.window.is_some())
    }

    /// Blocks of a chain, from its start, that a prompt would find on the GPU.
    pub fn cached_blocks(&self, chain: &[BlockName]) -> u32 {
        let mut found = Vec::new();
        self.pool.find_chain(chain, &mut found);
        let full = self.used(found.iter().map(Span::len).sum());
        self.window.as_ref().map_or(full, |window| window.longest(&self.pool, chain, full))
    }

    /// Most blocks that one sequence of this length holds at a time.
    pub fn blocks_of(&self, tokens: u64) -> u64 {
        let blocks = tokens.div_ceil(u64::from(self.block_size));
        blocks + self.window.as_ref().map_or(0, |window| blocks.min(u64::from(window.blocks_max())))
    }

    /// Blocks that a sequence lacks for its next tokens.
    fn blocks_for(&self, slot: u32, tokens: u32) -> u32 {
        let sequence = &self.sequences[slot];
        (sequence.computed + tokens).div_ceil(self.block_size) - sequence.hold.count()
    }

    fn sample(&mut self, slot: u32, happened: &mut Vec<Happened>) {
        let sequence = &mut self.sequences[slot];
        if sequence.remaining() > 0 {
            return;
        }
        happened.push(Happened::Token { id: sequence.id, index: sequence.generated });
        sequence.generated += 1;
        self.finish_if_done(slot, happened);
    }

    fn finish_if_done(&mut self, slot: u32, happened: &mut Vec<Happened>) {
        let sequence = &self.sequences[slot];
        if sequence.generated == sequence.output_tokens {
            happened.push(Happened::Finished { id: sequence.id });
            self.counts.finished += 1;
            self.dismiss(slot);
        }
    }

    /// Removes finished sequences from the batch.
    fn forget_finished(&mut self) {
        let sequences = &self.sequences;
        self.running.retain(|&slot| sequences[slot].phase == Phase::Running);
    }

    fn dismiss(&mut self, slot: u32) {
        self.pool.release(&mut self.sequences[slot].hold);
        self.pool.release(&mut self.sequences[slot].window);
        self.sequences.remove(slot);
    }
}

/// Keeps the first blocks of a list of spans.
fn truncate(spans: &mut Vec<Span>, mut blocks: u32) {
    spans.retain_mut(|span| {
        let kept = span.len().min(blocks);
        blocks -= kept;
        span.to = span.from + kept as u8;
        kept > 0
    });
}

impl Counts {
    /// Counts the start of a sequence. As in vLLM, a preempted one does not count again.
    fn start(&mut self, looked_up_tokens: u32, found_tokens: u32, queued: Micros) {
        self.prefix_queries_tokens += u64::from(looked_up_tokens);
        self.prefix_hits_tokens += u64::from(found_tokens);
        self.queued = self.queued + queued;
    }
}

#[cfg(test)]
impl Scheduler {
    /// Everything that determines what happens next, for comparison.
    pub fn snapshot(&self) -> String {
        let seated = self.running.iter().chain(&self.waiting).map(|&slot| &self.sequences[slot]);
        format!("{:?} {:?} {:?} {:?}", self.running, self.waiting, seated.collect::<Vec<_>>(), self.pool)
    }

    /// Blocks in host memory.
    pub fn host_blocks(&self) -> usize {
        self.tiers.as_ref().map_or(0, Tiers::host_blocks)
    }

    /// Panics unless blocks, sequences, queue and batch agree.
    pub fn check(&self) {
        let seated = self.running.iter().chain(&self.waiting).map(|&slot| &self.sequences[slot]);
        self.pool.check(seated.clone().flat_map(|sequence| [&sequence.hold, &sequence.window]));
        self.tiers.iter().for_each(|tiers| tiers.check(self.pool.names()));
        for sequence in seated {
            assert!(sequence.generated < sequence.output_tokens, "a finished sequence is gone");
            let held = sequence.computed.div_ceil(self.block_size);
            assert_eq!(sequence.hold.count(), held, "blocks are held for what is computed, no more");
        }
        assert!(self.running.iter().all(|&slot| self.sequences[slot].phase == Phase::Running));
        assert!(self.running.len() <= self.sequences_max);
    }
}
