//! Accuracy of byte matching against tokens: `cargo run --release -p warmroute-prompt --example align_truth
//! -- [--text FILE] [tokenizer.json]...`
//!
//! Two thousand times, two prompts share a beginning of random length and continue differently. One is cached
//! in blocks of 16 tokens, the other is looked up by its bytes. The prediction is compared with the blocks
//! that their tokens share, for texts that diverge between words and anywhere. Then the same for
//! conversations: an answer of 300 tokens is generated with one token split in two, as sampling may do, and
//! the next turn is looked up. Without arguments it uses the tests' small tokenizers on this repository's
//! docs.

use std::error::Error;
use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;
use warmroute_prompt::{Alignment, Api, Blocks, Body, ModelFiles};

const CASES: usize = 2_000;
const BLOCK_TOKENS: usize = 16;
const ANSWER_TOKENS: usize = 300;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let text = match arguments.iter().position(|argument| argument == "--text") {
        Some(at) => {
            std::fs::read_to_string(arguments.drain(at..at + 2).nth(1).ok_or("--text needs a file")?)?
        }
        None => own_docs()?,
    };
    let files =
        if arguments.is_empty() { own_tokenizers() } else { arguments.iter().map(PathBuf::from).collect() };
    println!(
        "{:<24}{:<22}{:>7}{:>8}{:>10}{:>8}{:>12}",
        "tokenizer", "parting", "cases", "exact", "one over", "worse", "mean over"
    );
    for file in files {
        let model = Model::read(&file)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        report(&name, "between words", &model.prompts(&text, Parting::Words));
        report(&name, "anywhere", &model.prompts(&text, Parting::Anywhere));
        report(&name, "a generated answer", &model.answers(&text));
    }
    Ok(())
}

fn report(tokenizer: &str, parting: &str, overs: &[i64]) {
    let mean = overs.iter().sum::<i64>() as f64 / overs.len() as f64;
    println!(
        "{tokenizer:<24}{parting:<22}{:>7}{:>8}{:>10}{:>8}{mean:>12.3}",
        overs.len(),
        count(overs, |over| over == 0),
        count(overs, |over| over == 1),
        count(overs, |over| !(0..=1).contains(&over)),
    );
}

fn count(overs: &[i64], which: impl Fn(i64) -> bool) -> usize {
    overs.iter().filter(|over| which(**over)).count()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn own_docs() -> Result<String, Box<dyn Error>> {
    let files = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    Ok(files.iter().map(|file| std::fs::read_to_string(root().join(file))).collect::<Result<String, _>>()?)
}

fn own_tokenizers() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizers");
    ["bytes", "bytes_nfkc", "pieces", "pieces_first"].map(|name| folder.join(format!("{name}.json"))).to_vec()
}

/// Where two texts may diverge.
#[derive(Clone, Copy, PartialEq)]
enum Parting {
    Words,
    Anywhere,
}

/// Repeatable random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }

    /// A part of the text of at most `bytes_max` bytes. Between words it starts and ends before white space.
    fn stretch<'t>(&mut self, text: &'t str, bytes_max: usize, parting: Parting) -> &'t str {
        let start = text.floor_char_boundary(self.below(text.len()));
        let end = text.floor_char_boundary((start + self.below(bytes_max)).min(text.len()));
        let word = |at: usize| text[at..].find(char::is_whitespace).map_or(text.len(), |found| at + found);
        match parting {
            Parting::Words => &text[word(start)..word(end)],
            Parting::Anywhere => &text[start..end],
        }
    }
}

struct Model {
    alignment: Alignment,
    truth: Tokenizer,
    /// Tokens by their bytes, sorted.
    tokens: Vec<(Vec<u8>, u32)>,
}

