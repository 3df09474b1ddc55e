//! The latency model: how many milliseconds a prefill takes, learned from the prefills that were observed.
//!
//! ```text
//! prefill_ms = coefficients · features(tokens to compute, context, running answers, ...)
//! ```
//!
//! The coefficients are a robust least-squares fit over a window of recent observations. No feature can make a prefill
//! cheaper, so every coefficient is at least zero. Five rules keep a few bad observations from spoiling the fit:
//!
//! * An observation counts by its relative error, so short and long prefills count alike.
//! * An observation far from the fit is pulled towards it and weighs less. Both are computed anew at every fit, so an
//!   observation that was an outlier to a wrong fit counts in full once the fit is right.
//! * When most of the latest observations are off by the same factor, the engine's speed has changed, or the prior was wrong: the
//!   whole model is multiplied by that factor at once and older observations are dropped.
//! * Features that the observations do not tell apart (all prompts alike) keep the proportions of the prior.
//! * Short prompts do not tell what a token costs: most of their time is overhead, which a busy machine multiplies. While
//!   there are no others, the price of a token stays within a factor of what is known, and the rest is overhead.
//!
//! A prefill that was predicted to be cached and was not takes a hundred times as long, and says nothing about the engine's speed.
//! So a step of prefills is observed twice: at its first token with predicted cached tokens, or with none where that explains the time
//! better, at a small weight; and when its answers have ended with the cached tokens that the engine reported, in full.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::ratios::{RESOLUTION_MS, log_ratio, median, resolved};

/// Number of features of a prefill.
pub(crate) const FEATURES: usize = 8;

/// The features of a prefill, or the sum over several that were computed in one step.
pub(crate) type FeatureVector = [f64; FEATURES];

/// What the duration of a prefill depends on: predicted when the request is routed, observed when its answer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefillFeatures {
    /// Prompt tokens to compute.
    pub miss_tokens: u32,
    /// Prompt tokens before those, which attention reads.
    pub cached_tokens: u32,
    /// The part of the cached tokens that must be fetched from a slower tier first.
    pub restored_tokens: u32,
    /// Answers that the engine decodes meanwhile.
    pub decoding: u32,
    /// Context tokens of those answers, read at each step.
    pub context_tokens: u64,
    /// The whole prompt's tokens if the KV cache must evict running requests to fit it; else 0.
    pub crowded_tokens: u32,
    /// Where in the engine's prefill queue the prompt was.
    pub position: QueuePosition,
}

/// Where a prompt is in its engine's prefill queue when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueuePosition {
    /// The queue is empty: the prompt has to be sent, and to wait for the current step to end.
    #[default]
    Head,
    /// Another prompt is computed first: this one is in the engine already when that ends.
    Behind,
}

/// What an engine reported about one prompt after it had computed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedPrompt {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: u32,
    /// How many of them the engine found in its cache.
    pub cached_tokens: u32,
}

impl PrefillFeatures {
    #[inline]
    pub(crate) fn vector(&self) -> FeatureVector {
        let miss = f64::from(self.miss_tokens);
        let (head, behind) = match self.position {
            QueuePosition::Head => (1.0, 0.0),
            QueuePosition::Behind => (0.0, 1.0),
        };
        [
            head,
            behind,
            miss / 1e3,
            miss * (f64::from(self.cached_tokens) + miss / 2.0) / 1e6,
            f64::from(self.restored_tokens) / 1e3,
            f64::from(self.decoding) / 10.0,
            self.context_tokens as f64 / 1e5,
            f64::from(self.crowded_tokens) / 1e3,
        ]
    }

    /// The same prefill with the cached tokens that the engine reported. Engines count restored tokens as cached.
    pub(crate) fn observed(&self, prompt: ObservedPrompt) -> PrefillFeatures {
        let cached_tokens = prompt.cached_tokens.min(prompt.prompt_tokens);
        let on_gpu = self.cached_tokens.saturating_sub(self.restored_tokens);
        PrefillFeatures {
            miss_tokens: prompt.prompt_tokens - cached_tokens,
            cached_tokens,
            restored_tokens: self.restored_tokens.min(cached_tokens.saturating_sub(on_gpu)),
            ..*self
        }
    }

    /// The same prefill if nothing of the prompt was cached.
    pub fn cold(&self) -> PrefillFeatures {
        PrefillFeatures {
            miss_tokens: self.miss_tokens.saturating_add(self.cached_tokens),
            cached_tokens: 0,
            restored_tokens: 0,
            ..*self
        }
    }
}

