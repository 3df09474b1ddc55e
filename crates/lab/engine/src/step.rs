//! One step, while it is scheduled and while it runs.

use warmroute_types::Micros;

use crate::{Happened, SequenceId, StepWork};

/// The work of a step. The next step reuses the buffers.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Tokens that may still be added.
    pub budget: u32,
    /// The work added so far.
    pub work: StepWork,
    /// Tokens added so far.
    pub tokens: u64,
    /// Time that the step waits for blocks from slower memories.
    pub fetching: Micros,
    /// The scheduled sequences, in order. By id, because a sequence may be cancelled during the step.
    pub scheduled: Vec<SequenceId>,
    /// The events so far, returned at the end of the step.
    pub happened: Vec<Happened>,
}

impl Step {
    /// Starts over. Cache events between steps are kept and returned with this step.
    pub fn open(&mut self, budget: u32) {
        self.budget = budget;
        self.work = StepWork::default();
        self.tokens = 0;
        self.fetching = Micros::ZERO;
        self.scheduled.clear();
    }

    /// Adds a sequence that computes `new_tokens` after the `computed` it has.
    pub fn add(&mut self, id: SequenceId, computed: u32, new_tokens: u32) {
        self.budget -= new_tokens;
        self.tokens += u64::from(new_tokens);
        self.work.add(computed, new_tokens);
        self.scheduled.push(id);
    }
}
