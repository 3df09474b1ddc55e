//! The default policy: lowest expected time to first token, including the delay to other requests.
//!
//! All terms are milliseconds:
//!
//! ```text
//! work = prefill - lacking
//! cost = queue + adapter + work + (prompts ahead + followers) × excess + 10 × step + eviction
//! ```
//!
//! - *queue*, *adapter* and *prefill* are this request's own wait. *queue* is the time for the prompts before it, or until
//!   answers end if they have all places of the batch. *adapter* is the load of a LoRA adapter that the worker does not hold.
//! - *(prompts ahead + followers) × excess* is the delay to later requests: as many as wait now, and those that come
//!   while the worker computes the request. *excess* is the work for the part of the prompt that another worker has
//!   cached and this one has not: longer queues and busier workers make cache hits worth more. Nothing else is
//!   multiplied: other differences between workers are no work that could be saved.
//! - *step* is the slowdown of the other answers on the worker. Without it the fastest prefill wins until the
//!   worker's memory is full of answers. It counts more for the first request of long conversations, whose other
//!   requests follow it to the same worker.
//! - *eviction* is the prefill of what the later requests of the conversation will evict from the worker's cache. It counts
//!   for the first request only. Without it conversations pile up on workers that are idle between their requests, and evict
//!   each other.
//! - *lacking* is the prefill of a prefix that the other workers hold and this one does not. The worker pays
//!   it once; counting it would keep a new worker unused forever.
//!
//! Candidates within 2 % plus 2 ms of the lowest cost count as ties. A tied worker that probably holds most of a
//! conversation wins, its answers included; otherwise the worker that has been idle longest, which spreads cold
//! prompts evenly.
//! With several routers, each takes the tied worker at its own position in that order, because routers
//! deciding at once would otherwise all take the same one. Load that peers assigned and this router has not
//! received yet widens the tie among equally warm workers.

use std::cmp::Reverse;

use warmroute_types::Micros;

use crate::numbers::mix;
use crate::{Candidate, Choice, Estimate, Policy, PolicyRequest};

/// Lowest expected time to first token, including the delay to other requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedTtft {
    /// A term to leave out, to measure its effect. `None` in production.
    pub without: Option<CostTerm>,
}

/// A term of the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostTerm {
    /// Wait for prompts booked earlier.
    Queue,
    /// Delay to the requests that come later.
    Behind,
    /// The part of that delay that falls on requests which have not come yet.
    Followers,
    /// Slowdown of the other answers on the worker.
    Step,
    /// Work to compute again what the conversation evicts.
    Eviction,
    /// Discount of a prefix that all other workers hold.
    Lacking,
    /// Near-equal costs count as ties.
    Ties,
}

/// Decode steps for which the slowdown counts. An answer stays in the batch for hundreds of steps, but a
/// millisecond of decode matters far less than a millisecond before the first token.
const STEPS: f32 = 10.0;
/// Relative error of estimates: costs within this share of the lowest are ties.
const TIE_RATIO: f32 = 0.02;
/// Absolute error of estimates: part of an engine step, whose end every prompt waits for.
const TIE_MS: f32 = 2.0;

impl ExpectedTtft {
    /// Cost of sending the request to the candidate, for this request and for others.
    #[inline]
    pub fn cost_ms(&self, estimate: &Estimate) -> f32 {
        let weight = |term: CostTerm, weight: f32| if self.without == Some(term) { 0.0 } else { weight };
        let work_ms = estimate.prefill_ms - weight(CostTerm::Lacking, estimate.lacking_ms);
        let delayed = estimate.prompts_ahead as f32 + weight(CostTerm::Followers, estimate.followers);
        weight(CostTerm::Queue, estimate.queue_ms)
            + estimate.adapter_ms
            + work_ms
            + estimate.excess_ms() * weight(CostTerm::Behind, delayed)
            + estimate.step_ms * weight(CostTerm::Step, STEPS)
            + weight(CostTerm::Eviction, estimate.eviction_ms)
    }

