//! Each worker in its turn. The baseline: it spreads requests evenly and finds a cached prefix once in N times.

use crate::{Ask, Candidate, Choice, Policy};

/// The next worker after the last one chosen, while the ready ones stay the same; when they change, the round goes on from
/// another place.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round_robin"
    }

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        Choice { index: (ask.turn % candidates.len() as u64) as usize, reason: "turn" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn everyone_has_a_turn_in_order() {
        let candidates = with_in_flight(&[9, 0, 5]);
        let order = (0..7).map(|turn| RoundRobin.choose(&Ask { turn, ..Ask::default() }, &candidates).index);
        assert_eq!(order.collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
    }
}
