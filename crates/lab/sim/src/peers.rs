//! The rules of other routers, from their published descriptions, to be compared with ours on the same traffic.
//!
//! One rule a file, each with its source and what differs here. They see what our policies see, at the same moment: exact
//! bookings, the run's view of the caches, ties drawn by lot unless the rule says whose they are. Constants that a rule wants measured on its hardware (prefill
//! rate, cache size, block size) are those of the engine at each seat, never of a workload; a rule that knows only one
//! such constant for its whole fleet is so better informed here than at home.
//!
//! Lab only: the gateway does not offer them.

mod aibrix;
mod chwbl;
mod dynamo_cost;
mod lbgr;
mod llmd_sticky;
mod llmd_weights;
mod machines;
mod mooncake_conductor;
mod preble_e2;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest};

use crate::rule::{Made, Needs};
use crate::watch::Watcher;

/// A rule of another router.
pub struct Peer {
    /// The word in flags and reports.
    pub name: &'static str,
    pub(crate) needs: Needs,
    pub(crate) make: fn() -> Made,
}

/// All of them.
pub static PEERS: [Peer; 8] = [
    Peer { name: "preble_e2", needs: BOTH, make: watched::<preble_e2::PrebleE2> },
    Peer { name: "dynamo_cost", needs: CACHES, make: watched::<dynamo_cost::DynamoCost> },
    Peer { name: "llmd_weights", needs: CACHES, make: watched::<llmd_weights::LlmdWeights> },
    Peer { name: "llmd_sticky", needs: CACHES, make: watched::<llmd_sticky::LlmdSticky> },
    Peer { name: "lbgr", needs: CACHES, make: watched::<lbgr::Lbgr> },
    Peer {
        name: "mooncake_conductor",
        needs: CACHES,
        make: watched::<mooncake_conductor::MooncakeConductor>,
    },
    Peer { name: "chwbl", needs: KEY, make: plain::<chwbl::Chwbl> },
    Peer { name: "aibrix", needs: CACHES, make: plain::<aibrix::Aibrix> },
];

const CACHES: Needs = Needs { overlap: true, prefix_key: false, session_key: false };
const KEY: Needs = Needs { overlap: false, prefix_key: true, session_key: false };
const BOTH: Needs = Needs { overlap: true, prefix_key: true, session_key: false };

impl Peer {
    /// The one with this name; `-` and `_` are the same.
    pub fn named(name: &str) -> Option<&'static Peer> {
        let name = name.to_ascii_lowercase().replace('-', "_");
        PEERS.iter().find(|peer| peer.name == name)
    }

    /// All names, for messages.
    pub fn names() -> String {
        PEERS.iter().map(|peer| peer.name).collect::<Vec<_>>().join(", ")
    }
}

fn plain<P: Policy + Default + 'static>() -> Made {
    Made { policy: Box::new(P::default()), watcher: None }
}

fn watched<P: Policy + Watcher + Default + 'static>() -> Made {
    let rule = Arc::new(P::default());
    Made { policy: Box::new(Shared(Arc::clone(&rule))), watcher: Some(rule) }
}

/// One rule in two hands: the router asks it, the gate tells it.
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

/// The share of the prompt that a worker holds.
fn match_ratio(ask: &PolicyRequest, candidate: &Candidate) -> f64 {
    (f64::from(candidate.overlap_tokens) / f64::from(ask.prompt_tokens.max(1))).min(1.0)
}
