//! What a prompt costs, learned from what prompts have cost.
//!
//! Two things are learned. What prompts of all kinds take on the fleet's machines: a least-squares fit of milliseconds on a few
//! features of the request and of the batch it joins, none of which can make a prompt cheaper, so every coefficient is
//! held at or above zero. And how many times as long each worker takes: one number, because one worker's answers are
//! too few and too much alike to tell eight coefficients from noise, and whoever noise made look fast would be given all the work.
//!
//! Old observations fade, so that what has changed is learned anew; each counts by its relative error, so that a hundred
//! short prompts say as much about short prompts as a long one says about long ones; and one that is far off is pulled in, so
//! that a single stall does not rewrite what is known.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What a prompt's time may depend on.
pub(crate) const FEATURES: usize = 8;

/// The features of a prompt, or of several that were computed together, in sum.
pub(crate) type Features = [f64; FEATURES];

/// What is known of a request when its time is asked for, and again when it is learned from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Effort {
    /// Prompt tokens to compute.
    pub miss_tokens: u32,
    /// Prompt tokens before those, which they have to look at.
    pub cached_tokens: u32,
    /// Of these, what must be fetched from slower memory.
    pub restored_tokens: u32,
    /// Answers that are being written meanwhile.
    pub decoding: u32,
    /// Tokens of context that they read at each step.
    pub context_tokens: u64,
    /// The whole prompt's tokens, if others must leave the worker's memory before it fits; else 0.
    pub crowded_tokens: u32,
    /// Where it stands.
    pub place: Place,
}

/// Where a prompt stood when its time began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Nothing was before it: it had to be sent, and to wait for a step to end.
    #[default]
    First,
    /// Another prompt was: it was there already when that one was done.
    Behind,
}

/// What prompts take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Milliseconds for each feature.
    pub(crate) ms: [f32; FEATURES],
    /// How many times as long as [`Speed::UNKNOWN`] they take in all. Unlike the single coefficients, of which one may stand
    /// for another while all prompts are alike, this is always well known.
    pub(crate) slowness: f32,
}

/// How many times as long as the fleet's [`Speed`] one worker takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slowness {
    ratio: f64,
    weight: f64,
}

/// An observation keeps so much of its weight with each one after it.
const FADING: f64 = 0.99;
/// That a worker is like the others counts as so many observations.
const ALIKE_WEIGHT: f64 = 10.0;
/// A worker that takes so much longer or shorter may still be like the others.
const ALIKE_RATIO: f64 = 0.05;
/// What was believed before anything was seen counts as so much of one observation.
const UNKNOWN_WEIGHT: f64 = 0.2;
/// An observation is pulled in to so many times what was expected.
const OUTLIER_FACTOR: f64 = 4.0;
/// The first observations are taken as they are: what they are compared with is a guess.
const TRUSTING: f64 = 6.0;
/// So many observations make a fit that workers can be compared with.
const KNOWN: f64 = 20.0;
/// Times below this are all alike.
const RESOLUTION_MS: f64 = 4.0;
/// What was saved, and is beyond these, was learned from no machine: so many milliseconds for a feature, or times as long as others; and so much in a
/// sum of squares. Numbers that are kept for later are made from them, and must stay finite.
const TIMES_MAX: f64 = 1e6;
const SUM_MAX: f64 = 1e24;
/// Rounds of coordinate descent for each observation, from where the last one ended.
const ROUNDS: usize = 4;

impl Effort {
    pub(crate) fn features(&self) -> Features {
        let miss = f64::from(self.miss_tokens);
        let (first, behind) = match self.place {
            Place::First => (1.0, 0.0),
            Place::Behind => (0.0, 1.0),
        };
        [
            first,
            behind,
            miss / 1e3,
            miss * (f64::from(self.cached_tokens) + miss / 2.0) / 1e6,
            f64::from(self.restored_tokens) / 1e3,
            f64::from(self.decoding) / 10.0,
            self.context_tokens as f64 / 1e5,
            f64::from(self.crowded_tokens) / 1e3,
        ]
    }
}

impl Speed {
    /// Before anything is known: an 8-billion-parameter model on one large GPU, roughly. What compares workers is the same at
    /// any speed, and a few answers are enough to know better.
    pub(crate) const UNKNOWN: Speed = Speed { ms: [6.0, 1.0, 25.0, 0.7, 5.0, 0.1, 3.0, 0.0], slowness: 1.0 };

