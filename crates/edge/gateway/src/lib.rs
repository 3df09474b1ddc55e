//! The HTTP gateway. Files follow the phases of a request:
//!
//! ```text
//! server ──▶ intake ──▶ permit ──▶ dispatch ──▶ upstream ──▶ relay ──▶ client
//! accept,    read the   limits,    route,       connection   stream the response,
//! drain      body,      queue      book,        to a worker  release the booking
//!            parse                 retry
//! ```
//!
//! The gateway forwards request bodies unchanged, except for spliced fields (see `parsed_request`). It withholds a
//! worker's response head until the first body chunk arrives: until then the client has received nothing and the
//! request can be retried on another worker.
//!
//! A response owns everything its request still holds: the booking, the upstream connection and the admission permit.
//! When a client disconnects, hyper drops the response, and `Drop` releases all three. No other clean-up code exists.

mod accept;
mod admin;
mod admission_config;
mod admission_gate;
mod alignments;
mod answer_state;
mod attempt;
mod attempt_outcome;
mod attempt_span;
mod background;
mod background_responses;
mod body_budget;
mod body_deadline;
mod busy_body;
mod cache_counts;
mod cache_salt;
mod cached_tokens;
mod client_connection;
mod client_path;
mod clock;
mod config;
mod connection;
mod console;
mod continuation;
mod current;
mod dispatch;
mod drain;
mod early_lease;
mod engine_fields;
mod event_splitter;
mod fallback_response;
mod first_byte_wait;
mod first_token;
mod fleet_notes;
mod form_fields;
mod forwarding;
mod framing;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gateway;
mod gateway_error;
mod header_option;
mod headers;
mod history;
mod id_watch;
mod idle_timeout;
mod intake;
mod json_start;
mod json_walk;
mod keys;
mod limit_exchange;
mod line_throttle;
mod listener_limits;
mod log_sinks;
mod matching;
mod meta_info;
mod metrics;
mod models;
mod observers;
mod open_connections;
mod parsed_request;
mod peer_link;
mod peer_transport;
mod peers_page;
mod permit;
mod pick;
mod pick_intake;
mod prefix_observer;
mod prompt_keys;
mod random;
mod rare_event;
mod relay;
#[cfg(test)]
mod release_tests;
mod request_log;
mod request_reader;
mod request_spans;
mod response_body;
mod response_content;
mod response_reader;
mod response_report;
mod response_watch;
mod routing;
mod server;
mod session_keys;
mod shares;
mod started_response;
mod status_class;
mod stored_objects;
mod stored_reference;
mod stored_use;
mod stream_end;
mod streamed_text;
mod tenant_limits;
mod tenant_tokens;
mod text_events;
mod token;
mod ttft_accuracy;
mod ttft_budget;
mod upstream;
mod upstream_body;
mod usage;
mod worker_texts;
mod write_stall;

pub use accept::accept_until_drained;
pub use admin::{Admin, Configuration, Reach, Readiness, ReportError, ReportSink};
pub use admission_config::{AdmissionConfig, WorkerLimit};
pub use alignments::{PromptFormat, TooManyFamilies};
pub use cache_salt::CacheSalt;
pub use cached_tokens::CachedTokens;
pub use config::{
    ClientCredentials, Config, ConfigError, DecisionHeaders, Forwarded, Timeouts, UsageInjection, WorkerApi,
    WorkerChoice,
};
pub use continuation::{BadContinueStreams, ContinueStreams};
pub use drain::{Drain, DrainMode, Drained, Serving};
pub use engine_fields::{ENGINE_FIELDS, EngineField, FieldAction, FieldPolicy, FieldRules};
pub use gateway::{Gateway, Records};
pub use header_option::HeaderOption;
pub use keys::{BadKeys, Keys};
pub use matching::ModelMatching;
pub use metrics::Reload;
pub use peer_transport::{PeerTransport, TrafficCounts, TransportStats};
pub use pick::{HeaderChanges, Pick, ResponseSight};
pub use pick_intake::{BodyNeed, MessageMemory, PickHead, PickIntake, Refusal};
pub use response_reader::ResponseReader;
pub use response_report::{PickReport, ResponseReport};
pub use server::serve;
pub use session_keys::{SessionKey, SessionKeys};
pub use shares::Shares;
pub use token::Token;
pub use warmroute_router::WorkerGroup;
