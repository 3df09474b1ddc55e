//! Prompts that are not rendered as the engine does, on workers whose events are followed: no event of them is
//! recognized, so they are presumed.

use super::*;

const LATER: Micros = Micros::from_secs(60);

/// A request without a text for the engine's family.
fn unrendered(asking: &Asking) -> Request<'_> {
    asking.request(&[])
}

fn route(router: &Router<Standard>, asking: &Asking, now: Micros) -> Decision {
    router.route(&unrendered(asking), &mut Scratch::default(), now, 7).unwrap()
}

/// What is expected of a prompt that is not rendered, on the worker that is chosen.
fn expected_unrendered(router: &Router<Standard>, asking: &Asking) -> u32 {
    route(router, asking, LATER).cached_tokens.unwrap()
}

/// Sends a prompt, whose answer says that so many of its tokens were cached.
fn ask(router: &Router<Standard>, asking: &Asking, now: Micros, cached: u32) -> (WorkerId, Feedback) {
    let mut decision = route(router, asking, now);
    router.observe(&mut decision, Outcome::FirstToken { at: now });
    let prompt_tokens = asking.text.len() as u32;
    let usage = Usage { prompt_tokens, output_tokens: 1, cached_tokens: Some(cached) };
    let feedback = router.answered(&mut decision, &unrendered(asking), usage, now);
    (decision.worker.id, feedback)
}

fn expire(router: &Router<Standard>) {
    router.apply(Change::EventsDue { at: LATER });
    router.apply(Change::Expired { at: LATER });
}

#[test]
fn a_conversation_that_is_not_rendered_stays_with_its_worker_after_the_time_of_its_events() {
    let router = router_of(4);
    let prompt = text(1, 4_000);
    let mut before = None;
    for turn in 1..=5 {
        let at = Micros(u64::from(turn) * 10_000_000);
        router.apply(Change::EventsDue { at });
        let asking = Asking::of(&prompt[..turn as usize * 800]);
        let found = (turn - 1) * 800 / 16 * 16;
        let expected = route(&router, &asking, at).cached_tokens.unwrap();
        let (worker, feedback) = ask(&router, &asking, at, found);
        assert!(expected <= found && expected + 80 >= found, "turn {turn}: {expected} of {found}");
        assert_eq!((feedback.stale, feedback.missed), (0, 0), "turn {turn}");
        assert_eq!(worker, *before.get_or_insert(worker), "turn {turn}");
    }
    assert_eq!(router.inspect().workers()[0].load.view, CacheView::Reported);
}

#[test]
fn an_answer_cuts_what_the_engine_has_evicted_and_presumes_what_it_has_computed() {
    let router = router_of(1);
    let [long, short] = [4_000, 2_000].map(|len| Asking::of(&text(1, len)));
    ask(&router, &long, Micros(1), 0);
    expire(&router);
    assert!(expected_unrendered(&router, &long) > 3_900);
    for _ in 0..5 {
        let (_, feedback) = ask(&router, &short, LATER, 0);
        assert!(feedback.stale > 1_800, "{feedback:?}");
    }
    assert!(expected_unrendered(&router, &long) < 2_000, "the rest was evicted");
    assert!(expected_unrendered(&router, &short) > 1_800, "it has just been computed");
    let worker = &router.inspect().workers()[0];
    assert_eq!((worker.load.view, worker.load.trust), (CacheView::Reported, 1.0), "no event was wrong");
}

#[test]
fn a_cleared_cache_or_a_restart_ends_presumptions_of_prompts_that_are_not_rendered() {
    let router = router_of(1);
    let asking = Asking::of(&text(1, 4_000));
    let clears: [fn(&Router<Standard>); 2] = [
        |router| report(router, 0, CacheEvent::Cleared),
        |router| router.apply(Change::Emptied { worker: worker(router, 0) }),
    ];
    for clear in clears {
        ask(&router, &asking, Micros(1), 0);
        expire(&router);
        assert!(expected_unrendered(&router, &asking) > 3_900);
        clear(&router);
        assert_eq!(expected_unrendered(&router, &asking), 0);
    }
}

#[test]
fn presumptions_of_prompts_that_are_not_rendered_fill_the_workers_cache_and_no_more() {
    let router = router_of(1);
    let capacity = warmroute_types::CacheCapacity { tokens: 8_000, block_tokens: 16 };
    let asked: Vec<Asking> = (0..6).map(|seed| Asking::of(&text(seed, 3_000))).collect();
    // Every byte is a token, which the router learns first.
    (0..200).for_each(|_| _ = ask(&router, &asked[0], Micros(1), 0));
    router.apply(Change::Capacity { worker: worker(&router, 0), capacity });
    asked.iter().for_each(|asking| _ = ask(&router, asking, Micros(2), 0));
    expire(&router);
    let expected: Vec<u32> = asked.iter().map(|asking| expected_unrendered(&router, asking)).collect();
    assert_eq!(expected[..3], [0, 0, 0], "least recently used: {expected:?}");
    assert!(expected[4..].iter().all(|&tokens| tokens > 2_800), "{expected:?}");
    assert!(expected.iter().sum::<u32>() <= 8_000, "{expected:?}");
}

#[test]
fn rendered_prompts_are_predicted_from_events_alone_beside_prompts_that_are_not_rendered() {
    let router = router_of(1);
    let [plain, other] = [1, 2].map(|seed| Asking::of(&text(seed, 1_000)));
    ask(&router, &other, Micros(1), 0);
    let mut decision = plain.route(&router, Micros(1));
    router.observe(&mut decision, Outcome::FirstToken { at: Micros(1) });
    drop(decision);
    assert!(expected(&router, &plain.text) > 0, "its event is awaited");
    expire(&router);
    assert_eq!(expected(&router, &plain.text), 0, "no event came");
    assert!(expected_unrendered(&router, &other) > 900, "none can come");
    store(&router, 0, &plain.text, 0, 50);
    assert_eq!(expected(&router, &plain.text), 800);
    (0..50).for_each(|block| remove(&router, 0, &plain.text, block));
    assert_eq!(expected(&router, &plain.text), 0);
    assert!(expected_unrendered(&router, &other) > 900, "events are not about it");
}