/// The learned cost of a prefill: milliseconds for each feature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillCost {
    pub(crate) ms: [f32; FEATURES],
    /// The cost of a typical prefill, as a multiple of the prior's. Known well even while single coefficients are not.
    pub(crate) scale: f32,
}

/// What one more answer adds to a decode step of the prior's machine.
const STEP_SEQUENCE_MS: f32 = 0.01;
/// What one more token of context adds to it.
const STEP_CONTEXT_MS: f32 = 2.9e-5;

impl PrefillCost {
    /// The prior: roughly an 8-billion-parameter model on one large GPU. Decisions compare workers, so a prior that is wrong
    /// by the same factor for all of them does little harm, and three answers correct that factor.
    pub(crate) const PRIOR: PrefillCost =
        PrefillCost { ms: [6.0, 1.0, 25.0, 0.7, 5.0, 0.1, 3.0, 0.0], scale: 1.0 };

    /// Milliseconds from the start of a prefill to its first token.
    #[inline]
    pub fn prefill_ms(&self, features: &PrefillFeatures) -> f32 {
        self.prefill_from_ms(self.prompt_ms(features), features)
    }

    /// The part of [`PrefillCost::prefill_ms`] that depends on the prompt, its cached tokens and its position only.
    #[inline]
    pub fn prompt_ms(&self, features: &PrefillFeatures) -> f32 {
        let [head, behind, ..] = self.ms;
        let first = match features.position {
            QueuePosition::Head => head,
            QueuePosition::Behind => behind,
        };
        first + self.uncached_ms(features)
    }

    /// The part of it that depends on what is cached.
    #[inline]
    pub fn uncached_ms(&self, features: &PrefillFeatures) -> f32 {
        let [_, _, computed, attended, restored, ..] = self.ms;
        // The same as the product with the vector, without divisions: this is computed for every candidate of a decision.
        let miss = features.miss_tokens as f32;
        computed * (miss * 1e-3)
            + attended * (miss * (features.cached_tokens as f32 + miss / 2.0) * 1e-6)
            + restored * (features.restored_tokens as f32 * 1e-3)
    }

    /// [`PrefillCost::prefill_ms`], given that part.
    #[inline]
    pub fn prefill_from_ms(&self, prompt_ms: f32, features: &PrefillFeatures) -> f32 {
        let [.., decoding, context, crowded] = self.ms;
        let context_tokens = features.context_tokens.min(i64::MAX as u64) as i64 as f32;
        prompt_ms
            + decoding * (features.decoding as f32 * 1e-1)
            + context * (context_tokens * 1e-5)
            + crowded * (features.crowded_tokens as f32 * 1e-3)
    }

    /// Milliseconds that a request adds to one decode step, summed over all running answers and its own. Times to first tokens
    /// tell too little about decode steps to learn this from, so it is the prior's, scaled.
    #[inline]
    pub fn step_ms(&self, features: &PrefillFeatures) -> f32 {
        let decoding = features.decoding as f32;
        let prompt_tokens = (features.miss_tokens + features.cached_tokens) as f32;
        let context_tokens =
            features.context_tokens.min(i64::MAX as u64) as i64 as f32 + decoding * prompt_tokens;
        self.scale * (2.0 * STEP_SEQUENCE_MS * decoding + STEP_CONTEXT_MS * context_tokens)
    }
}

/// A [`PrefillCost`] that decisions read without a lock while it is learned. Readers may see coefficients of two successive
/// fits mixed; both are valid estimates.
#[derive(Debug)]
pub(crate) struct SharedCost {
    ms: [AtomicU32; FEATURES],
    scale: AtomicU32,
}

impl Default for SharedCost {
    fn default() -> SharedCost {
        let shared = SharedCost { ms: Default::default(), scale: AtomicU32::new(0) };
        shared.set(PrefillCost::PRIOR);
        shared
    }
}

impl SharedCost {
    pub(crate) fn get(&self) -> PrefillCost {
        let read = |cell: &AtomicU32| f32::from_bits(cell.load(Relaxed));
        PrefillCost { ms: std::array::from_fn(|at| read(&self.ms[at])), scale: read(&self.scale) }
    }

    pub(crate) fn set(&self, cost: PrefillCost) {
        self.ms.iter().zip(cost.ms).for_each(|(cell, ms)| cell.store(ms.to_bits(), Relaxed));
        self.scale.store(cost.scale.to_bits(), Relaxed);
    }
}

