//! Prefix caching: what is found, what is stored, what is evicted.

use super::*;

#[test]
fn the_longest_cached_prefix_is_found() {
    let mut engine = engine(100);
    submit(&mut engine, request(0, 20, 1));
    run(&mut engine);
    let id = submit(&mut engine, branch(3, 1, 30, 1));
    assert_eq!(started(&step(&mut engine)), [(id, 12)]);
    assert_eq!(engine.stats().prefix_queries_tokens, 20 + 30);
    assert_eq!(engine.stats().prefix_hits_tokens, 12);
}

#[test]
fn a_hole_ends_the_prefix() {
    let mut engine = engine(100);
    submit(&mut engine, request(0, 20, 1));
    run(&mut engine);
    let mut holed = request(0, 20, 1);
    holed.chain[1] = name(9, 9);
    let id = submit(&mut engine, holed);
    assert_eq!(started(&step(&mut engine)), [(id, 4)]);
}

#[test]
fn the_last_token_is_always_computed() {
    let mut engine = engine(100);
    submit(&mut engine, request(0, 12, 1));
    run(&mut engine);
    let id = submit(&mut engine, request(0, 12, 1));
    let happened = run(&mut engine);
    assert_eq!(started(&happened), [(id, 8)], "12 tokens are cached, the last block is computed again");
    assert_eq!(stored(&happened), [(id, 2, 1)], "and stored a second time");
    assert_eq!(engine.stats().computed_tokens, 12 + 4);
}

#[test]
fn siblings_in_one_step_share_their_prompt() {
    let mut engine = engine(100);
    let [first, second] = [1, 2].map(|text| submit(&mut engine, branch(5, text, 22, 1)));
    let happened = step(&mut engine);
    assert_eq!(started(&happened), [(first, 0), (second, 20)]);
    assert_eq!(engine.stats().computed_tokens, 22 + 2);
    assert_eq!(tokens(&happened), [(first, 0), (second, 0)]);
}

#[test]
fn shared_blocks_are_counted_once_and_only_while_held() {
    let mut engine = engine(10);
    submit(&mut engine, branch(5, 1, 22, 3));
    submit(&mut engine, branch(5, 2, 22, 3));
    step(&mut engine);
    assert_eq!((engine.stats().blocks_used, engine.stats().kv_use), (7, 0.7));
    run(&mut engine);
    assert_eq!((engine.stats().kv_use, engine.stats().blocks_cached), (0.0, 7), "cached is not in use");
}

#[test]
fn generated_tokens_are_cached_too() {
    let mut engine = engine(100);
    let id = submit(&mut engine, request(0, 6, 11));
    assert_eq!(stored(&run(&mut engine)), [(id, 0, 1), (id, 1, 1), (id, 2, 1), (id, 3, 1)]);
    let next_turn = submit(&mut engine, request(0, 20, 1));
    assert_eq!(started(&step(&mut engine)), [(next_turn, 16)]);
}

#[test]
fn a_block_that_ends_with_the_token_sampled_last_is_not_full() {
    let mut engine = engine(100);
    let id = submit(&mut engine, request(0, 4, 4));
    assert_eq!(stored(&run(&mut engine)), [(id, 0, 1)], "of 8 tokens the eighth was never computed");
    let id = submit(&mut engine, request(1, 4, 5));
    assert_eq!(stored(&run(&mut engine)), [(id, 0, 1), (id, 1, 1)]);
}

#[test]
fn a_generated_block_is_stored_by_the_step_that_computes_its_last_token() {
    let mut engine = engine(100);
    let id = submit(&mut engine, request(0, 6, 9));
    for expected in [&[(id, 0, 1)][..], &[], &[(id, 1, 1)], &[]] {
        assert_eq!(stored(&step(&mut engine)), expected);
    }
}

#[test]
fn a_cached_block_is_evicted_only_when_its_room_is_needed_and_leaves_go_first() {
    let mut engine = engine(8);
    submit(&mut engine, request(0, 13, 1));
    run(&mut engine);
    submit(&mut engine, request(1, 17, 1));
    assert_eq!(removed(&run(&mut engine)), [], "five blocks were never used or have no name");
    submit(&mut engine, request(2, 9, 1));
    assert_eq!(removed(&run(&mut engine)), [name(0, 2), name(0, 1)]);
    let id = submit(&mut engine, request(0, 13, 1));
    assert_eq!(started(&run(&mut engine)), [(id, 4)], "what is left of it is still found");
}

#[test]
fn evictions_are_reported_before_the_blocks_that_replace_them() {
    let mut engine = engine(2);
    submit(&mut engine, request(0, 7, 1));
    run(&mut engine);
    let id = submit(&mut engine, request(1, 7, 1));
    let expected = [
        Happened::Started { id, cached_tokens: 0, queued: Micros::ZERO },
        Happened::Removed { name: name(0, 0) },
        Happened::Stored { id, first_block: 0, blocks: 1 },
        Happened::Token { id, index: 0 },
        Happened::Finished { id },
    ];
    assert_eq!(without_times(step(&mut engine)), expected);
}

#[test]
fn a_name_stored_twice_is_found_until_it_is_removed_twice() {
    let mut engine = engine(4);
    for _ in 0..2 {
        submit(&mut engine, request(0, 8, 1));
        run(&mut engine);
    }
    assert_eq!(engine.stats().blocks_cached, 3, "the second block is there twice");
    submit(&mut engine, request(1, 7, 1));
    assert_eq!(removed(&run(&mut engine)), [name(0, 1)]);
    let id = submit(&mut engine, request(0, 9, 1));
    assert_eq!(started(&step(&mut engine)), [(id, 8)]);
}

#[test]
fn a_block_that_is_held_is_never_evicted() {
    let mut engine = engine(6);
    submit(&mut engine, request(0, 8, 1));
    run(&mut engine);
    submit(&mut engine, request(0, 9, 8));
    step(&mut engine);
    submit(&mut engine, request(1, 12, 1));
    let happened = step(&mut engine);
    assert_eq!(started(&happened).len(), 1, "three blocks are free");
    assert_eq!(removed(&happened), []);
}

#[test]
fn without_prefix_caching_nothing_is_named_and_nothing_found() {
    let mut engine = Engine::new(Config { prefix_caching: PrefixCaching::Off, ..config(4) }).unwrap();
    for _ in 0..3 {
        let id = submit(&mut engine, request(0, 12, 4));
        let happened = run(&mut engine);
        assert_eq!(started(&happened), [(id, 0)]);
        assert_eq!((stored(&happened), removed(&happened)), (vec![], vec![]));
    }
    assert_eq!((engine.stats().blocks_cached, engine.stats().computed_tokens), (0, 3 * 15));
}
