//! An endpoint picker: Envoy asks it where to send each request, by the external processing protocol (ext_proc).
//!
//! ```text
//! Envoy ──▶ server ──▶ grpc ──▶ exchange ──▶ gateway::PickIntake ──▶ router
//!           HTTP/2,    frames   protocol of         │
//!           TLS,                one request         ▼
//!           drain               observer ◀── gateway::Pick     the booking, until the response ends
//! ```
//!
//! The gateway's code parses, admits and routes; this crate speaks the protocol. Envoy keeps the connection to the worker
//! and forwards the request, so the picker never sees a worker's socket. By default it leaves the stream once it has
//! chosen: a picker that restarts then cuts no response. See `docs/picker.md`.
//!
//! gRPC is h2 with a frame of five bytes, and Protocol Buffers are written by hand (`warmroute-protobuf`, `request`, `reply`): about
//! twenty small messages, of which most fields are skipped.

mod config;
mod exchange;
#[cfg(test)]
mod exchange_tests;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod grpc;
mod health;
#[cfg(test)]
mod hermetic_tests;
mod observation;
mod parked;
#[cfg(test)]
mod peer_report_tests;
mod peer_reports;
mod picker;
#[cfg(test)]
mod pool_tests;
mod reply;
mod request;
mod server;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod test_client;

pub use config::{Config, ConformanceHeaders, Feedback};
pub use server::{PoolListener, serve};
