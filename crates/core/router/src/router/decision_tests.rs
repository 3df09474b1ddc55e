//! A decision's shortcuts change nothing: estimates that are computed once, copied loads, and choices without candidates give
//! what a plain computation gives that reads everything of every worker.

use proptest::prelude::*;
use warmroute_fleet::{EnginePlaces, Models, PrefillFeatures, ProbeResult};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_policy::{Candidate, Estimate, ExpectedTtft, Standard};
use warmroute_types::{Address, Delivery, LoadReport, Usage};

use super::*;
use crate::estimate::{self, EstimateTime};
use crate::pool::OpenDecision;
use crate::{Change, PromptChunks};

const WORKERS: usize = 12;
const CHUNK: u32 = 256;

/// The estimates of all workers, as the terms are defined.
fn plain_estimates(open: &OpenDecision<'_>, workers: &[WorkerId]) -> Vec<Estimate> {
    let input = &open.input;
    let DecisionContext { fleet, now, .. } = *input.context;
    let (followers_per_ms, step_weight, later_requests) = open.weights();
    let at = EstimateTime { now, report_age_max: input.context.report_age_max };
    let mut features: Vec<PrefillFeatures> = Vec::new();
    let mut estimates: Vec<Estimate> = Vec::new();
    let mut overlaps = Vec::new();
    for &worker in workers {
        let (load, forecast, found) =
            (fleet.load_summary(worker), fleet.forecast(worker, now), input.overlap(worker));
        features.push(estimate::features(&load, &forecast, found));
        let cost = fleet.prefill_cost(forecast.kind);
        let EnginePlaces { places, others } = fleet.engine_places(worker);
        let report = fleet.load_view(worker).report;
        let is_reported = report.is_some_and(|report| now.since(report.at) <= at.report_age_max);
        let requests = load.in_flight as f32 + if is_reported { f32::from(others) } else { 0.0 };
        let wait_ms = places.map_or(0.0, |places| {
            let share = (requests + 1.0 - f32::from(places.get())).max(0.0) / f32::from(places.get());
            share * fleet.answer_ms(worker)
        });
        estimates.push(estimate::estimate(&load, &forecast, &cost, found, at, wait_ms));
        overlaps.push(found);
    }
    let longest = overlaps.iter().map(|found| found.overlap_tokens).max().unwrap_or(0);
    let sum: u32 = overlaps.iter().map(|found| found.overlap_tokens).sum();
    let common_tokens = (sum - longest).checked_div(workers.len() as u32 - 1).unwrap_or(0);
    for (index, features) in features.iter().enumerate() {
        let found_tokens = overlaps[index].overlap_tokens + overlaps[index].restorable_tokens;
        let lacking_tokens = common_tokens.saturating_sub(found_tokens).min(features.miss_tokens);
        let like_others = PrefillFeatures {
            miss_tokens: features.miss_tokens - lacking_tokens,
            cached_tokens: features.cached_tokens + lacking_tokens,
            ..*features
        };
        let like_others_ms = fleet.prefill_ms(workers[index], &like_others, now);
        let estimate = &mut estimates[index];
        let is_lacking = lacking_tokens > 0;
        estimate.lacking_ms = if is_lacking { (estimate.prefill_ms - like_others_ms).max(0.0) } else { 0.0 };
    }
    let anywhere_ms = estimates.iter().map(Estimate::own_ms).fold(f32::INFINITY, f32::min);
    for (estimate, &worker) in estimates.iter_mut().zip(workers) {
        let churn = fleet.cache_churn(worker, now).unwrap_or(0.0).min(0.2);
        estimate.anywhere_ms = anywhere_ms;
        estimate.followers = followers_per_ms * (2.0 * estimate.work_ms() - estimate.excess_ms());
        estimate.step_ms *= step_weight;
        estimate.eviction_ms = later_requests * (anywhere_ms * churn / (1.0 + churn));
    }
    estimates
}

/// Something that happened before the decision.
type Step = (u8, usize, u32, u64);

