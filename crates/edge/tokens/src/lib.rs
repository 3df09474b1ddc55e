//! The parts of precise matching outside the pure core: model files, a tokenizer, and the engine's `/tokenize`.
//!
//! ```text
//! name or folder ──ModelFolder──▶ files ──Model──▶ Alignment (bytes) and Encoder (tokens)
//!                                                     │
//!        the engine's POST /tokenize ──parity::check──┴──▶ Verdict: bytes, tokens or presumed, and why
//! ```
//!
//! Matching in bytes runs no tokenizer for a request. Models whose bytes cannot be followed use token chains: an
//! [`EncoderPool`] tokenizes prompts on its own threads, never on those that serve sockets. A chain's ids are written as
//! bytes, four to a token, so that the same index compares them.

mod chain;
mod encoder;
mod folder;
mod model;
pub mod parity;
mod pool;

pub use chain::{BYTES_PER_ID, write_chain};
pub use encoder::{Encoder, EncoderError};
pub use folder::{FolderError, HubCache, ModelFolder, ModelText};
pub use model::{Model, ModelError};
pub use pool::{Busy, Config, ConfigError, EncoderPool, Encoding, PoolStats};
