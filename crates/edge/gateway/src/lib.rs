//! HTTP in, HTTP out: one request's way through the gateway, file by file.
//!
//! ```text
//! server ──▶ intake ──▶ door ──▶ exchange ──▶ upstream ──▶ relay ──▶ client
//! accept     body,     limits   route,       connection   bytes through,
//! drain      limits,   queue    book,        to a worker  each chunk flushed,
//!            ask                retry                     booking released
//! ```
//!
//! The body goes on as it came. The upstream's head is held back until its first body chunk: until then nothing has been
//! promised to the client, and another worker may be tried. Everything a request holds (its booking, its upstream
//! connection) lives inside its response; when the client goes away hyper drops that, which releases the one and
//! closes the other. There is no other clean-up code.

mod admin;
mod admission_gate;
mod alignments;
mod attempt;
mod body_budget;
mod config;
mod current;
mod dispatch;
mod drain;
mod fallback_response;
mod first_byte_wait;
mod first_token;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gateway;
mod headers;
mod history;
mod idle_timeout;
mod intake;
mod keys;
mod listener_limits;
mod matching;
mod metrics;
mod models;
mod parsed_request;
mod peer_transport;
mod percent;
mod random;
mod refusal;
mod relay;
mod response_body;
mod server;
mod status_class;
mod token;
mod ttft_accuracy;
mod upstream;
mod upstream_body;
mod usage;
mod view_reasons;
mod write_stall;

pub use admin::{Admin, Configuration, Reach, Readiness, ReportError, ReportSink};
pub use admission_gate::{AdmissionConfig, WorkerLimit};
pub use alignments::{PromptFormat, TooManyFamilies};
pub use config::{
    ClientCredentials, Config, ConfigError, DecisionHeaders, Forwarded, SessionKey, Timeouts, UsageInjection,
    WorkerChoice,
};
pub use drain::{Drain, DrainMode, Drained};
pub use gateway::Gateway;
pub use keys::{BadKeys, Keys};
pub use matching::ModelMatching;
pub use metrics::Reload;
pub use peer_transport::{PeerTransport, TrafficCounts, TransportStats};
pub use server::serve;
pub use token::Token;
