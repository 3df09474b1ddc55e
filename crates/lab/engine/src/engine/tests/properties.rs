//! Properties under any sequence of calls: counters agree, every request finishes, and the same calls give
//! the same results.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Call {
    Submit { shared: u64, text: u64, prompt_tokens: u32, output_tokens: u32 },
    Cancel { nth: usize },
    Begin { now: u64 },
    Finish,
    Clear,
}

fn call() -> impl Strategy<Value = Call> {
    let submit = (0_u64..6, 0_u64..4, 1_u32..40, 1_u32..24);
    prop_oneof![
        4 => submit.prop_map(|(shared, text, prompt_tokens, output_tokens)| {
            Call::Submit { shared, text, prompt_tokens, output_tokens }
        }),
        1 => (0_usize..40).prop_map(|nth| Call::Cancel { nth }),
        6 => (0_u64..1_000_000).prop_map(|now| Call::Begin { now }),
        6 => Just(Call::Finish),
        1 => Just(Call::Clear),
    ]
}

/// A tier fast enough that fetching a block may pay off.
fn tier() -> impl Strategy<Value = Tier> {
    (0_u64..30, 1_u64..1_000_000, 0_u64..2_000).prop_map(|(blocks, megabytes_per_s, latency_us)| Tier {
        tokens: blocks * u64::from(BLOCK),
        megabytes_per_s,
        latency: Micros(latency_us),
    })
}

fn small_config() -> impl Strategy<Value = Config> {
    let caching = prop_oneof![4 => Just(PrefixCaching::On), 1 => Just(PrefixCaching::Off)];
    let memories = (proptest::option::of(tier()), proptest::option::of(tier()));
    (16_u64..40, 3_u32..30, 1_u32..6, caching, memories).prop_map(
        |(blocks, step_tokens_max, sequences_max, caching, (host, pool))| Config {
            host,
            pool,
            step_tokens_max,
            sequences_max,
            prefix_caching: caching,
            ..config(blocks)
        },
    )
}

/// Engines with a second group, large enough for any request.
fn window_config() -> impl Strategy<Value = Config> {
    (1_u32..40, 36_u64..60, 3_u32..30, 1_u32..6).prop_map(
        |(window, blocks, step_tokens_max, sequences_max)| Config {
            sliding_window: Some(window),
            step_tokens_max,
            sequences_max,
            ..config(blocks)
        },
    )
}

/// An engine and the state that its events describe.
struct Watched {
    engine: Engine,
    submitted: Vec<(SequenceId, Request)>,
    cancelled: HashSet<SequenceId>,
    finished: HashSet<SequenceId>,
    tokens: HashMap<SequenceId, u32>,
    copies: HashMap<BlockName, i64>,
    window_copies: HashMap<BlockName, i64>,
    kept: HashSet<(BlockName, Memory)>,
    happened: Vec<Happened>,
}

impl Watched {
    fn new(config: Config) -> Watched {
        Watched {
            engine: Engine::new(config).unwrap(),
            submitted: Vec::new(),
            cancelled: HashSet::new(),
            finished: HashSet::new(),
            tokens: HashMap::new(),
            copies: HashMap::new(),
            window_copies: HashMap::new(),
            kept: HashSet::new(),
            happened: Vec::new(),
        }
    }

    fn make(&mut self, call: &Call) {
        match *call {
            Call::Submit { shared, text, prompt_tokens, output_tokens } => {
                self.submit(branch(shared, text, prompt_tokens, output_tokens));
            }
            Call::Cancel { nth } => self.cancel(nth),
            Call::Begin { now } => drop(self.engine.begin_step(Micros(now))),
            Call::Finish => self.finish(),
            Call::Clear => drop(self.engine.clear_cache()),
        }
        self.engine.scheduler.check();
    }

    fn submit(&mut self, request: Request) {
        self.submitted.push((submit(&mut self.engine, request.clone()), request));
    }

    fn cancel(&mut self, nth: usize) {
        let Some(&(id, _)) = self.submitted.get(nth) else { return };
        self.engine.cancel(id);
        if !self.finished.contains(&id) {
            self.cancelled.insert(id);
        }
    }

    fn finish(&mut self) {
        let mut happened = Vec::new();
        self.engine.finish_step(&mut happened);
        happened.iter().for_each(|&happened| self.hear(happened));
        self.happened.append(&mut happened);
    }

