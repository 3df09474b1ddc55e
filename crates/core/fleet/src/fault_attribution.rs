//! Decides whether the worker or the request is at fault when an answer breaks off.
//!
//! When another worker then serves the same request, the worker is at fault. When no other worker is tried,
//! the request may be at fault, and a request that breaks every worker must not take the fleet out of
//! service. A worker is therefore at fault only after several *different* requests broke in a row without an
//! answer in between, while the other workers answered at least as many and hardly ever broke. Repeats of one
//! request count once, and nothing is decided while no worker answers.

use std::collections::BTreeMap;

use warmroute_types::WorkerId;

/// The others' answers must be at least this multiple of their breaks.
const ANSWERS_PER_BREAK: u32 = 4;

/// Minimum of different requests in a row, even with a lower breaker threshold: fewer may be one client's
/// identical requests.
pub(crate) const BREAKS_MIN: u32 = 3;

/// Current rows of breaks, one per worker whose last request broke.
#[derive(Debug, Default)]
pub(crate) struct FaultAttribution(BTreeMap<WorkerId, BreakRow>);

#[derive(Debug)]
struct BreakRow {
    /// Counts when the row began.
    since: OutcomeCounts,
    /// The different requests of the row.
    requests: Vec<u64>,
}

/// Answers of one worker, and answers and breaks of the others; wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutcomeCounts {
    pub own_answers: u32,
    pub others_answers: u32,
    pub others_breaks: u32,
}

/// What a break shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The fault is not known.
    Inconclusive,
    /// The worker breaks requests that others answer.
    WorkerAtFault,
}

impl FaultAttribution {
    /// Records that a worker broke a request. `breaks_min` different requests in a row are needed for a
    /// verdict.
    pub fn record_break(
        &mut self,
        worker: WorkerId,
        request: u64,
        now: OutcomeCounts,
        breaks_min: u32,
    ) -> Verdict {
        let row = self.0.entry(worker).or_insert_with(|| BreakRow::new(now));
        if row.since.own_answers != now.own_answers {
            *row = BreakRow::new(now);
        }
        if !row.requests.contains(&request) && (row.requests.len() as u32) < breaks_min {
            row.requests.push(request);
        }
        let verdict = row.verdict(now, breaks_min);
        if verdict == Verdict::WorkerAtFault {
            self.0.remove(&worker);
        }
        verdict
    }

    /// Forgets a worker whose slot is given to another.
    pub fn forget(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
    }
}

impl BreakRow {
    fn new(since: OutcomeCounts) -> BreakRow {
        BreakRow { since, requests: Vec::new() }
    }

    fn verdict(&self, now: OutcomeCounts, breaks_min: u32) -> Verdict {
        let answers = now.others_answers.wrapping_sub(self.since.others_answers);
        let breaks = now.others_breaks.wrapping_sub(self.since.others_breaks);
        let is_row = self.requests.len() as u32 >= breaks_min;
        let others_are_well = answers >= breaks_min && answers >= breaks.saturating_mul(ANSWERS_PER_BREAK);
        if is_row && others_are_well { Verdict::WorkerAtFault } else { Verdict::Inconclusive }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROW: u32 = 3;
    const WORKERS: usize = 4;

    /// Workers with their counts, as the fleet supplies them.
    #[derive(Default)]
    struct World {
        faults: FaultAttribution,
        answers: [u32; WORKERS],
        breaks: [u32; WORKERS],
    }

    impl World {
        fn answer(&mut self, worker: usize) {
            self.answers[worker] += 1;
        }

        fn breaks(&mut self, worker: usize, request: u64) -> Verdict {
            self.breaks[worker] += 1;
            let others = |counts: [u32; WORKERS]| counts.iter().sum::<u32>() - counts[worker];
            let counts = OutcomeCounts {
                own_answers: self.answers[worker],
                others_answers: others(self.answers),
                others_breaks: others(self.breaks),
            };
            self.faults.record_break(WorkerId(worker as u16), request, counts, ROW)
        }
    }

    #[test]
    fn breaks_of_different_requests_convict_once_other_workers_have_answered() {
        let mut world = World::default();
        assert_eq!(
            [1, 2, 3, 4].map(|request| world.breaks(0, request)),
            [Verdict::Inconclusive; 4],
            "no other worker answers"
        );
        (0..2).for_each(|_| world.answer(1));
        assert_eq!(world.breaks(0, 5), Verdict::Inconclusive, "too few answers of others");
        world.answer(1);
        assert_eq!(world.breaks(0, 6), Verdict::WorkerAtFault);
        assert_eq!(world.breaks(0, 7), Verdict::Inconclusive, "a new row begins");
    }

    proptest! {
        /// For any number of repeats on any worker, between any answers.
        #[test]
        fn one_repeated_request_convicts_no_worker(steps in prop::collection::vec((0..WORKERS, any::<bool>()), 0..200)) {
            let mut world = World::default();
            for (worker, is_poison) in steps {
                if is_poison {
                    prop_assert_eq!(world.breaks(worker, 13), Verdict::Inconclusive);
                } else {
                    world.answer(worker);
                }
            }
        }

        /// Different requests that break every worker in turn, with fewer than four times as many answers
        /// between them.
        #[test]
        fn requests_that_break_every_worker_take_none_out(answered in prop::collection::vec(0..3_usize, 1..60)) {
            let mut world = World::default();
            for (turn, answered) in answered.into_iter().enumerate() {
                for worker in 0..WORKERS {
                    prop_assert_eq!(world.breaks(worker, (turn * WORKERS + worker) as u64), Verdict::Inconclusive);
                    (0..answered).for_each(|_| world.answer((worker + 1) % WORKERS));
                }
            }
        }

        /// Breaks before the worker's last answer do not count.
        #[test]
        fn an_answer_resets_the_row(row in 1..ROW, rows in 1..20_u64) {
            let mut world = World::default();
            for turn in 0..rows {
                (0..10).for_each(|_| world.answer(1));
                for broken in 0..row {
                    prop_assert_eq!(world.breaks(0, turn * 10 + u64::from(broken)), Verdict::Inconclusive);
                }
                world.answer(0);
            }
        }

        /// A worker that breaks every request while the others answer, in any order and from any counts.
        #[test]
        fn a_worker_that_breaks_every_request_is_convicted(bad in 0..WORKERS, order in prop::collection::vec(0..WORKERS, 100..200), before in 0..50_u32) {
            let mut world = World { answers: [before; WORKERS], ..World::default() };
            let mut broken = 0;
            for (request, worker) in order.into_iter().enumerate() {
                if worker != bad {
                    world.answer(worker);
                } else if world.breaks(bad, request as u64) == Verdict::WorkerAtFault {
                    return Ok(());
                } else {
                    broken += 1;
                }
            }
            prop_assert!(broken < 2 * ROW, "{} requests were broken, and nothing was proven", broken);
        }
    }
}
