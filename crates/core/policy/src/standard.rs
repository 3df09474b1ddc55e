//! The policies that the gateway offers, by name.

use crate::{
    CacheAware, Candidate, Choice, DualChoice, ExpectedTtft, LeastLoaded, Policy, PolicyRequest, PowerOfTwo,
    PrefixAffinity, Product, Random, RoundRobin, SessionAffinity, StickyLeastLoaded, WeightedScore,
};

/// A policy that the gateway offers, with its parameters. An enum, so that a configuration can be compared,
/// copied and printed.
#[derive(Clone, Copy, Debug)]
pub enum Standard {
    /// Lowest expected time to first token.
    ExpectedTtft(ExpectedTtft),
    /// Each worker in turn.
    RoundRobin(RoundRobin),
    /// A random worker.
    Random(Random),
    /// The least loaded worker.
    LeastLoaded(LeastLoaded),
    /// The less loaded of two random workers.
    PowerOfTwo(PowerOfTwo),
    /// Consistent hashing of the session key.
    SessionAffinity(SessionAffinity),
    /// Consistent hashing of the prompt's prefix.
    PrefixAffinity(PrefixAffinity),
    /// The longest overlap, unless its worker is overloaded.
    CacheAware(CacheAware),
    /// The least loaded worker that holds the prefix.
    StickyLeastLoaded(StickyLeastLoaded),
    /// A weighted sum of overlap and queue.
    WeightedScore(WeightedScore),
    /// Uncached tokens times load.
    Product(Product),
    /// The warmer of two workers chosen by hashing the prefix.
    DualChoice(DualChoice),
}

/// Why a text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    /// The name is not known.
    #[error("unknown policy `{0}`; known: {known}", known = Standard::NAMES.join(", "))]
    Unknown(String),
    /// A parameter is not known, or its value is invalid.
    #[error("policy `{policy}`: {why}")]
    Parameter {
        /// The policy as written.
        policy: String,
        /// The reason.
        why: String,
    },
    /// Two policies of one name would share their figures.
    #[error("`{0}` is listed twice or is the active policy; remove it")]
    Twice(String),
}

impl Standard {
    /// Names of all policies, in the order in which the manual explains them.
    pub const NAMES: [&'static str; 12] = [
        "expected_ttft",
        "cache_aware",
        "sticky_least_loaded",
        "weighted_score",
        "product",
        "dual_choice",
        "prefix_affinity",
        "session_affinity",
        "least_loaded",
        "power_of_two",
        "round_robin",
        "random",
    ];

    /// Whether the policy reads overlaps. The router skips the lookup otherwise.
    pub fn needs_overlap(&self) -> bool {
        matches!(
            self,
            Standard::ExpectedTtft(_)
                | Standard::CacheAware(_)
                | Standard::StickyLeastLoaded(_)
                | Standard::WeightedScore(_)
                | Standard::Product(_)
                | Standard::DualChoice(_)
        )
    }

    /// Whether the policy reads the prefix key.
    pub fn needs_prefix_key(&self) -> bool {
        matches!(self, Standard::PrefixAffinity(_) | Standard::DualChoice(_))
    }

    /// Whether the policy reads the session key.
    pub fn needs_session_key(&self) -> bool {
        matches!(self, Standard::SessionAffinity(_))
    }

    /// Cost of a candidate in milliseconds, for policies that compute one.
    pub fn cost_ms(&self, candidate: &Candidate) -> Option<f32> {
        match self {
            Standard::ExpectedTtft(rule) => Some(rule.cost_ms(&candidate.estimate)),
            _ => None,
        }
    }

    /// A policy with default parameters. Our names, and those of other routers and papers; `-` and `_` are the same.
    pub(crate) fn named(name: &str) -> Result<Standard, BadPolicy> {
        Ok(match name.to_ascii_lowercase().replace('-', "_").as_str() {
            "expected_ttft" => Standard::ExpectedTtft(ExpectedTtft::default()),
            "round_robin" => Standard::RoundRobin(RoundRobin),
            "random" => Standard::Random(Random),
            "least_loaded" | "join_shortest_queue" | "shortest_queue" => {
                Standard::LeastLoaded(LeastLoaded::default())
            }
            "power_of_two" => Standard::PowerOfTwo(PowerOfTwo),
            "session_affinity" | "consistent_hash" | "consistent_hashing" => {
                Standard::SessionAffinity(SessionAffinity::default())
            }
            "prefix_affinity" | "prefix_hash" => Standard::PrefixAffinity(PrefixAffinity::default()),
            "cache_aware" => Standard::CacheAware(CacheAware::default()),
            "sticky_least_loaded" => Standard::StickyLeastLoaded(StickyLeastLoaded::default()),
            "weighted_score" => Standard::WeightedScore(WeightedScore::default()),
            "product" | "lmetric" => Standard::Product(Product),
            "dual_choice" | "dualmap" => Standard::DualChoice(DualChoice::default()),
            _ => return Err(BadPolicy::Unknown(name.to_owned())),
        })
    }

    fn rule(&self) -> &dyn Policy {
        match self {
            Standard::ExpectedTtft(rule) => rule,
            Standard::RoundRobin(rule) => rule,
            Standard::Random(rule) => rule,
            Standard::LeastLoaded(rule) => rule,
            Standard::PowerOfTwo(rule) => rule,
            Standard::SessionAffinity(rule) => rule,
            Standard::PrefixAffinity(rule) => rule,
            Standard::CacheAware(rule) => rule,
            Standard::StickyLeastLoaded(rule) => rule,
            Standard::WeightedScore(rule) => rule,
            Standard::Product(rule) => rule,
            Standard::DualChoice(rule) => rule,
        }
    }
}

impl Policy for Standard {
    fn name(&self) -> &'static str {
        self.rule().name()
    }

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        self.rule().choose(request, candidates)
    }

    fn is_expected_ttft(&self) -> bool {
        self.rule().is_expected_ttft()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;
    use proptest::prelude::*;

    #[test]
    fn every_name_parses_to_its_policy() {
        for name in Standard::NAMES {
            assert_eq!(name.parse::<Standard>().unwrap().name(), name);
            assert_eq!(name.replace('_', "-").parse::<Standard>().unwrap().name(), name);
        }
    }

    #[test]
    fn aliases_from_other_routers_parse() {
        for (alias, name) in [
            ("join_shortest_queue", "least_loaded"),
            ("prefix_hash", "prefix_affinity"),
            ("consistent_hashing", "session_affinity"),
        ] {
            assert_eq!(alias.parse::<Standard>().unwrap().name(), name);
        }
        assert!("best".parse::<Standard>().unwrap_err().to_string().contains("least_loaded"));
    }

    proptest! {
        #[test]
        fn every_policy_chooses_one_of_the_candidates(
            random: u64, turn: u64, session_key: Option<u64>, prefix_key: Option<u64>,
            loads in prop::collection::vec(0_u32..1_000, 1..100),
        ) {
            let candidates = with_in_flight(&loads);
            let request = PolicyRequest { prompt_tokens: 10, session_key, prefix_key, random, turn, ..PolicyRequest::default() };
            for name in Standard::NAMES {
                let policy: Standard = name.parse().unwrap();
                let choice = policy.choose(&request, &candidates);
                prop_assert!(choice.index < candidates.len());
                prop_assert_eq!(policy.choose(&request, &candidates), choice, "the same numbers, the same choice");
            }
        }
    }
}