    /// Chooses by what this policy reads of the candidates, of which there is at least one.
    pub fn choose_scored(
        &self,
        request: &PolicyRequest,
        count: usize,
        score: impl Fn(usize) -> Score,
    ) -> Choice {
        let Totals { least_ms, warmth, overlap_sum, longest } = totals((0..count).map(&score));
        // Unpropagated load may occupy an idle worker, but does not take a cached prefix away.
        let warm_limit_ms = self.limit_ms(least_ms, request.unpropagated_load);
        let cold_limit_ms = self.limit_ms(least_ms, Micros::ZERO);
        let has_few_holders = has_few_holders(request.prompt_tokens, count as u64, overlap_sum, longest);
        let tied = (0..count).map(|index| (index, score(index))).filter(|(_, score)| {
            score.cost_ms <= if score.held_tokens >= warmth { warm_limit_ms } else { cold_limit_ms }
        });
        // Without few holders all count as equally warm, and another pass would say nothing.
        let holder_tokens = |score: Score| if has_few_holders { score.held_tokens } else { 0 };
        let held = tied.clone().map(|(_, score)| holder_tokens(score));
        let most = if has_few_holders { held.max().unwrap_or(0) } else { 0 };
        let equals = tied.filter(|(_, score)| holder_tokens(*score) == most);
        let idle = equals.map(|(index, score)| (index, score.idle));
        let index = nth_preferred(request, idle).unwrap_or(0);
        Choice { index, reason: reason(score(index).held_tokens, longest) }
    }

    /// The highest cost that ties with the lowest.
    fn limit_ms(&self, least_ms: f32, unpropagated_load: Micros) -> f32 {
        match self.without {
            Some(CostTerm::Ties) => least_ms,
            _ => least_ms * (1.0 + TIE_RATIO) + TIE_MS + unpropagated_load.0 as f32 / 1e3,
        }
    }
}

impl Policy for ExpectedTtft {
    fn name(&self) -> &'static str {
        "expected_ttft"
    }

    fn choose(&self, request: &PolicyRequest, candidates: &[Candidate]) -> Choice {
        self.choose_scored(request, candidates.len(), |index| {
            let Candidate { estimate, overlap_tokens, shortfall_tokens, .. } = &candidates[index];
            let held_tokens = overlap_tokens.saturating_add(*shortfall_tokens);
            Score { cost_ms: self.cost_ms(estimate), held_tokens, idle: estimate.idle }
        })
    }

    fn is_expected_ttft(&self) -> bool {
        *self == ExpectedTtft::default()
    }
}

/// What this policy reads of a candidate.
#[derive(Clone, Copy, Debug)]
pub struct Score {
    /// [`ExpectedTtft::cost_ms`].
    pub cost_ms: f32,
    /// Tokens from the start of the prompt that the worker's cache probably holds.
    pub held_tokens: u32,
    /// Time since the worker was last assigned a request.
    pub idle: Micros,
}

fn totals(scores: impl Iterator<Item = Score>) -> Totals {
    let none = Totals { least_ms: f32::INFINITY, warmth: 0, overlap_sum: 0, longest: 0 };
    scores.fold(none, |so_far, Score { cost_ms, held_tokens, .. }| {
        let is_least = cost_ms < so_far.least_ms;
        Totals {
            least_ms: if is_least { cost_ms } else { so_far.least_ms },
            warmth: if is_least { held_tokens } else { so_far.warmth },
            overlap_sum: so_far.overlap_sum + u64::from(held_tokens),
            longest: so_far.longest.max(held_tokens),
        }
    })
}

/// What a choice needs to know of all candidates, found in one pass: with thousands of them each pass counts.
struct Totals {
    /// The lowest cost.
    least_ms: f32,
    /// The overlap of the first candidate with that cost.
    warmth: u32,
    overlap_sum: u64,
    longest: u32,
}

/// The candidate at the router's position in order of preference, modulo the count: the longest idle first, then by lot. One
/// pass per position, without allocation.
fn nth_preferred(
    request: &PolicyRequest,
    equals: impl Iterator<Item = (usize, Micros)> + Clone,
) -> Option<usize> {
    let lot = |index: usize| mix(request.random ^ index as u64);
    let preference = |(index, idle): (usize, Micros)| (Reverse(idle), lot(index));
    let mut chosen = most_preferred(equals.clone(), lot)?;
    let rank = request.router_rank as usize;
    let steps = if rank == 0 { 0 } else { rank % equals.clone().count() };
    for _ in 0..steps {
        let before = preference(chosen);
        chosen = most_preferred(equals.clone().filter(|&next| preference(next) > before), lot)?;
    }
    Some(chosen.0)
}

