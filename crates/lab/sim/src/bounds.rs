//! Bounds that no router can beat, in this engine model, on the same requests.
//!
//! * **infinite cache**: every block is computed once and kept. No policy hits more.
//! * **pooled Belady**: one cache as large as all engines' together, with knowledge of the future (bypass
//!   allowed). Bounds every router and every eviction policy.
//! * **pooled LRU**: the same cache with the engines' own eviction. The gap from Belady is the cost of
//!   eviction; the gap to a policy is the cost of routing.
//! * **zero-queue floor**: the time of each request alone, with all hits of the infinite cache. No policy is
//!   faster.
//! * **central queue**: all prefills with Belady's misses, first come first served by the next free engine,
//!   without decoding. A reference, not a bound: another order can beat it, and decoding slows every real
//!   fleet.
//!
//! Sessions run closed loop here, too: a turn follows the answer of the zero-queue floor. In a run turns
//! arrive later, by a time that depends on the router, so the order of requests differs. Belady and LRU are
//! then a reference: a router with a luckier order may hit slightly more. With sessions of one turn the order
//! is the same for all.

mod access;
mod belady;
mod lru;
mod queueing;

use serde::Serialize;

use crate::config::{BadConfig, Config};
use crate::{Session, Spread};

/// Bounds for the requests of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bounds {
    /// Number of requests.
    pub requests: usize,
    /// Whether a session has several turns: pooled Belady and LRU are then a reference only.
    pub is_closed_loop: bool,
    /// Share of prompt tokens found in an infinite cache.
    pub infinite_cache_token_hit_ratio: f64,
    /// Share of prompt tokens found by pooled Belady.
    pub pooled_belady_token_hit_ratio: f64,
    /// Share of prompt tokens found by pooled LRU.
    pub pooled_lru_token_hit_ratio: f64,
    /// Time to first token of each request alone.
    pub zero_queue_ttft_ms: Spread,
    /// Time to last token of each request alone.
    pub zero_queue_e2e_ms: Spread,
    /// Time to first token in the central queue.
    pub central_queue_ttft_ms: Spread,
}

/// Computes the bounds for the requests that a fleet receives.
pub fn bounds(config: &Config, sessions: impl Iterator<Item = Session>) -> Result<Bounds, BadConfig> {
    config.validate()?;
    Ok(bounds_of(config, &sessions.collect::<Vec<_>>()))
}

fn bounds_of(config: &Config, sessions: &[Session]) -> Bounds {
    let is_closed_loop = sessions.iter().any(|session| session.turns.len() > 1);
    let accesses = access::accesses(config, sessions);
    let block_tokens = config.fleet[0].block_size;
    let pooled_blocks =
        config.fleet.iter().map(|engine| (engine.kv_tokens / u64::from(engine.block_size)) as usize).sum();
    let prompt_tokens: u64 = accesses.iter().map(|access| u64::from(access.prompt_tokens)).sum();
    let ratio = |hits: &[u32]| {
        let blocks: u64 = hits.iter().map(|&blocks| u64::from(blocks)).sum();
        if prompt_tokens == 0 {
            0.0
        } else {
            (blocks * u64::from(block_tokens)) as f64 / prompt_tokens as f64
        }
    };
    let infinite: Vec<u32> = accesses.iter().map(|access| access.infinite_hits).collect();
    let belady = belady::hits(&accesses, pooled_blocks);
    let lru = lru::hits(&accesses, pooled_blocks);
    let ms =
        |values: &mut dyn Iterator<Item = u64>| Spread::of(values.map(|us| us as f64 / 1_000.0).collect());
    Bounds {
        requests: accesses.len(),
        is_closed_loop,
        infinite_cache_token_hit_ratio: ratio(&infinite),
        pooled_belady_token_hit_ratio: ratio(&belady),
        pooled_lru_token_hit_ratio: ratio(&lru),
        zero_queue_ttft_ms: ms(&mut accesses.iter().map(|access| access.ttft.0)),
        zero_queue_e2e_ms: ms(&mut accesses.iter().map(|access| access.e2e.0)),
        central_queue_ttft_ms: ms(&mut queueing::central(config, &accesses, &belady).into_iter()),
    }
}

