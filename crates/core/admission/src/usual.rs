//! How long a tenant's answers usually are, for those who do not say how long they may be.
//!
//! As TCP guesses how long an answer is on its way (RFC 6298): a mean that forgets, and how far from it answers fall. What is expected
//! is more than most take, because what was set aside in vain is given back within the answer's time, and what was not is a debt.

/// Before anything is known. Chats of public traces have 200 to 400 tokens on average.
const UNKNOWN_TOKENS: f64 = 512.0;

/// How much the newest answer weighs in the mean, and in the deviation.
const MEAN_GAIN: f64 = 1.0 / 8.0;
const DEVIATION_GAIN: f64 = 1.0 / 4.0;

/// Deviations above the mean that are set aside.
const DEVIATIONS: f64 = 2.0;

/// What is known of a tenant's answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usual(Option<Known>);

#[derive(Clone, Copy, Debug)]
struct Known {
    mean: f64,
    deviation: f64,
}

impl Usual {
    /// What one answer will hardly exceed.
    pub(crate) fn tokens(&self) -> u32 {
        let tokens = self.0.map_or(UNKNOWN_TOKENS, |known| known.mean + DEVIATIONS * known.deviation);
        tokens.ceil() as u32
    }

    /// An answer had so many.
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
    fn it_comes_to_be_what_answers_take_and_a_little_more() {
        let mut usual = Usual::default();
        assert_eq!(usual.tokens(), 512);
        (0..50).for_each(|_| usual.learn(100));
        assert!((100..=102).contains(&usual.tokens()), "{}", usual.tokens());
        (0..50).for_each(|turn| usual.learn(if turn % 2 == 0 { 50 } else { 150 }));
        assert!((150..=260).contains(&usual.tokens()), "{}", usual.tokens());
    }
}
