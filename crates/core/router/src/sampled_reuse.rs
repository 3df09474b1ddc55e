//! Share of the tokens stored while decoding that later prompts find cached.
//!
//! Engines cache answers as sampled, and the same text may tokenize differently. The share is a moving mean.
//! A mean never quite reaches 1 and predictions round down to blocks, so a mean alone would always predict
//! one block too few. After a row of complete hits, complete hits are therefore expected until one falls
//! short.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Initial share: most answers tokenize to what was sampled.
const AT_FIRST: f32 = 0.9;
/// Weight of the newest answer.
const NEWEST: f32 = 0.05;
/// Consecutive complete hits that make the next one expected, if few fell short before.
const WHOLE_IN_A_ROW: u32 = 8;

/// The mean and the number of consecutive complete hits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Learned {
    mean: f32,
    whole: u32,
}

/// The learned share of one model, in one atomic word so that no update is lost.
#[derive(Debug)]
pub(crate) struct SampledReuse(AtomicU64);

impl Default for SampledReuse {
    fn default() -> SampledReuse {
        SampledReuse(AtomicU64::new(Learned { mean: AT_FIRST, whole: 0 }.pack()))
    }
}

impl SampledReuse {
    /// The expected share, 0 to 1.
    pub fn weight(&self) -> f32 {
        let Learned { mean, whole } = Learned::unpack(self.0.load(Relaxed));
        if whole >= WHOLE_IN_A_ROW && mean >= AT_FIRST { 1.0 } else { mean }
    }

    /// Records that `found` of `sampled` sampled tokens were cached.
    pub fn learn(&self, found: u32, sampled: u32) {
        let change = |word| Some(Learned::unpack(word).after(found, sampled).pack());
        // The closure always changes it.
        let _ = self.0.fetch_update(Relaxed, Relaxed, change);
    }
}

impl Learned {
    fn after(self, found: u32, sampled: u32) -> Learned {
        let share = found.min(sampled) as f32 / sampled.max(1) as f32;
        let whole = if found >= sampled { self.whole.saturating_add(1) } else { 0 };
        Learned { mean: self.mean * (1.0 - NEWEST) + share * NEWEST, whole }
    }

    fn pack(self) -> u64 {
        u64::from(self.whole) << 32 | u64::from(self.mean.to_bits())
    }

    fn unpack(word: u64) -> Learned {
        Learned { mean: f32::from_bits(word as u32), whole: (word >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_hits_in_a_row_are_expected_until_one_falls_short() {
        let unproven = SampledReuse::default();
        assert_eq!(unproven.weight(), AT_FIRST);
        (0..WHOLE_IN_A_ROW).for_each(|_| unproven.learn(160, 160));
        assert_eq!(unproven.weight(), 1.0);
        unproven.learn(144, 160);
        for _ in 1..WHOLE_IN_A_ROW {
            unproven.learn(160, 160);
            assert!(unproven.weight() < 0.99, "once short, not whole again at once");
        }
        unproven.learn(160, 160);
        assert_eq!(unproven.weight(), 1.0);
    }

    #[test]
    fn a_row_of_hits_after_many_misses_is_not_enough() {
        let unproven = SampledReuse::default();
        (0..40).for_each(|_| unproven.learn(0, 160));
        (0..20).for_each(|_| unproven.learn(160, 160));
        assert!(unproven.weight() < 0.75, "{}", unproven.weight());
    }
}
