//! Mean answer time of one worker, or of one kind of engine. It predicts the wait for a free place in a full engine.
//!
//! Answers with a usage tell it. One that is not streamed has no first token: it has kept its place since its first token was
//! expected.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Mean time from the first token to the end, in milliseconds; 0 before the first answer. Decisions read it without a lock.
#[derive(Debug, Default)]
pub(crate) struct AnswerTime(AtomicU32);

/// Before any answer has ended. The first that end are short, so the mean must not begin with them.
pub(crate) const PRIOR_MS: f32 = 5_000.0;

/// The weight of one answer.
const WEIGHT: f32 = 1.0 / 64.0;

/// No answer counts as longer than so many means, or as so many priors while the mean is shorter: one whose client reads slowly
/// says nothing of the others. A limit of means alone would hide the long answers where most are short, as agents' are.
const MEANS_MAX: f32 = 4.0;

/// Shorter answers count as this long: 0 stands for a mean that is not known.
const TOOK_MS_MIN: f32 = 1.0;

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
        let took_ms = took_ms.clamp(TOOK_MS_MIN, MEANS_MAX * mean_ms.max(PRIOR_MS));
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
        assert!(mean(&time) < 1_400.0, "so does one that took an hour: {}", mean(&time));
        (0..400).for_each(|_| time.learn(60_000.0, PRIOR_MS));
        assert!(mean(&time) > 55_000.0, "{}", mean(&time));
        (0..4_000).for_each(|_| time.learn(0.0, PRIOR_MS));
        assert!((1.0..2.0).contains(&mean(&time)), "answers that end at once are known too: {}", mean(&time));
    }

    #[test]
    fn a_few_long_answers_among_short_ones_count() {
        let time = AnswerTime::default();
        for number in 0..2_000 {
            time.learn(if number % 5 == 0 { 20_000.0 } else { 50.0 }, PRIOR_MS);
        }
        let mean_ms = time.mean_ms(PRIOR_MS);
        assert!((3_500.0..4_700.0).contains(&mean_ms), "{mean_ms}");
    }
}