/// Observations that the fit looks at.
const WINDOW: usize = 96;
/// Each observation keeps this share of its weight with each one after it.
const FADING: f64 = 0.985;
/// The latest observations, which show whether the speed has changed.
const LATEST: usize = 12;
/// The fewest that can show it.
const LATEST_MIN: usize = 3;
/// The speed has changed if two thirds of the latest observations are off by more than this factor in the same direction and
/// their median by more than [`CHANGED_FACTOR`].
const OFF_FACTOR: f64 = 1.15;
/// See [`OFF_FACTOR`].
const CHANGED_FACTOR: f64 = 1.35;
/// An observation that is off by less is within [`OFF_FACTOR`], however its logarithm is rounded.
const WITHIN_FACTOR: f64 = 1.149;
/// One change multiplies the model by no more than this.
const CHANGE_FACTOR_MAX: f64 = 16.0;
/// Up to this factor from the fit, an observation counts in full.
const FITTING_FACTOR: f64 = 1.5;
/// An observation is pulled in to this factor from the fit.
const PULL_FACTOR: f64 = 4.0;
/// The anchor counts as this many observations.
const ANCHOR_WEIGHT: f64 = 1.0;
/// An observation whose cached tokens are not known counts as this much of one whose are.
const UNVERIFIED_WEIGHT: f64 = 0.25;
/// Rounds of reweighting for each fit, and of coordinate descent in each.
const REWEIGHTING_ROUNDS: usize = 2;
const DESCENT_ROUNDS: usize = 6;
/// From this many observations and corrections on, the fit is renewed only with every [`FIT_EVERY`]th.
const FIT_ALWAYS_UNTIL: u64 = 128;
const FIT_EVERY: u64 = 16;
/// Steps with fewer thousands of tokens are short.
const SHORT_STEP: f64 = 0.25;
/// Short steps alone change the price of a token by no more than this factor.
const SHORT_FACTOR: f64 = 4.0;
/// The features whose coefficients short steps do not tell: prompts behind others, tokens, and their attention.
const UNTOLD: [usize; 3] = [1, 2, 3];
/// Bounds of restored coefficients; larger ones are corrupt.
const RESTORED_MAX: f64 = 1e6;

/// One engine kind's latency model.
#[derive(Clone, Debug)]
pub(crate) struct LatencyModel {
    /// In the order of their numbers.
    window: VecDeque<Observation>,
    next_number: u64,
    coefficients: FeatureVector,
    /// Where coefficients stay that the observations do not determine: the prior, or what was restored, scaled with every
    /// change of speed.
    anchor: FeatureVector,
    /// The coefficients when steps that are not short last told them; before, the prior or what was restored.
    told: FeatureVector,
    /// Observations and corrections so far.
    lessons: u64,
}

/// One step's prefills: their features in sum, and what they took.
#[derive(Clone, Copy, Debug)]
struct Observation {
    number: u64,
    features: FeatureVector,
    took_ms: f64,
    weight: f64,
}

/// Prefills whose first tokens came together: one step has computed them, and its duration is theirs in sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedStep {
    /// With the cached tokens that engines have reported, and predicted ones for prompts of which nothing was reported.
    pub features: FeatureVector,
    /// The same, if nothing was cached of the prompts of which nothing was reported.
    pub features_if_cold: FeatureVector,
    pub took_ms: f64,
    pub verified: Verified,
}

/// Whether the cached tokens of a step are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verified {
    /// The engine reported them for every prompt of the step.
    Yes,
    /// They are predictions.
    No,
}

impl LatencyModel {
    /// A model that has observed nothing.
    pub(crate) fn new() -> LatencyModel {
        let prior = PrefillCost::PRIOR.ms.map(f64::from);
        LatencyModel {
            window: VecDeque::with_capacity(WINDOW),
            next_number: 0,
            coefficients: prior,
            anchor: prior,
            told: prior,
            lessons: 0,
        }
    }

