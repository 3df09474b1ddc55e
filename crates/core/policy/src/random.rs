//! Any worker, by lot. The other baseline: stateless, so several routers need not agree on anything.

use crate::{Ask, Candidate, Choice, Policy};

/// A uniform draw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random;

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        Choice { index: (ask.random % candidates.len() as u64) as usize, reason: "chance" }
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
        (0..8_000).for_each(|draw| wins[Random.choose(&drawn(draw), &candidates).index] += 1);
        assert!(wins.iter().all(|wins| (1_800..2_200).contains(wins)), "{wins:?}");
    }
}
