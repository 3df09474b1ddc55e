//! Each worker in turn. The baseline: it spreads requests evenly and hits a cached prefix once in N times.

use crate::{Candidate, Choice, Policy, PolicyRequest};

/// The worker after the last one chosen. A change of the ready workers moves the position.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round_robin"
    }

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        Choice { index: (request.turn % candidates.len() as u64) as usize, reason: "turn" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn workers_are_chosen_in_order() {
        let candidates = with_in_flight(&[9, 0, 5]);
        let order = (0..7).map(|turn| {
            RoundRobin.choose(&PolicyRequest { turn, ..PolicyRequest::default() }, &candidates).index
        });
        assert_eq!(order.collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
    }
}