impl Model {
    fn read(file: &Path) -> Result<Model, Box<dyn Error>> {
        let tokenizer = std::fs::read(file)?;
        let alignment = Alignment::new(&ModelFiles { tokenizer: &tokenizer, ..ModelFiles::default() })?;
        let truth = Tokenizer::from_bytes(&tokenizer).map_err(|problem| problem.to_string())?;
        let vocabulary = alignment.vocabulary();
        let ids = 0..vocabulary.ids() as u32;
        let mut tokens: Vec<_> = ids.filter_map(|id| Some((vocabulary.bytes(id)?.to_vec(), id))).collect();
        tokens.sort();
        Ok(Model { alignment, truth, tokens })
    }

    /// Blocks by which each prediction is too long.
    fn prompts(&self, text: &str, parting: Parting) -> Vec<i64> {
        let mut dice = Dice(1);
        let mut case = || {
            let shared = dice.stretch(text, 12_000, parting);
            let (left, right) = (dice.stretch(text, 4_000, parting), dice.stretch(text, 4_000, parting));
            let (cached, asked) = (format!("{shared}{left}"), format!("{shared}{right}"));
            self.over(&self.ids(&cached), &asked)
        };
        (0..CASES).map(|_| case()).collect()
    }

    /// The same for prompts whose cached end was generated.
    fn answers(&self, text: &str) -> Vec<i64> {
        let mut dice = Dice(2);
        let mut overs = Vec::new();
        while overs.len() < CASES / 10 {
            let (prompt, answer) =
                (dice.stretch(text, 4_000, Parting::Words), dice.stretch(text, 8_000, Parting::Words));
            let whole = format!("{prompt}{answer}");
            let mut ids = self.ids(&whole);
            let begin = self.ids(prompt).len();
            ids.truncate(begin + ANSWER_TOKENS);
            if ids.len() < begin + ANSWER_TOKENS || !self.split_one(&mut ids, begin, &mut dice) {
                continue;
            }
            overs.push(self.over(&ids, &format!("{whole} And then?")));
        }
        overs
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        self.truth.encode_fast(text, true).expect("text has tokens").get_ids().to_vec()
    }

    /// Splits a random token after `begin` into two with the same bytes.
    fn split_one(&self, ids: &mut Vec<u32>, begin: usize, dice: &mut Dice) -> bool {
        for _ in 0..100 {
            let at = begin + dice.below(ids.len() - begin);
            let bytes = self.alignment.vocabulary().bytes(ids[at]).unwrap_or_default();
            let cut = 1 + dice.below(bytes.len().saturating_sub(1));
            if let (true, Some(left), Some(right)) = (
                cut < bytes.len(),
                self.token(&bytes[..cut.min(bytes.len())]),
                self.token(&bytes[cut.min(bytes.len())..]),
            ) {
                ids.splice(at..=at, [left, right]);
                return true;
            }
        }
        false
    }

    fn token(&self, bytes: &[u8]) -> Option<u32> {
        let at = self.tokens.binary_search_by(|(token, _)| token.as_slice().cmp(bytes)).ok()?;
        Some(self.tokens[at].1)
    }

    fn over(&self, cached: &[u32], asked: &str) -> i64 {
        let mut blocks = Blocks::default();
        self.alignment
            .vocabulary()
            .write_blocks(cached, BLOCK_TOKENS, &mut blocks)
            .expect("the tokens exist");
        let body = serde_json::json!({ "prompt": asked }).to_string();
        let mut prompt = Vec::new();
        let body = Body::read(body.as_bytes()).expect("it is JSON");
        self.alignment.write_prompt(&body, Api::Completions, 0, &mut prompt).expect("a plain prompt");
        let mut rest = &prompt[..];
        let is_next = |block: &&[u8]| rest.strip_prefix(*block).inspect(|after| rest = after).is_some();
        let predicted = blocks.iter().take_while(is_next).count();
        let truth = cached.iter().zip(self.ids(asked)).take_while(|(a, b)| **a == *b).count() / BLOCK_TOKENS;
        predicted as i64 - truth as i64
    }
}
