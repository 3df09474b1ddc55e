//! What a decision tells about itself, what a preview leaves behind, and what shadows count.

use warmroute_fleet::{Models, ProbeResult};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_policy::{CacheAware, ExpectedTtft, RoundRobin, Standard};
use warmroute_types::Address;

use super::*;
use crate::{CANDIDATE_RECORDS_MAX, CandidateRecord, Change, PromptChunks};

const CHUNK: u32 = 256;

fn router_of(policy: Standard, shadows: Vec<Standard>, workers: usize) -> Router<Standard> {
    let router = Router::with_shadows(policy, shadows, Config::default());
    for i in 0..workers {
        let address = Address::new(format!("http://engine-{i}"));
        router.join(address, Models::Any).unwrap();
    }
    for view in router.inspect().workers() {
        router.apply(Change::Probed { worker: view.worker, result: ProbeResult::Answered, at: Micros(1) });
    }
    router
}

fn soonest() -> Standard {
    Standard::ExpectedTtft(ExpectedTtft::default())
}

fn request(digests: &[u64]) -> Request<'_> {
    let namespace = Namespace { model: "m", lora: None, salt: None, cut: CHUNK, source: Source::Presumed };
    let bytes = digests.len() as u32 * CHUNK;
    let root = RootKey::of(&namespace);
    Request { prompt: Some(PromptChunks { root, digests, chunk_bytes: CHUNK, bytes }), ..Request::default() }
}

fn route(router: &Router<Standard>, digests: &[u64], at: u64) -> Decision {
    router.route(&request(digests), &mut Scratch::default(), Micros(at), at).unwrap()
}

/// Routes a request and answers it; who had it.
fn serve(router: &Router<Standard>, digests: &[u64], at: u64) -> WorkerId {
    let mut decision = route(router, digests, at);
    router.observe(&mut decision, Outcome::FirstToken { at: Micros(at + 50_000) });
    decision.worker.id
}

#[test]
fn a_decision_remembers_the_chosen_worker_and_the_next_best() {
    let router = router_of(soonest(), Vec::new(), 6);
    let digests: Vec<u64> = (0..40).collect();
    let cold = route(&router, &digests, 1);
    let warm = route(&router, &digests, 2);
    let told: Vec<&CandidateRecord> = warm.candidate_records.iter().flatten().collect();
    assert_eq!(told.len(), CANDIDATE_RECORDS_MAX);
    assert_eq!(told[0].worker, warm.worker);
    assert_eq!(Some(told[0].numbers.overlap_tokens), warm.cached_tokens);
    assert_eq!(told[0].numbers.estimate.ttft_ms(), warm.expected_ttft_ms());
    let rest: Vec<f32> = told[1..].iter().map(|other| other.numbers.estimate.ttft_ms()).collect();
    assert!(rest.is_sorted(), "{rest:?}");
    assert!(cold.expected_ttft_ms() > 0.0);
    let alone = route(&router_of(soonest(), Vec::new(), 1), &digests, 1);
    assert_eq!(alone.candidate_records.iter().flatten().count(), 1);
}

#[test]
fn a_decision_keeps_all_candidates_where_they_are_asked_for() {
    let router = router_of(soonest(), Vec::new(), 6);
    let digests: Vec<u64> = (0..40).collect();
    assert!(route(&router, &digests, 1).all_candidates.is_empty());
    let mut scratch = Scratch::default();
    scratch.kept = KeptCandidates::All;
    let decision = router.route(&request(&digests), &mut scratch, Micros(2), 2).unwrap();
    let all = &decision.all_candidates;
    assert_eq!(all.len(), 6);
    let chosen = all.iter().find(|candidate| candidate.worker == decision.worker).unwrap();
    assert_eq!(chosen.numbers.estimate.ttft_ms(), decision.expected_ttft_ms());
}

#[test]
fn what_the_best_candidate_held_is_reported_beside_what_was_found() {
    let router = router_of(Standard::RoundRobin(RoundRobin), Vec::new(), 2);
    let digests: Vec<u64> = (0..40).collect();
    let first = serve(&router, &digests, 1);
    let request = request(&digests);
    let mut second = router.route(&request, &mut Scratch::default(), Micros(100_000), 1).unwrap();
    assert_ne!(second.worker.id, first, "the other worker, which holds nothing");
    let usage = warmroute_types::Usage { prompt_tokens: 2_000, output_tokens: 1, cached_tokens: Some(0) };
    let feedback = router.answered(&mut second, &request, usage, Micros(200_000));
    assert_eq!(feedback.predicted, Some(0));
    assert!(feedback.reachable.unwrap() > 1_000, "{feedback:?}");
}

