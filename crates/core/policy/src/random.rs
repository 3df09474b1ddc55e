//! A random worker. A stateless baseline: several routers need not agree on anything.

use crate::{Candidate, Choice, Policy, PolicyRequest};

/// A uniformly random worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random;

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        Choice { index: (request.random % candidates.len() as u64) as usize, reason: "chance" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn the_draw_is_even() {
        let candidates = with_in_flight(&[0; 4]);
        let mut wins = [0_u32; 4];
        (0..8_000).for_each(|draw| wins[Random.choose(&request_with_random(draw), &candidates).index] += 1);
        assert!(wins.iter().all(|wins| (1_800..2_200).contains(wins)), "{wins:?}");
    }
}