    fn hear(&mut self, happened: Happened) {
        match happened {
            Happened::Token { id, index } => {
                assert!(!self.cancelled.contains(&id), "a cancelled sequence says nothing");
                let expected = self.tokens.entry(id).or_insert(0);
                assert_eq!(index, *expected, "tokens come in order, exactly once");
                *expected += 1;
            }
            Happened::Finished { id } => assert!(self.finished.insert(id), "once"),
            Happened::Stored { id, first_block, blocks } => {
                count_stored(&self.submitted, &mut self.copies, id, first_block, blocks);
            }
            Happened::WindowStored { id, first_block, blocks } => {
                count_stored(&self.submitted, &mut self.window_copies, id, first_block, blocks);
            }
            Happened::Removed { name } => count_removed(&mut self.copies, name),
            Happened::WindowRemoved { name } => count_removed(&mut self.window_copies, name),
            Happened::Kept { name, memory } => {
                let is_on_gpu = self.copies.get(&name).is_some_and(|&copies| copies > 0);
                let is_elsewhere = self.kept.iter().any(|&(other, _)| other == name);
                assert!(is_on_gpu || is_elsewhere, "what is events by name is known by name");
                assert!(self.kept.insert((name, memory)), "once");
            }
            Happened::Dropped { name, memory } => assert!(self.kept.remove(&(name, memory)), "once"),
            Happened::Cleared => {
                self.copies.clear();
                self.window_copies.clear();
                self.kept.clear();
            }
            Happened::Started { id, cached_tokens, .. } => self.hear_started(id, cached_tokens),
            Happened::Preempted { .. } => {}
        }
    }

    /// With a second group, a prompt finds the longest prefix that both groups can serve.
    fn hear_started(&self, id: SequenceId, cached_tokens: u32) {
        let Some(window) = self.engine.config().sliding_window else { return };
        let (_, request) = self.submitted.iter().find(|(other, _)| *other == id).expect("was submitted");
        let is_held = |copies: &HashMap<BlockName, i64>, block: u32| {
            copies.get(&request.chain[block as usize]).is_some_and(|&copies| copies > 0)
        };
        let is_served = |blocks: &u32| {
            let seen_from = (blocks * BLOCK).saturating_sub(window.max(2) - 1) / BLOCK;
            (0..*blocks).all(|block| is_held(&self.copies, block))
                && (seen_from..*blocks).all(|block| is_held(&self.window_copies, block))
        };
        let blocks_max = (request.prompt_tokens - 1) / BLOCK;
        let blocks = (0..=blocks_max).rev().find(is_served).unwrap_or(0);
        assert_eq!(cached_tokens, blocks * BLOCK, "window {window}");
    }

    fn drain(&mut self) {
        let tokens: u32 = self.submitted.iter().map(|(_, request)| request.output_tokens).sum();
        let steps_max = 200 * (tokens + 10);
        for _ in 0..steps_max {
            if self.engine.begin_step(Micros::ZERO).is_none() {
                return;
            }
            self.finish();
            self.engine.scheduler.check();
        }
        panic!("still busy after {steps_max} steps");
    }

    fn check_the_end(&self) {
        for (id, request) in &self.submitted {
            let done = self.finished.contains(id);
            assert!(done != self.cancelled.contains(id), "finished or cancelled, one of the two");
            assert!(!done || self.tokens[id] == request.output_tokens);
        }
        let stats = self.engine.stats();
        let copies: i64 = self.copies.values().chain(self.window_copies.values()).sum();
        assert_eq!(copies, i64::from(stats.blocks_cached), "events tell what is cached");
        let events = |memory| self.kept.iter().filter(|(_, other)| *other == memory).count();
        assert_eq!(events(Memory::Host), self.engine.scheduler.host_blocks(), "and what is on the host");
        assert_eq!((stats.blocks_used, stats.running, stats.waiting), (0, 0, 0));
    }
}

fn count_stored(
    submitted: &[(SequenceId, Request)],
    copies: &mut HashMap<BlockName, i64>,
    id: SequenceId,
    first_block: u32,
    blocks: u32,
) {
    let (_, request) = submitted.iter().find(|(other, _)| *other == id).expect("was submitted");
    for &name in &request.chain[first_block as usize..][..blocks as usize] {
        *copies.entry(name).or_insert(0) += 1;
    }
}

fn count_removed(copies: &mut HashMap<BlockName, i64>, name: BlockName) {
    let copies = copies.get_mut(&name).expect("only what was stored is removed");
    *copies -= 1;
    assert!(*copies >= 0, "no more often than it was stored");
}

/// Makes the calls, lets all requests finish, and checks what is left.
fn run_to_the_end(config: Config, calls: &[Call]) {
    let mut watched = Watched::new(config);
    calls.iter().for_each(|call| watched.make(call));
    watched.drain();
    // A clear is reported with the next step, so there must be one.
    watched.submit(request(9, 1, 1));
    watched.drain();
    watched.check_the_end();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn all_counts_agree_and_every_request_finishes(
        config in small_config(),
        calls in prop::collection::vec(call(), 1..120),
    ) {
        run_to_the_end(config, &calls);
    }

    #[test]
    fn both_groups_agree_with_their_events_and_every_request_finishes(
        config in window_config(),
        calls in prop::collection::vec(call(), 1..120),
    ) {
        run_to_the_end(config, &calls);
    }

    #[test]
    fn the_same_calls_give_the_same_results(
        config in small_config(),
        calls in prop::collection::vec(call(), 1..120),
    ) {
        let (mut one, mut other) = (Watched::new(config.clone()), Watched::new(config));
        for call in &calls {
            one.make(call);
            other.make(call);
        }
        one.drain();
        other.drain();
        prop_assert_eq!(&one.happened, &other.happened);
        prop_assert_eq!(one.engine.stats(), other.engine.stats());
        prop_assert_eq!(one.engine.step_ends, other.engine.step_ends);
    }
}
