//! Latency outliers: workers far slower than predicted are ejected for a while.
//!
//! The latency model learns each worker's speed, so a permanently slow worker is predicted slow. An outlier
//! is a worker whose first tokens come many times later than predicted, answer after answer, while the others
//! are on time: a failing disk, a neighbour on its GPU, a throttled clock. When all workers are late, the
//! prediction is wrong and none is an outlier.

use warmroute_types::{Micros, WorkerId};

/// Ratio of observed to predicted TTFT above which a worker is an outlier.
const RATIO_MAX: f64 = 4.0;

/// The others' median ratio must be below this; otherwise the prediction is wrong.
const MEDIAN_MAX: f64 = 2.0;

/// Answers needed of the worker and of each worker in the comparison; also the length of the moving mean.
const ANSWERS: u32 = 8;

/// Smaller delays count as on time: a ratio of few milliseconds is noise.
const LATE_MIN: Micros = Micros::from_millis(50);

/// Upper bound of one answer's ratio.
const RATIO_BOUND: f64 = 16.0;

/// How long a worker must stay late. One stall delays all prompts that wait behind it, so any number of answers within a
/// few steps of the engine are one observation.
const LATE_FOR: Micros = Micros::from_secs(2);

/// Duration of the first ejection; each further one lasts twice as long.
const EJECTED_FOR: Micros = Micros::from_secs(10);
const EJECTED_FOR_MAX: Micros = Micros::from_secs(300);

/// Time without ejections after which the duration starts over.
const FORGIVEN_AFTER: Micros = Micros::from_secs(600);

/// TTFT lateness of all workers, by worker index.
#[derive(Debug, Default)]
pub(crate) struct Outliers(Vec<TtftLateness>);

#[derive(Clone, Copy, Debug, Default)]
struct TtftLateness {
    /// Mean logarithm of observed over predicted TTFT.
    lateness: f64,
    answers: u32,
    /// Since when the mean has been too high.
    late_since: Option<Micros>,
    /// Consecutive ejections, which decide the next duration.
    ejections: u32,
    ejected_until: Micros,
    ejections_total: u64,
}

impl Outliers {
    /// Records a first token. Returns the end of the ejection, if the worker is ejected.
    pub(crate) fn record_first_token(
        &mut self,
        worker: WorkerId,
        predicted: Micros,
        observed: Micros,
        members: impl FnOnce() -> usize,
        now: Micros,
    ) -> Option<Micros> {
        self.make_room(worker);
        self.0[worker.index()].learn(predicted, observed, now);
        let is_due = self.0[worker.index()].stays_late(now) && self.others_are_well(worker);
        (is_due && self.has_room(members(), now)).then(|| self.0[worker.index()].eject(now))
    }

    /// Number of ejections of a worker.
    pub(crate) fn ejections(&self, worker: WorkerId) -> u64 {
        self.0.get(worker.index()).map_or(0, |slot| slot.ejections_total)
    }

    /// Forgets a worker whose slot is given to another. Makes room for the other, so that its answers need none.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.make_room(worker);
        self.0[worker.index()] = TtftLateness::default();
    }

    fn make_room(&mut self, worker: WorkerId) {
        if self.0.len() <= worker.index() {
            self.0.resize(worker.index() + 1, TtftLateness::default());
        }
    }

    fn others_are_well(&self, worker: WorkerId) -> bool {
        let others = self.0.iter().enumerate().filter(|(slot, _)| *slot != worker.index());
        let judged = others.map(|(_, other)| other).filter(|other| other.answers >= ANSWERS);
        let late = judged.clone().filter(|other| other.is_late(MEDIAN_MAX)).count();
        let judged = judged.count();
        judged >= 2 && 2 * late < judged
    }

    /// At most a third of the fleet is out at once.
    fn has_room(&self, members: usize, now: Micros) -> bool {
        let out = self.0.iter().filter(|slot| slot.ejected_until > now).count();
        3 * (out + 1) <= members
    }
}

impl TtftLateness {
    fn learn(&mut self, predicted: Micros, observed: Micros, now: Micros) {
        let is_late = observed.since(predicted) >= LATE_MIN;
        let ratio = observed.0.max(1) as f64 / predicted.0.max(1) as f64;
        let lateness = if is_late { ratio.min(RATIO_BOUND).ln() } else { 0.0 };
        self.answers = self.answers.saturating_add(1);
        self.lateness += (lateness - self.lateness) / f64::from(self.answers.min(ANSWERS));
        self.late_since = self.is_late(RATIO_MAX).then(|| self.late_since.unwrap_or(now));
    }

    /// Whether answers have been too late for long enough.
    fn stays_late(&self, now: Micros) -> bool {
        self.late_since.is_some_and(|since| now.since(since) >= LATE_FOR)
    }

    fn is_late(&self, ratio: f64) -> bool {
        self.answers >= ANSWERS && self.lateness > ratio.ln()
    }

