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
mod alignments;
mod allowance;
mod asked;
mod carrier;
mod config;
mod current;
mod door;
mod drain;
mod exchange;
mod first_token;
mod foresight;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gateway;
mod headers;
mod held;
mod history;
mod intake;
mod keys;
mod last_word;
mod matching;
mod metrics;
mod models;
mod outgoing;
mod patience;
mod percent;
mod random;
mod reasons;
mod refusal;
mod relay;
mod reply;
mod server;
mod token;
mod trip;
mod unread;
mod upstream;
mod usage;
mod verdict;
mod wait;

pub use admin::{Admin, Configuration, Reach, Readiness, Reports, ReportsRefused};
pub use alignments::{TooManyFamilies, Writing};
pub use carrier::{Carried, Carrier, Ways};
pub use config::{
    ClientCredentials, Config, ConfigError, DecisionHeaders, Forwarded, SessionKey, Timeouts, UsageInjection,
    WorkerChoice,
};
pub use door::{DoorConfig, WorkerLimit};
pub use drain::{Drain, Drained, Farewell};
pub use gateway::Gateway;
pub use keys::{BadKeys, Keys};
pub use matching::ModelMatching;
pub use metrics::Reload;
pub use server::serve;
pub use token::Token;