fn happen(router: &Router<Standard>, decisions: &mut Vec<Decision>, step: Step, now: Micros) {
    let (kind, n, amount, _) = step;
    let worker = Arc::clone(&router.fleet.members()[n % WORKERS].worker);
    match kind {
        0 => router.fleet.set_kv_tokens(worker.id, amount.into()),
        1 => router.fleet.restore_worker(&worker, [f64::from(amount) / 2e3, 20.0], None),
        2 => {
            let (places, running) = (Some(amount % 4), amount % 5);
            let report =
                LoadReport { waiting: amount % 3, running, places, at: now, ..LoadReport::default() };
            _ = router.fleet.report(&worker, report);
        }
        3 => router.fleet.pause(&worker, now + Micros::from_millis(300)),
        4 => _ = router.fleet.failed(&worker, now),
        5 if !decisions.is_empty() => _ = decisions.swap_remove(n % decisions.len()),
        6 | 7 if !decisions.is_empty() => {
            let place = n % decisions.len();
            router.observe(&mut decisions[place], Outcome::FirstToken { at: now });
        }
        // More cached than presumed: the answers before, too.
        8 if !decisions.is_empty() => {
            let place = n % decisions.len();
            let cached = decisions[place].cached_tokens.unwrap_or(0) + amount % 300;
            let usage =
                Usage { prompt_tokens: amount.max(cached), output_tokens: 1, cached_tokens: Some(cached) };
            let digests = digests(n, amount);
            router.answered(&mut decisions[place], &request(&digests, amount), usage, now);
        }
        _ => {
            let digests = digests(n, amount);
            let delivery = if amount.is_multiple_of(4) { Delivery::Whole } else { Delivery::Streamed };
            let request = Request { delivery, ..request(&digests, amount) };
            decisions.extend(router.route(&request, &mut Scratch::default(), now, amount.into()));
        }
    }
}

/// A conversation's prompt: one of four beginnings, then its own.
fn digests(conversation: usize, len: u32) -> Vec<u64> {
    let own = |at: u32| if at < 4 { conversation as u64 % 4 } else { conversation as u64 };
    (0..1 + len % 24).map(|at| (own(at) << 32 | u64::from(at)).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

/// Some requests have no prompt to look up.
fn request(digests: &[u64], amount: u32) -> Request<'_> {
    let namespace = Namespace { model: "m", lora: None, salt: None, cut: CHUNK, source: Source::Presumed };
    let bytes = digests.len() as u32 * CHUNK;
    let chunks = PromptChunks { root: RootKey::of(&namespace), digests, chunk_bytes: CHUNK, bytes };
    let prompt = (!amount.is_multiple_of(5)).then_some(chunks);
    Request { model: Some("m"), prompt_tokens: amount, prompt, ..Request::default() }
}

proptest! {
    #[test]
    fn a_decision_equals_a_plain_computation_that_reads_everything(
        steps in prop::collection::vec((0..16_u8, 0..24_usize, 0..4_000_u32, 0..200_u64), 1..120),
    ) {
        let router = Router::new("expected_ttft".parse::<Standard>().unwrap(), Config::default());
        for n in 0..WORKERS {
            let models = Models::named(if n % 5 == 4 { &["other", "m"] } else { &["m"] });
            let worker = router.join(Address::new(format!("http://engine-{n}")), models).unwrap();
            router.apply(Change::Probed { worker, result: ProbeResult::Answered, at: Micros(1) });
        }
        let (mut decisions, mut now, mut scratch) = (Vec::new(), Micros::from_secs(10), Scratch::default());
        for step in steps {
            now = now + Micros::from_millis(step.3);
            happen(&router, &mut decisions, step, now);
            let digests = digests(step.1, step.2);
            let request = request(&digests, step.2);
            let (pools, context) = (router.pools.read(), router.context(request.model, now, step.2.into()));
            let pool = pools.serving(request.model, None).unwrap();
            let Some(mut open) = pool.enter(&context, &request, &mut scratch) else { continue };
            let candidates: Vec<Candidate> = open.candidates().1.to_vec();
            let workers: Vec<WorkerId> = candidates.iter().map(|candidate| candidate.worker).collect();
            let ready = router.fleet.members().into_iter().filter(|view| view.load.takes_requests());
            let awake = ready.filter(|view| !view.load.is_paused(now)).count();
            prop_assert!(workers.len() == awake || awake == 0);
            let estimates: Vec<Estimate> = candidates.iter().map(|candidate| candidate.estimate).collect();
            prop_assert_eq!(estimates, plain_estimates(&open, &workers));
            let shortfall = |&worker: &WorkerId| open.input.overlap(worker).shortfall_tokens;
            let shortfalls: Vec<u32> = workers.iter().map(shortfall).collect();
            prop_assert_eq!(candidates.iter().map(|c| c.shortfall_tokens).collect::<Vec<_>>(), shortfalls);
            let loads = workers.iter().map(|&worker| router.fleet.load_view(worker));
            let in_flight: Vec<u32> = loads.map(|load| load.in_flight).collect();
            prop_assert_eq!(candidates.iter().map(|c| c.in_flight).collect::<Vec<_>>(), in_flight);
            let choice = ExpectedTtft::default().choose(&open.policy_request, &candidates);
            prop_assert_eq!(open.choose(&ExpectedTtft::default()), choice);
        }
    }
}
