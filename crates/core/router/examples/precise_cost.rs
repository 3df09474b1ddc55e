//! What precise routing costs: `cargo run --release -p warmroute-router --example precise_cost`.
//!
//! First an event on its way into the index: token ids to bytes, digests, names, both views, with the removal of as many older
//! blocks. (Reading it from the wire comes before that: `-p warmroute-events --example decode_cost`.) Then a chat request of
//! 100 KB, 1 MB and 4 MB: read, rendered, normalized, cut into chunks, looked up and decided, among 8 workers, with a prefix that an
//! engine reports and with an unknown one. Wall time of one thread; on a busy machine the best is nearer to the truth.

use std::sync::Arc;
use std::time::Instant;

use warmroute_fleet::{Models, ProbeResult, Worker};
use warmroute_index::{Namespace, RootKey, Source};
use warmroute_policy::Standard;
use warmroute_prompt::{Alignment, Api, Body, CHUNK_BYTES, Chunks, ModelFiles, Vocabulary};
use warmroute_router::{
    Change, Config, Decision, Family, Matching, PromptChunks, PromptText, Request, Router, Scratch, Unit,
};
use warmroute_types::{Address, CacheEvent, CacheView, Micros, RemovedBlocks, StoredBlocks};

const WORKERS: u64 = 8;
const BLOCK: usize = 16;
const TEMPLATE: &str =
    "{{ bos_token }}{% for m in messages %}<|h|>{{ m['role'] }}\n\n{{ m['content'] }}<|e|>{% endfor %}";