/// The longest idle candidate, of several the one with the lowest lot. Lots are drawn only where they decide.
fn most_preferred(
    equals: impl Iterator<Item = (usize, Micros)>,
    lot: impl Fn(usize) -> u64,
) -> Option<(usize, Micros)> {
    let mut best = None;
    for (index, idle) in equals {
        match best {
            Some((_, longest, _)) if idle < longest => {}
            Some((_, longest, lowest)) if idle == longest && lot(index) >= lowest => {}
            _ => best = Some((index, idle, lot(index))),
        }
    }
    best.map(|(index, idle, _)| (index, idle))
}

/// Whether the prompt continues a conversation that few workers hold: the longest overlap covers at least
/// half of the prompt, and fewer than half of the workers hold it. A shorter overlap is a shared head; a
/// common one does not distinguish workers.
fn has_few_holders(prompt_tokens: u32, candidates: u64, overlap_sum: u64, longest: u32) -> bool {
    let most = u64::from(longest);
    let is_rare = 2 * (overlap_sum - most) < most * (candidates - 1).max(1);
    is_rare && 2 * most >= u64::from(prompt_tokens)
}

fn reason(overlap_tokens: u32, longest: u32) -> &'static str {
    match overlap_tokens {
        0 if longest == 0 => "soonest",
        tokens if tokens == longest => "soonest_warmest",
        _ => "soonest_though_colder",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::fixtures::*;
    use proptest::prelude::*;

    /// (queue ms, prefill ms, prompts ahead, step ms)
    type Times = (f32, f32, u32, f32);

    fn choice(rule: ExpectedTtft, times: &[Times]) -> usize {
        let anywhere_ms = times.iter().map(|times| times.1).fold(f32::INFINITY, f32::min);
        let candidates: Vec<Candidate> = times
            .iter()
            .enumerate()
            .map(|(index, &(queue_ms, prefill_ms, prompts_ahead, step_ms))| Candidate {
                estimate: Estimate {
                    queue_ms,
                    prefill_ms,
                    uncached_ms: prefill_ms,
                    anywhere_ms,
                    step_ms,
                    prompts_ahead,
                    ..Estimate::default()
                },
                ..candidate(index as u16, prompts_ahead)
            })
            .collect();
        rule.choose(&thousand_tokens(3), &candidates).index
    }

    #[test]
    fn the_lowest_expected_ttft_wins_and_work_weighs_more_in_longer_queues() {
        let rule = ExpectedTtft::default();
        for (why, times, index) in [
            ("a cached prompt is worth a short wait", [(100.0, 20.0, 1, 0.0), (0.0, 200.0, 0, 0.0)], 0),
            ("but not a long one", [(300.0, 20.0, 1, 0.0), (0.0, 200.0, 0, 0.0)], 1),
            ("when all workers queue, less work wins", [(900.0, 20.0, 9, 0.0), (700.0, 200.0, 7, 0.0)], 0),
            ("work needed on every worker counts once", [(100.0, 500.0, 9, 0.0), (200.0, 500.0, 0, 0.0)], 0),
            ("the slowdown of other answers counts", [(0.0, 50.0, 0, 9.0), (0.0, 60.0, 0, 1.0)], 1),
        ] {
            assert_eq!(choice(rule, &times), index, "{why}");
        }
    }

    #[test]
    fn an_idle_worker_does_not_get_a_copy_when_many_requests_are_about_to_come() {
        let of = |queue_ms, prefill_ms, followers| Candidate {
            estimate: Estimate {
                queue_ms,
                prefill_ms,
                uncached_ms: prefill_ms,
                followers,
                anywhere_ms: 20.0,
                ..Estimate::default()
            },
            ..candidate(0, 0)
        };
        let choice = |without, followers| {
            let candidates = [of(600.0, 20.0, 0.0), of(0.0, 500.0, followers)];
            ExpectedTtft { without }.choose(&thousand_tokens(1), &candidates).index
        };
        assert_eq!([0.0, 0.1, 1.0].map(|followers| choice(None, followers)), [1, 1, 0]);
        assert_eq!(choice(Some(CostTerm::Followers), 1.0), 1);
    }

    #[test]
    fn only_work_that_a_cache_would_save_is_multiplied() {
        // A prompt that begins a step has its fixed cost to itself; one behind another shares it.
        let of = |queue_ms: f32, fixed_ms: f32, followers: f32| Candidate {
            estimate: Estimate {
                queue_ms,
                prefill_ms: 50.0 + fixed_ms,
                uncached_ms: 50.0,
                anywhere_ms: 50.0,
                followers,
                ..Estimate::default()
            },
            ..candidate(0, 0)
        };
        for followers in [0.0, 1.0, 20.0] {
            let candidates = [of(40.0, 1.0, followers), of(0.0, 6.0, followers)];
            assert_eq!(ExpectedTtft::default().choose(&thousand_tokens(1), &candidates).index, 1);
        }
    }

    #[test]
    fn every_cost_term_changes_some_choice() {
        for (term, times) in [
            (CostTerm::Queue, [(500.0, 20.0, 1, 0.0), (0.0, 200.0, 0, 0.0)]),
            (CostTerm::Behind, [(900.0, 20.0, 9, 0.0), (700.0, 200.0, 7, 0.0)]),
            (CostTerm::Step, [(0.0, 50.0, 0, 9.0), (0.0, 60.0, 0, 1.0)]),
        ] {
            let (with, without) = (ExpectedTtft::default(), ExpectedTtft { without: Some(term) });
            assert_ne!(choice(with, &times), choice(without, &times), "{term:?}");
        }
    }

    #[test]
    fn a_conversation_begins_where_it_evicts_less() {
        let candidates = [(20.0, 40.0), (50.0, 0.0)].map(|(prefill_ms, eviction_ms)| Candidate {
            estimate: Estimate { prefill_ms, eviction_ms, ..Estimate::default() },
            ..candidate(0, 0)
        });
        let blind = ExpectedTtft { without: Some(CostTerm::Eviction) };
        assert_eq!(ExpectedTtft::default().choose(&thousand_tokens(1), &candidates).index, 1);
        assert_eq!(blind.choose(&thousand_tokens(1), &candidates).index, 0);
    }

    #[test]
    fn ties_go_to_the_worker_idle_longest() {
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
        assert_eq!(rule.choose(&thousand_tokens(1), &candidates).index, 1);
        let exact = ExpectedTtft { without: Some(CostTerm::Ties) };
        assert_eq!(exact.choose(&thousand_tokens(1), &candidates).index, 0);
    }

    #[test]
    fn routers_deciding_at_once_take_different_tied_workers() {
        let candidates: Vec<Candidate> = [5, 90, 30]
            .map(|idle| Estimate { prefill_ms: 50.0, idle: Micros(idle), ..Estimate::default() })
            .into_iter()
            .map(|estimate| Candidate { estimate, ..candidate(0, 0) })
            .collect();
        let choice = |router_rank| {
            let request = PolicyRequest { router_rank, ..thousand_tokens(1) };
            ExpectedTtft::default().choose(&request, &candidates).index
        };
        assert_eq!([0, 1, 2, 3, 4].map(choice), [1, 2, 0, 1, 2]);
    }

    #[test]
    fn unpropagated_load_widens_the_tie() {
        let candidates: Vec<Candidate> = [50.0, 120.0, 400.0]
            .map(|prefill_ms| Estimate { prefill_ms, ..Estimate::default() })
            .into_iter()
            .map(|estimate| Candidate { estimate, ..candidate(0, 0) })
            .collect();
        let choices = |unpropagated_ms| {
            let request = |router_rank| PolicyRequest {
                router_rank,
                unpropagated_load: Micros::from_millis(unpropagated_ms),
                ..thousand_tokens(1)
            };
            let mut choices = [0, 1, 2]
                .map(|router_rank| ExpectedTtft::default().choose(&request(router_rank), &candidates).index);
            choices.sort_unstable();
            choices
        };
        assert_eq!((choices(0), choices(50)), ([0, 0, 0], [0, 0, 0]));
        assert!(choices(100).contains(&1) && !choices(100).contains(&2));
        assert_eq!(choices(500), [0, 1, 2]);
    }

    #[test]
    fn a_prefix_that_all_other_workers_hold_does_not_count_against_the_one_lacking_it() {
        let times = [(60.0, 20.0), (50.0, 0.0)];
        let candidates = times.map(|(prefill_ms, lacking_ms)| Candidate {
            estimate: Estimate { prefill_ms, lacking_ms, ..Estimate::default() },
            ..candidate(0, 0)
        });
        let blunt = ExpectedTtft { without: Some(CostTerm::Lacking) };
        assert_eq!(ExpectedTtft::default().choose(&thousand_tokens(1), &candidates).index, 0);
        assert_eq!(blunt.choose(&thousand_tokens(1), &candidates).index, 1);
    }

    #[test]
    fn a_conversation_stays_with_its_holder_and_a_prefix_held_by_half_the_workers_does_not_decide() {
        let rule = ExpectedTtft::default();
        let idle = |index: u16, overlap_tokens, idle| Candidate {
            overlap_tokens,
            estimate: Estimate { idle: Micros(idle), ..Estimate::default() },
            ..candidate(index, 0)
        };
        let home = [idle(0, 0, 90), idle(1, 640, 5), idle(2, 0, 50), idle(3, 0, 60)];
        assert_eq!(rule.choose(&thousand_tokens(1), &home).index, 1);
        // A short message with a long answer after it: the view knows the message only.
        let mut answered = [idle(0, 0, 90), idle(1, 64, 5), idle(2, 0, 50), idle(3, 0, 60)];
        answered[1].shortfall_tokens = 460;
        assert_eq!(rule.choose(&thousand_tokens(1), &answered).index, 1);
        for head in [
            [idle(0, 0, 90), idle(1, 640, 5), idle(2, 640, 50), idle(3, 640, 60)],
            [idle(0, 0, 90), idle(1, 64, 5), idle(2, 0, 50), idle(3, 0, 60)],
        ] {
            assert_eq!(rule.choose(&thousand_tokens(1), &head).index, 0, "{head:?}");
        }
    }

    /// The rule as the module's text says it.
    fn by_the_book(request: &PolicyRequest, scores: &[Score]) -> usize {
        let least = scores.iter().map(|score| score.cost_ms).fold(f32::INFINITY, f32::min);
        let warmth = scores.iter().find(|score| score.cost_ms == least).unwrap().held_tokens;
        let overlaps = || scores.iter().map(|score| score.held_tokens);
        let (sum, longest) = (overlaps().map(u64::from).sum(), overlaps().max().unwrap());
        let few = has_few_holders(request.prompt_tokens, scores.len() as u64, sum, longest);
        let is_tied = |score: &Score| {
            let is_warm = score.held_tokens >= warmth;
            let unpropagated = if is_warm { request.unpropagated_load } else { Micros::ZERO };
            score.cost_ms <= least * 1.02 + 2.0 + unpropagated.0 as f32 / 1e3
        };
        let held = |index: &usize| if few { scores[*index].held_tokens } else { 0 };
        let tied: Vec<usize> = (0..scores.len()).filter(|&index| is_tied(&scores[index])).collect();
        let most = tied.iter().map(held).max().unwrap();
        let mut equals: Vec<usize> = tied.into_iter().filter(|index| held(index) == most).collect();
        equals.sort_by_key(|&index| (Reverse(scores[index].idle), mix(request.random ^ index as u64)));
        equals[request.router_rank as usize % equals.len()]
    }

    proptest! {
        #[test]
        fn the_choice_is_the_one_that_the_rule_describes(
            rows in prop::collection::vec((0..60_u16, 0..5_u32, 0..4_u64), 1..40),
            random: u64,
            router_rank in 0..4_u32,
            unpropagated_ms in 0..3_u64,
        ) {
            let scores: Vec<Score> = rows
                .into_iter()
                .map(|(tenths, quarters, idle)| Score {
                    cost_ms: f32::from(tenths) / 10.0,
                    held_tokens: quarters * 250,
                    idle: Micros(idle),
                })
                .collect();
            let unpropagated_load = Micros::from_millis(unpropagated_ms);
            let request = PolicyRequest { router_rank, unpropagated_load, ..thousand_tokens(random) };
            let choice = ExpectedTtft::default().choose_scored(&request, scores.len(), |index| scores[index]);
            prop_assert_eq!(choice.index, by_the_book(&request, &scores));
        }
    }
}
