//! What the router knows about caches, and how it learns it.

use std::sync::{Arc, Barrier};

use warmroute_fleet::ProbeResult;
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_policy::{Standard, StickyLeastLoaded};
use warmroute_types::{Address, CacheCapacity};

use super::*;
use crate::request::{Content, Silence};
use crate::{Change, PromptChunks};
use warmroute_fleet::Models;
use warmroute_types::Usage;

const CHUNK: u32 = 256;

fn root() -> RootKey {
    RootKey::of(&Namespace { model: "m", lora: None, salt: None, cut: CHUNK, source: Source::Presumed })
}

/// A conversation's prompt: `shared` chunks that all have, then chunks of its own.
fn prompt(shared: u64, own: u64, conversation: u64) -> Vec<u64> {
    (0..shared).chain((0..own).map(|i| (conversation << 32) + i + 1_000)).collect()
}

fn chunks(digests: &[u64]) -> PromptChunks<'_> {
    let bytes = digests.len() as u32 * CHUNK + 10;
    PromptChunks { root: root(), digests, chunk_bytes: CHUNK, bytes }
}

fn router_of(n: usize) -> Router<Standard> {
    let policy = Standard::StickyLeastLoaded(StickyLeastLoaded::default());
    let router = Router::new(policy, Config::default());
    for i in 0..n {
        let address = Address::new(format!("http://engine-{i}"));
        router.join(address, Models::named(&["m"])).unwrap();
    }
    for view in router.inspect().workers() {
        router.apply(Change::Probed { worker: view.worker, result: ProbeResult::Answered, at: Micros(1) });
    }
    router
}

fn route(router: &Router<Standard>, digests: &[u64]) -> Decision {
    let request = Request { model: Some("m"), prompt: Some(chunks(digests)), ..Request::default() };
    router.route(&request, &mut Scratch::default(), Micros(1), 7).unwrap()
}

fn usage(prompt_tokens: u32, cached: u32) -> Usage {
    Usage { prompt_tokens, output_tokens: 1, cached_tokens: Some(cached) }
}

fn answered(digests: &[u64]) -> Request<'_> {
    let (prompt, silence) = (Some(chunks(digests)), Silence::MeansZero);
    Request { model: Some("m"), prompt, silence, ..Request::default() }
}

#[test]
fn a_prompt_is_expected_where_it_was_sent() {
    let router = router_of(4);
    let digests = prompt(0, 40, 1);
    let mut first = route(&router, &digests);
    assert_eq!((first.cached_tokens, first.reason), (Some(0), "miss"));
    router.observe(&mut first, Outcome::FirstToken { at: Micros(1) });
    let longer = prompt(0, 50, 1);
    let second = route(&router, &longer);
    assert_eq!((second.worker.id, second.reason), (first.worker.id, "hit"));
    assert_eq!(second.cached_tokens, Some(40 * CHUNK / 4), "as far as they are the same");
    let booked = router.inspect().workers()[second.worker.id.index()].load.prefill_tokens;
    assert_eq!(booked, u64::from(10 * CHUNK / 4 + 2), "only what is not expected in the cache is booked");
}

#[test]
fn a_prompt_whose_answer_nobody_saw_is_expected_where_it_was_sent_and_says_nothing_about_the_worker() {
    let router = router_of(4);
    let digests = prompt(0, 40, 1);
    let mut unseen = route(&router, &digests);
    router.apply(Change::Faulted { worker: Arc::clone(&unseen.worker), at: Micros(1) });
    let before = router.inspect().worker_state(unseen.worker.id);
    assert_eq!(router.observe(&mut unseen, Outcome::Unobserved), Observed::default());
    assert_eq!(router.inspect().worker_state(unseen.worker.id), before, "an unseen answer is no success");
    let (worker, digests) = (unseen.worker.id, digests);
    drop(unseen);
    let view = router.inspect().workers().remove(worker.index());
    assert_eq!((view.load.in_flight, view.load.prefill_tokens), (0, 0));
    router.apply(Change::Probed { worker: view.worker, result: ProbeResult::Answered, at: Micros(2) });
    let next = route(&router, &digests);
    assert_eq!((next.worker.id, next.reason), (worker, "hit"));
}

