//! Publishes changes of the engine's cache as vLLM does: a publisher, and a memory for replays.
//!
//! ```text
//!   driver ─ happened ─► EventReporter (names to tokens) ─► batch ─► Channel (numbers, memory, faults) ─► PUB, and ROUTER
//!                                                                                                         for replays
//! ```

mod channel;
mod content;
mod encode;
mod replay_memory;
mod reporter;

pub(crate) use channel::Channel;
pub(crate) use content::Content;
pub(crate) use reporter::EventReporter;
