//! Properties of the default policy beyond a short time to first token: a hot prefix is on all workers and a
//! rare one on one, new workers get warm, and the load of departed workers spreads.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use warmroute_engine::{Config as EngineConfig, Profile};
use warmroute_sim::{
    Config, Outcome, Piece, Record, Rule, Session, Thread, Turn, View, Workload, WorkloadScale, mix, run,
};
use warmroute_types::Micros;

const WORKERS: usize = 8;
const HEAD: Piece = Piece { content: 7, tokens: 512 };

/// One conversation: a head that all share, then its own text, which grows by a question and an answer per
/// turn.
fn conversation(id: u64, starts: Micros, turns: u64) -> Session {
    let own = |part: u64, tokens: u32| Piece { content: mix(id << 16 | part), tokens };
    let mut prompt = vec![HEAD, own(0, 3_000)];
    let thread = Thread { key: Some(id), first_tokens: 3_512, system_tokens: HEAD.tokens };
    let turns = (1..=turns).map(|turn| {
        prompt.push(own(2 * turn, 200));
        let answer = own(2 * turn + 1, 60);
        let asked = prompt.clone();
        prompt.push(answer);
        // Think times vary, because conversations in lockstep would find the same worker free every time.
        let think = Micros::from_millis(2_500 + mix(id << 16 | turn) % 5_000);
        Turn { think, thread, prompt: asked, answer: vec![answer] }
    });
    Session { starts, turns: turns.collect() }
}

/// Conversations of six turns, started `apart_ms` apart.
fn conversations(count: u64, apart_ms: u64) -> impl Iterator<Item = Session> {
    let starts = move |id: u64| Micros::from_millis(id * apart_ms + mix(id) % apart_ms);
    (0..count).map(move |id| conversation(id + 1, starts(id), 6))
}

fn lab(incidents: &[&str], sessions: impl Iterator<Item = Session>) -> Outcome {
    let config = Config {
        view: View::Exact,
        incidents: incidents.iter().map(|text| text.parse().unwrap()).collect(),
        ..Config::new(Profile::Llama3_1_8b, WORKERS)
    };
    run(&config, &Rule::parse("expected_ttft").unwrap(), sessions).unwrap()
}

fn counts<'a>(records: impl Iterator<Item = &'a Record>) -> [u32; WORKERS] {
    let mut counts = [0; WORKERS];
    records.for_each(|record| counts[record.worker as usize] += 1);
    counts
}

#[test]
fn a_shared_prefix_is_on_all_workers_and_a_conversation_on_one() {
    let outcome = lab(&[], conversations(400, 150));
    let got = counts(outcome.records.iter());
    assert!(got.iter().all(|&n| n > 200), "every worker is used: {got:?}");
    let replication = outcome.replication;
    assert_eq!(replication.most, WORKERS as u32, "the shared head: {replication:?}");
    assert!(replication.alone_ratio > 0.9, "the rest: {replication:?}");
    let later: Vec<_> = outcome.records.iter().filter(|record| record.turn > 0).collect();
    let warm = later.iter().filter(|record| record.cached_tokens > 3_400).count();
    assert!(warm * 100 >= later.len() * 95, "{warm} of {} later turns found their conversation", later.len());
    let cold: Vec<_> = outcome.records.iter().filter(|r| r.turn == 0 && r.asked_us > 5_000_000).collect();
    let headed = cold.iter().filter(|record| record.cached_tokens >= 512).count();
    assert!(headed * 100 >= cold.len() * 98, "{headed} of {} first turns found the head", cold.len());
}

#[test]
fn a_worker_that_joins_soon_gets_its_share() {
    let outcome = lab(&["join:7@30"], conversations(500, 120));
    let got = counts(outcome.records.iter().filter(|record| record.asked_us > 40_000_000));
    let mean = got.iter().sum::<u32>() / WORKERS as u32;
    assert!(got[7] > mean / 2, "{got:?}");
    assert!(got[7] < mean * 2, "nor is it flooded: {got:?}");
    let stayed = |r: &&Record| r.worker != 7 && r.turn > 0 && r.asked_us > 30_000_000;
    let stayed: Vec<_> = outcome.records.iter().filter(stayed).collect();
    let warm = stayed.iter().filter(|record| record.cached_tokens > 3_400).count();
    assert!(warm * 100 >= stayed.len() * 95, "the others keep what they had: {warm} of {}", stayed.len());
}

