//! Why a model, or one request to it, cannot be matched in byte space.
//!
//! A guess would match nothing, silently, for weeks. So whatever is not understood about a tokenizer or a request is named,
//! and the caller falls back: to token chains, to presumed caches, or for one request to the canonical prompt. None of
//! these texts holds a word of anybody's prompt.

use crate::json::BadJson;

/// Why a model's files cannot be aligned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unaligned {
    /// A file is no JSON.
    #[error("{file} is broken: {problem}")]
    BrokenFile {
        /// Which file.
        file: &'static str,
        /// What is wrong with it.
        problem: BadJson,
    },
    /// tokenizer.json lacks something that every tokenizer has.
    #[error("tokenizer.json has no {0}")]
    Missing(&'static str),
    /// A kind of model whose tokens do not spell the text.
    #[error("tokens of a {0} model cannot be turned back into the text they stand for")]
    Model(String),
    /// A step of the normalizer that is not understood.
    #[error("the normalizer step {0} is not supported")]
    Normalizer(String),
    /// A pre-tokenizer that changes or drops text.
    #[error("the pre-tokenizer {0} changes text in a way that is not supported")]
    PreTokenizer(String),
    /// Text outside the vocabulary is lost, so blocks cannot be told apart by their bytes.
    #[error("the vocabulary has no token for byte 0x{0:02x} and no fallback")]
    LossyVocabulary(u8),
    /// The chat template does not compile or needs what is not there.
    #[error("the chat template cannot be used: {problem} (line {line})")]
    Template {
        /// What kind of trouble.
        problem: String,
        /// In which line of the template.
        line: usize,
    },
}

/// Why one request's prompt cannot be written in the engine's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unrendered {
    /// Only chats and completions are understood; other APIs are rewritten by the engine in its own way.
    #[error("this API's prompts are built by the engine in its own way")]
    Api,
    /// No prompt, or not in a shape that the engine would take.
    #[error("the prompt is missing or has a shape that the engine would refuse")]
    Shape,
    /// Several prompts in one request.
    #[error("the request holds several prompts")]
    SeveralPrompts,
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The request brings a chat template of its own.
    #[error("the request brings its own chat template")]
    OwnTemplate,
    /// The request sets something that changes the prompt in a way that is not followed.
    #[error("the request sets {0}")]
    Setting(&'static str),
    /// The template refused this conversation, or failed on it; the engine will too.
    #[error("the chat template fails on this conversation (line {line})")]
    TemplateFailed {
        /// In which line of the template; 0 where it does not say.
        line: usize,
    },
    /// `continue_final_message`, and the template does not show the last message's end.
    #[error("the chat template does not show the message to be continued")]
    NothingToContinue,
    /// A token id that the model does not have.
    #[error("the model has no token with the id {0}")]
    UnknownToken(u32),
}

impl Unrendered {
    /// A short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Unrendered::Api => "api",
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
