//! The recorder: requests hand their entries to a writer thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use thiserror::Error;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::shared_counts::{Counts, SharedCounts};
use crate::trace_file::TraceFile;
use crate::writer::Writer;
use crate::{ModelNames, TraceEntry};

/// Most entries that wait to be written. The largest has 64 KiB, so their bytes are bounded too.
const WAITING_MAX: usize = 1_024;

/// The smallest file limit. A smaller file would hold only a line or two.
pub const BYTES_MAX_LEAST: u64 = 4_096;

/// The default file limit.
pub(crate) const BYTES_MAX: u64 = 256 << 20;

/// What to record, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The trace file; `None`: nothing is recorded. Its former contents are kept under a dated name.
    pub file: Option<PathBuf>,
    /// Largest size before the file is rotated. A single larger line is still written.
    pub bytes_max: u64,
    /// How models are identified.
    pub names: ModelNames,
}

impl Default for Config {
    fn default() -> Config {
        Config { file: None, bytes_max: BYTES_MAX, names: ModelNames::default() }
    }
}

/// Why recording is not possible.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The file cannot be written.
    #[error("cannot write the trace file {}: {why}", file.display())]
    Unwritable {
        /// The path as configured.
        file: PathBuf,
        /// The system's error.
        why: std::io::Error,
    },
    /// The size limit is too small.
    #[error("record-max-bytes is too small; set at least {BYTES_MAX_LEAST}")]
    TooSmall,
}

/// The handle for recording entries. When it is dropped, the writer finishes its queue and ends.
#[derive(Debug)]
pub struct Recorder {
    entries: Sender<TraceEntry>,
    counts: Arc<SharedCounts>,
}

impl Config {
    /// Checks the size limit of a file.
    pub fn validate(&self) -> Result<(), RecordError> {
        if self.file.is_some() && self.bytes_max < BYTES_MAX_LEAST {
            Err(RecordError::TooSmall)
        } else {
            Ok(())
        }
    }
}

impl Recorder {
    /// Opens the file, if there is one, and starts its writer on the current tokio runtime, which waits for the writer
    /// at its end.
    pub fn start(config: Config) -> Result<Option<Recorder>, RecordError> {
        config.validate()?;
        let Some(file) = config.file else { return Ok(None) };
        let opened = TraceFile::begin(file.clone(), config.bytes_max);
        let file = opened.map_err(|why| RecordError::Unwritable { file, why })?;
        let (recorder, entries) = Recorder::open();
        let writer = Writer::new(file, config.names, Arc::clone(&recorder.counts));
        tokio::task::spawn_blocking(move || writer.run(entries));
        Ok(Some(recorder))
    }

    fn open() -> (Recorder, Receiver<TraceEntry>) {
        let (entries, receiver) = mpsc::channel(WAITING_MAX);
        (Recorder { entries, counts: Arc::default() }, receiver)
    }

    /// Queues an entry for the writer. Never waits.
    pub fn record(&self, entry: TraceEntry) {
        if self.entries.try_send(entry).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Counts of entries so far.
    pub fn counts(&self) -> Counts {
        self.counts.read()
    }
}

#[cfg(test)]
mod tests;
