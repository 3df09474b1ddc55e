//! Answers that engines sampled, repeated by later prompts: how many blocks are promised, before and after feedback.
//!
//! An engine caches an answer as it was sampled; the same text may tokenize otherwise. Here the small tokenizers are the
//! truth, one token of half of the answers is split in two, and the router sees what it would see of a real engine: events,
//! prompts as bytes, and `cached_tokens`. `cargo test -p warmroute-router --test generated -- --nocapture` prints the table.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::Tokenizer;
use warmroute_fleet::{Models, ProbeResult};
use warmroute_policy::{LeastLoaded, Standard};
use warmroute_prompt::{Alignment, Api, Body, ModelFiles};
use warmroute_router::{
    Answered, Change, Config, Family, Matching, Outcome as RequestOutcome, PromptText, Request, Router,
    Scratch, Silence, Unit,
};
use warmroute_types::{Address, CacheEvent, CacheView, Micros, StoredBlocks, Usage};

const TOKENIZERS: [&str; 4] = ["bytes", "bytes_nfkc", "pieces", "pieces_first"];
const BLOCK: usize = 16;
const ANSWER_TOKENS: usize = 300;
const CASES: usize = 40;

/// Random numbers that are the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }

    /// Some of the text, from a word's beginning to a word's end.
    fn stretch<'t>(&mut self, text: &'t str, bytes: usize) -> &'t str {
        let start = text.floor_char_boundary(self.below(text.len() - bytes));
        let word = |at: usize| text[at..].find(' ').map_or(text.len(), |found| at + found);
        &text[word(start)..word(text.floor_char_boundary(start + bytes))]
    }
}

/// An engine that tokenizes, caches and tells; and the router that listens.
struct World {
    alignment: Alignment,
    truth: Tokenizer,
    /// Tokens by their bytes, sorted.
    tokens: Vec<(Vec<u8>, u32)>,
    router: Router<Standard>,
    unit: Unit,
    holds: HashSet<u64>,
}

/// Blocks promised and found.
type Outcome = (i64, i64);

impl World {
    fn new(file: &Path, unit: Unit) -> World {
        let tokenizer = std::fs::read(file).unwrap();
        let files = ModelFiles { tokenizer: &tokenizer, ..ModelFiles::default() };
        let alignment = Alignment::new(&files).unwrap();
        let vocabulary = alignment.vocabulary();
        let ids = 0..vocabulary.ids() as u32;
        let mut tokens: Vec<_> = ids.filter_map(|id| Some((vocabulary.bytes(id)?.to_vec(), id))).collect();
        tokens.sort();
        let router = Router::new(Standard::LeastLoaded(LeastLoaded::default()), Config::default());
        let address = Address::new("http://engine");
        router.join(address, Models::named(&["m"])).unwrap();
        let worker = Arc::clone(&router.inspect().workers()[0].worker);
        let matching = Some(match unit {
            Unit::Byte => Matching::bytes(Family::new("m"), Arc::clone(vocabulary)),
            Unit::Token => Matching::tokens(Family::new("m")),
        });
        router.apply(Change::Probed {
            worker: Arc::clone(&worker),
            result: ProbeResult::Answered,
            at: Micros(1),
        });
        router.apply(Change::Aligned { worker: Arc::clone(&worker), matching });
        router.apply(Change::Viewed { worker, view: CacheView::Reported });
        let truth = Tokenizer::from_bytes(&tokenizer).unwrap();
        World { alignment, truth, tokens, router, unit, holds: HashSet::new() }
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        self.truth.encode_fast(text, true).unwrap().get_ids().to_vec()
    }

    /// The prompt in the units in which it is compared.
    fn written(&self, text: &str) -> Vec<u8> {
        if self.unit == Unit::Token {
            return self.ids(text).iter().flat_map(|id| id.to_le_bytes()).collect();
        }
        let body = serde_json::json!({ "prompt": text }).to_string();
        let mut out = Vec::new();
        self.alignment
            .write_prompt(&Body::read(body.as_bytes()).unwrap(), Api::Completions, 0, &mut out)
            .unwrap();
        out
    }

