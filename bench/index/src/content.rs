//! From content to answer: our walk over a prompt's bytes, against the peers' hashing of its token ids plus their find.
//!
//! The peers also need the prompt tokenized, which costs a thousand times more than either; that is left out here.

use dynamo_kv_router::protocols::{BlockHashOptions, compute_block_hash_for_seq};
use kv_index::compute_request_content_hashes;
use warmroute_index::{NamedSpan, Overlaps, Parent, Prompt, Span, HolderId};

use crate::clock::timed;
use crate::dynamo::Dynamo;
use crate::kv::Kv;
use crate::ours::Ours;
use crate::rival::Rival;
use crate::stream::{Block, Random, Store};

const BLOCK_TOKENS: usize = 16;
const WORKERS: usize = 8;

/// CPU nanoseconds per prompt: ours, kv-index, dynamo.
pub fn compare(blocks: usize, prompts: usize) -> [f64; 3] {
    let mut random = Random(blocks as u64);
    let tokens: Vec<Vec<u32>> = (0..prompts)
        .map(|_| (0..blocks * BLOCK_TOKENS).map(|_| random.below(32_000) as u32).collect())
        .collect();
    [bytes_walk(&tokens), kv_find(&tokens), dynamo_find(&tokens)]
}

/// What a token says: two to six letters.
fn text(token: u32, out: &mut Vec<u8>) {
    let letters = 2 + Random(u64::from(token)).next() as usize % 5;
    out.extend((0..letters).map(|at| b'a' + (token as usize >> (3 * at)) as u8 % 26));
}

fn bytes_walk(tokens: &[Vec<u32>]) -> f64 {
    let ours = Ours::new();
    let mut texts = Vec::new();
    for (number, prompt) in tokens.iter().enumerate() {
        let mut bytes = Vec::new();
        let mut spans = Vec::new();
        for (at, block) in prompt.chunks(BLOCK_TOKENS).enumerate() {
            let from = bytes.len();
            block.iter().for_each(|&token| text(token, &mut bytes));
            let digest = ours.index.digester().digest(&bytes[from..]);
            let span = Span { digest, bytes: (bytes.len() - from) as u32, tokens: BLOCK_TOKENS as u32 };
            spans.push(NamedSpan { name: (number << 32 | at) as u64, span });
        }
        for worker in 0..WORKERS {
            ours.index
                .store(HolderId(worker as u16), Parent::Root(ours.root), &spans)
                .expect("a valid store");
        }
        texts.push(bytes);
    }
    let mut out = Overlaps::new();
    per_prompt(&texts, |text| {
        ours.index.lookup(ours.root, Prompt::Bytes(text), &mut out);
        out.as_slice().iter().filter(|overlap| overlap.reach.bytes as usize == text.len()).count()
    })
}

fn kv_find(tokens: &[Vec<u32>]) -> f64 {
    let mut kv = Kv::new(WORKERS);
    let hash = |prompt: &[u32]| {
        compute_request_content_hashes(prompt, BLOCK_TOKENS).iter().map(|hash| hash.0).collect()
    };
    fill(&mut kv, tokens, hash);
    per_prompt(tokens, |prompt| {
        let hashes = compute_request_content_hashes(prompt, BLOCK_TOKENS);
        let mut whole = 0;
        kv.index.score_into(
            &hashes,
            |hash| hash.0,
            false,
            |_, score| {
                whole += usize::from(score as usize == hashes.len());
            },
        );
        whole
    })
}

fn dynamo_find(tokens: &[Vec<u32>]) -> f64 {
    let mut dynamo = Dynamo::new();
    let hashes =
        |prompt: &[u32]| compute_block_hash_for_seq(prompt, BLOCK_TOKENS as u32, BlockHashOptions::default());
    fill(&mut dynamo, tokens, |prompt| hashes(prompt).iter().map(|hash| hash.0).collect());
    dynamo.drain();
    per_prompt(tokens, |prompt| dynamo.find_hashes(&hashes(prompt)))
}

/// Stores every prompt on every worker.
fn fill(rival: &mut dyn Rival, tokens: &[Vec<u32>], hash: impl Fn(&[u32]) -> Vec<u64>) {
    for (number, prompt) in tokens.iter().enumerate() {
        let named = |(at, digest): (usize, u64)| Block { name: (number << 32 | at) as u64, digest };
        let blocks: Vec<Block> = hash(prompt).into_iter().enumerate().map(named).collect();
        for worker in 0..WORKERS {
            rival.store(&Store { worker, parent: None, blocks: blocks.clone() });
        }
    }
}

/// CPU nanoseconds per prompt. Every worker must be found to hold all of it.
fn per_prompt<T>(prompts: &[T], mut find: impl FnMut(&T) -> usize) -> f64 {
    let rounds = 1_000_usize.div_ceil(prompts.len());
    let (found, ns) = timed(|| (0..rounds).flat_map(|_| prompts).map(&mut find).sum::<usize>());
    assert_eq!(found, rounds * prompts.len() * WORKERS, "every worker holds every prompt");
    ns as f64 / (rounds * prompts.len()) as f64
}
