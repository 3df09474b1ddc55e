//! The less loaded of two random workers. Nearly as even as the shortest queue, and it does not herd when
//! several routers see only their own part of the load.

use crate::numbers::mix;
use crate::{Candidate, Choice, Policy, PolicyRequest};

/// The less loaded of two random workers.
#[derive(Clone, Copy, Debug, Default)]
pub struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn name(&self) -> &'static str {
        "power_of_two"
    }

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let (first, second) = two_of(candidates.len(), request.random);
        let second_is_less = candidates[second].in_flight < candidates[first].in_flight;
        Choice { index: if second_is_less { second } else { first }, reason: "two_choices" }
    }
}

/// Two different indices below `n`; the same index twice when `n` is 1.
fn two_of(n: usize, random: u64) -> (usize, usize) {
    let first = (random % n as u64) as usize;
    if n == 1 {
        return (first, first);
    }
    let other = (mix(random) % (n as u64 - 1)) as usize;
    (first, if other >= first { other + 1 } else { other })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;

    #[test]
    fn the_least_loaded_of_the_two_drawn_wins() {
        let candidates = with_in_flight(&[7, 3, 0, 5]);
        let mut wins = [0_u32; 4];
        (0..12_000)
            .for_each(|draw| wins[PowerOfTwo.choose(&request_with_random(draw), &candidates).index] += 1);
        assert_eq!(wins[0], 0, "the busiest loses against every other");
        // The idle worker is drawn in half of the cases, wins of the next one are a third, of the third one a
        // sixth.
        assert!((5_600..6_400).contains(&wins[2]), "{wins:?}");
        assert!((3_600..4_400).contains(&wins[1]), "{wins:?}");
    }

    #[test]
    fn the_only_worker_is_chosen() {
        assert_eq!(PowerOfTwo.choose(&request_with_random(3), &with_in_flight(&[4])).index, 0);
    }
}
