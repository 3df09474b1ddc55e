//! Many decode steps at once, while nothing can come between them.
//!
//! While no sequence arrives or leaves, a batch of decodes repeats itself: every sequence gains a token a step, and a
//! step's cost depends only on the number of sequences and their total context. So the times of a run follow from two
//! numbers, whatever the size of the batch, and the effect on the cache can be computed at once when it is needed. Each
//! step is still rounded to a microsecond by itself: a run ends when its single steps would have ended.

use warmroute_types::Micros;

use crate::{StepCost, StepWork};

/// A batch of sequences that decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    pub sequences: u32,
    /// Context that the first step reads, summed over the sequences.
    pub context_tokens: u64,
}

/// Planned steps that are not carried out yet.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub batch: Batch,
    pub starts: Micros,
    /// Number of steps, at least 1. The first sequence to finish finishes with the last step.
    pub steps: u32,
    pub ends: Micros,
}

impl Run {
    /// Plans `steps` steps.
    pub fn plan(cost: &StepCost, batch: Batch, starts: Micros, steps: u32) -> Run {
        let ends = (0..steps).fold(starts, |at, index| at + batch.duration(cost, index));
        Run { batch, starts, steps, ends }
    }

    /// How many steps have ended at `now`, not counting the last, and when the step in progress ends.
    pub fn ended(&self, cost: &StepCost, now: Micros) -> (u32, Micros) {
        let mut began = self.starts;
        for ended in 0..self.steps - 1 {
            let ends = began + self.batch.duration(cost, ended);
            if ends > now {
                return (ended, ends);
            }
            began = ends;
        }
        (self.steps - 1, self.ends)
    }
}

impl Batch {
    /// The duration of the step `index` steps after the first.
    fn duration(&self, cost: &StepCost, index: u32) -> Micros {
        let grown = u64::from(self.sequences) * u64::from(index);
        cost.of(&StepWork::of_decodes(self.sequences, self.context_tokens + grown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    #[test]
    fn a_run_is_cut_at_the_step_under_way() {
        let cost = Profile::Llama3_1_8b.cost();
        let batch = Batch { sequences: 3, context_tokens: 3_000 };
        let run = Run::plan(cost, batch, Micros(50), 4);
        let first = Micros(50) + batch.duration(cost, 0);
        assert_eq!(run.ended(cost, Micros(50)), (0, first));
        assert_eq!(run.ended(cost, Micros(first.0 - 1)), (0, first));
        let second = first + batch.duration(cost, 1);
        assert_eq!(run.ended(cost, first), (1, second), "the next step has begun when the last one ends");
        assert_eq!(run.ended(cost, Micros(u64::MAX)), (3, run.ends), "the last step is never skipped");
    }
}