    /// Milliseconds until the first token, once it is this prompt's turn.
    pub fn prefill_ms(&self, effort: &Effort) -> f32 {
        let terms = self.ms.iter().zip(effort.features());
        terms.map(|(ms, feature)| ms * feature as f32).sum()
    }

    /// Milliseconds that a request adds to one token of every answer, its own included. In what a step of the unknown
    /// machine takes: what times to first tokens tell about steps is too little to learn it from them.
    pub fn step_ms(&self, effort: &Effort) -> f32 {
        let decoding = effort.decoding as f32;
        let prompt_tokens = (effort.miss_tokens + effort.cached_tokens) as f32;
        let context_tokens = effort.context_tokens as f32 + decoding * prompt_tokens;
        self.slowness * (2.0 * STEP_SEQUENCE_MS * decoding + STEP_CONTEXT_MS * context_tokens)
    }
}

/// A speed that decisions read while it is learned. Each number stands for itself: one that is an answer older does no harm.
#[derive(Debug)]
pub(crate) struct SharedSpeed {
    ms: [AtomicU32; FEATURES],
    slowness: AtomicU32,
}

impl Default for SharedSpeed {
    fn default() -> SharedSpeed {
        let shared = SharedSpeed { ms: Default::default(), slowness: AtomicU32::new(0) };
        shared.set(Speed::UNKNOWN);
        shared
    }
}

impl SharedSpeed {
    pub(crate) fn get(&self) -> Speed {
        let read = |cell: &AtomicU32| f32::from_bits(cell.load(Relaxed));
        Speed { ms: std::array::from_fn(|at| read(&self.ms[at])), slowness: read(&self.slowness) }
    }

    pub(crate) fn set(&self, speed: Speed) {
        self.ms.iter().zip(speed.ms).for_each(|(cell, ms)| cell.store(ms.to_bits(), Relaxed));
        self.slowness.store(speed.slowness.to_bits(), Relaxed);
    }
}

/// What one more answer adds to a step of the unknown machine.
const STEP_SEQUENCE_MS: f32 = 0.01;
/// What one more token of context adds.
const STEP_CONTEXT_MS: f32 = 2.9e-5;

/// Weighted sums over all observations, from which the coefficients follow.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    products: [Features; FEATURES],
    moments: Features,
    weight: f64,
    coefficients: Features,
    slowness: f64,
}

impl Fit {
    /// Nothing seen.
    pub(crate) fn new() -> Fit {
        let believed = Speed::UNKNOWN;
        Fit {
            products: [[0.0; FEATURES]; FEATURES],
            moments: [0.0; FEATURES],
            weight: 0.0,
            coefficients: believed.ms.map(f64::from),
            slowness: f64::from(believed.slowness),
        }
    }

    /// Takes in what prompts have cost.
    pub(crate) fn learn(&mut self, features: &Features, took_ms: f64) {
        let took = took_ms.clamp(0.0, self.believable_ms(features));
        let unknown = dot(features, &Speed::UNKNOWN.ms.map(f64::from)) + RESOLUTION_MS;
        let weight = unknown.powi(-2);
        self.weight = self.weight * FADING + 1.0;
        for row in 0..FEATURES {
            for column in 0..FEATURES {
                let sum = &mut self.products[row][column];
                *sum = *sum * FADING + weight * features[row] * features[column];
            }
            self.moments[row] = self.moments[row] * FADING + weight * features[row] * took;
        }
        self.slowness += ((took + RESOLUTION_MS) / unknown - self.slowness) / self.weight.max(1.0);
        self.solve();
    }

    /// More than this is somebody's fault, not the worker's pace.
    fn believable_ms(&self, features: &Features) -> f64 {
        if self.weight < TRUSTING {
            return f64::INFINITY;
        }
        OUTLIER_FACTOR * (self.expected_ms(features) + RESOLUTION_MS)
    }

    /// Sets one coefficient after another to what the observations want of it while the others stay.
    fn solve(&mut self) {
        for at in (0..ROUNDS).flat_map(|_| 0..FEATURES) {
            let product = self.products[at][at];
            let others = dot(&self.products[at], &self.coefficients) - product * self.coefficients[at];
            let believed = UNKNOWN_WEIGHT * product.max(1e-6) / self.weight.max(1.0);
            let moment = self.moments[at] - others + believed * f64::from(Speed::UNKNOWN.ms[at]);
            self.coefficients[at] = (moment / (product + believed)).max(0.0);
        }
    }