impl Bounds {
    /// Means over several seeds, to compare with means over the same seeds; `None` without bounds.
    pub fn mean_of(all: &[Bounds]) -> Option<Bounds> {
        let count = all.len() as f64;
        let mean = |of: fn(&Bounds) -> f64| all.iter().map(of).sum::<f64>() / count;
        let spread = |of: fn(&Bounds) -> Spread| Spread::mean_of(&all.iter().map(of).collect::<Vec<_>>());
        (!all.is_empty()).then(|| Bounds {
            requests: mean(|one| one.requests as f64).round() as usize,
            is_closed_loop: all.iter().any(|one| one.is_closed_loop),
            infinite_cache_token_hit_ratio: mean(|one| one.infinite_cache_token_hit_ratio),
            pooled_belady_token_hit_ratio: mean(|one| one.pooled_belady_token_hit_ratio),
            pooled_lru_token_hit_ratio: mean(|one| one.pooled_lru_token_hit_ratio),
            zero_queue_ttft_ms: spread(|one| one.zero_queue_ttft_ms),
            zero_queue_e2e_ms: spread(|one| one.zero_queue_e2e_ms),
            central_queue_ttft_ms: spread(|one| one.central_queue_ttft_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rule, Slo, Summary, Workload, WorkloadScale, run};
    use warmroute_engine::Profile;

    fn sessions(workload: Workload) -> impl Iterator<Item = Session> {
        workload.sessions(WorkloadScale { requests: Some(1_500), ..WorkloadScale::default() })
    }

    #[test]
    fn bounds_of_several_seeds_are_their_mean_and_know_whether_clients_wait() {
        let config = Config::new(Profile::Llama3_1_8b, 2);
        let of = |workload: Workload, seed| {
            let scale = WorkloadScale { requests: Some(200), seed, ..WorkloadScale::default() };
            bounds(&config, workload.sessions(scale)).unwrap()
        };
        let (one, other) = (of(Workload::Sharegpt, 1), of(Workload::Sharegpt, 2));
        let mean = Bounds::mean_of(&[one.clone(), other.clone()]).unwrap();
        let half = |of: fn(&Bounds) -> f64| (of(&one) + of(&other)) / 2.0 - of(&mean);
        assert_ne!(one.pooled_belady_token_hit_ratio, other.pooled_belady_token_hit_ratio);
        assert!(half(|bounds| bounds.pooled_belady_token_hit_ratio).abs() < 1e-12);
        assert!(half(|bounds| bounds.zero_queue_ttft_ms.p99).abs() < 1e-9);
        assert_eq!(Bounds::mean_of(std::slice::from_ref(&one)), Some(one.clone()));
        assert_eq!(Bounds::mean_of(&[]), None);
        assert!(mean.is_closed_loop && !of(Workload::Unique, 1).is_closed_loop);
    }

    #[test]
    fn no_policy_beats_the_bounds_and_they_are_in_order() {
        for workload in [Workload::Sharegpt, Workload::B2b, Workload::RagAfter, Workload::OneHotPrefix] {
            let mut config = Config::new(Profile::Llama3_1_8b, 4);
            config.fleet.iter_mut().for_each(|engine| engine.kv_tokens = 60_000);
            let bounds = bounds(&config, sessions(workload)).unwrap();
            let (infinite, belady) =
                (bounds.infinite_cache_token_hit_ratio, bounds.pooled_belady_token_hit_ratio);
            assert!(
                infinite >= belady && belady >= bounds.pooled_lru_token_hit_ratio,
                "{workload:?} {bounds:?}"
            );
            assert!(bounds.central_queue_ttft_ms.mean >= bounds.zero_queue_ttft_ms.mean * 0.999);
            for policy in ["round_robin", "least_loaded", "cache_aware", "prefix_affinity"] {
                let outcome = run(&config, &Rule::parse(policy).unwrap(), sessions(workload)).unwrap();
                let summary = Summary::of(policy, 1, &outcome, Slo::default());
                assert_eq!(summary.requests, bounds.requests);
                assert!(summary.token_hit_ratio <= belady + 1e-9, "{workload:?} {policy}");
                assert!(summary.ttft_ms.mean >= bounds.zero_queue_ttft_ms.mean, "{workload:?} {policy}");
                assert!(summary.e2e_ms.p50 >= bounds.zero_queue_e2e_ms.p50, "{workload:?} {policy}");
            }
        }
    }
}
