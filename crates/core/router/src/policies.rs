//! The acting policy, and shadow policies that are evaluated without acting.
//!
//! A shadow sees the same candidates, and its choices are only counted. Caches and queues are those that the
//! acting policy produced. The counts therefore rate single choices, not how a fleet would perform under the
//! shadow; the lab measures that.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use warmroute_policy::{Candidate, Policy, PolicyRequest};
use warmroute_types::Micros;

/// The acting policy and its shadows.
pub(crate) struct Policies<P> {
    acting: CountedPolicy<P>,
    shadows: Box<[CountedPolicy<P>]>,
}

/// A policy and the counts of its choices.
struct CountedPolicy<P> {
    policy: P,
    counts: ChoiceCounts,
}

#[derive(Default)]
struct ChoiceCounts {
    decisions: AtomicU64,
    agreed: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    ttft_us: AtomicU64,
}

/// The sums over a policy's choices, from the predictions for the chosen workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyComparison {
    /// Name of the policy.
    pub policy: &'static str,
    /// Decisions evaluated.
    pub decisions: u64,
    /// Decisions in which it chose the same worker as the acting policy.
    pub agreed: u64,
    /// Sum of prompt tokens.
    pub prompt_tokens: u64,
    /// Sum of tokens predicted in the cache of the chosen workers.
    pub cached_tokens: u64,
    /// Sum of predicted times to first token.
    pub ttft: Micros,
}

impl<P: Policy> Policies<P> {
    pub(crate) fn new(acting: P, shadows: Vec<P>) -> Policies<P> {
        Policies {
            acting: CountedPolicy::from(acting),
            shadows: shadows.into_iter().map(CountedPolicy::from).collect(),
        }
    }

    pub(crate) fn acting(&self) -> &P {
        &self.acting.policy
    }

    /// All policies, the acting one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &P> {
        std::iter::once(&self.acting).chain(&self.shadows).map(|policy| &policy.policy)
    }

    /// Counts what the shadows would have chosen, beside the acting policy's choice.
    pub(crate) fn compare_shadows<'c>(
        &self,
        candidates: impl FnOnce() -> (&'c PolicyRequest, &'c [Candidate]),
        chosen: usize,
    ) {
        if self.shadows.is_empty() {
            return;
        }
        let (request, candidates) = candidates();
        self.acting.counts.count(request, &candidates[chosen], &candidates[chosen]);
        for shadow in &self.shadows {
            let would_be = shadow.policy.choose(request, candidates).index;
            shadow.counts.count(request, &candidates[would_be], &candidates[chosen]);
        }
    }

    /// The counts of each policy, the acting one first; empty without shadows.
    pub(crate) fn policy_comparisons(&self) -> Vec<PolicyComparison> {
        let policies = std::iter::once(&self.acting).chain(&self.shadows);
        policies.filter(|_| !self.shadows.is_empty()).map(CountedPolicy::comparison).collect()
    }
}

impl<P: Policy> CountedPolicy<P> {
    fn comparison(&self) -> PolicyComparison {
        let read = |count: &AtomicU64| count.load(Relaxed);
        PolicyComparison {
            policy: self.policy.name(),
            decisions: read(&self.counts.decisions),
            agreed: read(&self.counts.agreed),
            prompt_tokens: read(&self.counts.prompt_tokens),
            cached_tokens: read(&self.counts.cached_tokens),
            ttft: Micros(read(&self.counts.ttft_us)),
        }
    }
}

impl<P> From<P> for CountedPolicy<P> {
    fn from(policy: P) -> CountedPolicy<P> {
        CountedPolicy { policy, counts: ChoiceCounts::default() }
    }
}

impl ChoiceCounts {
    fn count(&self, request: &PolicyRequest, would_be: &Candidate, chosen: &Candidate) {
        self.decisions.fetch_add(1, Relaxed);
        self.agreed.fetch_add(u64::from(would_be.worker == chosen.worker), Relaxed);
        self.prompt_tokens.fetch_add(request.prompt_tokens.into(), Relaxed);
        self.cached_tokens.fetch_add(would_be.overlap_tokens.min(request.prompt_tokens).into(), Relaxed);
        self.ttft_us.fetch_add((would_be.estimate.ttft_ms() * 1e3) as u64, Relaxed);
    }
}
