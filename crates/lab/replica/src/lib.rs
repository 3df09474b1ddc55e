//! The engine model as an HTTP server, which responds as vLLM does, at the speed of a GPU, without one.
//!
//! A gateway can only be measured against engines that batch, queue, cache and stream. This crate puts
//! [`warmroute_engine`], which runs in virtual time, behind a socket and runs it in real time (or faster):
//!
//! ```text
//!   socket ─► routes ─► api/* (reads a request) ─► prompt (tokens) ─► answer (filler text, block names)
//!                                                                        │ submit
//!   socket ◄─ stream / whole ◄─ api/* (wire shape) ◄─ progress ◄─────── driver: owns one Engine per rank
//! ```
//!
//! Every response is marked as simulated. Times in its metrics are engine time, that is wall time × speed.

mod adapter_memory;
mod answer;
mod api;
mod body;
mod chain;
mod clock;
mod command;
mod config;
mod connection_control;
mod driver;
mod error;
mod events;
mod fault;
mod filler;
mod generate;
mod generation;
mod listener;
mod meter;
mod metrics;
mod model;
mod models;
mod progress;
mod prompt;
mod python_json;
mod rank;
mod replica;
mod routes;
mod server;
mod stats;
mod stream;
mod tokenize;
mod tokens;

pub use config::{Config, ConfigError, EventEncoding, EventsConfig, PublisherMode, UsageDetails};
pub use error::Error;
pub use fault::{EventFaults, Fault, FaultError, Removals, Stores};
pub use model::write_model;
pub use replica::{Replica, serve};
pub use stats::Stats;
pub use tokens::Tokenizer;
pub use warmroute_zmtp::{BadEndpoint, Endpoint};