#[test]
fn the_largest_prefixes_are_listed_with_their_workers() {
    let router = router_of(soonest(), Vec::new(), 3);
    let digests: Vec<u64> = (0..40).collect();
    let holder = serve(&router, &digests, 1);
    let heads = router.inspect().prefix_heads(4);
    assert_eq!((heads.len(), heads[0].workers.as_slice(), heads[0].head.digest), (1, &[holder][..], 0));
    assert!(heads[0].head.tokens > 1_000, "{heads:?}");
}

#[test]
fn a_preview_says_what_would_happen_and_leaves_no_trace() {
    for policy in Standard::NAMES {
        let router = router_of(policy.parse().unwrap(), vec![soonest()], 6);
        let digests: Vec<u64> = (0..40).collect();
        let first = route(&router, &digests, 1);
        let (held, policy_comparisons) =
            (router.inspect().index_stats().held, router.inspect().policy_comparisons());
        let request = Request { session_key: Some(4), prefix_key: Some(5), ..request(&digests) };
        let look = || router.inspect().preview(&request, &mut Scratch::default(), Micros(9), 3).unwrap();
        let (before, again) = (look(), look());
        assert_eq!(
            router.inspect().workers().iter().map(|view| view.load.in_flight).sum::<u32>(),
            1,
            "{policy}"
        );
        assert_eq!(
            (router.inspect().index_stats().held, router.inspect().policy_comparisons()),
            (held, policy_comparisons),
            "{policy}"
        );
        assert_eq!((before.chosen, before.reason), (again.chosen, again.reason), "{policy}");
        assert_eq!(before.candidates.len(), 6);
        let decision = router.route(&request, &mut Scratch::default(), Micros(9), 3).unwrap();
        assert_eq!(before.candidates[before.chosen].worker, decision.worker, "{policy}");
        assert_eq!((before.reason, before.policy), (decision.reason, decision.policy));
        assert_eq!(before.prompt_tokens, decision.prompt_tokens);
        let holder = before.candidates.iter().find(|candidate| candidate.worker == first.worker).unwrap();
        assert!(holder.numbers.overlap_tokens > 0, "{policy}: what the first one presumed is seen");
    }
}

#[test]
fn preview_and_route_fail_alike_without_workers() {
    let router = router_of(soonest(), Vec::new(), 0);
    let preview = router.inspect().preview(&request(&[1]), &mut Scratch::default(), Micros(1), 1);
    assert_eq!(preview.err(), Some(NoRoute::NoWorkers));
}

#[test]
fn shadow_policies_are_counted_and_do_not_act() {
    let turns = Standard::RoundRobin(RoundRobin);
    let router = router_of(soonest(), vec![turns, Standard::CacheAware(CacheAware::default())], 4);
    let digests: Vec<u64> = (0..40).collect();
    let workers: Vec<_> = (1..=8).map(|n| serve(&router, &digests, n * 100_000)).collect();
    let [acting, turn, cache] = router.inspect().policy_comparisons()[..] else {
        panic!("three are compared")
    };
    assert_eq!([acting.policy, turn.policy, cache.policy], ["expected_ttft", "round_robin", "cache_aware"]);
    for counts in [acting, turn, cache] {
        assert_eq!((counts.decisions, counts.prompt_tokens), (8, acting.prompt_tokens));
    }
    assert_eq!(acting.agreed, 8);
    let in_turn = workers.iter().enumerate().filter(|(i, id)| id.index() == i % 4).count() as u64;
    assert_eq!(turn.agreed, in_turn, "what it agreed with is where requests went");
    assert!(turn.cached_tokens < acting.cached_tokens, "{turn:?} {acting:?}");
    assert!(turn.ttft > acting.ttft, "{turn:?} {acting:?}");

    let alone = router_of(soonest(), Vec::new(), 4);
    let unwatched: Vec<_> = (1..=8).map(|n| serve(&alone, &digests, n * 100_000)).collect();
    assert_eq!(workers, unwatched);
    assert!(alone.inspect().policy_comparisons().is_empty());
}
