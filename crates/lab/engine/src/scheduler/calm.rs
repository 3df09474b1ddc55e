//! The scheduler over a run of steps in which nothing but decoding happens.
//!
//! Calm means: every sequence in the batch has one token to compute, none finishes, nobody can be admitted, and there
//! are free blocks for all. Then a sequence touches the cache only where it enters a block and where it fills one, once
//! in `block_size` steps. Those touches are done here in the order in which single steps would do them, so that the very
//! same blocks are evicted and found afterwards.

use super::Scheduler;
use crate::PrefixCaching;
use crate::run::Batch;
use crate::step::Step;

/// A sequence that enters or fills a block in some step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Touch {
    step: u32,
    /// Its place in the batch.
    place: u32,
}

impl Scheduler {
    /// How many steps nothing but decoding can happen, the one included in which the first sequence finishes, and for
    /// which batch. `None` when the next step must be looked at by itself.
    pub fn calm_steps(&self, step_tokens_max: u32) -> Option<(u32, Batch)> {
        let sequences = self.running.len();
        let is_closed = self.waiting.is_empty() || sequences >= self.sequences_max;
        if sequences == 0 || !is_closed || sequences > step_tokens_max as usize {
            return None;
        }
        let (mut steps, mut context_tokens) = (u32::MAX, 0_u64);
        for &slot in &self.running {
            let sequence = &self.sequences[slot];
            // The last token of a prompt that was cut just before it looks like a decode, but brings a first token.
            if sequence.remaining() != 1 || sequence.generated == 0 {
                return None;
            }
            steps = steps.min(sequence.output_tokens - sequence.generated);
            context_tokens += u64::from(sequence.known());
        }
        let steps = self.with_room(steps);
        (steps > 1).then_some((steps, Batch { sequences: sequences as u32, context_tokens }))
    }

    /// As many of the steps as find free blocks for sure: each sequence needs one in `block_size` steps, and at most one
    /// a step.
    fn with_room(&self, steps: u32) -> u32 {
        let (free, sequences) = (u64::from(self.pool.free()), self.running.len() as u64);
        let needed_most = sequences * u64::from(steps.div_ceil(self.block_size) + 1);
        if needed_most <= free { steps } else { steps.min((free / sequences) as u32) }
    }

    /// Schedules and settles `steps` calm steps. Tokens are not told; whoever has its last one is finished by
    /// [`settle_run`](Scheduler::settle_run).
    pub fn run(&mut self, steps: u32, step: &mut Step) {
        let mut touches = std::mem::take(&mut self.touches);
        self.list_touches(steps, &mut touches);
        touches.sort_unstable();
        for round in (0..steps).step_by(self.block_size as usize) {
            for touch in touches.iter().take_while(|touch| round + touch.step < steps) {
                self.touch(self.running[touch.place as usize], round + touch.step, step);
            }
        }
        self.touches = touches;
        for &slot in &self.running {
            let sequence = &mut self.sequences[slot];
            sequence.computed += steps;
            sequence.generated += steps;
        }
    }

    /// Finishes whoever got its last token in the run that was just done.
    pub fn settle_run(&mut self, step: &mut Step) {
        let finished_before = self.counts.finished;
        for index in 0..self.running.len() {
            self.finish_if_done(self.running[index], &mut step.happened);
        }
        if self.counts.finished > finished_before {
            self.forget_finished();
        }
    }

    /// The first time that each sequence enters a block and that it fills one, if it is within the run.
    fn list_touches(&self, steps: u32, touches: &mut Vec<Touch>) {
        touches.clear();
        let size = self.block_size;
        for (place, &slot) in self.running.iter().enumerate() {
            let into = self.sequences[slot].computed % size;
            let (enters, fills) = ((size - into) % size, size - 1 - into);
            for step in [enters, fills].into_iter().filter(|&step| step < steps) {
                touches.push(Touch { step, place: place as u32 });
            }
            if enters == fills {
                // A block of one token is entered and filled by the same touch.
                touches.pop();
            }
        }
    }

    /// Does what scheduling one token does to the cache, `ahead` tokens after what the sequence has computed.
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
