//! How a worker's cache is known, and how far that is to be believed: numbers that change together.
//!
//! Feeds and answers change them from many threads. They lie in one word, so that whoever reads sees what belongs together,
//! and whoever changes them changes what he read ([`Believed::revise`]) and overwrites nobody's judgement.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use warmroute_types::CacheView;

/// Trust is kept in thousandths.
const WHOLE: f32 = 1_000.0;
const TRUST_BITS: u32 = 10;
const VIEW_BITS: u32 = 2;
/// Lives are counted in what is left of the word; they wrap, which is harmless: only requests under way remember one.
const LIFE_SHIFT: u32 = TRUST_BITS + VIEW_BITS;
const LIFE_MAX: u32 = u32::MAX >> LIFE_SHIFT;

/// What is believed of one worker's cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// How its cache is known.
    pub view: CacheView,
    /// How far what its engine tells has turned out true, 0 to 1.
    pub trust: f32,
    /// How often it has been forgotten. What was promised in one life says nothing about the next.
    pub life: u32,
}

impl Belief {
    /// Nothing is known, nothing has been wrong: what a cache begins with when it is forgotten.
    pub fn reborn(self) -> Belief {
        Belief { view: CacheView::Presumed, trust: 1.0, life: self.life.wrapping_add(1) & LIFE_MAX }
    }

    fn pack(self) -> u32 {
        let trust = (self.trust.clamp(0.0, 1.0) * WHOLE) as u32;
        (self.life & LIFE_MAX) << LIFE_SHIFT | (self.view as u32) << TRUST_BITS | trust
    }

    fn unpack(word: u32) -> Belief {
        let view = match word >> TRUST_BITS & ((1 << VIEW_BITS) - 1) {
            1 => CacheView::Uncertain,
            2 => CacheView::Reported,
            _ => CacheView::Presumed,
        };
        let trust = (word & ((1 << TRUST_BITS) - 1)) as f32 / WHOLE;
        Belief { view, trust, life: word >> LIFE_SHIFT }
    }
}

/// A belief that many may read and change.
#[derive(Debug, Default)]
pub(crate) struct Believed(AtomicU32);

impl Believed {
    pub(crate) fn get(&self) -> Belief {
        Belief::unpack(self.0.load(Relaxed))
    }

    /// Changes what is believed, by what is believed at this very moment; returns what that was.
    pub(crate) fn revise(&self, mut change: impl FnMut(Belief) -> Belief) -> Belief {
        let revised = self.0.fetch_update(Relaxed, Relaxed, |word| Some(change(Belief::unpack(word)).pack()));
        Belief::unpack(revised.unwrap_or_else(|word| word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_a_whole_belief() {
        for view in [CacheView::Presumed, CacheView::Uncertain, CacheView::Reported] {
            for (trust, life) in [(0.0, 0), (0.5, 7), (0.999, 1), (1.0, LIFE_MAX)] {
                let belief = Belief { view, trust, life };
                assert_eq!(Belief::unpack(belief.pack()), belief);
            }
        }
        let oldest = Belief { view: CacheView::Reported, trust: 0.2, life: LIFE_MAX };
        assert_eq!(oldest.reborn(), Belief { view: CacheView::Presumed, trust: 1.0, life: 0 });
    }

    #[test]
    fn no_judgement_of_many_threads_is_lost() {
        let believed = Believed::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| _ = believed.revise(Belief::reborn)));
            }
        });
        assert_eq!(believed.get().life, 40_000);
    }
}