    /// Learns from a step; returns the number under which more that becomes known of it can be added by [`LatencyModel::revise`].
    pub(crate) fn observe(&mut self, step: &ObservedStep) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.insert(number, step);
        number
    }

    /// More is known of a step: its answers have reported their cached tokens, or another first token belongs to it.
    pub(crate) fn revise(&mut self, number: u64, step: &ObservedStep) {
        if let Ok(at) = self.window.binary_search_by_key(&number, |seen| seen.number) {
            self.window.remove(at);
            self.insert(number, step);
        } else {
            // The answers took longer than the window lasts: the step counts as a new one.
            self.observe(step);
        }
    }

    fn insert(&mut self, number: u64, step: &ObservedStep) {
        if !step.took_ms.is_finite() || step.took_ms < 0.0 {
            return;
        }
        let weight = if step.verified == Verified::Yes { 1.0 } else { UNVERIFIED_WEIGHT };
        let features = *self.explanation(step, 1.0);
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        let at = self.window.partition_point(|seen| seen.number < number);
        self.window.insert(at, Observation { number, features, took_ms: step.took_ms, weight });
        self.lessons += 1;
        if let Some(factor) = self.changed_factor() {
            self.scale_by(factor);
            self.fit();
        } else if self.lessons <= FIT_ALWAYS_UNTIL || self.lessons.is_multiple_of(FIT_EVERY) {
            self.fit();
        }
    }

    /// The features of a step. Where the engine did not report cached tokens, either the predictions were right or nothing was cached:
    /// the explanation that is nearer to the observed time, on a worker of this relative latency.
    pub(crate) fn explanation<'a>(&self, step: &'a ObservedStep, relative: f64) -> &'a FeatureVector {
        let off = |features| log_ratio(step.took_ms, relative * self.expected_ms(features)).abs();
        let is_cold = step.verified == Verified::No && off(&step.features_if_cold) < off(&step.features);
        if is_cold { &step.features_if_cold } else { &step.features }
    }

    /// By which factor most of the latest observations are off, if that is a change of speed.
    fn changed_factor(&self) -> Option<f64> {
        let latest = || self.window.iter().rev().take(LATEST);
        let needed = LATEST_MIN.max((2 * latest().len()).div_ceil(3));
        if !self.may_be_shifted(latest(), needed) {
            return None;
        }
        let mut logs = [0.0; LATEST];
        for (log, seen) in logs.iter_mut().zip(latest()) {
            *log = log_ratio(seen.took_ms, self.expected_ms(&seen.features));
        }
        let logs = &mut logs[..latest().len()];
        let off = OFF_FACTOR.ln();
        let is_shifted = logs.iter().filter(|log| **log > off).count() >= needed
            || logs.iter().filter(|log| **log < -off).count() >= needed;
        let median = median(logs)?.clamp(-CHANGE_FACTOR_MAX.ln(), CHANGE_FACTOR_MAX.ln());
        (is_shifted && median.abs() > CHANGED_FACTOR.ln()).then(|| median.exp())
    }

    /// Whether so many observations may be off in the same direction. Nearly always they are not, and ratios show it
    /// without logarithms; [`WITHIN_FACTOR`] leaves a margin for their rounding.
    fn may_be_shifted<'a>(&self, latest: impl Iterator<Item = &'a Observation>, needed: usize) -> bool {
        let (mut slower, mut faster) = (0, 0);
        for seen in latest {
            let (took_ms, expected_ms) = resolved(seen.took_ms, self.expected_ms(&seen.features));
            slower += usize::from(took_ms > WITHIN_FACTOR * expected_ms);
            faster += usize::from(expected_ms > WITHIN_FACTOR * took_ms);
        }
        slower >= needed || faster >= needed
    }

    /// The engine is so many times slower: older observations are of another speed.
    fn scale_by(&mut self, factor: f64) {
        let older = self.window.len().saturating_sub(LATEST);
        self.window.drain(..older);
        for coefficient in self.coefficients.iter_mut().chain(&mut self.anchor) {
            *coefficient = (*coefficient * factor).min(RESTORED_MAX);
        }
        let Some(bounds) = self.bounds() else { return };
        let wanted = self.coefficients;
        for at in UNTOLD {
            self.coefficients[at] = self.coefficients[at].clamp(bounds[at].0, bounds[at].1);
            self.anchor[at] = self.anchor[at].clamp(bounds[at].0, bounds[at].1);
        }
        // The rest of the change is overhead.
        let rest = |seen: &Observation| dot(&seen.features, &wanted) - self.expected_ms(&seen.features);
        let mut rests: Vec<f64> = self.window.iter().map(rest).collect();
        let rest = median(&mut rests).unwrap_or(0.0);
        self.coefficients[0] = (self.coefficients[0] + rest).clamp(0.0, RESTORED_MAX);
        self.anchor[0] = (self.anchor[0] + rest).clamp(0.0, RESTORED_MAX);
    }

    /// Bounds of the coefficients while all steps are short; `None` if others tell them.
    fn bounds(&self) -> Option<[(f64, f64); FEATURES]> {
        let are_all = |is_one: fn(&Observation) -> bool| self.window.iter().all(is_one);
        if !are_all(|seen| seen.features[2] < SHORT_STEP) {
            return None;
        }
        let mut bounds = [(0.0, RESTORED_MAX); FEATURES];
        // Prompts behind others have shown what they cost.
        let untold = UNTOLD.into_iter().filter(|at| *at != 1 || are_all(|seen| seen.features[1] == 0.0));
        untold.for_each(|at| bounds[at] = (self.told[at] / SHORT_FACTOR, self.told[at] * SHORT_FACTOR));
        Some(bounds)
    }

    /// Renews the coefficients from the window, starting from the present ones.
    fn fit(&mut self) {
        let bounds = self.bounds();
        let limits = bounds.unwrap_or([(0.0, RESTORED_MAX); FEATURES]);
        for _ in 0..REWEIGHTING_ROUNDS {
            let sums = Sums::of(&self.window, &self.coefficients);
            sums.descend(&mut self.coefficients, &self.anchor, &limits);
        }
        if bounds.is_none() {
            self.told = self.coefficients;
        }
    }

    /// Whether enough was observed to compare single workers with the model.
    pub(crate) fn is_known(&self) -> bool {
        self.window.len() >= LATEST
    }

    /// Milliseconds that the model expects of these features.
    pub(crate) fn expected_ms(&self, features: &FeatureVector) -> f64 {
        dot(features, &self.coefficients)
    }

    /// The model as decisions use it.
    pub(crate) fn cost(&self) -> PrefillCost {
        let prior = PrefillCost::PRIOR.ms.map(f64::from);
        let typical = PrefillFeatures { miss_tokens: 1_000, ..PrefillFeatures::default() }.vector();
        let scale = self.expected_ms(&typical) / dot(&typical, &prior);
        PrefillCost { ms: self.coefficients.map(|ms| ms as f32), scale: scale as f32 }
    }

    /// The model as numbers, for a saved state.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        self.coefficients.to_vec()
    }

    /// The model that [`LatencyModel::numbers`] wrote; `None` for numbers that are not one.
    pub(crate) fn of_numbers(numbers: &[f64]) -> Option<LatencyModel> {
        let coefficients = FeatureVector::try_from(numbers).ok()?;
        let is_sane = coefficients.iter().all(|number| (0.0..=RESTORED_MAX).contains(number));
        is_sane.then(|| LatencyModel {
            coefficients,
            anchor: coefficients,
            told: coefficients,
            ..LatencyModel::new()
        })
    }
}

