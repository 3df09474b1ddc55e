//! The access log: one line for each request of a client, without prompt text.
//!
//! ```text
//!   request ──AccessEntry──▶ bounded channel ──▶ LogWriter (its own thread) ──▶ stderr, or FILE and earlier files
//!                             └ never waits; entries beyond the bound are dropped and counted
//! ```
//!
//! Lines are formatted by the writer, so a request pays for a few copied names only.

mod entry;
mod log_output;
mod log_writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::mpsc::{self, Receiver, Sender};
use warmroute_types::OptionValue;

pub use entry::AccessEntry;
use log_output::LogOutput;
use log_writer::LogWriter;

use crate::recorder::BYTES_MAX;
use crate::shared_counts::SharedCounts;
use crate::{BYTES_MAX_LEAST, Counts};

/// Most entries that wait to be written: some megabytes.
const WAITING_MAX: usize = 8_192;

/// Where the access log goes, and how its lines look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// The file, which is appended to, or `stderr`; `None`: no log.
    pub file: Option<PathBuf>,
    /// The form of a line.
    pub format: LineFormat,
    /// Size at which a file is set aside and a new one begins.
    pub bytes_max: u64,
}

impl Default for AccessLogConfig {
    fn default() -> AccessLogConfig {
        AccessLogConfig { file: None, format: LineFormat::default(), bytes_max: BYTES_MAX }
    }
}

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineFormat {
    /// `name=value` pairs.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

impl OptionValue for LineFormat {
    const VALUES: &'static [(LineFormat, &'static str, &'static str)] = &[
        (LineFormat::Text, "text", "name=value pairs"),
        (LineFormat::Json, "json", "One JSON object per line"),
    ];
}

/// Why the access log cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum AccessLogError {
    /// The file cannot be opened.
    #[error("cannot write the access log {}: {why}", file.display())]
    Unwritable {
        /// The path as configured.
        file: PathBuf,
        /// The system's error.
        why: std::io::Error,
    },
    /// The size limit is too small.
    #[error("access-log-max-bytes is too small; set at least {BYTES_MAX_LEAST}")]
    TooSmall,
}

impl AccessLogConfig {
    /// Checks the size limit of a file.
    pub fn validate(&self) -> Result<(), AccessLogError> {
        if self.file.is_some() && self.bytes_max < BYTES_MAX_LEAST {
            Err(AccessLogError::TooSmall)
        } else {
            Ok(())
        }
    }
}

/// The handle for logging requests. When it is dropped, the writer finishes its queue and ends.
#[derive(Debug)]
pub struct AccessLog {
    entries: Sender<AccessEntry>,
    counts: Arc<SharedCounts>,
}

impl AccessLog {
    /// Opens the output, if there is one, and starts its writer on the current tokio runtime, which waits for the writer
    /// at its end.
    pub fn start(config: AccessLogConfig) -> Result<Option<AccessLog>, AccessLogError> {
        config.validate()?;
        let Some(file) = config.file else { return Ok(None) };
        let output = match file.as_os_str() == "stderr" {
            true => LogOutput::Stderr,
            false => LogOutput::file(file.clone(), config.bytes_max)
                .map_err(|why| AccessLogError::Unwritable { file, why })?,
        };
        let (log, entries) = AccessLog::open();
        let writer = LogWriter::new(output, config.format, Arc::clone(&log.counts));
        tokio::task::spawn_blocking(move || writer.run(entries));
        Ok(Some(log))
    }

    fn open() -> (AccessLog, Receiver<AccessEntry>) {
        let (entries, receiver) = mpsc::channel(WAITING_MAX);
        (AccessLog { entries, counts: Arc::default() }, receiver)
    }

    /// Queues a line for the writer. Never waits.
    pub fn log(&self, entry: AccessEntry) {
        if self.entries.try_send(entry).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Counts of lines so far.
    pub fn counts(&self) -> Counts {
        self.counts.read()
    }
}

#[cfg(test)]
mod tests;
