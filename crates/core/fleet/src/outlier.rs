//! Workers that are slower than anybody expects, and are left alone for a while.
//!
//! What a worker takes is learned, so one that is slow for good is expected to be slow. An outlier is one whose first tokens
//! come many times later than predicted, answer after answer, while other workers' come as they should: a disk that
//! fails, a neighbour on its GPU, a throttled clock. If all are late, nobody is an outlier: the prediction is wrong.

use warmroute_types::{Micros, WorkerId};

/// Observed over predicted from which a worker is an outlier.
const RATIO_MAX: f64 = 4.0;

/// The others' median must be below this, or it is the prediction that is wrong.
const MEDIAN_MAX: f64 = 2.0;

/// Answers that must have been seen, of the worker and of each that it is compared with; and how many the mean looks back.
const ANSWERS: u32 = 8;

/// A first token is late by at least this much, or it is on time: a ratio of few milliseconds is noise.
const LATE_MIN: Micros = Micros::from_millis(50);

/// One stall counts no more than this ratio.
const RATIO_BOUND: f64 = 16.0;

/// The first ejection; each further one lasts twice as long.
const EJECTED_FOR: Micros = Micros::from_secs(10);
const EJECTED_FOR_MAX: Micros = Micros::from_secs(300);

/// A worker that has been well for so long since its last ejection begins anew.
const FORGIVEN_AFTER: Micros = Micros::from_secs(600);

/// What is known of all workers' punctuality, by seat.
#[derive(Debug, Default)]
pub(crate) struct Outliers(Vec<Punctuality>);

#[derive(Clone, Copy, Debug, Default)]
struct Punctuality {
    /// Mean logarithm of observed over predicted.
    lateness: f64,
    answers: u32,
    /// In a row; how long the next lasts follows from it.
    ejections: u32,
    ejected_until: Micros,
    ejections_total: u64,
}

impl Outliers {
    /// A first token came. Until when its worker is to be left alone, if it is.
    pub(crate) fn saw(
        &mut self,
        worker: WorkerId,
        predicted: Micros,
        observed: Micros,
        members: impl FnOnce() -> usize,
        now: Micros,
    ) -> Option<Micros> {
        if self.0.len() <= worker.index() {
            self.0.resize(worker.index() + 1, Punctuality::default());
        }
        self.0[worker.index()].learn(predicted, observed);
        let is_due = self.0[worker.index()].is_late(RATIO_MAX) && self.others_are_well(worker);
        (is_due && self.has_room(members(), now)).then(|| self.0[worker.index()].eject(now))
    }

    /// How often a worker was left alone.
    pub(crate) fn ejections(&self, worker: WorkerId) -> u64 {
        self.0.get(worker.index()).map_or(0, |seat| seat.ejections_total)
    }

    /// Another worker sits here now.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.0.get_mut(worker.index()).into_iter().for_each(|seat| *seat = Punctuality::default());
    }

    fn others_are_well(&self, worker: WorkerId) -> bool {
        let others = self.0.iter().enumerate().filter(|(seat, _)| *seat != worker.index());
        let judged: Vec<_> =
            others.map(|(_, other)| other).filter(|other| other.answers >= ANSWERS).collect();
        let late = judged.iter().filter(|other| other.is_late(MEDIAN_MAX)).count();
        judged.len() >= 2 && 2 * late < judged.len()
    }

    /// At most a third of the fleet is out at once.
    fn has_room(&self, members: usize, now: Micros) -> bool {
        let out = self.0.iter().filter(|seat| seat.ejected_until > now).count();
        3 * (out + 1) <= members
    }
}

impl Punctuality {
    fn learn(&mut self, predicted: Micros, observed: Micros) {
        let is_late = observed.since(predicted) >= LATE_MIN;
        let ratio = observed.0.max(1) as f64 / predicted.0.max(1) as f64;
        let lateness = if is_late { ratio.min(RATIO_BOUND).ln() } else { 0.0 };
        self.answers = self.answers.saturating_add(1);
        self.lateness += (lateness - self.lateness) / f64::from(self.answers.min(ANSWERS));
    }

    fn is_late(&self, ratio: f64) -> bool {
        self.answers >= ANSWERS && self.lateness > ratio.ln()
    }

