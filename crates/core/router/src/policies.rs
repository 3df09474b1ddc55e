//! The policy that decides, and those that are only asked: shadows.
//!
//! A shadow sees the same candidates in the same section, and what it would have chosen is counted, nothing more. So it
//! sees the world that the acting policy makes: caches are warm where that one has sent prompts, queues are as long as
//! that one has made them. What is counted is therefore how good single choices would have been, not how a fleet under
//! the other policy would have fared; for that there is the lab.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use warmroute_policy::{Candidate, Choice, Policy, PolicyRequest};
use warmroute_types::Micros;

/// One that acts, and any number that do not.
pub(crate) struct Policies<P> {
    acting: CountedPolicy<P>,
    shadows: Box<[CountedPolicy<P>]>,
}

/// A policy and what its choices amount to.
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

/// What a policy's choices would have amounted to, by what was expected of the workers it chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyComparison {
    /// Whose.
    pub policy: &'static str,
    /// Decisions on which it was asked.
    pub decisions: u64,
    /// Those in which it chose the worker that the request went to.
    pub agreed: u64,
    /// Prompt tokens in all.
    pub prompt_tokens: u64,
    /// Of them, those that were expected in the cache of the worker it chose.
    pub cached_tokens: u64,
    /// Times to first token that were expected there, in sum.
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

    /// All of them, the acting one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &P> {
        std::iter::once(&self.acting).chain(&self.shadows).map(|voice| &voice.policy)
    }

    pub(crate) fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let choice = self.acting.policy.choose(request, candidates);
        if !self.shadows.is_empty() {
            self.compare(request, candidates, choice.index);
        }
        choice
    }

    fn compare(&self, request: &PolicyRequest, candidates: &[Candidate], chosen: usize) {
        self.acting.counts.count(request, &candidates[chosen], &candidates[chosen]);
        for shadow in &self.shadows {
            let would_be = shadow.policy.choose(request, candidates).index;
            shadow.counts.count(request, &candidates[would_be], &candidates[chosen]);
        }
    }

    /// What each amounts to, the acting one first; nothing where there is nothing to compare.
    pub(crate) fn policy_comparisons(&self) -> Vec<PolicyComparison> {
        let voices = std::iter::once(&self.acting).chain(&self.shadows);
        voices.filter(|_| !self.shadows.is_empty()).map(CountedPolicy::comparison).collect()
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
