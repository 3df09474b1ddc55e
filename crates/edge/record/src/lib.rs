//! Writes down what was asked, without a word of it.
//!
//! What would another policy, fleet or cache have done to this traffic? To ask the lab one needs a trace, and prompts must not
//! reach a disk. So a prompt becomes a [`Sketch`]: its spans as digests, with their lengths. A file has a key of its own that is
//! nowhere written, and what is written of a span is a hash under that key of everything up to its end: one sees which
//! prompts begin alike, and nothing else.
//!
//! ```text
//!   request ──Sketch──▶ Entry ──bounded channel──▶ writer ──key──▶ FILE, then FILE.1
//!                        └ never waits; what finds no room is counted
//! ```

mod entry;
mod key;
mod recorder;
mod sketch;
mod trace_file;
mod writer;

pub use entry::{Entry, ModelNames};
pub use recorder::{BYTES_MAX_LEAST, Config, Counts, RecordError, Recorder};
pub use sketch::{SPANS_MAX, Sketch, Span};
