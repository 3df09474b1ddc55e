//! The model compared with a real vLLM 0.32.0: the same requests, KV events and counters.
//!
//! vLLM served a tiny random-weight model on a CPU with 64 blocks of 32 tokens, one of which it reserves.
//! Blocks are numbered in the order in which vLLM first published them; requests have its token counts and
//! run one after another. Times are not compared, because there was no GPU.

use std::collections::HashMap;

use warmroute_engine::{BlockName, Config, Engine, Happened, Profile, Request, SequenceId};
use warmroute_types::Micros;

#[derive(Debug, PartialEq)]
enum Event {
    Stored(Vec<u64>),
    Removed(u64),
    Cleared,
}

/// Cached tokens (`usage.prompt_tokens_details.cached_tokens`) and published events.
#[derive(Debug, PartialEq)]
struct Seen {
    cached_tokens: Vec<u32>,
    events: Vec<Event>,
}

/// Prompt tokens, output tokens, and the numbers of their blocks.
type Sent<'a> = (u32, u32, &'a [u64]);

struct Replay {
    engine: Engine,
}

impl Replay {
    fn new() -> Replay {
        let config =
            Config { block_size: 32, kv_tokens: 63 * 32, ..Config::for_profile(Profile::Llama3_2_3b) };
        Replay { engine: Engine::new(config).expect("a valid config") }
    }

    /// Sends requests at once and runs until all are answered.
    fn send(&mut self, requests: &[Sent]) -> Seen {
        let chains: HashMap<SequenceId, &[u64]> =
            requests.iter().map(|request| (self.submit(request), request.2)).collect();
        let mut seen = Seen { cached_tokens: Vec::new(), events: Vec::new() };
        for happened in self.run() {
            match happened {
                Happened::Started { cached_tokens, .. } => seen.cached_tokens.push(cached_tokens),
                Happened::Stored { id, first_block, blocks } => {
                    let names = &chains[&id][first_block as usize..][..blocks as usize];
                    seen.events.push(Event::Stored(names.to_vec()));
                }
                Happened::Removed { name } => seen.events.push(Event::Removed(name.0)),
                Happened::Cleared => seen.events.push(Event::Cleared),
                _ => {}
            }
        }
        seen
    }

    fn submit(&mut self, &(prompt_tokens, output_tokens, chain): &Sent) -> SequenceId {
        let chain = chain.iter().copied().map(BlockName).collect();
        let request = Request { chain, prompt_tokens, output_tokens };
        self.engine.submit(Micros::ZERO, request).expect("the real one took it")
    }

    fn run(&mut self) -> Vec<Happened> {
        let mut happened = Vec::new();
        while self.engine.begin_step(Micros::ZERO).is_some() {
            self.engine.finish_step(&mut happened);
        }
        happened
    }

    fn expect(&mut self, requests: &[Sent], cached_tokens: &[u32], events: Vec<Event>) {
        assert_eq!(self.send(requests), Seen { cached_tokens: cached_tokens.to_vec(), events });
    }
}

fn stored(names: impl IntoIterator<Item = u64>) -> Event {
    Event::Stored(names.into_iter().collect())
}

fn removed(names: impl IntoIterator<Item = u64>) -> Vec<Event> {
    names.into_iter().map(Event::Removed).collect()
}

/// Chats with one system prompt: hits, a salted one without hits, and an answer that fills a block.
fn replay_chats(replay: &mut Replay) {
    const CHAT: Sent = (80, 8, &[0, 1]);
    replay.expect(&[CHAT], &[0], vec![stored([0, 1])]);
    replay.expect(&[CHAT], &[64], vec![]);
    replay.expect(&[(82, 8, &[0, 1])], &[64], vec![]);
    replay.expect(&[(80, 8, &[2, 3])], &[0], vec![stored([2, 3])]);
    for _stream_or_token_ids in 0..3 {
        replay.expect(&[CHAT], &[64], vec![]);
    }
    replay.expect(&[(81, 40, &[0, 1, 4])], &[64], vec![stored([4])]);
    for _report_rank_priority_session in 0..4 {
        replay.expect(&[CHAT], &[64], vec![]);
    }
}

/// Completions with unique prompts, the last two in one request.
fn replay_completions(replay: &mut Replay) {
    replay.expect(&[(67, 4, &[5, 6])], &[0], vec![stored([5, 6])]);
    replay.expect(&[(70, 4, &[7, 8])], &[0], vec![stored([7, 8])]);
    let pair: [Sent; 2] = [(40, 4, &[9]), (40, 4, &[10])];
    replay.expect(&pair, &[0, 0], vec![stored([9]), stored([10])]);
}

/// Six prompts of 400 tokens that exceed the cache together.
fn replay_evictions(replay: &mut Replay) {
    let evictions = [
        vec![],
        vec![],
        vec![],
        vec![],
        removed([3, 2, 4, 1, 0, 6, 5, 8, 7]),
        removed([9, 10, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13]),
    ];
    for (turn, mut events) in (0_u64..).zip(evictions) {
        let chain: Vec<u64> = (11 + turn * 12..23 + turn * 12).collect();
        events.push(stored(chain.iter().copied()));
        replay.expect(&[(400, 2, &chain)], &[0], events);
    }
}

#[test]
fn the_model_publishes_what_vllm_published() {
    let mut replay = Replay::new();
    replay_chats(&mut replay);
    replay_completions(&mut replay);
    replay_evictions(&mut replay);
    replay.engine.clear_cache().unwrap();
    replay.expect(&[(80, 8, &[0, 1])], &[0], vec![Event::Cleared, stored([0, 1])]);
    let stats = replay.engine.stats();
    assert_eq!((stats.prefix_queries_tokens, stats.prefix_hits_tokens), (3_660, 640), "as its counters said");
    assert_eq!((stats.preemptions, stats.kv_use), (0, 0.0));
}

#[test]
fn a_prompt_of_whole_blocks_stores_its_last_block_again_each_time() {
    let mut replay = Replay::new();
    let prompt: Sent = (96, 1, &[0, 1, 2]);
    replay.expect(&[prompt], &[0], vec![stored([0, 1, 2])]);
    replay.expect(&[prompt], &[64], vec![stored([2])]);
    replay.expect(&[prompt], &[64], vec![stored([2])]);
    let other: Vec<u64> = (10..73).collect();
    let seen = replay.send(&[(63 * 32 - 1, 1, &other)]);
    let removals = seen.events.iter().filter(|event| **event == Event::Removed(2)).count();
    assert_eq!(removals, 3, "stored three times, removed three times");
}
