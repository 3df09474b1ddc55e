//! The scheduler over a run of steps that only decode.
//!
//! In such a run every sequence in the batch has one token to compute, none finishes, none can be admitted, and there are
//! free blocks for all. A sequence then accesses the cache only where it enters a block and where it fills one, once in
//! `block_size` steps. These accesses happen in the order of single steps, so the same blocks are evicted and found.

use super::Scheduler;
use crate::PrefixCaching;
use crate::run::Batch;
use crate::step::Step;

/// A sequence that enters or fills a block in some step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Touch {
    step: u32,
    /// Its index in the batch.
    place: u32,
}

impl Scheduler {
    /// How many steps contain only decoding, up to and including the step in which the first sequence finishes, and
    /// their batch. `None` when the next step must be scheduled by itself.
    pub fn decode_only_steps(&self, step_tokens_max: u32) -> Option<(u32, Batch)> {
        let sequences = self.running.len();
        let is_closed = self.waiting.is_empty() || sequences >= self.sequences_max;
        // A window gives up blocks between steps.
        if self.window.is_some() || sequences == 0 || !is_closed || sequences > step_tokens_max as usize {
            return None;
        }
        let (mut steps, mut context_tokens) = (u32::MAX, 0_u64);
        for &slot in &self.running {
            let sequence = &self.sequences[slot];
            // The last token of a prompt that was split just before it looks like a decode, but produces a first
            // token.
            if sequence.remaining() != 1 || sequence.generated == 0 {
                return None;
            }
            steps = steps.min(sequence.output_tokens - sequence.generated);
            context_tokens += u64::from(sequence.known());
        }
        let steps = self.with_room(steps);
        (steps > 1).then_some((steps, Batch { sequences: sequences as u32, context_tokens }))
    }

    /// How many of the steps certainly find free blocks: each sequence needs one in `block_size` steps, and at most
    /// one a step.
    fn with_room(&self, steps: u32) -> u32 {
        let (free, sequences) = (u64::from(self.pool.free()), self.running.len() as u64);
        let needed_most = sequences * u64::from(steps.div_ceil(self.block_size) + 1);
        if needed_most <= free { steps } else { steps.min((free / sequences) as u32) }
    }

    /// Schedules and completes `steps` decode-only steps. There are no token events;
    /// [`settle_run`](Scheduler::settle_run) finishes sequences with their last token.
    pub fn run(&mut self, steps: u32, step: &mut Step) {
        self.compute_run(steps, step);
        self.generate(steps);
    }

    /// Schedules one decode-only step; [`end_decodes`](Scheduler::end_decodes) completes it.
    pub fn begin_decodes(&mut self, step: &mut Step) {
        self.report_lost(step);
        self.compute_run(1, step);
    }

    /// Completes a decode-only step. There are no token events.
    pub fn end_decodes(&mut self, step: &mut Step) {
        self.generate(1);
        self.settle_run(step);
    }

    /// Computes the tokens of `steps` decode-only steps: the sequences take blocks and fill them.
    fn compute_run(&mut self, steps: u32, step: &mut Step) {
        let mut touches = std::mem::take(&mut self.touches);
        self.list_touches(steps, &mut touches);
        touches.sort_unstable();
        for round in (0..steps).step_by(self.block_size as usize) {
            for touch in touches.iter().take_while(|touch| round + touch.step < steps) {
                self.touch(self.running[touch.place as usize], round + touch.step, step);
            }
        }
        self.touches = touches;
        self.running.iter().for_each(|&slot| self.sequences[slot].computed += steps);
    }

    fn generate(&mut self, steps: u32) {
        self.running.iter().for_each(|&slot| self.sequences[slot].generated += steps);
    }

    /// Finishes the sequences that produced their last token in the completed run.
    pub fn settle_run(&mut self, step: &mut Step) {
        let finished_before = self.counts.finished;
        for index in 0..self.running.len() {
            self.finish_if_done(self.running[index], &mut step.happened);
        }
        if self.counts.finished > finished_before {
            self.forget_finished();
        }
    }

    /// The first time within the run that each sequence enters a block, and that it fills one.
    fn list_touches(&self, steps: u32, touches: &mut Vec<Touch>) {
        touches.clear();
        let size = self.block_size;
        for (place, &slot) in self.running.iter().enumerate() {
            let into = self.sequences[slot].computed % size;
            let (enters, fills) = (if into == 0 { 0 } else { size - into }, size - 1 - into);
            for step in [enters, fills].into_iter().filter(|&step| step < steps) {
                touches.push(Touch { step, place: place as u32 });
            }
            if enters == fills {
                // A block of one token is entered and filled by the same touch.
                touches.pop();
            }
        }
    }

    /// The effect on the cache of scheduling one token, `ahead` tokens after those that the sequence has computed.
    fn touch(&mut self, slot: u32, ahead: u32, step: &mut Step) {
        let computed = self.sequences[slot].computed + ahead;
        if computed.is_multiple_of(self.block_size) {
            self.take_blocks(slot, 1, step);
        }
        if self.prefix_caching == PrefixCaching::On {
            self.name_full_blocks(slot, computed + 1, step);
        }
    }
}
