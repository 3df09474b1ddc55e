//! One worker's latency relative to its engine kind's model: 1 is as fast as the others.
//!
//! One number, because one worker's answers are too few and too much alike to fit eight coefficients, and a worker that noise
//! makes look fast would get all the work.

use crate::ratios::{log_ratio, median};

/// Each observation keeps this share of its weight with each one after it.
const FADING: f64 = 0.99;
/// That a worker is like the others counts as this many observations.
const ALIKE_WEIGHT: f64 = 10.0;
/// Differences up to this share are noise.
const ALIKE_SHARE: f64 = 0.05;
/// One observation counts as no more than this factor from the estimate.
const PULL_FACTOR: f64 = 2.0;
/// The latest observations; the estimate follows their median at once when all of them are there and it is off by this factor.
const LATEST: usize = 12;
const CHANGED_FACTOR: f64 = 1.5;
/// Bounds of restored numbers; larger ones are corrupt.
const RATIO_MAX: f64 = 1e6;
const WEIGHT_MAX: f64 = 1e6;

/// How many times as long as its engine kind's model a worker takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelativeLatency {
    log: f64,
    weight: f64,
    latest: [f64; LATEST],
    /// How many there are, at most [`LATEST`], and where the next one goes.
    count: usize,
    next: usize,
}

impl RelativeLatency {
    /// Like the others.
    pub(crate) const ONE: RelativeLatency =
        RelativeLatency { log: 0.0, weight: 0.0, latest: [0.0; LATEST], count: 0, next: 0 };

    /// Learns from what a worker took where the model expected `model_ms`.
    pub(crate) fn learn(&mut self, took_ms: f64, model_ms: f64) {
        let seen = log_ratio(took_ms, model_ms);
        self.latest[self.next] = seen;
        self.next = (self.next + 1) % LATEST;
        self.count = (self.count + 1).min(LATEST);
        let pull = PULL_FACTOR.ln();
        self.weight = self.weight * FADING + 1.0;
        let pulled = seen.clamp(self.log - pull, self.log + pull);
        self.log += (pulled - self.log) / (self.weight + ALIKE_WEIGHT);
        if let Some(log) = self.changed() {
            (self.log, self.weight) = (log, LATEST as f64);
        }
    }

    fn changed(&self) -> Option<f64> {
        if self.count < LATEST {
            return None;
        }
        let median = median(&mut self.latest.clone())?;
        ((median - self.log).abs() > CHANGED_FACTOR.ln()).then_some(median)
    }

    /// Another process runs at this address: the estimate stands until a few answers correct it.
    pub(crate) fn doubted(self) -> RelativeLatency {
        RelativeLatency { log: self.log, ..RelativeLatency::ONE }
    }

    /// The ratio. Small differences are noise and would send all new prompts to one worker, so they are taken for none.
    pub(crate) fn ratio(&self) -> f64 {
        let ratio = self.log.exp();
        let apart = (ratio - 1.0).abs();
        1.0 + (ratio - 1.0).signum() * (apart - ALIKE_SHARE).max(0.0)
    }

    /// As numbers, for a saved state.
    pub(crate) fn numbers(&self) -> [f64; 2] {
        [self.log.exp(), self.weight]
    }

    /// From such numbers. Corrupt ones give the ratio 1.
    pub(crate) fn of_numbers([ratio, weight]: [f64; 2]) -> RelativeLatency {
        let is_sane = (1.0 / RATIO_MAX..=RATIO_MAX).contains(&ratio) && (0.0..=WEIGHT_MAX).contains(&weight);
        if is_sane {
            RelativeLatency { log: ratio.ln(), weight, ..RelativeLatency::ONE }
        } else {
            RelativeLatency::ONE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_answer_proves_little_and_many_prove_a_slow_worker() {
        let mut latency = RelativeLatency::ONE;
        latency.learn(50_000.0, 100.0);
        assert!(latency.ratio() < 1.1, "{}", latency.ratio());
        (0..200).for_each(|_| latency.learn(300.0, 100.0));
        assert!((2.6..3.0).contains(&latency.ratio()), "{}", latency.ratio());
    }

    #[test]
    fn a_change_is_followed_within_a_dozen_answers() {
        let mut latency = RelativeLatency::ONE;
        (0..200).for_each(|_| latency.learn(100.0, 100.0));
        (0..12).for_each(|_| latency.learn(400.0, 100.0));
        assert!((3.4..4.1).contains(&latency.ratio()), "{}", latency.ratio());
        (0..12).for_each(|_| latency.learn(100.0, 100.0));
        assert!((0.9..1.2).contains(&latency.ratio()), "{}", latency.ratio());
    }

    #[test]
    fn a_few_wild_answers_do_not_matter() {
        let mut latency = RelativeLatency::ONE;
        for n in 0..200 {
            latency.learn(if n % 4 == 0 { 20_000.0 } else { 100.0 }, 100.0);
        }
        assert!(latency.ratio() < 1.2, "{}", latency.ratio());
    }

    #[test]
    fn corrupt_numbers_are_as_good_as_none() {
        for corrupt in [[1e300, 1.0], [f64::NAN, 1.0], [2.0, f64::INFINITY], [-1.0, 1.0], [0.0, 1.0]] {
            assert_eq!(RelativeLatency::of_numbers(corrupt).numbers(), RelativeLatency::ONE.numbers());
        }
        let [ratio, weight] = RelativeLatency::of_numbers([2.5, 50.0]).numbers();
        assert!((ratio - 2.5).abs() < 1e-9 && weight == 50.0);
    }
}
