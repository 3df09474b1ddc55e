//! How often what was stored while decoding is found by a prompt that repeats it.
//!
//! Engines cache answers as they were sampled, and the same text may tokenize otherwise. What is found is learned as a moving
//! mean; a mean never quite reaches the whole, and promises are rounded down to blocks, so a mean alone would prediction one
//! block too few for ever. Answers that were found whole in a row are therefore expected whole, until one falls short.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Most answers tokenize to what was sampled.
const AT_FIRST: f32 = 0.9;
/// Weight of the newest answer.
const NEWEST: f32 = 0.05;
/// So many whole answers in a row are no chance, provided that few fell short before them.
const WHOLE_IN_A_ROW: u32 = 8;

/// The mean, and how many answers in a row were found whole.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Learned {
    mean: f32,
    whole: u32,
}

/// What was learned of one model, in one word, so that no answer is lost to another.
#[derive(Debug)]
pub(crate) struct SampledReuse(AtomicU64);

impl Default for SampledReuse {
    fn default() -> SampledReuse {
        SampledReuse(AtomicU64::new(Learned { mean: AT_FIRST, whole: 0 }.pack()))
    }
}

impl SampledReuse {
    /// The share that is to be expected, 0 to 1.
    pub fn weight(&self) -> f32 {
        let Learned { mean, whole } = Learned::unpack(self.0.load(Relaxed));
        if whole >= WHOLE_IN_A_ROW && mean >= AT_FIRST { 1.0 } else { mean }
    }

    /// So many of the tokens that were hoped for were found.
    pub fn learn(&self, found: u32, hoped: u32) {
        let change = |word| Some(Learned::unpack(word).after(found, hoped).pack());
        // The closure always changes it.
        let _ = self.0.fetch_update(Relaxed, Relaxed, change);
    }
}

impl Learned {
    fn after(self, found: u32, hoped: u32) -> Learned {
        let share = found.min(hoped) as f32 / hoped.max(1) as f32;
        let whole = if found >= hoped { self.whole.saturating_add(1) } else { 0 };
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
    fn what_is_always_found_whole_is_expected_whole_until_it_falls_short() {
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
    fn what_often_falls_short_is_not_expected_whole_by_a_lucky_row() {
        let unproven = SampledReuse::default();
        (0..40).for_each(|_| unproven.learn(0, 160));
        (0..20).for_each(|_| unproven.learn(160, 160));
        assert!(unproven.weight() < 0.75, "{}", unproven.weight());
    }
}