#[test]
fn a_prompt_with_images_teaches_nothing_and_contradicts_nothing() {
    let router = router_of(1);
    let digests = prompt(0, 40, 1);
    let mut first = route(&router, &digests);
    router.observe(&mut first, Outcome::Ended { answered: None });
    let mut second = route(&router, &digests);
    let heavy = usage(50_000, 16);
    let media = Request { content: Content::Media, ..answered(&digests) };
    let feedback = router.answered(&mut second, &media, heavy, Micros(2));
    assert_eq!((feedback.predicted, feedback.stale, feedback.cached), (None, 0, Some(16)));
    assert_eq!(route(&router, &digests).cached_tokens, second.cached_tokens, "the rate is what it was");
}

#[test]
fn what_is_all_cached_still_computes_its_last_token() {
    let router = router_of(1);
    let digests = prompt(0, 10, 1);
    let mut first = route(&router, &digests);
    router.observe(&mut first, Outcome::Ended { answered: None });
    let exact = PromptChunks { bytes: 10 * CHUNK, ..chunks(&digests) };
    let request = Request { model: Some("m"), prompt: Some(exact), ..Request::default() };
    let second = router.route(&request, &mut Scratch::default(), Micros(1), 7).unwrap();
    assert_eq!(second.cached_tokens, Some(10 * CHUNK / 4 - 1));
}

#[test]
fn a_request_that_failed_before_its_first_token_leaves_nothing_behind() {
    let router = router_of(4);
    let digests = prompt(0, 40, 1);
    drop(route(&router, &digests));
    assert_eq!(route(&router, &digests).reason, "miss");
    let mut served = route(&router, &digests);
    router.observe(&mut served, Outcome::FirstToken { at: Micros(1) });
    drop(served);
    assert_eq!(
        route(&router, &digests).reason,
        "hit",
        "after the first token it is there, even if a client disconnects"
    );
}

