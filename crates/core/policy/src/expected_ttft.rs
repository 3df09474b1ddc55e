//! Where will the first token come soonest, all told?
//!
//! Everything is time, in milliseconds:
//!
//! ```text
//! work = prefill - lacking
//! cost = queue + work + prompts ahead × (work - anywhere) + 10 × step
//! ```
//!
//! *queue* and *prefill* are this request's own wait. Work also makes those wait who come after it, and as many come as are
//! waiting now. What it takes *anywhere*, on the worker that has least to do for it, somebody has to wait for in any case; the
//! rest is waste, and counts once more for each that waits: so warmth is worth the more the longer the queues are.
//! *step* is what its answer takes from all answers beside it, for a while: without it the fastest prefill would win
//! until its worker's memory is full of answers.
//!
//! *lacking* is what a worker would compute only because it lacks what the others have: a head that everybody shares. It is
//! paid once, and from then on this worker is as good as they are; who counted it would never use it.
//!
//! Whoever is about as good as the best is as good. Of those a short conversation's home takes it; where it has none, the one that
//! has waited longest, which spreads cold prompts as evenly as turns would. Where there are several routers, each takes the one at
//! its own place in that order: all would take the same one otherwise, before they hear of each other. The more work they may have
//! sent that has not been heard of, the less is an idler one sure to be idle, and the more of those that are as warm count as equals.

use std::cmp::Reverse;

use warmroute_types::Micros;

use crate::numbers::mix;
use crate::{Ask, Candidate, Choice, Policy};

/// Least expected time to first token, with what it costs others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedTtft {
    /// A part that is left out, to see what it is good for. In production, none.
    pub without: Option<Part>,
}

/// What the cost is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What is booked before it.
    Queue,
    /// What its work costs those who come after it.
    Behind,
    /// What its answer takes from other answers.
    Step,
    /// That what everybody has is had by all, sooner or later.
    Lacking,
    /// That about as good is as good.
    Ties,
}

/// An answer is in its worker's batch for hundreds of steps, and each is worth far less than a millisecond of a first token:
/// it counts as so many.
const STEPS: f32 = 10.0;
/// Estimates are no better than this share of themselves,
const TIE_RATIO: f32 = 0.02;
/// and than a part of a step, for whose end a prompt has to wait.
const TIE_MS: f32 = 2.0;

impl ExpectedTtft {
    /// What it would cost to send the request there, to it and to others.
    pub fn cost_ms(&self, candidate: &Candidate) -> f32 {
        let weight = |part: Part, weight: f32| if self.without == Some(part) { 0.0 } else { weight };
        let estimate = &candidate.estimate;
        let work_ms = estimate.prefill_ms - weight(Part::Lacking, estimate.lacking_ms);
        weight(Part::Queue, estimate.queue_ms)
            + work_ms
            + (work_ms - estimate.anywhere_ms) * weight(Part::Behind, estimate.prompts_ahead as f32)
            + estimate.step_ms * weight(Part::Step, STEPS)
    }

    /// What is still as good as the best.
    fn limit_ms(&self, least_ms: f32, unheard: Micros) -> f32 {
        match self.without {
            Some(Part::Ties) => least_ms,
            _ => least_ms * (1.0 + TIE_RATIO) + TIE_MS + unheard.0 as f32 / 1e3,
        }
    }
}

impl Policy for ExpectedTtft {
    fn name(&self) -> &'static str {
        "expected_ttft"
    }

    fn choose(&self, ask: &Ask, candidates: &[Candidate]) -> Choice {
        let costs = candidates.iter().map(|c| (self.cost_ms(c), c.overlap_tokens));
        let (least_ms, warmth) =
            costs.fold((f32::INFINITY, 0), |best, one| if one.0 < best.0 { one } else { best });
        let limit_ms = |c: &Candidate| {
            // Work that is not heard of can take an idle worker's advantage away, not a warm one's.
            let unheard = if c.overlap_tokens >= warmth { ask.unheard } else { Micros::ZERO };
            self.limit_ms(least_ms, unheard)
        };
        let has_home = has_home(ask, candidates);
        let home_tokens = |index: usize| if has_home { candidates[index].overlap_tokens } else { 0 };
        let is_as_good = |index: &usize| self.cost_ms(&candidates[*index]) <= limit_ms(&candidates[*index]);
        let as_good = (0..candidates.len()).filter(is_as_good);
        let most = as_good.clone().map(home_tokens).max().unwrap_or(0);
        let equals = as_good.filter(|&index| home_tokens(index) == most);
        let merit = |index: usize| -> (Reverse<Micros>, u64) {
            (Reverse(candidates[index].estimate.idle), mix(ask.random ^ index as u64))
        };
        let index = nth(ask.place, equals, merit).unwrap_or(0);
        Choice { index, reason: reason(&candidates[index], candidates) }
    }
}

