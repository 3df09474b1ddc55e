//! The engines' event streams: from their sockets, callbacks and polls to one feed a worker.
//!
//! ```text
//!   vLLM, SGLang: ZMQ ──► Subscriber (we connect) ─┐
//!                    └──► Hub (they connect) ──────┤                ┌─► Listener: apply, forget, view
//!   a reporter: POST /events ──► Inbox ────────────┼─► core/feed ───┤
//!   TensorRT-LLM: polls ──► Poller ────────────────┘   (the truth)  └─► replay asked for, by a dealer
//! ```
//!
//! What only one router hears (all but the first way) is passed on to others through the listener, and theirs is taken in by each
//! worker's [`Desk`].
//!
//! This crate knows wires and formats; what a gap or a restart means is decided by `warmroute-feed`, and what an event
//! does to an index by whoever implements [`Listener`].

mod backoff;
mod decode;
mod desk;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hub;
mod inbox;
mod json;
mod listener;
mod msgpack;
mod poller;
mod replay;
mod siblings;
mod source;
mod station;
mod subscriber;
mod transcode;
mod trtllm;

pub use decode::{BadBatch, decode};
pub use desk::Desk;
pub use hub::{Hub, SharedTopic};
pub use inbox::{Accepted, Inbox, InboxConfig, Refused};
pub use listener::Listener;
pub use poller::{Polled, Poller};
pub use siblings::{Known, Reached, Told};
pub use source::{Direction, Source, SourceError, read_server_info, read_vllm_sources};
pub use station::Config;
pub use subscriber::{Subscriber, subscribe};
pub use warmroute_feed::{Arrival, BatchId, Counters, Doubt, PeerPresence, Step, View};
pub use warmroute_zmtp::{BadEndpoint, Endpoint};