    /// Ejects the worker and forgets its answers: new ones have to show whether it is still late.
    fn eject(&mut self, now: Micros) -> Micros {
        if now.since(self.ejected_until) > FORGIVEN_AFTER {
            self.ejections = 0;
        }
        let lasts = Micros(EJECTED_FOR.0 << self.ejections.min(16)).min(EJECTED_FOR_MAX);
        let ejected_until = now + lasts;
        let (ejections, ejections_total) = (self.ejections + 1, self.ejections_total + 1);
        *self = TtftLateness { ejections, ejected_until, ejections_total, ..TtftLateness::default() };
        ejected_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SOON: Micros = Micros::from_millis(100);

    /// Records `n` answers, each `times` as late as predicted; returns the end of the ejection.
    fn answers(outliers: &mut Outliers, worker: u16, times: u64, n: u32, now: Micros) -> Option<Micros> {
        let mut record =
            || outliers.record_first_token(WorkerId(worker), SOON, Micros(SOON.0 * times), || 6, now);
        (0..n).filter_map(|_| record()).last()
    }

    /// Five workers with punctual answers.
    fn punctual() -> Outliers {
        let mut outliers = Outliers::default();
        (1..6).for_each(|worker| _ = answers(&mut outliers, worker, 1, ANSWERS, Micros::ZERO));
        outliers
    }

    #[test]
    fn a_worker_that_stays_late_is_ejected() {
        let mut outliers = punctual();
        assert_eq!(answers(&mut outliers, 0, 10, ANSWERS, Micros::ZERO), None, "perhaps a stall");
        assert_eq!(answers(&mut outliers, 0, 10, 1, LATE_FOR), Some(LATE_FOR + EJECTED_FOR));
        let later = Micros::from_secs(20);
        assert_eq!(answers(&mut outliers, 0, 10, ANSWERS, later), None, "it is judged anew");
        let then = later + LATE_FOR;
        assert_eq!(answers(&mut outliers, 0, 10, 1, then), Some(then + EJECTED_FOR + EJECTED_FOR));
    }

    #[test]
    fn late_answers_are_too_few_to_tell_or_all_behind_one_stall() {
        let mut outliers = punctual();
        assert_eq!(answers(&mut outliers, 0, 10, ANSWERS - 1, Micros::ZERO), None);
        assert_eq!(answers(&mut outliers, 0, 10, 1, LATE_FOR), None, "eight answers, late since now");
        let mut outliers = punctual();
        for second in (0..100).step_by(3).map(Micros::from_secs) {
            assert_eq!(answers(&mut outliers, 0, 10, 100, second), None, "a stall at {second:?}");
            assert_eq!(answers(&mut outliers, 0, 1, ANSWERS, second + SOON), None);
        }
    }

    #[test]
    fn occasional_stalls_do_not_eject() {
        let mut outliers = punctual();
        for second in (0..100).map(Micros::from_secs) {
            assert_eq!(answers(&mut outliers, 0, 1_000, 1, second), None);
            assert_eq!(answers(&mut outliers, 0, 1, 3, second), None);
        }
    }

    #[test]
    fn no_worker_is_an_outlier_when_all_are_late() {
        let mut outliers = Outliers::default();
        for (second, worker) in (0..6).cycle().take(300).enumerate() {
            let now = Micros::from_secs(second as u64);
            assert_eq!(answers(&mut outliers, worker, 10, 1, now), None);
        }
    }

    #[test]
    fn delays_of_milliseconds_do_not_count() {
        let mut outliers = punctual();
        let (soon, later) = (Micros::from_millis(1), Micros::from_millis(40));
        let mut record =
            |second| outliers.record_first_token(WorkerId(0), soon, later, || 6, Micros::from_secs(second));
        assert!((0..50).all(|second| record(second).is_none()));
    }

    #[test]
    fn a_new_worker_does_not_inherit_the_lateness_of_its_slot() {
        let mut outliers = punctual();
        answers(&mut outliers, 0, 10, ANSWERS, Micros::ZERO);
        outliers.forget(WorkerId(0));
        assert_eq!(answers(&mut outliers, 0, 10, 1, LATE_FOR), None);
    }

    proptest! {
        /// For any order of late answers, at most a third of the fleet is ejected, and no longer than the
        /// maximum.
        #[test]
        fn at_most_a_third_of_the_fleet_is_ejected(steps in prop::collection::vec((0..9_u16, prop_oneof![Just(1_u64), Just(20)], 0..3_u64), 1..600)) {
            let (mut outliers, mut now) = (Outliers::default(), Micros::ZERO);
            for (worker, times, seconds) in steps {
                now = now + Micros::from_secs(seconds);
                let until = outliers.record_first_token(WorkerId(worker), SOON, Micros(SOON.0 * times), || 9, now);
                prop_assert!(until.is_none_or(|until| until <= now + EJECTED_FOR_MAX));
                prop_assert!(outliers.0.iter().filter(|slot| slot.ejected_until > now).count() <= 3);
            }
        }
    }
}
