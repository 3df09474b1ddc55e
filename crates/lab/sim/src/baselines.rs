//! Baselines: the rules of other routers, from their published descriptions, for comparison on the same
//! traffic.
//!
//! One rule per file, each with its source and its differences here. Baselines see what our policies see at
//! the same moment: exact bookings and the run's view of the caches. Ties are random unless the rule says
//! otherwise. Hardware constants (prefill rate, cache size, block size) come from each engine's
//! configuration, never from a workload. A rule with one such constant for its whole fleet is therefore
//! better informed here than in production.
//!
//! Lab only: the gateway does not offer them.

mod aibrix;
mod chwbl;
mod dynamo_cost;
mod lbgr;
mod llmd_sticky;
mod llmd_weights;
mod longest_match;
mod machines;
mod mooncake_conductor;
mod preble_e2;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest};

use crate::built_rule::{BuiltRule, Needs};
use crate::watch::Watcher;

/// Rule of another project.
pub struct Baseline {
    /// Name in flags and reports.
    pub name: &'static str,
    pub(crate) needs: Needs,
    pub(crate) make: fn() -> BuiltRule,
}

/// All baselines.
pub static BASELINES: [Baseline; 9] = [
    Baseline { name: "preble_e2", needs: BOTH, make: watched::<preble_e2::PrebleE2> },
    Baseline { name: "dynamo_cost", needs: CACHES, make: watched::<dynamo_cost::DynamoCost> },
    Baseline { name: "llmd_weights", needs: CACHES, make: watched::<llmd_weights::LlmdWeights> },
    Baseline { name: "llmd_sticky", needs: CACHES, make: watched::<llmd_sticky::LlmdSticky> },
    Baseline { name: "lbgr", needs: CACHES, make: watched::<lbgr::Lbgr> },
    Baseline {
        name: "mooncake_conductor",
        needs: CACHES,
        make: watched::<mooncake_conductor::MooncakeConductor>,
    },
    Baseline { name: "chwbl", needs: KEY, make: plain::<chwbl::Chwbl> },
    Baseline { name: "aibrix", needs: CACHES, make: plain::<aibrix::Aibrix> },
    Baseline { name: "longest_match", needs: CACHES, make: plain::<longest_match::LongestMatch> },
];

const CACHES: Needs = Needs { overlap: true, prefix_key: false, session_key: false };
const KEY: Needs = Needs { overlap: false, prefix_key: true, session_key: false };
const BOTH: Needs = Needs { overlap: true, prefix_key: true, session_key: false };

impl Baseline {
    /// Finds a baseline by name; `-` and `_` are equal.
    pub fn named(name: &str) -> Option<&'static Baseline> {
        let name = name.to_ascii_lowercase().replace('-', "_");
        BASELINES.iter().find(|baseline| baseline.name == name)
    }

    /// All names, for error messages.
    pub fn names() -> String {
        BASELINES.iter().map(|baseline| baseline.name).collect::<Vec<_>>().join(", ")
    }
}

fn plain<P: Policy + Default + 'static>() -> BuiltRule {
    BuiltRule { policy: Box::new(P::default()), watcher: None }
}

fn watched<P: Policy + Watcher + Default + 'static>() -> BuiltRule {
    let rule = Arc::new(P::default());
    BuiltRule { policy: Box::new(Shared(Arc::clone(&rule))), watcher: Some(rule) }
}

/// A rule with two owners: the router calls it as a policy, and the simulated router notifies it.
struct Shared<P>(Arc<P>);

impl<P: Policy> Policy for Shared<P> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        self.0.choose(ask, candidates)
    }
}

/// Prompt tokens that a worker would have to compute.
fn missing_tokens(ask: &PolicyRequest, candidate: &Candidate) -> u32 {
    ask.prompt_tokens.saturating_sub(candidate.overlap_tokens)
}

/// Share of the prompt that a worker holds.
fn match_ratio(ask: &PolicyRequest, candidate: &Candidate) -> f64 {
    (f64::from(candidate.overlap_tokens) / f64::from(ask.prompt_tokens.max(1))).min(1.0)
}