#[test]
fn the_load_of_a_departed_worker_spreads_over_all_others() {
    for incident in ["leave:0@30", "fail:0@30"] {
        let outcome = lab(&[incident], conversations(500, 120));
        // Later turns that find only the shared head: these conversations were on worker 0.
        let moved = |r: &&Record| r.turn > 0 && r.asked_us > 30_000_000 && r.cached_tokens <= 512;
        let got = counts(outcome.records.iter().filter(moved));
        let all = got.iter().sum::<u32>();
        assert!(all >= 20, "{incident}: some had to move: {got:?}");
        assert_eq!(got[0], 0, "{incident}");
        assert!(got[1..].iter().all(|&n| n <= all / 3), "{incident}: no worker inherits all: {got:?}");
        assert!(outcome.failed < 40, "{incident}: {} lost beyond what was open", outcome.failed);
    }
}

/// Agents pause at their tools, so queues say little about how many of them a worker has.
#[test]
fn agents_use_the_memory_of_all_workers() {
    let computed_tokens = |rule: &str| -> u64 {
        let config = Config { view: View::Reported, ..Config::new(Profile::Llama3_1_8b, 2 * WORKERS) };
        let scale = WorkloadScale { seed: 2, rate: 2.0, requests: Some(3_000) };
        let sessions = Workload::CodingAgents.sessions(scale);
        let outcome = run(&config, &Rule::parse(rule).unwrap(), sessions).unwrap();
        outcome.records.iter().map(|record| u64::from(record.prompt_tokens - record.cached_tokens)).sum()
    };
    let (whole, without) =
        (computed_tokens("expected_ttft"), computed_tokens("expected_ttft:without=eviction"));
    assert!(whole * 100 < without * 98, "{whole} tokens were computed, and {without} without it");
}

/// Chats without a common prefix, more than the engines have places for. A few have long prompts.
#[test]
fn beyond_capacity_with_few_places_the_default_beats_taking_turns() {
    let engine = EngineConfig { sequences_max: 24, ..EngineConfig::for_profile(Profile::Llama3_1_8b) };
    let mean_ms = |rule: &str, seed: u64| -> f64 {
        let config = Config {
            view: View::Exact,
            seed,
            fleet: vec![engine.clone(); WORKERS],
            ..Config::new(Profile::Llama3_1_8b, WORKERS)
        };
        let sessions = (0..2_000).map(|id| {
            let random = mix(seed << 32 | id);
            let piece = |part: u64, tokens: u64| Piece { content: mix(random ^ part), tokens: tokens as u32 };
            let prompt = if random.is_multiple_of(8) { 6_000 } else { 100 + random % 200 };
            let (prompt, answer) = (piece(1, prompt), piece(2, 50 + mix(random) % 600));
            let thread = Thread { key: Some(id), first_tokens: prompt.tokens, system_tokens: 0 };
            let turn = Turn { think: Micros::ZERO, thread, prompt: vec![prompt], answer: vec![answer] };
            Session { starts: Micros::from_millis(id * 8 + random % 8), turns: vec![turn] }
        });
        let outcome = run(&config, &Rule::parse(rule).unwrap(), sessions).unwrap();
        let ttft_us: u64 = outcome.records.iter().map(|record| record.ttft_us).sum();
        ttft_us as f64 / 1e3 / outcome.records.len() as f64
    };
    // One seed says up to 2 % more or less. Without the wait for a place, the default is no faster.
    let sum_ms = |rule: &str| (1..7).map(|seed| mean_ms(rule, seed)).sum::<f64>();
    let (default, turns) = (sum_ms("expected_ttft"), sum_ms("round_robin"));
    assert!(turns > 6_000.0, "requests wait: {turns} ms");
    assert!(default < turns * 0.992, "{default} ms, and {turns} ms by turns");
}
