//! Cost of precise matching: `cargo run --release -p warmroute-prompt --example align_cost`.
//!
//! First a chat of 100 KB (about 26,000 tokens), from a parsed body to bytes ready for lookup: rendered by
//! several kinds of templates and normalized for several kinds of tokenizers, as 4 long and as 40 shorter
//! messages. Then a reported block of 16 tokens, from ids to a digest, with a vocabulary of 131,072 tokens.
//! Prints median and best of 301 rounds; on a busy machine the best is more accurate.

use std::hint::black_box;
use std::time::Instant;

use warmroute_prompt::{Alignment, Api, Blocks, Body, ModelFiles, Vocabulary};
use xxhash_rust::xxh3::xxh3_64;

const TEMPLATES: [(&str, &str); 4] = [
    (
        "plain copy",
        "{{ bos_token }}{% for m in messages %}<|h|>{{ m['role'] }}\n\n{{ m['content'] }}<|e|>{% endfor %}",
    ),
    ("chatml, tools", include_str!("../tests/data/templates/chatml_tools.jinja")),
    ("thinking", include_str!("../tests/data/templates/thinking.jinja")),
    ("headers, date", include_str!("../tests/data/templates/headers_date.jinja")),
];
const TOKENIZERS: [(&str, &[u8]); 3] = [
    ("byte-level", include_bytes!("../tests/data/tokenizers/bytes.json")),
    ("byte-level, NFKC", include_bytes!("../tests/data/tokenizers/bytes_nfkc.json")),
    ("SentencePiece", include_bytes!("../tests/data/tokenizers/pieces.json")),
];
const ENGLISH: &str = "the quick brown fox jumps over the lazy dog and asks about caching of prefixes\n";
const MIXED: &str = "naïve façades and 漢字, über alles; \"quoted\" lines of text with some accents é à ü\n";

fn main() {
    println!(
        "{:<15}{:<18}{:>9}{:>10}{:>10}{:>10}{:>10}",
        "template", "tokenizer", "text", "messages", "bytes", "µs", "best"
    );
    for (text, line) in [("English", ENGLISH), ("mixed", MIXED)] {
        for messages in [4, 40] {
            let body = chat(line, 100_000, messages);
            for (template_name, template) in TEMPLATES {
                for (tokenizer_name, tokenizer) in TOKENIZERS {
                    let (bytes, [median_us, best_us]) = prompt_cost(template, tokenizer, &body);
                    println!(
                        "{template_name:<15}{tokenizer_name:<18}{text:>9}{messages:>10}{bytes:>10}{median_us:>10.1}{best_us:>10.1}"
                    );
                }
            }
        }
    }
    let [median_ns, best_ns] = block_cost_ns();
    println!("\na reported block of 16 tokens, ids to digest: {median_ns:.1} ns, best {best_ns:.1} ns");
}

fn prompt_cost(template: &str, tokenizer: &[u8], body: &str) -> (usize, [f64; 2]) {
    let files = ModelFiles {
        tokenizer,
        tokenizer_config: Some(br#"{"bos_token":"<s>","eos_token":"</s>"}"#),
        chat_template: Some(template),
        ..ModelFiles::default()
    };
    let alignment = Alignment::new(&files).expect("the model is whole");
    let body = Body::read(body.as_bytes()).expect("it is JSON");
    let mut out = Vec::new();
    let cost_ns = median_and_best_ns(|| {
        let written = alignment.write_prompt(black_box(&body), Api::Chat, 1_751_896_920, &mut out);
        black_box(written.expect("the template takes this chat"));
    });
    (out.len(), cost_ns.map(|ns| ns / 1e3))
}

fn chat(line: &str, bytes: usize, messages: usize) -> String {
    let turn = line.repeat((bytes / messages).div_ceil(line.len()));
    let turns: Vec<_> = (0..messages)
        .map(|n| serde_json::json!({"role": if n % 2 == 0 { "user" } else { "assistant" }, "content": turn}))
        .collect();
    serde_json::json!({"model": "m", "messages": turns, "stream": true}).to_string()
}

fn block_cost_ns() -> [f64; 2] {
    let token = |id: u32| (id, format!("{id:x}wordsandmore").as_bytes()[..1 + id as usize % 8].to_vec());
    let vocabulary = Vocabulary::new((0..131_072).map(token).collect());
    let blocks = 1_000;
    // Ids spread over the whole vocabulary, which is harder on CPU caches than text.
    let ids: Vec<u32> = (0..blocks * 16_u32).map(|n| n.wrapping_mul(2_654_435_761) >> 15).collect();
    let mut spans = Blocks::default();
    let cost_ns = median_and_best_ns(|| {
        vocabulary.write_blocks(black_box(&ids), 16, &mut spans).expect("all ids exist");
        black_box(spans.iter().map(xxh3_64).fold(0, |all, digest| all ^ digest));
    });
    cost_ns.map(|ns| ns / f64::from(blocks))
}

fn median_and_best_ns(mut work: impl FnMut()) -> [f64; 2] {
    let mut rounds: Vec<f64> = (0..301)
        .map(|_| {
            let begin = Instant::now();
            work();
            begin.elapsed().as_nanos() as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    [rounds[rounds.len() / 2], rounds[0]]
}
