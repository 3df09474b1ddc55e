//! Whose fault it was when a worker took a request and broke off.
//!
//! Where another worker then serves the same request, that is known. Where none is asked, or none is left, it may have been the request:
//! one that breaks every worker must not take the fleet out of service. So a worker is found guilty only by a row of *different*
//! requests, with no answer in between, while the others answered at least as many and hardly ever broke. A request that is sent
//! again and again is one request; requests that break everybody make everybody break; and where nobody answers nothing is proven.

use std::collections::BTreeMap;

use warmroute_types::WorkerId;

/// Others must have answered so many times as often as they broke.
const ANSWERS_PER_BREAK: u32 = 4;

/// Fewer different requests prove nothing, however soon a breaker is to open: they may be one client's, and all alike.
pub(crate) const ROW_MIN: u32 = 3;

/// Rows that are under way, one for each worker that broke its last request.
#[derive(Debug, Default)]
pub(crate) struct Suspicions(BTreeMap<WorkerId, Row>);

#[derive(Debug)]
struct Row {
    /// How things were when it began.
    since: Tally,
    /// The requests, each once.
    requests: Vec<u64>,
}

/// How often one worker has answered, and how often the others have answered and broken; counts may wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub own_answers: u32,
    pub others_answers: u32,
    pub others_breaks: u32,
}

/// What a break proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Nothing.
    None,
    /// It is the worker's fault.
    Guilty,
}

impl Suspicions {
    /// A worker broke a request. So many different ones make a row.
    pub fn broke(&mut self, worker: WorkerId, request: u64, now: Tally, row_max: u32) -> Proof {
        let row = self.0.entry(worker).or_insert_with(|| Row::new(now));
        if row.since.own_answers != now.own_answers {
            *row = Row::new(now);
        }
        if !row.requests.contains(&request) && (row.requests.len() as u32) < row_max {
            row.requests.push(request);
        }
        let proof = row.proof(now, row_max);
        if proof == Proof::Guilty {
            self.0.remove(&worker);
        }
        proof
    }

    /// Somebody else sits there now.
    pub fn forget(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
    }
}

impl Row {
    fn new(since: Tally) -> Row {
        Row { since, requests: Vec::new() }
    }

    fn proof(&self, now: Tally, row_max: u32) -> Proof {
        let answers = now.others_answers.wrapping_sub(self.since.others_answers);
        let breaks = now.others_breaks.wrapping_sub(self.since.others_breaks);
        let is_row = self.requests.len() as u32 >= row_max;
        let others_are_well = answers >= row_max && answers >= breaks.saturating_mul(ANSWERS_PER_BREAK);
        if is_row && others_are_well { Proof::Guilty } else { Proof::None }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROW: u32 = 3;
    const WORKERS: usize = 4;

    /// Workers with their counts; the rule sees what a fleet would tell it.
    #[derive(Default)]
    struct World {
        suspicions: Suspicions,
        answers: [u32; WORKERS],
        breaks: [u32; WORKERS],
    }

    impl World {
        fn answer(&mut self, worker: usize) {
            self.answers[worker] += 1;
        }

        fn breaks(&mut self, worker: usize, request: u64) -> Proof {
            self.breaks[worker] += 1;
            let others = |counts: [u32; WORKERS]| counts.iter().sum::<u32>() - counts[worker];
            let tally = Tally {
                own_answers: self.answers[worker],
                others_answers: others(self.answers),
                others_breaks: others(self.breaks),
            };
            self.suspicions.broke(WorkerId(worker as u16), request, tally, ROW)
        }
    }

    #[test]
    fn a_row_of_different_requests_is_proof_once_others_have_answered() {
        let mut world = World::default();
        assert_eq!([1, 2, 3, 4].map(|request| world.breaks(0, request)), [Proof::None; 4], "nobody answers");
        (0..2).for_each(|_| world.answer(1));
        assert_eq!(world.breaks(0, 5), Proof::None, "hardly anybody answers");
        world.answer(1);
        assert_eq!(world.breaks(0, 6), Proof::Guilty);
        assert_eq!(world.breaks(0, 7), Proof::None, "a new row begins");
    }

    proptest! {
        /// However often, wherever and among whatever answers it is sent.
        #[test]
        fn one_request_proves_nothing(steps in prop::collection::vec((0..WORKERS, any::<bool>()), 0..200)) {
            let mut world = World::default();
            for (worker, is_poison) in steps {
                if is_poison {
                    prop_assert_eq!(world.breaks(worker, 13), Proof::None);
                } else {
                    world.answer(worker);
                }
            }
        }

        /// Requests that differ and break whoever gets them, sent to everybody in turn, with fewer others than four times as many.
        #[test]
        fn requests_that_break_everybody_take_nobody_out(answered in prop::collection::vec(0..3_usize, 1..60)) {
            let mut world = World::default();
            for (turn, answered) in answered.into_iter().enumerate() {
                for worker in 0..WORKERS {
                    prop_assert_eq!(world.breaks(worker, (turn * WORKERS + worker) as u64), Proof::None);
                    (0..answered).for_each(|_| world.answer((worker + 1) % WORKERS));
                }
            }
        }

        /// A worker that answers now and then is not found guilty of what came before its last answer.
        #[test]
        fn an_answer_ends_the_row(row in 1..ROW, rows in 1..20_u64) {
            let mut world = World::default();
            for turn in 0..rows {
                (0..10).for_each(|_| world.answer(1));
                for broken in 0..row {
                    prop_assert_eq!(world.breaks(0, turn * 10 + u64::from(broken)), Proof::None);
                }
                world.answer(0);
            }
        }

        /// One that breaks everything while the others answer is found, whatever comes in between and wherever it starts.
        #[test]
        fn whoever_breaks_everything_is_found(bad in 0..WORKERS, order in prop::collection::vec(0..WORKERS, 100..200), before in 0..50_u32) {
            let mut world = World { answers: [before; WORKERS], ..World::default() };
            let mut broken = 0;
            for (request, worker) in order.into_iter().enumerate() {
                if worker != bad {
                    world.answer(worker);
                } else if world.breaks(bad, request as u64) == Proof::Guilty {
                    return Ok(());
                } else {
                    broken += 1;
                }
            }
            prop_assert!(broken < 2 * ROW, "{} requests were broken, and nothing was proven", broken);
        }
    }
}