    fn held_blocks(&self, ids: &[u32]) -> usize {
        (1..=ids.len() / BLOCK).take_while(|block| self.holds.contains(&name(&ids[..block * BLOCK]))).count()
    }

    /// Computes what is not held, and tells of it: a prompt in one run, an answer block by block.
    fn compute(&mut self, ids: &[u32], at_once: usize) {
        let (mut from, end) = (self.held_blocks(ids), ids.len() / BLOCK);
        while from < end {
            let to = from.saturating_add(at_once).min(end);
            let names: Vec<u64> = (from + 1..=to).map(|block| name(&ids[..block * BLOCK])).collect();
            self.holds.extend(&names);
            let stored = StoredBlocks {
                names,
                parent: (from > 0).then(|| name(&ids[..from * BLOCK])),
                tokens: ids[from * BLOCK..to * BLOCK].to_vec(),
                block_tokens: BLOCK as u32,
                text_blocks: (to - from) as u32,
                ..StoredBlocks::default()
            };
            let worker = Arc::clone(&self.router.inspect().workers()[0].worker);
            let events = vec![CacheEvent::Stored(stored)];
            self.router.apply(Change::Cached { worker, events });
            from = to;
        }
    }

    /// Asks for a prompt: it is routed, computed and told of, and answered with what was found.
    fn request(&mut self, text: &str) -> Outcome {
        let (ids, bytes) = (self.ids(text), self.written(text));
        let root = self.router.inspect().text_root(&Family::new("m"), Some("m"), None, self.unit);
        let texts = &[PromptText { root, bytes: &bytes, unit: self.unit }];
        let silence = Silence::MeansZero;
        let request = Request { model: Some("m"), texts, silence, ..Request::default() };
        let mut decision = self.router.route(&request, &mut Scratch::default(), Micros(1), 7).unwrap();
        let found = self.held_blocks(&ids).min((ids.len() - 1) / BLOCK);
        self.compute(&ids, usize::MAX);
        let usage = Usage {
            prompt_tokens: ids.len() as u32,
            output_tokens: 1,
            cached_tokens: Some((found * BLOCK) as u32),
        };
        let answered = Some(Answered { request: &request, usage, at: Micros(1) });
        self.router.observe(&mut decision, RequestOutcome::Ended { answered });
        (i64::from(decision.cached_tokens.unwrap()) / BLOCK as i64, found as i64)
    }

    /// Splits a token after `begin` in two that spell the same, where one can be.
    fn split_one(&self, ids: &mut Vec<u32>, begin: usize, dice: &mut Dice) {
        for _ in 0..100 {
            let at = begin + dice.below(ids.len() - begin);
            let bytes = self.alignment.vocabulary().bytes(ids[at]).unwrap_or_default();
            let (left, right) = bytes.split_at(bytes.len().min(1 + dice.below(bytes.len())));
            if let (Some(left), Some(right)) = (self.token(left), self.token(right)) {
                ids.splice(at..=at, [left, right]);
                return;
            }
        }
        panic!("no token can be split");
    }

    fn token(&self, bytes: &[u8]) -> Option<u32> {
        let at = self.tokens.binary_search_by(|(token, _)| token.as_slice().cmp(bytes)).ok()?;
        Some(self.tokens[at].1)
    }

    /// A prompt, its answer with so many tokens split, and two prompts that go on from there: the first finds what was
    /// sampled, as far as it tokenizes so; the second comes after the first one's answer.
    fn case(&mut self, text: &str, splits: usize, dice: &mut Dice) -> Option<(Outcome, Outcome)> {
        let (prompt, answer) = (dice.stretch(text, 1_500).to_owned(), dice.stretch(text, 4_000));
        let whole = format!("{prompt}{answer}");
        let (prompt_ids, mut ids) = (self.ids(&prompt), self.ids(&whole));
        // Words that grow together where the answer begins would have been sampled otherwise.
        let begin = prompt_ids.len();
        let is_usable = ids.len() >= begin + ANSWER_TOKENS && ids.starts_with(&prompt_ids);
        if !is_usable {
            return None;
        }
        self.request(&prompt);
        ids.truncate(begin + ANSWER_TOKENS);
        (0..splits).for_each(|_| self.split_one(&mut ids, begin, dice));
        self.compute(&ids, 1);
        Some((self.request(&format!("{whole} And then?")), self.request(&format!("{whole} Go on."))))
    }

