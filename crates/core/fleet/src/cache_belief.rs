//! What the router believes about a worker's cache: the source of the knowledge, its trust and its
//! generation, and what the engine does with the last cached block.
//!
//! Feeds and answers change these from many threads. They share one atomic word, so that readers see
//! consistent values and every change is a compare-and-swap ([`AtomicCacheBelief::revise`]) that loses no
//! other thread's change.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use warmroute_types::CacheView;

use crate::LastBlockRule;

/// Scale of the stored trust, in thousandths.
const WHOLE: f32 = 1_000.0;
const TRUST_BITS: u32 = 10;
const VIEW_BITS: u32 = 2;
const LAST_BLOCK_BITS: u32 = 4;
const LAST_BLOCK_SHIFT: u32 = TRUST_BITS + VIEW_BITS;
/// Generations use the remaining bits and wrap. That is harmless: only requests in flight remember one.
const GENERATION_SHIFT: u32 = LAST_BLOCK_SHIFT + LAST_BLOCK_BITS;
const GENERATION_MAX: u32 = u32::MAX >> GENERATION_SHIFT;

/// What is believed about one worker's cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheBelief {
    /// Source of the knowledge.
    pub view: CacheView,
    /// Share of the feed's claims confirmed by answers, 0 to 1.
    pub trust: f32,
    /// Number of resets. A prediction made in one generation says nothing about the next.
    pub generation: u32,
    /// What the engine does with the last cached block of a prompt.
    pub last_block: LastBlockRule,
}

impl CacheBelief {
    /// The belief after a reset: presumed, full trust, next generation.
    pub fn reset(self) -> CacheBelief {
        CacheBelief {
            view: CacheView::Presumed,
            trust: 1.0,
            generation: self.generation.wrapping_add(1) & GENERATION_MAX,
            last_block: LastBlockRule::default(),
        }
    }

    fn pack(self) -> u32 {
        let trust = (self.trust.clamp(0.0, 1.0) * WHOLE) as u32;
        (self.generation & GENERATION_MAX) << GENERATION_SHIFT
            | self.last_block.pack() << LAST_BLOCK_SHIFT
            | (self.view as u32) << TRUST_BITS
            | trust
    }

    #[inline]
    fn unpack(word: u32) -> CacheBelief {
        let view = match word >> TRUST_BITS & ((1 << VIEW_BITS) - 1) {
            1 => CacheView::Uncertain,
            2 => CacheView::Reported,
            _ => CacheView::Presumed,
        };
        let trust = (word & ((1 << TRUST_BITS) - 1)) as f32 / WHOLE;
        let last_block = LastBlockRule::unpack(word >> LAST_BLOCK_SHIFT & ((1 << LAST_BLOCK_BITS) - 1));
        CacheBelief { view, trust, generation: word >> GENERATION_SHIFT, last_block }
    }
}

/// A [`CacheBelief`] shared between threads.
#[derive(Debug, Default)]
pub(crate) struct AtomicCacheBelief(AtomicU32);

impl AtomicCacheBelief {
    #[inline]
    pub(crate) fn get(&self) -> CacheBelief {
        CacheBelief::unpack(self.0.load(Relaxed))
    }

    /// Replaces the current belief by `change` of it and returns the previous one.
    pub(crate) fn revise(&self, mut change: impl FnMut(CacheBelief) -> CacheBelief) -> CacheBelief {
        let revised =
            self.0.fetch_update(Relaxed, Relaxed, |word| Some(change(CacheBelief::unpack(word)).pack()));
        CacheBelief::unpack(revised.unwrap_or_else(|word| word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_belief_survives_packing() {
        for view in [CacheView::Presumed, CacheView::Uncertain, CacheView::Reported] {
            for (trust, generation) in [(0.0, 0), (0.5, 7), (0.999, 1), (1.0, GENERATION_MAX)] {
                let mut last_block = LastBlockRule::default();
                for _ in 0..20 {
                    let belief = CacheBelief { view, trust, generation, last_block };
                    assert_eq!(CacheBelief::unpack(belief.pack()), belief);
                    last_block = last_block.after(true);
                }
            }
        }
        let last_block = LastBlockRule::default();
        let (generation, trust) = (GENERATION_MAX, 0.2);
        let oldest =
            CacheBelief { view: CacheView::Reported, trust, generation, last_block: last_block.after(true) };
        let new = CacheBelief { view: CacheView::Presumed, trust: 1.0, generation: 0, last_block };
        assert_eq!(oldest.reset(), new);
    }

    #[test]
    fn concurrent_changes_are_all_applied() {
        let cache_belief = AtomicCacheBelief::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| _ = cache_belief.revise(CacheBelief::reset)));
            }
        });
        assert_eq!(cache_belief.get().generation, 40_000);
    }
}
