//! How long answers of one kind of engine take: what a request waits for that must wait for a place.
//!
//! Only streamed answers tell it. Where none are streamed the prior stands.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Mean time from the first token to the end on a worker of usual speed, in milliseconds. Decisions read it without a lock.
#[derive(Debug)]
pub(crate) struct AnswerTime(AtomicU32);

/// Before any answer has ended. The first that end are short, so the mean must not begin with them.
const PRIOR_MS: f32 = 5_000.0;

/// The weight of one answer.
const WEIGHT: f32 = 1.0 / 64.0;

/// No answer counts as longer than so many means: one whose client reads slowly says nothing of the others.
const MEANS_MAX: f32 = 4.0;

impl Default for AnswerTime {
    fn default() -> AnswerTime {
        AnswerTime(AtomicU32::new(PRIOR_MS.to_bits()))
    }
}

impl AnswerTime {
    pub(crate) fn mean_ms(&self) -> f32 {
        f32::from_bits(self.0.load(Relaxed))
    }

    /// Of two answers that end at once, one may be lost.
    pub(crate) fn learn(&self, took_ms: f32) {
        let mean_ms = self.mean_ms();
        let took_ms = took_ms.min(MEANS_MAX * mean_ms);
        self.0.store((mean_ms + (took_ms - mean_ms) * WEIGHT).to_bits(), Relaxed);
    }

    pub(crate) fn forget(&self) {
        self.0.store(PRIOR_MS.to_bits(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_the_latest_answers() {
        let time = AnswerTime::default();
        assert_eq!(time.mean_ms(), PRIOR_MS);
        time.learn(10.0);
        assert!(time.mean_ms() > 4_900.0, "one short answer says little");
        (0..400).for_each(|_| time.learn(1_000.0));
        assert!((990.0..1_010.0).contains(&time.mean_ms()), "{}", time.mean_ms());
        time.learn(3.6e6);
        assert!(time.mean_ms() < 1_060.0, "so does one that took an hour: {}", time.mean_ms());
        (0..400).for_each(|_| time.learn(60_000.0));
        assert!(time.mean_ms() > 55_000.0, "{}", time.mean_ms());
    }
}