/// The law, for caches: of k siblings with a prompt that no worker holds, the first is a miss and all others find it where the
/// first was sent, until that worker is full.
#[test]
fn concurrent_siblings_find_what_the_first_was_given() {
    const SIBLINGS: usize = 8;
    for conversation in 0..200 {
        let router = router_of(8);
        let digests = prompt(0, 30, conversation);
        let barrier = Barrier::new(SIBLINGS);
        let decisions: Vec<Decision> = std::thread::scope(|scope| {
            let sibling = || {
                barrier.wait();
                route(&router, &digests)
            };
            let threads: Vec<_> = (0..SIBLINGS).map(|_| scope.spawn(sibling)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let misses = decisions.iter().filter(|decision| decision.reason == "miss").count();
        assert_eq!(misses, 1, "conversation {conversation}");
        assert!(decisions.iter().all(|decision| decision.worker == decisions[0].worker));
    }
}

#[test]
fn an_engine_that_found_less_corrects_the_view() {
    let router = router_of(2);
    let (digests, sibling) = (prompt(20, 20, 1), prompt(20, 20, 2));
    for digests in [&digests, &sibling] {
        router.observe(&mut route(&router, digests), Outcome::Ended { answered: None });
    }
    let mut again = route(&router, &digests);
    assert_eq!(again.cached_tokens, Some(40 * CHUNK / 4));
    let feedback = router.answered(&mut again, &answered(&digests), usage(2_562, 640), Micros(2));
    assert!(feedback.stale.abs_diff(40 * CHUNK / 4 - 640) <= 2 && feedback.missed == 0, "{feedback:?}");
    let request = |digests: &[u64]| {
        let decision = route(&router, digests);
        (decision.worker.id == again.worker.id).then_some(decision.cached_tokens.unwrap() / (CHUNK / 4))
    };
    // The rate of tokens to bytes has been learned a little meanwhile, so 40 chunks may count as 39.
    assert!(request(&digests) >= Some(39), "it has just computed all of it again");
    assert!(request(&prompt(20, 20, 2)).is_none_or(|chunks| chunks <= 20), "what else it had there is gone");
}

#[test]
fn an_engine_that_says_nothing_is_unknown_until_it_has_said_a_number() {
    let router = router_of(1);
    let digests = prompt(0, 40, 1);
    let mut decision = route(&router, &digests);
    let silent = Usage { prompt_tokens: 2_562, output_tokens: 1, cached_tokens: None };
    let mut hear = |usage| router.answered(&mut decision, &answered(&digests), usage, Micros(2)).cached;
    assert_eq!(hear(silent), None);
    assert_eq!(hear(usage(2_562, 512)), Some(512));
    assert_eq!(hear(silent), Some(0));
}

#[test]
fn a_worker_that_leaves_or_was_away_holds_nothing() {
    let router = router_of(2);
    let digests = prompt(0, 40, 1);
    let mut decision = route(&router, &digests);
    router.observe(&mut decision, Outcome::Ended { answered: None });
    let holder = Arc::clone(&decision.worker);
    drop(decision);
    let probed = |result| router.apply(Change::Probed { worker: Arc::clone(&holder), result, at: Micros(1) });
    (0..3).for_each(|_| probed(ProbeResult::Failed));
    probed(ProbeResult::Answered);
    assert_eq!(route(&router, &digests).reason, "miss", "restarted, most likely");
    let mut decision = route(&router, &digests);
    router.observe(&mut decision, Outcome::Ended { answered: None });
    router.apply(Change::Leave { address: decision.worker.address.clone() });
    drop(decision);
    assert_eq!(router.inspect().index_stats().held, 0);
}

#[test]
fn a_worker_holds_no_more_than_its_capacity() {
    let router = router_of(1);
    let worker = Arc::clone(&router.inspect().workers()[0].worker);
    router.apply(Change::Capacity { worker, capacity: CacheCapacity { tokens: 3_000, block_tokens: 16 } });
    for conversation in 1..=3 {
        router.observe(&mut route(&router, &prompt(0, 40, conversation)), Outcome::Ended { answered: None });
    }
    let cached = |conversation| route(&router, &prompt(0, 40, conversation)).cached_tokens.unwrap();
    assert_eq!(cached(3), 40 * CHUNK / 4);
    assert_eq!(cached(1), 0, "the oldest went");
}

#[test]
fn a_prompt_of_other_density_is_not_called_stale() {
    let router = router_of(1);
    // The model is taught 0.5 tokens a byte; then comes a prompt of 0.15, all of which is found.
    let dense = prompt(0, 40, 1);
    let mut decision = route(&router, &dense);
    router.observe(&mut decision, Outcome::Ended { answered: None });
    router.answered(&mut decision, &answered(&dense), usage(5_125, 0), Micros(2));
    let thin = prompt(0, 40, 2);
    router.observe(&mut route(&router, &thin), Outcome::Ended { answered: None });
    let mut again = route(&router, &thin);
    let feedback = router.answered(&mut again, &answered(&thin), usage(1_537, 1_530), Micros(2));
    assert_eq!((feedback.stale, feedback.missed), (0, 0), "{feedback:?}");
}

#[test]
fn a_late_report_does_not_cut_what_came_after_it() {
    let router = router_of(1);
    let (short, long) = (prompt(0, 20, 1), prompt(0, 40, 1));
    router.observe(&mut route(&router, &short), Outcome::Ended { answered: None });
    let mut slow = route(&router, &short);
    router.observe(&mut route(&router, &long), Outcome::Ended { answered: None });
    // The slow one found nothing when it began; the long one has been computed since.
    let feedback = router.answered(&mut slow, &answered(&short), usage(1_282, 0), Micros(2));
    assert!(feedback.stale > 0);
    assert!(route(&router, &long).cached_tokens >= Some(40 * CHUNK / 4 - 1), "what came later stays");
}

#[test]
fn a_refusal_leaves_nothing_behind() {
    let router = router_of(2);
    let digests = prompt(0, 40, 1);
    router.observe(&mut route(&router, &digests), Outcome::Refused);
    assert_eq!(route(&router, &digests).reason, "miss");
}

#[test]
fn one_huge_prompt_does_not_push_everything_out() {
    let router = router_of(1);
    let small = prompt(0, 40, 1);
    router.observe(&mut route(&router, &small), Outcome::Ended { answered: None });
    drop(route(&router, &prompt(0, 100_000, 2)));
    assert_eq!(route(&router, &small).cached_tokens, Some(40 * CHUNK / 4));
}
