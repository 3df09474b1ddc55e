//! How many tokens a model makes of a byte, learned from what engines count.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The usual figure for English text and code, until an engine has counted.
const TOKENS_PER_BYTE: f32 = 0.25;
/// Weight of the newest prompt: languages differ between users, so it should follow, but not jump.
const NEWEST: f32 = 0.05;
/// Nothing outside this is believed: a template's fixed tokens dwarf a prompt of a few bytes.
const BELIEVED: std::ops::RangeInclusive<f32> = 0.02..=2.0;
/// Shorter prompts say more about the template than about the text.
const BYTES_MIN: u32 = 400;

/// Tokens per byte, as a moving mean. Two threads that learn at once may lose one lesson; the next will do.
#[derive(Debug, Default)]
pub(crate) struct TokenRate {
    /// The mean, as bits; zero until an engine has counted.
    mean: AtomicU32,
}

impl TokenRate {
    /// Tokens per byte.
    pub(crate) fn rate(&self) -> f32 {
        let mean = f32::from_bits(self.mean.load(Relaxed));
        if mean > 0.0 { mean } else { TOKENS_PER_BYTE }
    }

    /// The mean, if an engine has counted.
    pub(crate) fn learned(&self) -> Option<f32> {
        Some(f32::from_bits(self.mean.load(Relaxed))).filter(|&mean| mean > 0.0)
    }

    /// One that was learned before.
    pub(crate) fn recalled(mean: f32) -> TokenRate {
        TokenRate { mean: AtomicU32::new(if BELIEVED.contains(&mean) { mean.to_bits() } else { 0 }) }
    }

    /// Tokens in so many bytes.
    pub(crate) fn tokens_in(&self, bytes: u32) -> u32 {
        (bytes as f32 * self.rate()) as u32
    }

    /// An engine counted.
    pub(crate) fn learn(&self, bytes: u32, tokens: u32) {
        let seen = tokens as f32 / bytes.max(1) as f32;
        if bytes >= BYTES_MIN && BELIEVED.contains(&seen) {
            let is_first = self.mean.load(Relaxed) == 0;
            let mean = if is_first { seen } else { self.rate() * (1.0 - NEWEST) + seen * NEWEST };
            self.mean.store(mean.to_bits(), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_what_engines_count() {
        let rate = TokenRate::default();
        assert_eq!(rate.tokens_in(400), 100);
        rate.learn(1_000, 300);
        assert_eq!(rate.tokens_in(1_000), 300, "the first count is worth more than a guess");
        (0..200).for_each(|_| rate.learn(1_000, 500));
        assert!((198..=200).contains(&rate.tokens_in(400)));
        rate.learn(1_000, 100_000);
        rate.learn(10, 20);
        assert!((198..=200).contains(&rate.tokens_in(400)), "nonsense teaches nothing");
    }
}