fn main() {
    let files = ModelFiles {
        tokenizer: include_bytes!("../../prompt/tests/data/tokenizers/bytes.json"),
        tokenizer_config: Some(br#"{"bos_token":"<s>","eos_token":"</s>"}"#),
        chat_template: Some(TEMPLATE),
        ..ModelFiles::default()
    };
    let alignment = Alignment::new(&files).expect("the model is whole");
    let vocabulary = Arc::new(alignment.vocabulary().clone());
    for (what, run_blocks) in [("64 blocks a batch", 64), ("1 block a batch", 1)] {
        let [median, best] = ingest_ns(&vocabulary, run_blocks);
        println!("a reported block stored and one removed, {what}: {median:.0} ns, best {best:.0} ns");
    }
    for bytes in [100_000, 1_000_000, 4_000_000] {
        let router = router_of(&vocabulary);
        route(&router, &alignment, &vocabulary, &chat(bytes));
    }
}

/// Prints what routing a chat takes, before and after an engine has reported its prefix.
fn route(router: &Router<Standard>, alignment: &Alignment, vocabulary: &Vocabulary, body: &str) {
    let mut text = Vec::new();
    let read = Body::read(body.as_bytes()).expect("it is JSON");
    alignment.write_prompt(&read, Api::Chat, 0, &mut text).expect("the template takes it");
    println!("\nchat of {} bytes, rendered; µs, median and best of 301:", text.len());
    report("prefix unknown", route_us(router, alignment, body));
    let tokens = tokens_of(vocabulary, &text);
    store(router, &workers(router)[0], &tokens, 0);
    report("prefix reported", route_us(router, alignment, body));
}

fn report(what: &str, [read, render, cut, route]: [[f64; 2]; 4]) {
    let total: f64 = [read, render, cut, route].iter().map(|step| step[0]).sum();
    let best: f64 = [read, render, cut, route].iter().map(|step| step[1]).sum();
    println!(
        "  {what:<16} read {:.0}, render and normalize {:.0}, chunks {:.0}, look up and decide {:.0}: in all {total:.0}, best {best:.0}",
        read[0], render[0], cut[0], route[0]
    );
}

fn router_of(vocabulary: &Arc<Vocabulary>) -> Router<Standard> {
    let policy = "expected_ttft".parse().expect("it is a policy");
    let router = Router::new(policy, Config::default());
    for i in 0..WORKERS {
        let address = Address::new(format!("http://engine-{i}"));
        router.join(address, Models::named(&["m"])).expect("there is room");
    }
    for worker in workers(&router) {
        let matching = Some(Matching::bytes(Family::new("m"), Arc::clone(vocabulary)));
        for change in [
            Change::Probed { worker: Arc::clone(&worker), result: ProbeResult::Answered, at: Micros(1) },
            Change::Aligned { worker: Arc::clone(&worker), matching },
            Change::Viewed { worker, view: CacheView::Reported },
        ] {
            router.apply(change);
        }
    }
    router
}

fn workers(router: &Router<Standard>) -> Vec<Arc<Worker>> {
    router.inspect().workers().into_iter().map(|view| view.worker).collect()
}

/// Prompts of 256 blocks, a different one for each worker and round, reported in batches; the one of eight rounds before is
/// removed meanwhile.
fn ingest_ns(vocabulary: &Arc<Vocabulary>, run_blocks: usize) -> [f64; 2] {
    const BLOCKS: usize = 256;
    let router = router_of(vocabulary);
    let workers = workers(&router);
    let ids = vocabulary.ids() as u64;
    let mut rounds = Vec::new();
    for round in 0..120_u64 {
        let batches: Vec<(usize, Vec<CacheEvent>)> = (0..WORKERS)
            .flat_map(|worker_index| {
                let seed = round * WORKERS + worker_index;
                (0..BLOCKS / run_blocks)
                    .map(move |run| (worker_index as usize, batch(seed, run * run_blocks, run_blocks, ids)))
            })
            .collect();
        let began = Instant::now();
        for (worker_index, events) in batches {
            let worker = Arc::clone(&workers[worker_index]);
            router.apply(Change::Cached { worker, events });
        }
        rounds.push(began.elapsed().as_nanos() as f64 / (WORKERS as usize * BLOCKS) as f64);
    }
    spread(rounds.split_off(16))
}

fn name(seed: u64, block: usize) -> u64 {
    ((seed << 20) | (block as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn batch(seed: u64, from: usize, blocks: usize, ids: u64) -> Vec<CacheEvent> {
    let range = from..from + blocks;
    let tokens =
        (from * BLOCK..(from + blocks) * BLOCK).map(|at| ((at as u64 * 7_919 + seed * 31) % ids) as u32);
    let stored = StoredBlocks {
        names: range.clone().map(|block| name(seed, block)).collect(),
        parent: (from > 0).then(|| name(seed, from - 1)),
        tokens: tokens.collect(),
        block_tokens: BLOCK as u32,
        text_blocks: blocks as u32,
        ..StoredBlocks::default()
    };
    let old = seed.wrapping_sub(8 * WORKERS);
    let names = range.map(|block| name(old, block)).collect();
    vec![CacheEvent::Removed(RemovedBlocks { names, ..RemovedBlocks::default() }), CacheEvent::Stored(stored)]
}

fn store(router: &Router<Standard>, worker: &Arc<Worker>, tokens: &[u32], seed: u64) {
    let blocks = tokens.len() / BLOCK;
    let stored = StoredBlocks {
        names: (0..blocks).map(|block| name(seed, block)).collect(),
        tokens: tokens[..blocks * BLOCK].to_vec(),
        block_tokens: BLOCK as u32,
        text_blocks: blocks as u32,
        ..StoredBlocks::default()
    };
    let events = vec![CacheEvent::Stored(stored)];
    router.apply(Change::Cached { worker: Arc::clone(worker), events });
}

/// Tokens that spell this text: the longest that fits, as far as four bytes.
fn tokens_of(vocabulary: &Vocabulary, text: &[u8]) -> Vec<u32> {
    let mut by_bytes = std::collections::BTreeMap::new();
    for id in 0..vocabulary.ids() as u32 {
        if let Some(bytes) = vocabulary.bytes(id).filter(|bytes| (1..=4).contains(&bytes.len())) {
            by_bytes.insert(bytes, id);
        }
    }
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let fits = |len: &usize| text.get(at..at + len).and_then(|bytes| by_bytes.get(bytes));
        let len = [4, 3, 2, 1].into_iter().find(|len| fits(len).is_some()).expect("every byte has a token");
        tokens.push(by_bytes[&text[at..at + len]]);
        at += len;
    }
    tokens
}

fn route_us(router: &Router<Standard>, alignment: &Alignment, body: &str) -> [[f64; 2]; 4] {
    let mut steps: [Vec<f64>; 4] = Default::default();
    let (mut text, mut scratch) = (Vec::new(), Scratch::default());
    let root =
        RootKey::of(&Namespace { model: "m", lora: None, salt: None, cut: 0, source: Source::Presumed });
    for _ in 0..301 {
        let mut lap = Lap(Instant::now());
        let read = Body::read(body.as_bytes()).expect("it is JSON");
        steps[0].push(lap.us());
        alignment.write_prompt(&read, Api::Chat, 0, &mut text).expect("the template takes it");
        steps[1].push(lap.us());
        let digests = Chunks::cut_text(&text, |bytes| router.inspect().digester().digest(bytes));
        steps[2].push(lap.us());
        let prompt = PromptChunks {
            root,
            digests: &digests,
            chunk_bytes: CHUNK_BYTES as u32,
            bytes: text.len() as u32,
        };
        let reported = router.inspect().text_root(&Family::new("m"), Some("m"), None, Unit::Byte);
        let text = PromptText { root: reported, bytes: &text, unit: Unit::Byte };
        let request =
            Request { model: Some("m"), prompt: Some(prompt), texts: &[text], ..Request::default() };
        let decision: Decision =
            router.route(&request, &mut scratch, Micros(1), 7).expect("workers are ready");
        steps[3].push(lap.us());
        drop(decision);
    }
    steps.map(spread)
}

struct Lap(Instant);

impl Lap {
    fn us(&mut self) -> f64 {
        let before = std::mem::replace(&mut self.0, Instant::now());
        (self.0 - before).as_nanos() as f64 / 1e3
    }
}

/// Median and best.
fn spread(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[0]]
}

fn chat(bytes: usize) -> String {
    let line = "the quick brown fox jumps over the lazy dog and asks about caching of prefixes\\n";
    let text = line.repeat(bytes / 4 / line.len());
    let turn = |role: &str| format!(r#"{{"role":"{role}","content":"{text}"}}"#);
    let turns = ["system", "user", "assistant", "user"].map(turn).join(",");
    format!(r#"{{"model":"m","messages":[{turns}]}}"#)
}
