//! Records of candidates, which explain a decision.
//!
//! A decision keeps the chosen worker and the next best, because all numbers change afterwards. They are
//! noted while the candidates are filled: another pass over thousands of candidates would cost a good part of
//! a decision.

use std::sync::Arc;

use warmroute_fleet::Worker;
use warmroute_policy::Candidate;
use warmroute_types::CacheView;

/// Number of candidates that a decision keeps.
pub const CANDIDATE_RECORDS_MAX: usize = 4;

/// A candidate as its policy saw it.
#[derive(Clone, Debug)]
pub struct CandidateRecord {
    /// The worker that could have been chosen.
    pub worker: Arc<Worker>,
    /// Source of what was known about its cache.
    pub view: CacheView,
    /// The numbers that the policy saw.
    pub numbers: Candidate,
}

/// The decision that a request would get now. Nothing is booked, presumed or counted.
#[derive(Clone, Debug)]
pub struct Preview {
    /// Name of the policy.
    pub policy: &'static str,
    /// Reason of the choice.
    pub reason: &'static str,
    /// Prompt tokens, counted or estimated.
    pub prompt_tokens: u32,
    /// Index of the chosen candidate.
    pub chosen: usize,
    /// All candidates, of which `chosen` is one.
    pub candidates: Vec<CandidateRecord>,
}

/// Indices of the candidates with the lowest expected-TTFT cost, lowest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextBest([(f32, usize); CANDIDATE_RECORDS_MAX]);

/// An unused entry.
const UNUSED: (f32, usize) = (f32::INFINITY, usize::MAX);

impl Default for NextBest {
    fn default() -> NextBest {
        NextBest([UNUSED; CANDIDATE_RECORDS_MAX])
    }
}

impl NextBest {
    /// Adds a candidate if it is among the best. Earlier candidates win ties.
    pub(crate) fn offer(&mut self, index: usize, cost_ms: f32) {
        if cost_ms < self.0[CANDIDATE_RECORDS_MAX - 1].0 {
            let place = self.0.partition_point(|&(better_ms, _)| better_ms <= cost_ms);
            self.0[place..].rotate_right(1);
            self.0[place] = (cost_ms, index);
        }
    }

    /// The chosen candidate, then the best of the others.
    pub(crate) fn after(&self, chosen: usize) -> impl Iterator<Item = usize> {
        let others = self.0.into_iter().filter(|place| *place != UNUSED).map(|(_, index)| index);
        std::iter::once(chosen)
            .chain(others.filter(move |&index| index != chosen))
            .take(CANDIDATE_RECORDS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_candidates_follow_the_chosen_one_in_order() {
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
