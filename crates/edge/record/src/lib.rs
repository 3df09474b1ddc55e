//! Writes down traffic without any prompt text: as a trace for the lab, and as an access log ([`AccessLog`]).
//!
//! A trace answers what another policy, fleet or cache would have done with this traffic: the lab replays it. Prompts must
//! not reach a disk, so a prompt becomes a [`Sketch`]: the digests and lengths of its spans. Each file has its own key,
//! which is never written. A recorded span is a hash under that key of everything up to the span's end: it shows which
//! prompts share a beginning, and nothing else.
//!
//! ```text
//!   request ──Sketch──▶ TraceEntry ──bounded channel──▶ writer ──key──▶ FILE, then dated files
//!                        └ never waits; entries beyond the bound are dropped and counted
//! ```

mod access_log;
mod earlier_files;
mod entry;
mod key;
mod recorder;
mod shared_counts;
mod sketch;
mod trace_file;
mod utc_time;
mod writer;

pub use access_log::{AccessEntry, AccessLog, AccessLogConfig, AccessLogError, LineFormat};
pub use earlier_files::EARLIER_FILES_MAX;
pub use entry::{ModelNames, TraceEntry};
pub use recorder::{BYTES_MAX_LEAST, Config, RecordError, Recorder};
pub use shared_counts::Counts;
pub use sketch::{SPANS_MAX, Sketch, Span};
