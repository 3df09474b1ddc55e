//! Batching: budget, order, chunks, admission, preemption.

use super::*;

fn engine_with_budget(step_tokens_max: u32) -> Engine {
    Engine::new(Config { step_tokens_max, ..config(100) }).unwrap()
}

#[test]
fn a_long_prompt_is_computed_in_chunks_of_the_budget() {
    let mut engine = engine_with_budget(16);
    let id = submit(&mut engine, request(1, 40, 2));
    let chunks: Vec<_> = (0..3).map(|_| step(&mut engine)).collect();
    assert_eq!(stored(&chunks[0]), [(id, 0, 4)]);
    assert_eq!(stored(&chunks[1]), [(id, 4, 4)]);
    assert_eq!(stored(&chunks[2]), [(id, 8, 2)]);
    assert_eq!(tokens(&chunks[..2].concat()), []);
    assert_eq!(tokens(&chunks[2]), [(id, 0)], "the first token comes with the last chunk");
    assert_eq!(engine.stats().computed_tokens, 40);
}

#[test]
fn running_sequences_are_served_before_new_ones() {
    let mut engine = engine_with_budget(16);
    let decoding = submit(&mut engine, request(1, 8, 9));
    step(&mut engine);
    let prompt = submit(&mut engine, request(2, 40, 1));
    let happened = step(&mut engine);
    assert_eq!(tokens(&happened), [(decoding, 1)]);
    assert_eq!(stored(&happened), [(prompt, 0, 3)], "15 of the 16 tokens were left for it");
    assert_eq!(engine.stats().computed_tokens, 8 + 16);
}

#[test]
fn the_rest_of_the_budget_goes_to_the_next_in_the_queue() {
    let mut engine = engine_with_budget(16);
    let (long, short) = (submit(&mut engine, request(1, 24, 1)), submit(&mut engine, request(2, 4, 1)));
    assert_eq!(started(&step(&mut engine)), [(long, 0)]);
    let happened = step(&mut engine);
    assert_eq!(started(&happened), [(short, 0)]);
    assert_eq!(tokens(&happened), [(long, 0), (short, 0)]);
}

#[test]
fn an_exhausted_budget_leaves_the_rest_of_the_batch_for_later() {
    let mut engine = engine_with_budget(2);
    let ids = [1, 2, 3].map(|text| submit(&mut engine, request(text, 1, 9)));
    assert_eq!(tokens(&step(&mut engine)), [(ids[0], 0), (ids[1], 0)]);
    assert_eq!(tokens(&step(&mut engine)), [(ids[0], 1), (ids[1], 1)], "in the order of admission");
    assert_eq!(engine.stats().waiting, 1);
}

#[test]
fn the_batch_never_exceeds_its_limit_of_sequences() {
    let mut engine = Engine::new(Config { sequences_max: 2, ..config(100) }).unwrap();
    let ids = [1, 2, 3].map(|text| submit(&mut engine, request(text, 4, 2)));
    assert_eq!(started(&step(&mut engine)), [(ids[0], 0), (ids[1], 0)]);
    assert_eq!((engine.stats().running, engine.stats().waiting), (2, 1));
    step(&mut engine);
    assert_eq!(started(&step(&mut engine)), [(ids[2], 0)], "in the step after a place came free");
}

#[test]
fn the_head_of_the_queue_blocks_those_behind_it() {
    let mut engine = engine(8);
    let first = submit(&mut engine, request(1, 20, 4));
    let (big, small) = (submit(&mut engine, request(2, 20, 1)), submit(&mut engine, request(3, 4, 1)));
    assert_eq!(started(&step(&mut engine)), [(first, 0)], "three blocks are free, enough for the small one");
    let order: Vec<_> = started(&run(&mut engine)).into_iter().map(|(id, _)| id).collect();
    assert_eq!(order, [big, small]);
}