    /// All cases; `splits` says how many tokens of the nth answer are split.
    fn run(&mut self, splits: impl Fn(usize) -> usize) -> (Vec<Outcome>, Vec<Outcome>) {
        let (text, mut dice) = (corpus(), Dice(3));
        let mut outcomes = Vec::new();
        while outcomes.len() < CASES {
            outcomes.extend(self.case(&text, splits(outcomes.len()), &mut dice));
        }
        outcomes.into_iter().unzip()
    }
}

/// By its content up to its end, as engines name blocks.
fn name(ids: &[u32]) -> u64 {
    ids.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &id| (hash ^ u64::from(id)).wrapping_mul(0x0100_0000_01b3))
}

fn tokenizer(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../prompt/tests/data/tokenizers");
    folder.join(format!("{name}.json"))
}

/// Text without edits: the figures stay what they are.
fn corpus() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../LICENSE")).unwrap()
}

/// Blocks over and under per prompt, and how many were exact.
struct Figures {
    over: f64,
    under: f64,
    exact: f64,
    over_max: i64,
}

fn figures(outcomes: &[Outcome]) -> Figures {
    let cases = outcomes.len() as f64;
    let sum = |of: fn(&Outcome) -> i64| outcomes.iter().map(of).sum::<i64>() as f64 / cases;
    Figures {
        over: sum(|(promised, found)| (promised - found).max(0)),
        under: sum(|(promised, found)| (found - promised).max(0)),
        exact: outcomes.iter().filter(|(promised, found)| promised == found).count() as f64 / cases,
        over_max: outcomes.iter().map(|(promised, found)| promised - found).max().unwrap_or(0),
    }
}

fn print(name: &str, when: &str, figures: &Figures) {
    let Figures { over, under, exact, over_max } = figures;
    println!("{name:<14}{when:<8}{over:>8.2}{under:>8.2}{:>8.1}%{over_max:>8}", exact * 100.0);
}

#[test]
fn half_of_the_answers_split_a_token_and_feedback_makes_it_right() {
    println!("{:<14}{:<8}{:>8}{:>8}{:>9}{:>8}", "tokenizer", "asked", "over", "under", "exact", "worst");
    for file in TOKENIZERS {
        let (before, after) = World::new(&tokenizer(file), Unit::Byte).run(|case| case % 2);
        let (before, after) = (figures(&before), figures(&after));
        print(file, "before", &before);
        print(file, "after", &after);
        // An answer has 18 blocks, and one that is split is right for half of them.
        assert!(before.over < 4.0, "{file}: {} blocks too many", before.over);
        assert!(after.exact >= 0.99 && after.over_max <= 1, "{file}: {} exact after feedback", after.exact);
    }
}

#[test]
fn answers_that_tokenize_as_they_were_sampled_are_soon_promised_exactly() {
    for file in TOKENIZERS {
        let (before, after) = World::new(&tokenizer(file), Unit::Byte).run(|_| 0);
        let (first, rest) = (figures(&before[..8]), figures(&before[8..]));
        print(file, "first 8", &first);
        print(file, "rest", &rest);
        assert!(first.over == 0.0 && first.under <= 3.0, "{file}: careful at first");
        assert!(rest.exact >= 0.99 && rest.over_max <= 1, "{file}: {} exact", rest.exact);
        assert!(figures(&after).exact >= 0.99, "{file}");
    }
}

#[test]
fn where_tokens_are_compared_nothing_is_promised_that_is_not_there() {
    for file in TOKENIZERS {
        let (before, after) = World::new(&tokenizer(file), Unit::Token).run(|case| case % 2);
        let all = figures(&[before, after].concat());
        print(file, "tokens", &all);
        assert_eq!((all.exact, all.over_max), (1.0, 0), "{file}");
    }
}
