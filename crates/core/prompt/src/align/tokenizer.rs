//! tokenizer.json, read for what it does to text and bytes.
//!
//! ```text
//! normalizer, pre_tokenizer ──▶ Normalizer   text to bytes, between added tokens
//! model.vocab, added_tokens ──▶ Vocabulary   token id to bytes
//! post_processor            ──▶ Wrapping     what stands before and after a plain prompt
//! ```
//!
//! Merges are not read: how text becomes tokens is up to the engine.

use std::sync::Arc;

use super::Reading;
use super::added::AddedToken;
use super::alphabet::Alphabet;
use super::normalizer::{Added, Normalizer, Spaces};
use super::pipeline::Pipeline;
use super::tree::Json;
use super::unaligned::Unaligned;
use super::vocabulary::{ByteFallback, Spelling, Vocabulary};
use super::wrapping::Wrapping;
use crate::json::{BadJson, Cursor, Kind};

/// Relevant parts of a tokenizer.
#[derive(Clone, Debug)]
pub(crate) struct Tokenizer {
    pub vocabulary: Arc<Vocabulary>,
    pub normalizer: Normalizer,
    pub wrapping: Wrapping,
}

impl Tokenizer {
    /// Reads tokenizer.json and the tree of tokenizer_config.json.
    pub fn read(file: &[u8], config: &Json, reading: Reading) -> Result<Tokenizer, Unaligned> {
        let parts = Parts::read(file)?;
        let model = Model::read(parts.model.ok_or(Unaligned::Missing("model"))?)?;
        let mut pipeline = Pipeline::read(&parts.normalizer, &parts.pre_tokenizer)?;
        pipeline.read_as(reading);
        let spelling = match (pipeline.has_letters, pipeline.spaces) {
            (true, _) => Spelling::Letters(Box::new(Alphabet::new())),
            (false, Spaces::Marked) => Spelling::Marked,
            (false, Spaces::Plain) => Spelling::Plain,
        };
        let mut tokens = model.tokens(&spelling)?;
        spelling.check(&tokens, model.fallback)?;
        let added = added_tokens(&parts.added_tokens, config, &spelling);
        tokens.extend(added.iter().map(|added| (added.id, added.token.bytes.clone())));
        let vocabulary = Vocabulary::new(tokens);
        let wrapping = Wrapping::read(&parts.post_processor, config, &vocabulary);
        let normalizer = Normalizer::new(pipeline.steps, pipeline.lead, pipeline.spaces, sorted(added));
        Ok(Tokenizer { vocabulary: Arc::new(vocabulary), normalizer, wrapping })
    }
}

/// Parts of the file. The model stays a slice, because it is large.
struct Parts<'a> {
    normalizer: Json,
    pre_tokenizer: Json,
    post_processor: Json,
    added_tokens: Json,
    model: Option<&'a [u8]>,
}

impl<'a> Parts<'a> {
    fn read(file: &'a [u8]) -> Result<Parts<'a>, Unaligned> {
        let [mut normalizer, mut pre_tokenizer, mut post_processor, mut added_tokens] = [&b"null"[..]; 4];
        let mut model = None;
        let mut cursor = Cursor::new(file);
        let read = cursor.object(|key, value| {
            let value = value.value()?;
            match &*key.unescaped() {
                b"normalizer" => normalizer = value,
                b"pre_tokenizer" => pre_tokenizer = value,
                b"post_processor" => post_processor = value,
                b"added_tokens" => added_tokens = value,
                b"model" => model = Some(value),
                _ => {}
            }
            Ok(())
        });
        read.and_then(|()| cursor.end()).map_err(broken)?;
        Ok(Parts {
            normalizer: Json::read(normalizer).map_err(broken)?,
            pre_tokenizer: Json::read(pre_tokenizer).map_err(broken)?,
            post_processor: Json::read(post_processor).map_err(broken)?,
            added_tokens: Json::read(added_tokens).map_err(broken)?,
            model,
        })
    }
}

fn broken(problem: BadJson) -> Unaligned {
    Unaligned::BrokenFile { file: "tokenizer.json", problem }
}

/// The model, of which only the vocabulary is read.
struct Model<'a> {
    vocab: &'a [u8],
    fallback: ByteFallback,
}

