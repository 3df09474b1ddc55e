//! Time, cancellation, clearing, restarts and refusals.

use super::*;

#[test]
fn a_step_starts_now_but_never_before_the_last_one_ended() {
    let mut engine = engine(100);
    submit(&mut engine, request(0, 40, 3));
    let first = engine.begin_step(Micros(1_000)).unwrap();
    assert_eq!(engine.begin_step(Micros(2_000)), Some(first), "it is still under way");
    engine.finish_step(&mut Vec::new());
    let second = engine.begin_step(Micros(5)).unwrap();
    let decode = second.since(first);
    engine.finish_step(&mut Vec::new());
    let late = second + Micros(777);
    let third = engine.begin_step(late).unwrap();
    assert!(third.since(late).0.abs_diff(decode.0) <= 1, "a late driver does not make the step shorter");
}

#[test]
fn a_step_takes_what_its_profile_says() {
    let mut work = crate::StepWork::default();
    work.add(0, 40);
    work.add(0, 24);
    let mut engine = engine(100);
    submit(&mut engine, request(0, 40, 1));
    submit(&mut engine, request(1, 24, 1));
    let cost = Profile::Llama3_1_8b.cost().of(&work);
    assert_eq!(engine.begin_step(Micros(10)), Some(Micros(10) + cost));
}

#[test]
fn an_engine_without_requests_has_nothing_to_do() {
    let mut engine = engine(100);
    assert_eq!(engine.begin_step(Micros(7)), None);
    assert_eq!(step(&mut engine), []);
    assert_eq!(engine.stats(), EngineStats { blocks_total: 100, ..EngineStats::default() });
}

#[test]
fn tokens_come_one_a_step_and_the_last_one_finishes() {
    let mut engine = engine(100);
    let id = submit(&mut engine, request(0, 3, 2));
    let first =
        [Happened::Started { id, cached_tokens: 0, queued: Micros::ZERO }, Happened::Token { id, index: 0 }];
    assert_eq!(step(&mut engine), first);
    let stored = Happened::Stored { id, first_block: 0, blocks: 1 };
    let second = [stored, Happened::Token { id, index: 1 }, Happened::Finished { id }];
    assert_eq!(step(&mut engine), second);
    assert_eq!(step(&mut engine), []);
}

#[test]
fn time_in_the_queue_is_counted_until_the_step_starts() {
    let mut engine = engine(100);
    engine.submit(Micros(100), request(0, 4, 1)).unwrap();
    let ends = engine.begin_step(Micros(250)).unwrap();
    assert_eq!(engine.stats().queued, Micros(150));
    let mut happened = Vec::new();
    engine.finish_step(&mut happened);
    assert!(ends > Micros(250));
    assert!(matches!(happened[0], Happened::Started { queued: Micros(150), .. }), "{happened:?}");
}

#[test]
fn a_cancelled_sequence_frees_its_blocks_and_leaves_what_it_cached() {
    let mut engine = engine(100);
    let id = submit(&mut engine, request(0, 20, 9));
    step(&mut engine);
    engine.cancel(id);
    assert_eq!((engine.stats().running, engine.stats().blocks_used), (0, 0));
    assert_eq!(step(&mut engine), []);
    let again = submit(&mut engine, request(0, 20, 9));
    assert_eq!(started(&step(&mut engine)), [(again, 16)]);
}

#[test]
fn a_cancelled_sequence_leaves_the_queue() {
    let mut engine = engine(100);
    let ids = [0, 1, 2].map(|text| submit(&mut engine, request(text, 4, 1)));
    engine.cancel(ids[1]);
    engine.cancel(ids[1]);
    engine.cancel(SequenceId(u64::MAX));
    assert_eq!(tokens(&run(&mut engine)), [(ids[0], 0), (ids[2], 0)]);
}

#[test]
fn a_sequence_cancelled_during_its_step_gets_no_token() {
    let mut engine = engine(100);
    let ids = [0, 1].map(|text| submit(&mut engine, request(text, 8, 1)));
    engine.begin_step(Micros::ZERO);
    engine.cancel(ids[0]);
    let newcomer = submit(&mut engine, request(2, 8, 1));
    let mut happened = Vec::new();
    engine.finish_step(&mut happened);
    engine.scheduler.check();
    assert_eq!(tokens(&happened), [(ids[1], 0)], "nor does the one that has its slot now");
    assert_eq!(stored(&happened).len(), 2, "what it computed is cached");
    assert_eq!(tokens(&run(&mut engine)), [(newcomer, 0)]);
}

#[test]
fn the_cache_is_cleared_only_when_no_block_is_held() {
    let mut engine = engine(100);
    submit(&mut engine, request(0, 20, 2));
    step(&mut engine);
    assert_eq!(engine.clear_cache(), Err(Busy));
    run(&mut engine);
    assert_eq!(engine.clear_cache(), Ok(()));
    assert_eq!(engine.stats().blocks_cached, 0);
    assert_eq!(step(&mut engine), [], "an idle engine reports nothing");
    let id = submit(&mut engine, request(0, 20, 2));
    let happened = without_times(step(&mut engine));
    assert_eq!(
        happened[..2],
        [Happened::Cleared, Happened::Started { id, cached_tokens: 0, queued: Micros::ZERO }]
    );
}

#[test]
fn a_restart_forgets_everything_but_never_reuses_an_id() {
    let mut engine = engine(100);
    let before = [0, 1].map(|text| submit(&mut engine, request(text, 20, 9)));
    step(&mut engine);
    submit(&mut engine, request(2, 20, 9));
    engine.begin_step(Micros(50_000));
    engine.restart();
    engine.scheduler.check();
    assert_eq!(engine.stats(), EngineStats { blocks_total: 100, ..EngineStats::default() });
    assert_eq!(step(&mut engine), []);
    let id = submit(&mut engine, request(0, 20, 1));
    before.iter().for_each(|&old| engine.cancel(old));
    assert_eq!(started(&run(&mut engine)), [(id, 0)]);
}

#[test]
fn requests_that_can_never_run_are_refused() {
    let mut engine = engine(10);
    let mut refuse = |request| engine.submit(Micros::ZERO, request).unwrap_err();
    assert_eq!(refuse(request(0, 0, 5)), Rejected::EmptyPrompt);
    assert_eq!(refuse(request(0, 5, 0)), Rejected::EmptyOutput);
    assert_eq!(refuse(request(0, 36, 5)), Rejected::TooLong { tokens: 41, kv_tokens: 40 });
    let short = Request { chain: vec![name(0, 0)], prompt_tokens: 7, output_tokens: 1 };
    assert_eq!(refuse(short), Rejected::ChainLength { given: 1, expected: 2 });
    let huge = Request { chain: vec![], prompt_tokens: u32::MAX, output_tokens: u32::MAX };
    assert!(matches!(refuse(huge), Rejected::TooLong { .. }));
    assert_eq!(engine.submit(Micros::ZERO, request(0, 36, 4)), Ok(SequenceId(0)));
}

#[test]
fn sequences_as_long_as_the_cache_run_one_after_another() {
    let mut engine = engine(10);
    submit(&mut engine, request(0, 10, 30));
    submit(&mut engine, request(1, 10, 30));
    run(&mut engine);
    assert_eq!(engine.stats().finished, 2);
}