/// Weighted sums over the window: the normal equations of the fit.
struct Sums {
    products: [FeatureVector; FEATURES],
    moments: FeatureVector,
    weight: f64,
}

impl Sums {
    fn of(window: &VecDeque<Observation>, coefficients: &FeatureVector) -> Sums {
        let mut sums = Sums { products: [[0.0; FEATURES]; FEATURES], moments: [0.0; FEATURES], weight: 0.0 };
        let mut fading = 1.0;
        for seen in window.iter().rev() {
            let expected_ms = dot(&seen.features, coefficients);
            let log = log_ratio(seen.took_ms, expected_ms);
            let pulled = log.clamp(-PULL_FACTOR.ln(), PULL_FACTOR.ln()).exp();
            let took_ms = (pulled * (expected_ms + RESOLUTION_MS) - RESOLUTION_MS).max(0.0);
            let fitting = (FITTING_FACTOR.ln() / log.abs().max(1e-9)).min(1.0);
            let weight = seen.weight * fading * fitting;
            sums.add(&seen.features, took_ms, weight, weight / (expected_ms + RESOLUTION_MS).powi(2));
            fading *= FADING;
        }
        sums
    }

    fn add(&mut self, features: &FeatureVector, took_ms: f64, weight: f64, relative: f64) {
        self.weight += weight;
        // Several features of a step are mostly zero and would add nothing.
        for row in (0..FEATURES).filter(|&row| features[row] != 0.0) {
            let weighted = relative * features[row];
            for (sum, feature) in self.products[row].iter_mut().zip(features) {
                *sum += weighted * feature;
            }
            self.moments[row] += weighted * took_ms;
        }
    }

    /// Sets one coefficient after another to its optimum within its limits while the others stay.
    fn descend(
        &self,
        coefficients: &mut FeatureVector,
        anchor: &FeatureVector,
        limits: &[(f64, f64); FEATURES],
    ) {
        for at in (0..DESCENT_ROUNDS).flat_map(|_| 0..FEATURES) {
            let product = self.products[at][at];
            let others = dot(&self.products[at], coefficients) - product * coefficients[at];
            let held = ANCHOR_WEIGHT * product.max(1e-9) / self.weight.max(1.0);
            let moment = self.moments[at] - others + held * anchor[at];
            coefficients[at] = (moment / (product + held)).clamp(limits[at].0, limits[at].1);
        }
    }
}

fn dot(a: &FeatureVector, b: &FeatureVector) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests;