impl<'a> Model<'a> {
    fn read(model: &'a [u8]) -> Result<Model<'a>, Unaligned> {
        let (mut kind, mut vocab, mut fallback, mut affix) = (None, None, ByteFallback::No, false);
        let read = Cursor::new(model).object(|key, value| {
            match &*key.unescaped() {
                b"type" if value.kind() == Kind::String => kind = Some(value.text()?),
                b"vocab" => vocab = Some(value.value()?),
                b"byte_fallback" if value.value()? == b"true" => fallback = ByteFallback::Yes,
                b"byte_fallback" => {}
                b"continuing_subword_prefix" | b"end_of_word_suffix" => {
                    affix |= !matches!(value.value()?, b"null" | b"\"\"");
                }
                _ => value.skip_value()?,
            }
            Ok(())
        });
        read.map_err(broken)?;
        // Old files omit the type, which is BPE.
        let kind = kind.unwrap_or_else(|| "BPE".to_owned());
        match (&*kind, affix) {
            ("BPE", false) | ("Unigram", _) => {}
            ("BPE", true) => return Err(Unaligned::Model("BPE with affixes".to_owned())),
            _ => return Err(Unaligned::Model(kind)),
        }
        Ok(Model { vocab: vocab.ok_or(Unaligned::Missing("vocabulary"))?, fallback })
    }

    /// All tokens with their bytes: from a map of ids, or from a list whose indexes are the ids.
    fn tokens(&self, spelling: &Spelling) -> Result<Vec<(u32, Vec<u8>)>, Unaligned> {
        let mut tokens = Vec::new();
        let mut cursor = Cursor::new(self.vocab);
        let read = match cursor.kind() {
            Kind::Object => cursor.object(|token, id| {
                let id = id.value()?;
                if let Some(id) = str::from_utf8(id).ok().and_then(|id| id.parse().ok()) {
                    tokens.push((id, spelling.bytes(&token.text(), self.fallback)));
                }
                Ok(())
            }),
            _ => cursor.array(|pair| {
                let id = tokens.len() as u32;
                let mut token = None;
                pair.array(|item| match item.kind() {
                    Kind::String => item.text().map(|text| token = Some(text)),
                    _ => item.skip_value(),
                })?;
                tokens.push((id, spelling.bytes(&token.unwrap_or_default(), self.fallback)));
                Ok(())
            }),
        };
        read.map_err(broken)?;
        Ok(tokens)
    }
}

/// An added token as the files describe it.
struct Described {
    id: u32,
    token: AddedToken,
    is_normalized: bool,
}

/// Added tokens of tokenizer.json, then those that only tokenizer_config.json has.
fn added_tokens(list: &Json, config: &Json, spelling: &Spelling) -> Vec<Described> {
    let mut added: Vec<Described> = list
        .items()
        .iter()
        .filter_map(|token| described(token.get("id").number()?, token, spelling))
        .collect();
    for (id, token) in config.get("added_tokens_decoder").fields() {
        let described = id.parse().ok().and_then(|id| described(id, token, spelling));
        let is_known = |new: &Described| added.iter().any(|old| old.token.content == new.token.content);
        if let Some(described) = described.filter(|new| !is_known(new)) {
            added.push(described);
        }
    }
    added
}

fn described(id: u32, token: &Json, spelling: &Spelling) -> Option<Described> {
    let content = token.get("content").text()?;
    let added = AddedToken {
        content: content.to_owned(),
        bytes: spelling.added_bytes(content),
        is_single_word: token.get("single_word").is_true(),
        strips_left: token.get("lstrip").is_true(),
        strips_right: token.get("rstrip").is_true(),
    };
    Some(Described { id, token: added, is_normalized: token.get("normalized").is_true() })
}

fn sorted(added: Vec<Described>) -> Added {
    let (normalized, raw): (Vec<_>, Vec<_>) = added.into_iter().partition(|added| added.is_normalized);
    let tokens = |added: Vec<Described>| added.into_iter().map(|added| added.token).collect();
    Added { raw: tokens(raw), normalized: tokens(normalized) }
}
