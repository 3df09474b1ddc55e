//! Reasons why a model, or a request to it, cannot be matched in byte space.
//!
//! A wrong guess would silently match nothing. Anything not understood about a tokenizer or a request is
//! therefore named, and the caller falls back: to token chains, to presumed caches, or to the canonical
//! prompt of the request. These texts never contain prompt text.

use crate::json::BadJson;

/// Reason why a model's files cannot be aligned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unaligned {
    /// A file is not valid JSON.
    #[error("{file} is broken: {problem}")]
    BrokenFile {
        /// Name of the file.
        file: &'static str,
        /// Parse error.
        problem: BadJson,
    },
    /// tokenizer.json lacks a required field.
    #[error("tokenizer.json has no {0}")]
    Missing(&'static str),
    /// The model's tokens do not spell the text.
    #[error("tokens of a {0} model cannot be turned back into the text they stand for")]
    Model(String),
    /// A step of the normalizer is not supported.
    #[error("the normalizer step {0} is not supported")]
    Normalizer(String),
    /// A pre-tokenizer changes or drops text.
    #[error("the pre-tokenizer {0} changes text in a way that is not supported")]
    PreTokenizer(String),
    /// Text outside the vocabulary is lost, so different blocks would have the same bytes.
    #[error("the vocabulary has no token for byte 0x{0:02x} and no fallback")]
    LossyVocabulary(u8),
    /// The chat template does not compile, or needs unsupported functions.
    #[error("the chat template cannot be used: {problem} (line {line})")]
    Template {
        /// Kind of the error.
        problem: String,
        /// Line of the template.
        line: usize,
    },
}

/// Reason why a request's prompt cannot be written in the engine's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unrendered {
    /// The engine builds the prompts of this API in its own way, or by rules that are not known.
    #[error("this API's prompts are built by the engine in its own way")]
    Api,
    /// The engine writes chats with the harmony library.
    #[error("the engine writes chats with the harmony library")]
    Harmony,
    /// The prompt is missing, or has a shape that the engine refuses.
    #[error("the prompt is missing or has a shape that the engine would refuse")]
    Shape,
    /// The request has several prompts.
    #[error("the request holds several prompts")]
    SeveralPrompts,
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The request has its own chat template.
    #[error("the request brings its own chat template")]
    OwnTemplate,
    /// The request sets a field that changes the prompt in an unsupported way.
    #[error("the request sets {0}")]
    Setting(&'static str),
    /// The template refuses or fails on this conversation, as it will in the engine.
    #[error("the chat template fails on this conversation (line {line})")]
    TemplateFailed {
        /// Line of the template; 0 if unknown.
        line: usize,
    },
    /// `continue_final_message` is set, and the template does not show the last message's end.
    #[error("the chat template does not show the message to be continued")]
    NothingToContinue,
    /// The model has no token with this id.
    #[error("the model has no token with the id {0}")]
    UnknownToken(u32),
}

impl Unrendered {
    /// A short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Unrendered::Api => "api",
            Unrendered::Harmony => "harmony",
            Unrendered::Shape => "shape",
            Unrendered::SeveralPrompts => "several_prompts",
            Unrendered::NoTemplate => "no_template",
            Unrendered::OwnTemplate => "own_template",
            Unrendered::Setting(_) => "setting",
            Unrendered::TemplateFailed { .. } => "template_failed",
            Unrendered::NothingToContinue => "nothing_to_continue",
            Unrendered::UnknownToken(_) => "unknown_token",
        }
    }
}
