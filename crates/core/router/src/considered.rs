//! Who was considered for a request, and with which numbers: what explains a decision.
//!
//! A decision keeps the chosen worker and the next best, so that what was decided can be told later, when all the numbers are
//! others. Who they are is noted while the numbers are written: one more walk over thousands of candidates would cost a good part of a decision.

use std::sync::Arc;

use warmroute_fleet::Worker;
use warmroute_policy::Candidate;
use warmroute_types::CacheView;

/// So many candidates does a decision remember.
pub const CONSIDERED_MAX: usize = 4;

/// A candidate as its policy saw it.
#[derive(Clone, Debug)]
pub struct Considered {
    /// Who.
    pub worker: Arc<Worker>,
    /// How its cache was known.
    pub view: CacheView,
    /// What the policy saw of it.
    pub numbers: Candidate,
}

/// What would happen to a request now. Nothing is booked, presumed or counted.
#[derive(Clone, Debug)]
pub struct Preview {
    /// Which policy would choose.
    pub policy: &'static str,
    /// And why, in a word.
    pub reason: &'static str,
    /// Prompt tokens, as far as known.
    pub prompt_tokens: u32,
    /// Which of the candidates would be chosen.
    pub chosen: usize,
    /// All of them.
    pub candidates: Vec<Considered>,
}

/// The candidates with the least cost by the rule that counts in milliseconds, by index, the least first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextBest([(f32, usize); CONSIDERED_MAX]);

/// A place that nobody has taken.
const NOBODY: (f32, usize) = (f32::INFINITY, usize::MAX);

impl Default for NextBest {
    fn default() -> NextBest {
        NextBest([NOBODY; CONSIDERED_MAX])
    }
}

impl NextBest {
    /// Takes a candidate in if it is among the best. Of equals, whoever came first stays.
    pub(crate) fn offer(&mut self, index: usize, cost_ms: f32) {
        if cost_ms < self.0[CONSIDERED_MAX - 1].0 {
            let place = self.0.partition_point(|&(better_ms, _)| better_ms <= cost_ms);
            self.0[place..].rotate_right(1);
            self.0[place] = (cost_ms, index);
        }
    }

    /// The chosen one, then the best of the others.
    pub(crate) fn after(&self, chosen: usize) -> impl Iterator<Item = usize> {
        let others = self.0.into_iter().filter(|place| *place != NOBODY).map(|(_, index)| index);
        std::iter::once(chosen).chain(others.filter(move |&index| index != chosen)).take(CONSIDERED_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_are_kept_in_order_behind_the_chosen_one() {
        let mut best = NextBest::default();
        let times_ms = [50.0, 10.0, 40.0, 10.0, 30.0, f32::NAN, 20.0];
        times_ms.into_iter().enumerate().for_each(|(index, ms)| best.offer(index, ms));
        assert_eq!(best.after(0).collect::<Vec<_>>(), [0, 1, 3, 6], "one that is not among them");
        assert_eq!(best.after(3).collect::<Vec<_>>(), [3, 1, 6, 4], "one that is");
        let mut alone = NextBest::default();
        alone.offer(0, 1.0);
        assert_eq!(alone.after(0).collect::<Vec<_>>(), [0]);
    }
}