    /// What was seen is forgotten: whether it is still late, new answers have to show.
    fn eject(&mut self, now: Micros) -> Micros {
        if now.since(self.ejected_until) > FORGIVEN_AFTER {
            self.ejections = 0;
        }
        let lasts = Micros(EJECTED_FOR.0 << self.ejections.min(16)).min(EJECTED_FOR_MAX);
        let ejected_until = now + lasts;
        let (ejections, ejections_total) = (self.ejections + 1, self.ejections_total + 1);
        *self = Punctuality { ejections, ejected_until, ejections_total, ..Punctuality::default() };
        ejected_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SOON: Micros = Micros::from_millis(100);

    /// So many answers of a worker, each so many times as late as predicted; when it is left alone until.
    fn answers(outliers: &mut Outliers, worker: u16, times: u64, n: u32, now: Micros) -> Option<Micros> {
        let mut saw = || outliers.saw(WorkerId(worker), SOON, Micros(SOON.0 * times), || 6, now);
        (0..n).filter_map(|_| saw()).last()
    }

    /// Five workers that are on time.
    fn punctual() -> Outliers {
        let mut outliers = Outliers::default();
        (1..6).for_each(|worker| _ = answers(&mut outliers, worker, 1, ANSWERS, Micros::ZERO));
        outliers
    }

    #[test]
    fn a_worker_that_is_late_again_and_again_is_left_alone() {
        let mut outliers = punctual();
        assert_eq!(answers(&mut outliers, 0, 10, ANSWERS - 1, Micros::ZERO), None, "too few to tell");
        assert_eq!(answers(&mut outliers, 0, 10, 1, Micros::ZERO), Some(EJECTED_FOR));
        let later = Micros::from_secs(20);
        assert_eq!(answers(&mut outliers, 0, 10, ANSWERS - 1, later), None, "it is judged anew");
        assert_eq!(answers(&mut outliers, 0, 10, 1, later), Some(later + EJECTED_FOR + EJECTED_FOR));
    }

    #[test]
    fn a_stall_now_and_then_is_forgiven() {
        let mut outliers = punctual();
        for _ in 0..50 {
            assert_eq!(answers(&mut outliers, 0, 1_000, 1, Micros::ZERO), None);
            assert_eq!(answers(&mut outliers, 0, 1, 3, Micros::ZERO), None);
        }
    }

    #[test]
    fn when_all_are_late_nobody_is_an_outlier() {
        let mut outliers = Outliers::default();
        for worker in (0..6).cycle().take(300) {
            assert_eq!(answers(&mut outliers, worker, 10, 1, Micros::ZERO), None);
        }
    }

    #[test]
    fn milliseconds_are_no_lateness() {
        let mut outliers = punctual();
        let mut saw =
            || outliers.saw(WorkerId(0), Micros::from_millis(1), Micros::from_millis(40), || 6, Micros::ZERO);
        assert!((0..50).all(|_| saw().is_none()));
    }

    #[test]
    fn a_newcomer_is_not_judged_by_who_sat_there_before() {
        let mut outliers = punctual();
        answers(&mut outliers, 0, 10, ANSWERS - 1, Micros::ZERO);
        outliers.forget(WorkerId(0));
        assert_eq!(answers(&mut outliers, 0, 10, 1, Micros::ZERO), None);
    }

    proptest! {
        /// Whoever is late and however often: never more than a third is out, and no longer than the longest time.
        #[test]
        fn most_of_the_fleet_stays(steps in prop::collection::vec((0..9_u16, prop_oneof![Just(1_u64), Just(20)], 0..3_u64), 1..600)) {
            let (mut outliers, mut now) = (Outliers::default(), Micros::ZERO);
            for (worker, times, seconds) in steps {
                now = now + Micros::from_secs(seconds);
                let until = outliers.saw(WorkerId(worker), SOON, Micros(SOON.0 * times), || 9, now);
                prop_assert!(until.is_none_or(|until| until <= now + EJECTED_FOR_MAX));
                prop_assert!(outliers.0.iter().filter(|seat| seat.ejected_until > now).count() <= 3);
            }
        }
    }
}
