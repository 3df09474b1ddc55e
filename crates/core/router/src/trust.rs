//! Trust in engines' events, learned from answers.
//!
//! Every answer that reports cached tokens tests the prediction from events. A feed that is wrong several
//! times in a row is demoted: its view is discounted and cut at what was found, until it has been right for a
//! while. A gap in the stream halves the trust at once.

use warmroute_fleet::CacheBelief;
use warmroute_types::CacheView;

/// Factor after a refuted prediction: four in a row demote a feed with full trust.
const AFTER_WRONG: f32 = 0.8;
/// Share of the missing trust that a confirmed prediction restores.
const AFTER_RIGHT: f32 = 0.1;
/// Below this a feed is demoted.
const DEMOTED_BELOW: f32 = 0.5;
/// At or above this a feed is promoted again.
const PROMOTED_FROM: f32 = 0.8;
/// Maximum trust after a gap in the stream.
const AFTER_HOLE: f32 = 0.5;

/// The outcome of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prediction {
    Confirmed,
    Refuted,
}

/// The belief after one more answer.
pub(crate) fn answered(before: CacheBelief, prediction: Prediction) -> CacheBelief {
    let trust = after(before.trust, prediction);
    CacheBelief { view: view_at(trust, before.view), trust, ..before }
}

/// The belief after a feed's own assessment. A gap costs trust at once, a complete stream starts with full
/// trust, and silence changes nothing.
pub(crate) fn after_view_change(before: CacheBelief, view: CacheView) -> CacheBelief {
    let trust = match view {
        CacheView::Uncertain => before.trust.min(AFTER_HOLE),
        CacheView::Reported if before.view != CacheView::Reported => 1.0,
        CacheView::Reported | CacheView::Presumed => before.trust,
    };
    CacheBelief { view, trust, ..before }
}

/// Trust after one more answer.
fn after(trust: f32, prediction: Prediction) -> f32 {
    match prediction {
        Prediction::Confirmed => trust + (1.0 - trust) * AFTER_RIGHT,
        Prediction::Refuted => trust * AFTER_WRONG,
    }
}

/// The view at this trust, where it was `before`.
fn view_at(trust: f32, before: CacheView) -> CacheView {
    match before {
        CacheView::Reported if trust < DEMOTED_BELOW => CacheView::Uncertain,
        CacheView::Uncertain if trust >= PROMOTED_FROM => CacheView::Reported,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use warmroute_fleet::LastBlockRule;

    use super::*;

    #[test]
    fn a_feed_that_is_wrong_in_a_row_is_demoted_and_has_to_earn_its_way_back() {
        let (mut trust, mut view) = (1.0, CacheView::Reported);
        let mut answers = 0;
        while view == CacheView::Reported {
            trust = after(trust, Prediction::Refuted);
            view = view_at(trust, view);
            answers += 1;
        }
        assert_eq!(answers, 4);
        trust = after(trust, Prediction::Confirmed);
        assert_eq!(view_at(trust, view), CacheView::Uncertain, "once is chance");
        (0..12).for_each(|_| trust = after(trust, Prediction::Confirmed));
        assert_eq!(view_at(trust, view), CacheView::Reported);
    }

    #[test]
    fn one_wrong_promise_among_ten_changes_nothing() {
        let mut trust = 1.0;
        for answer in 0..1_000 {
            let prediction = if answer % 10 == 0 { Prediction::Refuted } else { Prediction::Confirmed };
            trust = after(trust, prediction);
            assert_eq!(view_at(trust, CacheView::Reported), CacheView::Reported);
        }
    }

    #[test]
    fn a_feed_in_discredit_is_not_cleared_by_falling_silent() {
        let doubted = CacheBelief {
            view: CacheView::Uncertain,
            trust: 0.3,
            generation: 4,
            last_block: LastBlockRule::default(),
        };
        let returned =
            after_view_change(after_view_change(doubted, CacheView::Presumed), CacheView::Uncertain);
        assert_eq!(returned, doubted);
        assert_eq!(
            after_view_change(returned, CacheView::Reported).trust,
            1.0,
            "complete, and no answer contradicts it"
        );
    }

    #[test]
    fn silence_is_no_matter_of_trust() {
        assert_eq!(view_at(1.0, CacheView::Presumed), CacheView::Presumed);
    }
}
