//! Request bodies and prompts, read without building a tree.
//!
//! ```text
//! body ──Body::read──▶ the few fields a router needs, as slices of the body
//!                        └─canonical──▶ the prompt as one byte string: roles, contents, tools in order
//!                                         ├─PrefixRule──▶ the key of its beginning
//!                        │                └─Chunks──▶ digests of its chunks, for the index
//!                        ├─Outline──▶ digests of its fields, to tell where prompts part
//!                        └─Alignment──▶ the prompt in the engine's own bytes, to be matched with what it reports
//! ```
//!
//! The body is forwarded unchanged. Unneeded parts are skipped but validated as JSON, so that a broken
//! request is refused here with the error's position, not by an engine after queueing.

mod align;
mod api;
mod attribution;
mod body;
mod calendar;
mod canonical;
mod chunk_sizes;
mod chunks;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod json;
mod json_path;
mod outline;
mod prefix;
mod prompt_length;

pub use align::{
    Alignment, Around, Blocks, ChatConversion, ChatFormat, CustomTools, InlineSystem, Media, MediaPrompt,
    MediumFacts, MessagesRules, ModelFiles, Reading, Rendered, RenderedMedium, Renderer, ResponsesRules,
    SaltEffect, Thinking, Unaligned, UnknownToken, Unrendered, Vocabulary, Written, medium_mark, write_media,
};
pub use api::Api;
pub use attribution::{Attribution, has_attribution};
pub use body::{Body, MarkedField, flag_of, number_of};
pub use canonical::{MESSAGE, Sink, write_prompt, write_system};
pub use chunk_sizes::ChunkSizes;
pub use chunks::{CHUNK_BYTES, Chunks};
pub use json::{BadJson, RawStr};
pub use json_path::JsonPath;
pub use outline::{Cell, Field, FieldPath, Likeness, Outline, OutlinePart, Role, Word, value_digest, words};
pub use prefix::{PrefixHash, PrefixRule, PrefixSpan};
