//! Finds a model's tokenizer files and checks them against the engine that serves the model.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use warmroute_gateway::ModelMatching;
use warmroute_prompt::{Alignment, ChatConversion, Reading};
use warmroute_tokens::parity::{self, ConversionVerdict, PresumedApi, Verdict};
use warmroute_tokens::{EncoderPool, HubCache, Model, ModelFolder, ModelText};
use warmroute_types::OptionValue;

use super::engine::{Card, Engine};

/// Places to look for models' files.
#[derive(Clone, Debug)]
pub struct ModelPaths {
    /// Places for one model, by its name.
    named: Vec<(String, String)>,
    /// Places for any model.
    others: Vec<String>,
    cache: HubCache,
}

impl ModelPaths {
    /// Parses the operator's entries: `DIR`, `ORG/NAME` or `MODEL=DIR`.
    pub fn new(paths: &[String]) -> ModelPaths {
        let split = |path: &String| path.split_once('=').map(|(name, dir)| (name.to_owned(), dir.to_owned()));
        ModelPaths {
            named: paths.iter().filter_map(split).collect(),
            others: paths.iter().filter(|path| !path.contains('=')).cloned().collect(),
            cache: HubCache::from_env(),
        }
    }

    /// Fails unless every configured place holds a model.
    pub fn check(&self) -> anyhow::Result<()> {
        self.places().try_for_each(|place| {
            Model::find(place, &self.cache).map(drop).with_context(|| format!("model-path {place}"))
        })
    }

    /// Why configured places have no tokenizer files. `serve` only warns of them, because files may arrive later.
    pub fn missing(&self) -> Vec<String> {
        let problem = |place: &String| {
            let read = ModelFolder::find(place, &self.cache).and_then(|folder| folder.read());
            read.err().map(|problem| format!("model-path {place}: {problem}"))
        };
        self.places().filter_map(problem).collect()
    }

    fn places(&self) -> impl Iterator<Item = &String> {
        self.named.iter().map(|(_, dir)| dir).chain(&self.others)
    }

    /// The places to look at for a model, in order: the operator's, the engine's own path, the model's name.
    fn of(&self, card: &Card) -> Vec<String> {
        let named = self.named.iter().filter(|(name, _)| *name == card.id).map(|(_, dir)| dir.clone());
        let fits = |path: &&String| self.others.len() == 1 || path.trim_end_matches('/').ends_with(&card.id);
        let others = self.others.iter().filter(fits).cloned();
        let own = card.root.iter().cloned().chain([card.id.clone()]);
        named.chain(others).chain(own).collect()
    }

    /// The model at the first place that has one. `Err` explains why the best place has none.
    fn find(&self, card: &Card) -> Result<Model, String> {
        let mut first_problem = None;
        for place in self.of(card) {
            match Model::find(&place, &self.cache) {
                Ok(model) => return Ok(model),
                Err(problem) => _ = first_problem.get_or_insert(problem.to_string()),
            }
        }
        Err(format!(
            "{}; say where the model's tokenizer files are with --model-path {}=DIR",
            first_problem.unwrap_or_default(),
            card.id
        ))
    }
}

/// Unit in which prompts are compared with events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MatchingUnit {
    /// The first unit that agrees with the engine's `/tokenize`: bytes, then tokens.
    #[default]
    Auto,
    /// Bytes only: requests are never tokenized.
    Bytes,
    /// Tokens: every request is tokenized.
    Tokens,
}

impl OptionValue for MatchingUnit {
    const VALUES: &'static [(MatchingUnit, &'static str, &'static str)] = &[
        (
            MatchingUnit::Auto,
            "auto",
            "The first unit that agrees with the engine's /tokenize: bytes, then tokens",
        ),
        (MatchingUnit::Bytes, "bytes", "Bytes only: requests are never tokenized"),
        (MatchingUnit::Tokens, "tokens", "Tokens: every request is tokenized"),
    ];
}

/// How an engine's prompts are compared with its events. Engines that agree have the same fingerprint.
pub struct Aligned {
    /// The format of prompts.
    pub matching: ModelMatching,
    /// Hash of everything that the format depends on.
    pub fingerprint: u64,
    /// APIs whose requests are not compared.
    pub presumed_apis: Vec<PresumedApi>,
}

/// Checks with the engine that our tokenizer files give its tokens. `Err` explains why prompts cannot be compared.
pub async fn align(
    engine: &Engine,
    card: &Card,
    paths: &ModelPaths,
    wanted: MatchingUnit,
) -> Result<Aligned, String> {
    // Reading and comparing files takes seconds of CPU: it runs outside the socket threads, one engine at a time.
    let _turn = TURNS.acquire().await.map_err(|closed| closed.to_string())?;
    let model = read_files(&engine.url, card, paths).await?;
    let (engine, card, runtime) = (engine.clone(), card.clone(), Handle::current());
    let compared = tokio::task::spawn_blocking(move || {
        let read_from = model.folder().display().to_string();
        let aligned = runtime.block_on(timeout(COMPARE_WITHIN, ask(&engine, &card, &model, wanted)));
        let late = format!("the engine took longer than {} s to tokenize samples", COMPARE_WITHIN.as_secs());
        let note = if model.has_mistral_format() { MISTRAL_NOTE } else { "" };
        let aligned = aligned.unwrap_or(Err(late));
        aligned.map_err(|why| format!("{why}{note} (the model's files were read from {read_from})"))
    });
    compared.await.map_err(|error| error.to_string())?
}

