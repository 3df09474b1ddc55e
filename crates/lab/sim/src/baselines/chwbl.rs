//! Consistent hashing with bounded loads, as KubeAI routes by prefix.
//!
//! As published (Mirrokni, Thorup and Zadimoghaddam, 2016; KubeAI's `PrefixHash`): every worker has points on
//! a ring. A key goes clockwise to the first worker whose load, with the request, stays within 1.25 times the
//! mean, rounded up.
//!
//! Differences here: the key is our prefix key of 1,024 tokens; KubeAI hashes the first 100 characters, which
//! one system prompt would make equal for all requests. The sources mention no slack at low counts, so there
//! is none: with few requests in flight the rule spills at two against one.

use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest, least_by};

use crate::mix;

/// Load limit as a multiple of the mean, as published.
const FACTOR: f64 = 1.25;
/// Points per worker on the ring: KubeAI's default.
const POINTS: u64 = 256;

/// KubeAI's rule; see the module text.
#[derive(Default)]
pub struct Chwbl;

impl Policy for Chwbl {
    fn name(&self) -> &'static str {
        "chwbl"
    }

    fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let key = ask.prefix_key.unwrap_or(ask.random);
        let total: u64 = candidates.iter().map(|c| u64::from(c.in_flight)).sum();
        let room = (FACTOR * (total + 1) as f64 / candidates.len() as f64).ceil() as u64;
        // The first worker with room in ring order is the nearest one with room, so no ring is stored.
        let way = |c: &Candidate| {
            if u64::from(c.in_flight) < room { distance(key, c.identity) } else { u64::MAX }
        };
        Choice { index: least_by(candidates, ask.random, way), reason: "ring" }
    }
}

/// Clockwise distance from the key to the nearest point of a worker.
fn distance(key: u64, identity: u64) -> u64 {
    (0..POINTS).map(|point| mix(identity.wrapping_add(point)).wrapping_sub(key)).min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::fixtures::*;

    #[test]
    fn a_key_moves_on_when_its_worker_exceeds_the_mean_by_a_quarter() {
        let home = Chwbl.choose(&thousand(1), &holding(&[(0, 4); 4])).index;
        for (at_home, elsewhere, stays) in [(0, 0, true), (4, 4, true), (8, 4, false), (5, 4, true)] {
            let mut candidates = holding(&[(0, elsewhere); 4]);
            candidates[home].in_flight = at_home;
            let index = Chwbl.choose(&thousand(2), &candidates).index;
            assert_eq!(index == home, stays, "{at_home} against {elsewhere}");
        }
    }

    #[test]
    fn a_worker_that_leaves_moves_only_its_own_keys() {
        let all = holding(&[(0, 0); 5]);
        let key = |key| PolicyRequest { prefix_key: Some(mix(key)), ..thousand(0) };
        for number in 0..200 {
            let before = all[Chwbl.choose(&key(number), &all).index].worker;
            let after = all[..4][Chwbl.choose(&key(number), &all[..4]).index].worker;
            assert!(before == after || before == all[4].worker);
        }
    }
}
