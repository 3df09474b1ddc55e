//! How far engines' events are believed, learned from what answers say.
//!
//! Every answer that says how much of its prompt was cached is a test of what the events promised. A feed that is wrong
//! several times in a row is demoted: its view is kept, but discounted and cut at what was found, until it has been right
//! for a while. A hole in a stream halves the trust at once.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use warmroute_types::CacheView;

/// What is left of the trust after a wrong promise: four in a row demote a feed that was always right.
const AFTER_WRONG: f32 = 0.8;
/// How much of what is missing to full trust a kept promise gives back.
const AFTER_RIGHT: f32 = 0.1;
/// Below this a feed is demoted.
const DEMOTED_BELOW: f32 = 0.5;
/// From here on it is believed again.
const PROMOTED_FROM: f32 = 0.8;
/// What remains when events are known to be missing.
pub(crate) const AFTER_HOLE: f32 = 0.5;

/// Whether a promise was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promised {
    Kept,
    Broken,
}

/// Trust after one more answer.
pub(crate) fn after(trust: f32, promise: Promised) -> f32 {
    match promise {
        Promised::Kept => trust + (1.0 - trust) * AFTER_RIGHT,
        Promised::Broken => trust * AFTER_WRONG,
    }
}

/// The view that a feed's word is worth at this trust, where it was worth `before`.
pub(crate) fn view_at(trust: f32, before: CacheView) -> CacheView {
    match before {
        CacheView::Reported if trust < DEMOTED_BELOW => CacheView::Uncertain,
        CacheView::Uncertain if trust >= PROMOTED_FROM => CacheView::Reported,
        other => other,
    }
}

/// How often what was stored while decoding is found by a prompt that repeats it, as a moving mean.
#[derive(Debug)]
pub(crate) struct Unproven(AtomicU32);

impl Default for Unproven {
    /// Most answers tokenize to what was sampled.
    fn default() -> Unproven {
        Unproven(AtomicU32::new(0.9_f32.to_bits()))
    }
}

impl Unproven {
    /// Weight of the newest answer.
    const NEWEST: f32 = 0.05;

    pub fn weight(&self) -> f32 {
        f32::from_bits(self.0.load(Relaxed))
    }

    /// This share of what was hoped for was found.
    pub fn learn(&self, share: f32) {
        let mean = self.weight() * (1.0 - Self::NEWEST) + share.clamp(0.0, 1.0) * Self::NEWEST;
        self.0.store(mean.to_bits(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_that_is_wrong_in_a_row_is_demoted_and_has_to_earn_its_way_back() {
        let (mut trust, mut view) = (1.0, CacheView::Reported);
        let mut answers = 0;
        while view == CacheView::Reported {
            trust = after(trust, Promised::Broken);
            view = view_at(trust, view);
            answers += 1;
        }
        assert_eq!(answers, 4);
        trust = after(trust, Promised::Kept);
        assert_eq!(view_at(trust, view), CacheView::Uncertain, "once is chance");
        (0..12).for_each(|_| trust = after(trust, Promised::Kept));
        assert_eq!(view_at(trust, view), CacheView::Reported);
    }

    #[test]
    fn one_wrong_promise_among_ten_changes_nothing() {
        let mut trust = 1.0;
        for answer in 0..1_000 {
            let promise = if answer % 10 == 0 { Promised::Broken } else { Promised::Kept };
            trust = after(trust, promise);
            assert_eq!(view_at(trust, CacheView::Reported), CacheView::Reported);
        }
    }

    #[test]
    fn silence_is_no_matter_of_trust() {
        assert_eq!(view_at(1.0, CacheView::Presumed), CacheView::Presumed);
    }
}