/// Reads a model's files. A file system that does not answer costs the other engines this much time, and a thread.
async fn read_files(url: &str, card: &Card, paths: &ModelPaths) -> Result<Model, String> {
    let places =
        || format!("{}; give another folder with --model-path {}=DIR", paths.of(card).join(", "), card.id);
    let Some(reading) = ReadingGuard::begin(url) else {
        return Err(format!("the model's files are still being read from {}", places()));
    };
    let (card_read, paths_read) = (card.clone(), paths.clone());
    let reading = tokio::task::spawn_blocking(move || {
        let found = paths_read.find(&card_read);
        drop(reading);
        found
    });
    match timeout(READ_WITHIN, reading).await {
        Ok(found) => found.map_err(|error| error.to_string())?,
        Err(_) => Err(format!(
            "the model's files could not be read within {} s from {}",
            READ_WITHIN.as_secs(),
            places()
        )),
    }
}

/// An engine whose model's files are being read. There is at most one reading for each engine, however long it takes:
/// each keeps a thread.
struct ReadingGuard(String);

static READING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

impl ReadingGuard {
    fn begin(url: &str) -> Option<ReadingGuard> {
        READING.lock().insert(url.to_owned()).then(|| ReadingGuard(url.to_owned()))
    }
}

impl Drop for ReadingGuard {
    fn drop(&mut self) {
        READING.lock().remove(&self.0);
    }
}

/// Time to read a model's files. From a disk it takes less than a second.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Time to compare an engine's tokens with ours. An engine with load takes some seconds.
const COMPARE_WITHIN: Duration = Duration::from_secs(60);

/// Added to the reason why the prompts of a model in Mistral's own format differ.
const MISTRAL_NOTE: &str = "; the model's folder has tekken.json, so vLLM writes and tokenizes prompts with mistral-common and \
                            not with tokenizer.json and the template, unless it is started with --tokenizer-mode hf";

/// Limits comparisons to one engine at a time.
static TURNS: Semaphore = Semaphore::const_new(1);

async fn ask(engine: &Engine, card: &Card, model: &Model, wanted: MatchingUnit) -> Result<Aligned, String> {
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let verdict = parity::check(engine, &card.id, model, unix_s).await;
    let (reading, alignment) = read_verdict(engine, model, verdict, wanted)?;
    let ConversionVerdict { conversion, presumed } =
        parity::check_conversion(engine, &card.id, model, reading, unix_s).await;
    let matching = match alignment {
        Some(alignment) => ModelMatching::Bytes(Arc::new(alignment.with_conversion(conversion))),
        None => in_tokens(model, reading, conversion)?,
    };
    let fingerprint = fingerprint(model, reading, conversion, &matching);
    Ok(Aligned { matching, fingerprint, presumed_apis: presumed })
}

/// How to match an engine's prompts: the reading of its files, and the alignment if bytes are compared.
fn read_verdict(
    engine: &Engine,
    model: &Model,
    verdict: Verdict,
    wanted: MatchingUnit,
) -> Result<(Reading, Option<Alignment>), String> {
    match (verdict, wanted) {
        (Verdict::Bytes(_, reading), MatchingUnit::Tokens) => Ok((reading, None)),
        (Verdict::Bytes(alignment, reading), _) => Ok((reading, Some(*alignment))),
        (Verdict::Tokens { because, .. }, MatchingUnit::Bytes) => Err(because.to_string()),
        (Verdict::Tokens { reading, because }, _) => {
            tracing::warn!(worker = engine.url, %because, "prompts must be tokenized to be compared");
            Ok((reading, None))
        }
        (Verdict::Presumed(why), _) => Err(why.to_string()),
        (Verdict::Unknown(why), MatchingUnit::Tokens) => {
            tracing::warn!(worker = engine.url, why, "cannot ask the engine how it tokenizes");
            Ok((Reading::AsFiled, None))
        }
        (Verdict::Unknown(why), _) => {
            tracing::warn!(
                worker = engine.url,
                why,
                "cannot ask the engine how it tokenizes: prompts are rendered as the model's files say, and given up \
                 if its events then match none of them"
            );
            let alignment = model.alignment(Reading::AsFiled).map_err(|problem| problem.to_string())?;
            Ok((Reading::AsFiled, Some(alignment)))
        }
    }
}

fn in_tokens(model: &Model, reading: Reading, conversion: ChatConversion) -> Result<ModelMatching, String> {
    let renderer = model.renderer().map_err(|problem| problem.to_string())?;
    let renderer = Arc::new(renderer.with_conversion(conversion));
    let encoder = Arc::new(model.encoder(reading).map_err(|problem| problem.to_string())?);
    let pool = EncoderPool::new(encoder, warmroute_tokens::Config::default());
    let pool = Arc::new(pool.map_err(|error| error.to_string())?);
    Ok(ModelMatching::Tokens { renderer, pool })
}

/// Hashes everything that a prompt's format depends on. Engines with the same hash form one family.
fn fingerprint(model: &Model, reading: Reading, conversion: ChatConversion, matching: &ModelMatching) -> u64 {
    let ModelText { tokenizer, tokenizer_config, special_tokens_map, chat_template, .. } = model.text();
    let optional = |file: &Option<Vec<u8>>| file.clone().unwrap_or_default();
    let mut hasher = Sha256::new();
    for part in [
        tokenizer.as_slice(),
        &optional(tokenizer_config),
        &optional(special_tokens_map),
        chat_template.as_deref().unwrap_or_default().as_bytes(),
        format!("{reading:?} {conversion:?} {:?}", model.text().chats()).as_bytes(),
        matching.to_string().as_bytes(),
    ] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().iter().take(8).fold(0, |fingerprint, &byte| fingerprint << 8 | u64::from(byte))
}
