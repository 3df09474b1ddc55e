//! A model's tokenizer, configured as engines configure it.
//!
//! tokenizer.json alone is not enough: tokenizer_config.json may override the tokens around a prompt, files may
//! contain truncation that engines switch off, and newer software reads older SentencePiece files by its own rules.
//! Those changes are made to the file's tree before it is loaded.

use serde_json::{Value, json};
use tokenizers::Tokenizer;
use warmroute_prompt::{Around, Reading};

use crate::ModelText;

/// SentencePiece's mark for a space.
const MARK: &str = "\u{2581}";

/// Why text cannot be tokenized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncoderError {
    /// tokenizer.json is invalid.
    #[error("tokenizer.json cannot be used: {0}")]
    Unusable(String),
    /// The tokenizer failed on a text, or the pool was closed.
    #[error("the tokenizer failed")]
    Failed,
}

/// Converts text to token ids.
#[derive(Clone, Debug)]
pub struct Encoder(Tokenizer);

impl Encoder {
    /// From a model's files.
    pub fn new(text: &ModelText, reading: Reading) -> Result<Encoder, EncoderError> {
        let unusable = |problem: &dyn std::fmt::Display| EncoderError::Unusable(problem.to_string());
        let mut tree: Value =
            serde_json::from_slice(&text.tokenizer).map_err(|problem| unusable(&problem))?;
        let config = text.tokenizer_config.as_deref().unwrap_or(b"null");
        let config: Value = serde_json::from_slice(config).map_err(|problem| unusable(&problem))?;
        tree["truncation"] = Value::Null;
        tree["padding"] = Value::Null;
        read_as(&mut tree, reading);
        wrap(&mut tree, &config);
        let bytes = serde_json::to_vec(&tree).map_err(|problem| unusable(&problem))?;
        drop(tree);
        Tokenizer::from_bytes(bytes).map(Encoder).map_err(|problem| unusable(&problem))
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str, around: Around) -> Result<Vec<u32>, EncoderError> {
        let encoding = self.0.encode_fast(text, around == Around::SpecialTokens);
        encoding.map(|encoding| encoding.get_ids().to_vec()).map_err(|_| EncoderError::Failed)
    }
}

/// Applies the newer rule for leading spaces, where the model marks spaces at all.
fn read_as(tree: &mut Value, reading: Reading) {
    let marks = |part: &Value| part.to_string().contains(MARK);
    let scheme = match reading {
        Reading::AsFiled => return,
        Reading::LeadsFirst => "first",
        Reading::LeadsEvery => "always",
    };
    if marks(&tree["normalizer"]) || marks(&tree["pre_tokenizer"]) {
        tree["normalizer"] = Value::Null;
        tree["pre_tokenizer"] =
            json!({"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": false});
    }
}

/// The configuration decides which tokens surround a prompt, where it states them.
fn wrap(tree: &mut Value, config: &Value) {
    if config["add_bos_token"].is_null() && config["add_eos_token"].is_null() {
        return;
    }
    let content = |token: &Value| token.as_str().or(token["content"].as_str()).map(str::to_owned);
    let wanted = |flag: &str, name: &str| content(&config[name]).filter(|_| config[flag] == json!(true));
    let mut single = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
    let mut tokens = serde_json::Map::new();
    for (at, flag, name) in [(0, "add_bos_token", "bos_token"), (usize::MAX, "add_eos_token", "eos_token")] {
        if let Some((token, id)) =
            wanted(flag, name).and_then(|token| Some((token.clone(), id_of(tree, &token)?)))
        {
            single.insert(at.min(single.len()), json!({"SpecialToken": {"id": token, "type_id": 0}}));
            tokens.insert(token.clone(), json!({"id": token, "ids": [id], "tokens": [token]}));
        }
    }
    tree["post_processor"] =
        json!({"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": tokens});
    // A pair needs both sequences. It is never used, but the file must be consistent.
    if let Some(pair) = tree["post_processor"]["pair"].as_array_mut() {
        pair.push(json!({"Sequence": {"id": "B", "type_id": 1}}));
    }
}

fn id_of(tree: &Value, content: &str) -> Option<u64> {
    let added = tree["added_tokens"].as_array().into_iter().flatten();
    let mut added = added.filter(|token| token["content"] == content).map(|token| token["id"].clone());
    added.next().unwrap_or_else(|| tree["model"]["vocab"][content].clone()).as_u64()
}
