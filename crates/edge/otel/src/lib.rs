//! OpenTelemetry traces, over OTLP/HTTP with Protocol Buffers.
//!
//! ```text
//! headers ──▶ TraceContext ──▶ Tracer::sample        a request's spans, when it is over
//!                                                         │ Tracer::export, never waits
//!                                                         ▼
//!                                              bounded queue ──▶ exporter task ──▶ collector
//! ```
//!
//! This crate knows what a span is and how a collector gets it. The gateway decides what a request's spans contain
//! (`gateway/src/request_spans.rs`). A collector that is slow or down costs spans, which are counted, and nothing else.

mod config;
mod counts;
mod encode;
mod exporter;
mod trace_context;
mod trace_span;
mod trace_state;
mod tracer;

pub use config::{CollectorConfig, ConfigError};
pub use counts::SpanCounts;
pub use trace_context::{RemoteContext, SpanId, TraceContext, TraceId};
pub use trace_span::{AttributeValue, Attributes, SpanEvent, SpanKind, SpanStatus, TraceSpan};
pub use tracer::Tracer;
