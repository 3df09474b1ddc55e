//! One step while it is put together and while it runs.

use warmroute_types::Micros;

use crate::{Happened, SequenceId, StepWork};

/// What a step computes. The buffers are used again by the next one.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Tokens that may still be added.
    pub budget: u32,
    /// What has been added.
    pub work: StepWork,
    /// Tokens that have been added.
    pub tokens: u64,
    /// What it waits for before it computes: blocks from slower memories.
    pub fetching: Micros,
    /// Whose, in order. By id, because a sequence may be cancelled while the step runs.
    pub scheduled: Vec<SequenceId>,
    /// What happened so far, told when the step ends.
    pub happened: Vec<Happened>,
}

impl Step {
    /// Starts over. What happened to the cache between steps is kept: it is told with this one.
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
