//! The typical length of a tenant's answers, for requests that do not state a maximum.
//!
//! The estimate follows TCP's retransmission timer (RFC 6298): a moving mean plus a multiple of the deviation. It
//! exceeds most answers, because an unused reservation is returned at the end of the answer, while a missing one
//! becomes a debt.

/// The estimate before any answer. Chats of public traces average 200 to 400 tokens.
const UNKNOWN_TOKENS: f64 = 512.0;

/// Weight of the newest answer in the mean, and in the deviation.
const MEAN_GAIN: f64 = 1.0 / 8.0;
const DEVIATION_GAIN: f64 = 1.0 / 4.0;

/// Deviations above the mean that are reserved.
const DEVIATIONS: f64 = 2.0;

/// The statistics of a tenant's answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TypicalAnswer(Option<Known>);

#[derive(Clone, Copy, Debug)]
struct Known {
    mean: f64,
    deviation: f64,
}

impl TypicalAnswer {
    /// A length that an answer rarely exceeds.
    pub(crate) fn tokens(&self) -> u32 {
        let tokens = self.0.map_or(UNKNOWN_TOKENS, |known| known.mean + DEVIATIONS * known.deviation);
        tokens.ceil() as u32
    }

    /// Adds an answer's length.
    pub(crate) fn learn(&mut self, tokens: u32) {
        let tokens = f64::from(tokens);
        let known = self.0.get_or_insert(Known { mean: tokens, deviation: tokens / 2.0 });
        known.deviation += DEVIATION_GAIN * ((tokens - known.mean).abs() - known.deviation);
        known.mean += MEAN_GAIN * (tokens - known.mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_approaches_the_answers_and_stays_above_them() {
        let mut typical_answer = TypicalAnswer::default();
        assert_eq!(typical_answer.tokens(), 512);
        (0..50).for_each(|_| typical_answer.learn(100));
        assert!((100..=102).contains(&typical_answer.tokens()), "{}", typical_answer.tokens());
        (0..50).for_each(|turn| typical_answer.learn(if turn % 2 == 0 { 50 } else { 150 }));
        assert!((150..=260).contains(&typical_answer.tokens()), "{}", typical_answer.tokens());
    }
}