/// The one at a place in the order of merit; places go round. One look at all for each place, but no memory.
fn nth<M: Ord>(
    place: u32,
    equals: impl Iterator<Item = usize> + Clone,
    merit: impl Fn(usize) -> M,
) -> Option<usize> {
    let mut chosen = equals.clone().min_by_key(|&index| merit(index))?;
    let places = if place == 0 { 0 } else { place as usize % equals.clone().count() };
    for _ in 0..places {
        let before = merit(chosen);
        chosen = equals.clone().filter(|&index| merit(index) > before).min_by_key(|&index| merit(index))?;
    }
    Some(chosen)
}

/// Whether the prompt goes on with something that few hold: half of it and more is held by somebody, and not by half of them.
/// Less is a head, and what half of the workers hold is everybody's.
fn has_home(ask: &Ask, candidates: &[Candidate]) -> bool {
    let held = |c: &Candidate| u64::from(c.overlap_tokens);
    let (sum, most) =
        (candidates.iter().map(held).sum::<u64>(), candidates.iter().map(held).max().unwrap_or(0));
    let is_rare = 2 * (sum - most) < most * (candidates.len() as u64 - 1).max(1);
    is_rare && 2 * most >= u64::from(ask.prompt_tokens)
}

fn reason(chosen: &Candidate, candidates: &[Candidate]) -> &'static str {
    let longest = candidates.iter().map(|c| c.overlap_tokens).max().unwrap_or(0);
    match chosen.overlap_tokens {
        0 if longest == 0 => "soonest",
        tokens if tokens == longest => "soonest_warmest",
        _ => "soonest_though_colder",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Estimate;
    use crate::numbers::fixtures::*;

    /// Queue, prefill, prompts ahead, what a step gets longer.
    type Times = (f32, f32, u32, f32);

    fn choice(rule: ExpectedTtft, times: &[Times]) -> usize {
        let anywhere_ms = times.iter().map(|times| times.1).fold(f32::INFINITY, f32::min);
        let candidates: Vec<Candidate> = times
            .iter()
            .enumerate()
            .map(|(seat, &(queue_ms, prefill_ms, prompts_ahead, step_ms))| Candidate {
                estimate: Estimate {
                    queue_ms,
                    prefill_ms,
                    anywhere_ms,
                    step_ms,
                    prompts_ahead,
                    ..Estimate::default()
                },
                ..candidate(seat as u16, prompts_ahead)
            })
            .collect();
        rule.choose(&thousand(3), &candidates).index
    }

    #[test]
    fn the_soonest_wins_and_work_weighs_more_the_longer_the_queues_are() {
        let rule = ExpectedTtft::default();
        for (why, times, index) in [
            ("a warm one is worth a short wait", [(100.0, 20.0, 1, 0.0), (0.0, 200.0, 0, 0.0)], 0),
            ("but not a long one", [(300.0, 20.0, 1, 0.0), (0.0, 200.0, 0, 0.0)], 1),
            ("when all wait, work is what counts", [(900.0, 20.0, 9, 0.0), (700.0, 200.0, 7, 0.0)], 0),
            ("what it takes anywhere counts once", [(100.0, 500.0, 9, 0.0), (200.0, 500.0, 0, 0.0)], 0),
            ("answers beside it count", [(0.0, 50.0, 0, 9.0), (0.0, 60.0, 0, 1.0)], 1),
        ] {
            assert_eq!(choice(rule, &times), index, "{why}");
        }
    }

    #[test]
    fn every_part_matters_somewhere() {
        for (part, times) in [
            (Part::Queue, [(500.0, 20.0, 1, 0.0), (0.0, 200.0, 0, 0.0)]),
            (Part::Behind, [(900.0, 20.0, 9, 0.0), (700.0, 200.0, 7, 0.0)]),
            (Part::Step, [(0.0, 50.0, 0, 9.0), (0.0, 60.0, 0, 1.0)]),
        ] {
            let (with, without) = (ExpectedTtft::default(), ExpectedTtft { without: Some(part) });
            assert_ne!(choice(with, &times), choice(without, &times), "{part:?}");
        }
    }

    #[test]
    fn among_equals_the_one_that_has_waited_longest_takes_it() {
        let rule = ExpectedTtft::default();
        let candidates: Vec<Candidate> = [5, 90, 30]
            .map(|idle| Estimate {
                prefill_ms: 49.0 + idle as f32 / 100.0,
                idle: Micros(idle),
                ..Estimate::default()
            })
            .into_iter()
            .map(|estimate| Candidate { estimate, ..candidate(0, 0) })
            .collect();
        assert_eq!(rule.choose(&thousand(1), &candidates).index, 1);
        let exact = ExpectedTtft { without: Some(Part::Ties) };
        assert_eq!(exact.choose(&thousand(1), &candidates).index, 0);
    }

    #[test]
    fn routers_that_decide_at_once_take_different_ones_of_equals() {
        let candidates: Vec<Candidate> = [5, 90, 30]
            .map(|idle| Estimate { prefill_ms: 50.0, idle: Micros(idle), ..Estimate::default() })
            .into_iter()
            .map(|estimate| Candidate { estimate, ..candidate(0, 0) })
            .collect();
        let choice = |place| {
            let ask = Ask { place, ..thousand(1) };
            ExpectedTtft::default().choose(&ask, &candidates).index
        };
        assert_eq!([0, 1, 2, 3, 4].map(choice), [1, 2, 0, 1, 2]);
    }

    #[test]
    fn where_much_is_unheard_a_better_one_may_be_taken_already() {
        let candidates: Vec<Candidate> = [50.0, 120.0, 400.0]
            .map(|prefill_ms| Estimate { prefill_ms, ..Estimate::default() })
            .into_iter()
            .map(|estimate| Candidate { estimate, ..candidate(0, 0) })
            .collect();
        let choices = |unheard_ms| {
            let ask = |place| Ask { place, unheard: Micros::from_millis(unheard_ms), ..thousand(1) };
            let mut choices =
                [0, 1, 2].map(|place| ExpectedTtft::default().choose(&ask(place), &candidates).index);
            choices.sort_unstable();
            choices
        };
        assert_eq!((choices(0), choices(50)), ([0, 0, 0], [0, 0, 0]));
        assert!(choices(100).contains(&1) && !choices(100).contains(&2));
        assert_eq!(choices(500), [0, 1, 2]);
    }

    #[test]
    fn what_all_others_have_is_no_reason_to_avoid_the_one_that_lacks_it() {
        let times = [(60.0, 20.0), (50.0, 0.0)];
        let candidates = times.map(|(prefill_ms, lacking_ms)| Candidate {
            estimate: Estimate { prefill_ms, lacking_ms, ..Estimate::default() },
            ..candidate(0, 0)
        });
        let blunt = ExpectedTtft { without: Some(Part::Lacking) };
        assert_eq!(ExpectedTtft::default().choose(&thousand(1), &candidates).index, 0);
        assert_eq!(blunt.choose(&thousand(1), &candidates).index, 1);
    }

    #[test]
    fn a_short_conversation_stays_at_home_and_a_head_that_half_of_them_hold_is_nobodys() {
        let rule = ExpectedTtft::default();
        let idle = |seat: u16, overlap_tokens, idle| Candidate {
            overlap_tokens,
            estimate: Estimate { idle: Micros(idle), ..Estimate::default() },
            ..candidate(seat, 0)
        };
        let home = [idle(0, 0, 90), idle(1, 640, 5), idle(2, 0, 50), idle(3, 0, 60)];
        assert_eq!(rule.choose(&thousand(1), &home).index, 1);
        for head in [
            [idle(0, 0, 90), idle(1, 640, 5), idle(2, 640, 50), idle(3, 640, 60)],
            [idle(0, 0, 90), idle(1, 64, 5), idle(2, 0, 50), idle(3, 0, 60)],
        ] {
            assert_eq!(rule.choose(&thousand(1), &head).index, 0, "{head:?}");
        }
    }
}