    /// Whether enough was seen to compare somebody with it.
    pub(crate) fn is_known(&self) -> bool {
        self.weight >= KNOWN
    }

    /// What is expected of these features.
    pub(crate) fn expected_ms(&self, features: &Features) -> f64 {
        dot(features, &self.coefficients)
    }

    /// All of it, as numbers.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        let sums = self.products.iter().flatten().chain(&self.moments).chain(&self.coefficients);
        sums.copied().chain([self.weight, self.slowness]).collect()
    }

    /// What these numbers stand for; `None` where they are of something else, or of no machine.
    pub(crate) fn of_numbers(numbers: &[f64]) -> Option<Fit> {
        let (products, rest) = numbers.split_at_checked(FEATURES * FEATURES)?;
        let (moments, rest) = rest.split_at_checked(FEATURES)?;
        let (coefficients, rest) = rest.split_at_checked(FEATURES)?;
        let &[weight, slowness] = rest else { return None };
        let is_sane = numbers.iter().all(|number| (0.0..=SUM_MAX).contains(number))
            && coefficients.iter().chain([&slowness]).all(|number| *number <= TIMES_MAX);
        if !is_sane {
            return None;
        }
        let mut fit = Fit { weight, slowness, ..Fit::new() };
        fit.products.as_flattened_mut().copy_from_slice(products);
        fit.moments.copy_from_slice(moments);
        fit.coefficients.copy_from_slice(coefficients);
        Some(fit)
    }

    /// What has been learned.
    pub(crate) fn speed(&self) -> Speed {
        Speed { ms: self.coefficients.map(|ms| ms as f32), slowness: self.slowness as f32 }
    }
}

impl Slowness {
    /// Like the others.
    pub(crate) const NONE: Slowness = Slowness { ratio: 1.0, weight: 0.0 };

    /// As numbers.
    pub(crate) fn numbers(&self) -> [f64; 2] {
        [self.ratio, self.weight]
    }

    /// What these numbers stand for; like the others, where they are of no worker.
    pub(crate) fn of_numbers([ratio, weight]: [f64; 2]) -> Slowness {
        let is_sane = (0.0..=TIMES_MAX).contains(&ratio) && (0.0..=SUM_MAX).contains(&weight);
        if is_sane { Slowness { ratio, weight } } else { Slowness::NONE }
    }

    /// Takes in what a worker took where the fleet would have taken so long.
    pub(crate) fn learn(&mut self, took_ms: f64, fleet_ms: f64) {
        let seen = (took_ms + RESOLUTION_MS) / (fleet_ms + RESOLUTION_MS);
        let seen = if self.weight < TRUSTING { seen } else { seen.min(OUTLIER_FACTOR * self.ratio) };
        self.weight = self.weight * FADING + 1.0;
        self.ratio += (seen - self.ratio) / (self.weight + ALIKE_WEIGHT);
    }

    /// The same as a guess, which a few answers will correct.
    pub(crate) fn doubted(self) -> Slowness {
        Slowness { weight: 0.0, ..self }
    }

    /// How many times as long it takes. Small differences are noise, and whoever noise makes look fast would be given all
    /// that is new: so much is taken from every difference.
    pub(crate) fn ratio(&self) -> f64 {
        let apart = (self.ratio - 1.0).abs();
        1.0 + (self.ratio - 1.0).signum() * (apart - ALIKE_RATIO).max(0.0)
    }
}

