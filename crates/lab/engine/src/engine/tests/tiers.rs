//! Blocks fetched from slower memory.

use proptest::prelude::*;

use super::*;
use crate::Pool;

const FAST: Tier = Tier { tokens: 1 << 20, megabytes_per_s: 50_000, latency: Micros(100) };
const SLOW: Tier = Tier { megabytes_per_s: 100, ..FAST };

/// Config with a cache of 1,000 tokens.
fn tiered(host: Option<Tier>, pool: Option<Tier>) -> Config {
    Config { host, pool, ..config(250) }
}

/// Computes a text, evicts it with another, and requests it again. Returns its cached tokens and its time to
/// first token.
fn again(engine: &mut Engine, prompt_tokens: u32) -> (u32, u64) {
    for (text, tokens) in [(1, 900), (2, 998)] {
        submit(engine, request(text, tokens, 1));
        run(engine);
    }
    submit(engine, request(1, prompt_tokens, 1));
    let began = engine.step_ends;
    let ends = engine.begin_step(began).unwrap();
    let mut happened = Vec::new();
    engine.finish_step(&mut happened);
    engine.scheduler.check();
    (started(&happened)[0].1, ends.since(began).0)
}

#[test]
fn evicted_blocks_are_fetched_where_that_is_faster() {
    let mut none = Engine::new(tiered(None, None)).unwrap();
    let (found, computing_us) = again(&mut none, 900);
    assert_eq!(found, 0);
    for (host, pool) in
        [(Some(FAST), None), (None, Some(FAST)), (Some(Tier { tokens: 400, ..FAST }), Some(FAST))]
    {
        let mut engine = Engine::new(tiered(host, pool)).unwrap();
        let (found, fetching_us) = again(&mut engine, 900);
        assert_eq!(found, 896, "all but the block with the last token");
        assert!(fetching_us < computing_us * 2 / 3, "{fetching_us} of {computing_us}");
        let stats = engine.stats();
        assert_eq!(stats.host_hits_tokens + stats.pool_hits_tokens, 896);
        assert_eq!(
            (stats.host_hits_tokens > 0, stats.pool_hits_tokens > 0),
            (host.is_some(), pool.is_some())
        );
    }
    for (host, pool) in [(Some(SLOW), None), (None, Some(SLOW))] {
        let slow = again(&mut Engine::new(tiered(host, pool)).unwrap(), 900);
        assert_eq!(slow, (0, computing_us), "computing is faster, and costs what it always did");
    }
}

#[test]
fn moves_between_memories_are_reported_while_the_name_is_known() {
    let mut engine = Engine::new(tiered(Some(FAST), None)).unwrap();
    submit(&mut engine, request(1, 900, 1));
    run(&mut engine);
    submit(&mut engine, request(2, 998, 1));
    let pushed_out = run(&mut engine);
    let gone = removed(&pushed_out);
    let kept = |happened: &[Happened]| -> Vec<BlockName> {
        let kept = |one: &Happened| match *one {
            Happened::Kept { name, memory: Memory::Host } => Some(name),
            _ => None,
        };
        happened.iter().filter_map(kept).collect()
    };
    assert_eq!(kept(&pushed_out), gone, "all of it, and in this order");
    let place = |wanted: Happened| pushed_out.iter().position(|&one| one == wanted).unwrap();
    let of_first = Happened::Kept { name: gone[0], memory: Memory::Host };
    assert!(place(of_first) < place(Happened::Removed { name: gone[0] }), "before it is gone");
    submit(&mut engine, request(1, 900, 1));
    let fetched = run(&mut engine);
    let dropped = |one: &&Happened| matches!(one, Happened::Dropped { memory: Memory::Host, .. });
    assert_eq!(fetched.iter().filter(dropped).count(), gone.len());
}

#[test]
fn the_engine_that_stored_a_block_reports_its_eviction_by_others() {
    let tier = Tier { tokens: 100 * u64::from(BLOCK), ..FAST };
    let pool = Pool::new(100);
    let mut engines = [(); 2].map(|()| Engine::sharing(tiered(None, Some(tier)), pool.clone()).unwrap());
    let push = |engine: &mut Engine, texts: [u64; 2]| {
        for text in texts {
            submit(engine, request(text, 900, 1));
        }
        let happened = run(engine);
        let count = |is: fn(&Happened) -> bool| happened.iter().filter(|one| is(one)).count();
        let kept = count(|one| matches!(one, Happened::Kept { memory: Memory::Pool, .. }));
        (kept, count(|one| matches!(one, Happened::Dropped { memory: Memory::Pool, .. })))
    };
    let (kept, dropped) = push(&mut engines[0], [1, 2]);
    assert_eq!(kept - dropped, 100);
    let (kept, dropped) = push(&mut engines[1], [3, 4]);
    assert_eq!(kept - dropped, 100, "its own are there now");
    submit(&mut engines[0], request(5, 4, 1));
    let events = run(&mut engines[0]);
    let dropped = |one: &&Happened| matches!(one, Happened::Dropped { memory: Memory::Pool, .. });
    assert_eq!(events.iter().filter(dropped).count(), 100, "{events:?}");
}

#[test]
fn a_pool_serves_all_its_engines_and_outlives_them() {
    let pool = Pool::new(1_000);
    let mut engines = [(); 2].map(|()| Engine::sharing(tiered(None, Some(FAST)), pool.clone()).unwrap());
    again(&mut engines[0], 900);
    engines[0].restart();
    let id = submit(&mut engines[1], request(1, 600, 1));
    assert_eq!(started(&run(&mut engines[1])), [(id, 596)]);
    assert!(pool.blocks() > 200, "what was copied is still there");
    let mut host = Engine::new(tiered(Some(FAST), None)).unwrap();
    again(&mut host, 900);
    host.restart();
    let id = submit(&mut host, request(2, 600, 1));
    assert_eq!(started(&run(&mut host)), [(id, 0)], "a host's memory dies with its engine");
}

proptest! {
    /// A lone prompt never takes longer with slower memory than without.
    #[test]
    fn a_fetch_never_costs_more_than_computing(
        prompt_tokens in 1_u32..900,
        megabytes_per_s in 1_u64..200_000,
        latency_us in 0_u64..20_000,
        blocks in 0_u64..300,
    ) {
        let tokens = blocks * u64::from(BLOCK);
        let tier = Tier { tokens, megabytes_per_s, latency: Micros(latency_us) };
        let (_, without) = again(&mut Engine::new(tiered(None, None)).unwrap(), prompt_tokens);
        for (host, pool) in [(Some(tier), None), (None, Some(tier)), (Some(tier), Some(tier))] {
            let (_, with) = again(&mut Engine::new(tiered(host, pool)).unwrap(), prompt_tokens);
            prop_assert!(with <= without, "{with} {without}");
        }
    }
}
