//! How long answers of one worker take, or of one kind of engine: what a request waits for that must wait for a place.
//!
//! Only streamed answers tell it. Where none are streamed the prior stands.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Mean time from the first token to the end, in milliseconds; 0 before the first answer. Decisions read it without a lock.
#[derive(Debug, Default)]
pub(crate) struct AnswerTime(AtomicU32);

/// Before any answer has ended. The first that end are short, so the mean must not begin with them.
pub(crate) const PRIOR_MS: f32 = 5_000.0;

/// The weight of one answer.
const WEIGHT: f32 = 1.0 / 64.0;

/// No answer counts as longer than so many means: one whose client reads slowly says nothing of the others.
const MEANS_MAX: f32 = 4.0;

impl AnswerTime {
    /// The mean, or what is usual while it is not known.
    pub(crate) fn mean_ms(&self, usual_ms: f32) -> f32 {
        match f32::from_bits(self.0.load(Relaxed)) {
            0.0 => usual_ms,
            mean_ms => mean_ms,
        }
    }

    /// Learns from an answer, the first one beside what is usual. Of two answers that end at once, one may be lost.
    pub(crate) fn learn(&self, took_ms: f32, usual_ms: f32) {
        let mean_ms = self.mean_ms(usual_ms);
        let took_ms = took_ms.min(MEANS_MAX * mean_ms);
        self.0.store((mean_ms + (took_ms - mean_ms) * WEIGHT).to_bits(), Relaxed);
    }

    pub(crate) fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_the_latest_answers() {
        let time = AnswerTime::default();
        let mean = |time: &AnswerTime| time.mean_ms(PRIOR_MS);
        assert_eq!(mean(&time), PRIOR_MS);
        time.learn(10.0, PRIOR_MS);
        assert!(mean(&time) > 4_900.0, "one short answer says little");
        (0..400).for_each(|_| time.learn(1_000.0, PRIOR_MS));
        assert!((990.0..1_010.0).contains(&mean(&time)), "{}", mean(&time));
        time.learn(3.6e6, PRIOR_MS);
        assert!(mean(&time) < 1_060.0, "so does one that took an hour: {}", mean(&time));
        (0..400).for_each(|_| time.learn(60_000.0, PRIOR_MS));
        assert!(mean(&time) > 55_000.0, "{}", mean(&time));
    }
}
