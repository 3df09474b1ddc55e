//! Tokens that engines find beyond the presumed overlap.
//!
//! Presumed prompts are cut into whole chunks and exclude the answer, while engines cache smaller blocks and
//! answers too. A presumed overlap is therefore too small by part of a chunk and most of the last answer. The
//! order of workers does not change, but the expected TTFT of a warm prompt would be too long by a tenth or
//! more.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Weight of the newest answer in the mean.
const NEWEST: f32 = 0.05;
/// Larger differences are ignored: another client sent the prompt.
const TOKENS_MAX: u32 = 4_096;

/// The mean over answers, per model. Two threads that learn at once may lose one answer.
#[derive(Debug, Default)]
pub(crate) struct PresumedShortfall(AtomicU32);

impl PresumedShortfall {
    /// Tokens to add to a presumed overlap for an unbiased estimate.
    pub(crate) fn tokens(&self) -> u32 {
        f32::from_bits(self.0.load(Relaxed)) as u32
    }

    /// Records that an engine found `found` tokens where `presumed` were presumed.
    pub(crate) fn learn(&self, found: u32, presumed: u32) {
        if presumed == 0 || found < presumed || found - presumed > TOKENS_MAX {
            return;
        }
        let mean = f32::from_bits(self.0.load(Relaxed));
        let seen = (found - presumed) as f32;
        let mean = if mean == 0.0 { seen } else { mean + (seen - mean) * NEWEST };
        self.0.store(mean.to_bits(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_what_engines_find_beyond_what_was_presumed() {
        let presumed_shortfall = PresumedShortfall::default();
        assert_eq!(presumed_shortfall.tokens(), 0);
        presumed_shortfall.learn(1_100, 1_000);
        assert_eq!(presumed_shortfall.tokens(), 100);
        (0..200).for_each(|_| presumed_shortfall.learn(1_040, 1_000));
        assert!((39..=41).contains(&presumed_shortfall.tokens()), "{}", presumed_shortfall.tokens());
        for (found, presumed) in [(0, 1_000), (90_000, 1_000), (5_000, 0)] {
            presumed_shortfall.learn(found, presumed);
        }
        assert!((39..=41).contains(&presumed_shortfall.tokens()), "stale and foreign prompts tell nothing");
    }
}
