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
    acting: Voice<P>,
    shadows: Box<[Voice<P>]>,
}

/// A policy and what its choices amount to.
struct Voice<P> {
    policy: P,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    decisions: AtomicU64,
    agreed: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    ttft_us: AtomicU64,
}

/// What a policy's choices would have amounted to, by what was expected of the workers it chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tallied {
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
        Policies { acting: Voice::from(acting), shadows: shadows.into_iter().map(Voice::from).collect() }
    }

    pub(crate) fn acting(&self) -> &P {
        &self.acting.policy
    }

    /// All of them, the acting one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &P> {
        std::iter::once(&self.acting).chain(&self.shadows).map(|voice| &voice.policy)
    }

    pub(crate) fn choose(&self, ask: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        let choice = self.acting.policy.choose(ask, candidates);
        if !self.shadows.is_empty() {
            self.compare(ask, candidates, choice.index);
        }
        choice
    }

    fn compare(&self, ask: &PolicyRequest, candidates: &[Candidate], chosen: usize) {
        self.acting.tally.count(ask, &candidates[chosen], &candidates[chosen]);
        for shadow in &self.shadows {
            let would_be = shadow.policy.choose(ask, candidates).index;
            shadow.tally.count(ask, &candidates[would_be], &candidates[chosen]);
        }
    }

    /// What each amounts to, the acting one first; nothing where there is nothing to compare.
    pub(crate) fn tallies(&self) -> Vec<Tallied> {
        let voices = std::iter::once(&self.acting).chain(&self.shadows);
        voices.filter(|_| !self.shadows.is_empty()).map(Voice::tallied).collect()
    }
}

impl<P: Policy> Voice<P> {
    fn tallied(&self) -> Tallied {
        let read = |count: &AtomicU64| count.load(Relaxed);
        Tallied {
            policy: self.policy.name(),
            decisions: read(&self.tally.decisions),
            agreed: read(&self.tally.agreed),
            prompt_tokens: read(&self.tally.prompt_tokens),
            cached_tokens: read(&self.tally.cached_tokens),
            ttft: Micros(read(&self.tally.ttft_us)),
        }
    }
}

impl<P> From<P> for Voice<P> {
    fn from(policy: P) -> Voice<P> {
        Voice { policy, tally: Tally::default() }
    }
}

impl Tally {
    fn count(&self, ask: &PolicyRequest, would_be: &Candidate, chosen: &Candidate) {
        self.decisions.fetch_add(1, Relaxed);
        self.agreed.fetch_add(u64::from(would_be.worker == chosen.worker), Relaxed);
        self.prompt_tokens.fetch_add(ask.prompt_tokens.into(), Relaxed);
        self.cached_tokens.fetch_add(would_be.overlap_tokens.min(ask.prompt_tokens).into(), Relaxed);
        self.ttft_us.fetch_add((would_be.estimate.ttft_ms() * 1e3) as u64, Relaxed);
    }
}