fn dot(a: &Features, b: &Features) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prompts that take so long for a token, and now and then fifty times as long.
    fn taught(fit: &mut Fit, token_ms: f64, observations: u32) {
        for n in 0..observations {
            let effort = effort(n);
            let stall = if n % 29 == 28 { 50.0 } else { 1.0 };
            fit.learn(&effort.features(), truth(&effort, token_ms) * stall);
        }
    }

    fn effort(n: u32) -> Effort {
        Effort { miss_tokens: (n * 7_919) % 6_000, cached_tokens: (n * 31) % 5_000, ..Effort::default() }
    }

    fn truth(effort: &Effort, token_ms: f64) -> f64 {
        8.0 + f64::from(effort.miss_tokens) * token_ms
    }

    fn error(fit: &Fit, token_ms: f64) -> f64 {
        let error = |n| f64::from(fit.speed().prefill_ms(&effort(n))) / truth(&effort(n), token_ms) - 1.0;
        (0..50).map(error).map(f64::abs).sum::<f64>() / 50.0
    }

    #[test]
    fn a_pace_is_learned_from_a_few_answers_whatever_it_is() {
        for token_ms in [0.002, 0.02, 0.2, 2.0] {
            let mut fit = Fit::new();
            taught(&mut fit, token_ms, 28);
            assert!(error(&fit, token_ms) < 0.25, "{token_ms}: {}", error(&fit, token_ms));
        }
    }

    #[test]
    fn what_is_computed_though_it_could_be_restored_costs_what_computing_does() {
        let mut fit = Fit::new();
        for n in 0..200 {
            let restored_tokens = (n * 1_009) % 4_000;
            let effort = Effort { restored_tokens, cached_tokens: restored_tokens, ..effort(n) };
            let computed = f64::from(effort.miss_tokens + restored_tokens);
            fit.learn(&effort.features(), 8.0 + computed * 0.02);
        }
        let thousand = |of: fn(&mut Effort) -> &mut u32| {
            let mut effort = Effort::default();
            *of(&mut effort) = 1_000;
            f64::from(fit.speed().prefill_ms(&effort) - fit.speed().prefill_ms(&Effort::default()))
        };
        let (restored, computed) = (thousand(|e| &mut e.restored_tokens), thousand(|e| &mut e.miss_tokens));
        assert!(restored > 15.0 && (restored / computed - 1.0).abs() < 0.25, "{restored} {computed}");
    }

    #[test]
    fn what_was_learned_comes_back_from_numbers() {
        let mut fit = Fit::new();
        taught(&mut fit, 0.05, 100);
        let mut back = Fit::of_numbers(&fit.numbers()).unwrap();
        assert_eq!(back.speed(), fit.speed());
        taught(&mut fit, 0.2, 50);
        taught(&mut back, 0.2, 50);
        assert_eq!(back.speed(), fit.speed(), "and it goes on as the other does");
        assert!(Fit::of_numbers(&fit.numbers()[1..]).is_none());
    }

    #[test]
    fn numbers_of_no_machine_are_not_believed() {
        let numbers = Fit::new().numbers();
        for at in 0..numbers.len() {
            for nonsense in [1e300, f64::INFINITY, f64::NAN, -1.0] {
                let mut numbers = numbers.clone();
                numbers[at] = nonsense;
                assert!(Fit::of_numbers(&numbers).is_none(), "{nonsense} at {at}");
            }
        }
        for nonsense in [[1e300, 1.0], [f64::NAN, 1.0], [2.0, f64::INFINITY]] {
            assert_eq!(Slowness::of_numbers(nonsense).numbers(), Slowness::NONE.numbers());
        }
        assert_eq!(Slowness::of_numbers([2.5, 50.0]).numbers(), [2.5, 50.0]);
    }

    #[test]
    fn a_stall_now_and_then_hardly_matters() {
        let mut fit = Fit::new();
        taught(&mut fit, 0.05, 400);
        assert!(error(&fit, 0.05) < 0.3, "{}", error(&fit, 0.05));
    }

    #[test]
    fn what_has_changed_is_learned_anew() {
        let mut fit = Fit::new();
        taught(&mut fit, 0.02, 1_000);
        taught(&mut fit, 0.1, 400);
        assert!(error(&fit, 0.1) < 0.3, "{}", error(&fit, 0.1));
    }

    #[test]
    fn a_worker_is_like_the_others_until_it_shows_otherwise_and_again_when_it_has_changed() {
        let mut slowness = Slowness::NONE;
        slowness.learn(500.0, 100.0);
        assert!(slowness.ratio() < 1.5, "one answer proves little: {}", slowness.ratio());
        (0..200).for_each(|_| slowness.learn(300.0, 100.0));
        assert!((2.6..3.0).contains(&slowness.ratio()), "{}", slowness.ratio());
        (0..400).for_each(|_| slowness.learn(100.0, 100.0));
        assert!((0.95..1.1).contains(&slowness.ratio()), "{}", slowness.ratio());
    }
}
