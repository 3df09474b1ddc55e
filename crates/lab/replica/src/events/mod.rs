//! What the engine tells the world about its cache, as vLLM does: a publisher and a memory for those who missed something.
//!
//! ```text
//!   driver ─ happened ─► Teller (names to tokens) ─► batch ─► Channel (numbers, memory, faults) ─► PUB, and ROUTER for replays
//! ```

mod channel;
mod encode;
mod memory;
mod teller;

pub(crate) use channel::Channel;
pub(crate) use teller::{Content, Teller};
