//! Routing policies: which worker gets this request?
//!
//! A policy decides from numbers alone: those of the request ([`PolicyRequest`]) and of each ready worker
//! ([`Candidate`]). It owns no tree, thread, clock or connection. Every policy is therefore a short pure
//! function that a table of cases can test, and the lab runs the rules of other routers through the same
//! trait.
//!
//! One policy per file. [`Standard`] lists the policies that the gateway offers by name.

mod cache_aware;
mod dual_choice;
mod expected_ttft;
mod least_loaded;
mod numbers;
mod parameters;
mod power_of_two;
mod prefix_affinity;
mod product;
mod random;
mod rendezvous;
mod round_robin;
mod session_affinity;
mod settings;
mod standard;
mod sticky_least_loaded;
mod weighted_score;

pub use cache_aware::{Balance, CacheAware, Worth};
pub use dual_choice::DualChoice;
pub use expected_ttft::{CostTerm, ExpectedTtft, Score};
pub use least_loaded::{LeastLoaded, LoadSignal};
pub use numbers::{Candidate, Choice, Estimate, PolicyRequest, least_by};
pub use power_of_two::PowerOfTwo;
pub use prefix_affinity::PrefixAffinity;
pub use product::Product;
pub use random::Random;
pub use rendezvous::LoadBound;
pub use round_robin::RoundRobin;
pub use session_affinity::SessionAffinity;
pub use settings::PolicySettings;
pub use standard::{BadPolicy, Standard};
pub use sticky_least_loaded::{HitRule, StickyLeastLoaded};
pub use weighted_score::WeightedScore;

/// A rule that picks one of the candidates.
pub trait Policy: Send + Sync {
    /// The name in configuration, metrics and decision headers.
    fn name(&self) -> &'static str;

    /// Picks one candidate. `candidates` is never empty, and its order is stable while the fleet is.
    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice;

    /// Whether this is [`ExpectedTtft`] with all its terms. Its choice follows from scores alone
    /// ([`ExpectedTtft::choose_scored`]), so the router makes no candidates for it.
    fn is_expected_ttft(&self) -> bool {
        false
    }
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        (**self).choose(request, candidates)
    }

    fn is_expected_ttft(&self) -> bool {
        (**self).is_expected_ttft()
    }
}
