//! The engines' event streams: from sockets, posts and polls to one feed a worker.
//!
//! ```text
//!   vLLM, SGLang: ZMQ ──► Subscriber (we connect) ────┐
//!                    └──► BoundListener (they connect)┤                ┌─► EventSink: apply, forget, view
//!   a reporter: POST /events ──► ReportInbox ─────────┼─► core/feed ───┤
//!   TensorRT-LLM: polls ──► Poller ───────────────────┘                └─► replay request, by a dealer
//! ```
//!
//! This crate knows wires and formats. `warmroute-feed` decides what a gap or a restart means, and the [`EventSink`]
//! applies events to an index.

mod bound_listener;
mod decode;
mod feed_handle;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod heavy_work;
mod host_addresses;
mod inbox;
mod json;
mod msgpack;
mod poller;
mod posts;
mod replay;
mod sink;
mod source;
mod subscriber;
mod subscriber_task;
mod transcode;
mod trtllm;

pub use bound_listener::{BoundListener, SharedTopic};
pub use decode::{BadBatch, decode};
pub use feed_handle::FeedHandle;
pub use inbox::{Accepted, InboxConfig, PostRefused, ReportInbox};
pub use poller::{Polled, Poller};
pub use sink::EventSink;
pub use source::{Direction, EventSource, SourceError, read_server_info, read_vllm_sources};
pub use subscriber::{Subscriber, subscribe};
pub use subscriber_task::{Config, Publishers};
pub use warmroute_feed::{Counters, Doubt, GroupObstacle, Step, View};
pub use warmroute_zmtp::{BadEndpoint, Endpoint};