#[test]
fn a_prompt_is_admitted_only_when_all_of_it_fits_not_its_first_chunk() {
    let mut engine = Engine::new(Config { step_tokens_max: 8, ..config(8) }).unwrap();
    submit(&mut engine, request(1, 8, 9));
    step(&mut engine);
    submit(&mut engine, request(2, 28, 1));
    assert_eq!(started(&step(&mut engine)), [], "a chunk of two blocks would have fitted");
    assert_eq!(preempted(&run(&mut engine)), [], "no sequence was preempted");
    assert_eq!(engine.stats().finished, 2);
}

#[test]
fn the_sequence_admitted_last_is_preempted_when_blocks_run_out() {
    let mut engine = engine(6);
    let ids = [1, 2, 3].map(|text| submit(&mut engine, request(text, 7, 9)));
    assert_eq!(started(&step(&mut engine)).len(), 3);
    step(&mut engine);
    let happened = step(&mut engine);
    assert_eq!(preempted(&happened), [ids[2]], "each needs a third block; its two serve the other two");
    assert_eq!(tokens(&happened), [(ids[0], 2), (ids[1], 2)]);
    assert_eq!((engine.stats().running, engine.stats().waiting, engine.stats().preemptions), (2, 1, 1));
}

/// A preempted sequence rarely fits again at once. Here it does: it held a copy of its second block, and now
/// finds the one that the first sequence still holds.
#[test]
fn nothing_is_admitted_in_a_step_that_preempted() {
    let mut engine = engine(5);
    submit(&mut engine, branch(2, 1, 8, 9));
    step(&mut engine);
    step(&mut engine);
    let victim = submit(&mut engine, branch(2, 2, 8, 6));
    assert_eq!(started(&step(&mut engine)), [(victim, 4)]);
    step(&mut engine);
    step(&mut engine);
    assert_eq!(preempted(&step(&mut engine)), [victim]);
    assert_eq!((engine.stats().running, engine.stats().waiting), (1, 1), "though there is room for it");
    step(&mut engine);
    assert_eq!((engine.stats().running, engine.stats().waiting), (2, 0));
}

#[test]
fn a_preempted_sequence_precedes_the_queue_and_repeats_no_token() {
    let mut engine = engine(6);
    let [first, second] = [1, 2].map(|text| submit(&mut engine, request(text, 11, 9)));
    let third = submit(&mut engine, request(3, 11, 1));
    let happened = run(&mut engine);
    assert_eq!(preempted(&happened), [second]);
    for id in [first, second] {
        let indices: Vec<_> = tokens(&happened).into_iter().filter(|token| token.0 == id).collect();
        assert_eq!(indices, (0..9).map(|index| (id, index)).collect::<Vec<_>>());
    }
    let place = |wanted: Happened| happened.iter().position(|&happened| happened == wanted).unwrap();
    let resumed = place(Happened::Token { id: second, index: 2 });
    assert!(resumed < place(Happened::Token { id: third, index: 0 }), "it was ahead in the queue");
    assert_eq!(started(&happened).len(), 3, "it starts only once");
}

#[test]
fn a_preempted_sequence_finds_its_own_blocks_again() {
    let mut engine = engine(6);
    submit(&mut engine, request(1, 11, 3));
    let second = submit(&mut engine, request(2, 11, 9));
    step(&mut engine);
    step(&mut engine);
    assert_eq!(preempted(&step(&mut engine)), [second], "it had computed 12 tokens, 13 are known");
    let before = engine.stats();
    assert_eq!((before.running, before.waiting), (0, 1), "the first has finished");
    assert_eq!(tokens(&step(&mut engine)), [(second, 2)]);
    let computed = engine.stats().computed_tokens - before.computed_tokens;
    assert_eq!(computed, 5, "of its 13 tokens two blocks were found; the third was taken by the other");
    assert_eq!(engine.stats().prefix_hits_tokens, 0, "which is no prefix hit of a request");
}
