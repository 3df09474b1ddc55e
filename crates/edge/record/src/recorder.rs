//! Where requests leave what is to be written.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thiserror::Error;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::trace_file::TraceFile;
use crate::writer::Writer;
use crate::{Entry, ModelNames};

/// Entries that wait to be written. The largest has 64 KiB, so they are bounded in bytes too.
const WAITING_MAX: usize = 1_024;

/// A smaller file would hold a line or two.
pub const BYTES_MAX_LEAST: u64 = 4_096;

/// What is recorded where.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file; what it held before is kept beside it as FILE.1.
    pub file: PathBuf,
    /// How large it may become before the same happens. A single larger line is written all the same.
    pub bytes_max: u64,
    /// How models are called in it.
    pub names: ModelNames,
}

/// Nothing can be recorded.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The file cannot be written.
    #[error("{}: {why}", file.display())]
    Unwritable {
        /// Which.
        file: PathBuf,
        /// Why.
        why: std::io::Error,
    },
    /// Too small for anything.
    #[error("record-max-bytes must be at least {BYTES_MAX_LEAST}")]
    TooSmall,
}

/// What became of entries so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines in files.
    pub written: u64,
    /// Entries that found the channel full.
    pub dropped: u64,
    /// Lines that could not be written.
    pub failed: u64,
}

/// Takes entries. Dropped, the writer ends when it has written what it has.
#[derive(Debug)]
pub struct Recorder {
    entries: Sender<Entry>,
    tally: Arc<Tally>,
}

/// Counts, shared with the writer.
#[derive(Debug, Default)]
pub struct Tally {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl Config {
    /// Checks what the types cannot.
    pub fn validate(&self) -> Result<(), RecordError> {
        if self.bytes_max < BYTES_MAX_LEAST { Err(RecordError::TooSmall) } else { Ok(()) }
    }
}

impl Recorder {
    /// Opens the file and starts its writer. Inside a runtime, which waits for the writer when it ends.
    pub fn start(config: Config) -> Result<Recorder, RecordError> {
        config.validate()?;
        let opened = TraceFile::begin(config.file.clone(), config.bytes_max);
        let file = opened.map_err(|why| RecordError::Unwritable { file: config.file, why })?;
        let (recorder, entries) = Recorder::open();
        let writer = Writer::new(file, config.names, Arc::clone(&recorder.tally));
        tokio::task::spawn_blocking(move || writer.run(entries));
        Ok(recorder)
    }

    fn open() -> (Recorder, Receiver<Entry>) {
        let (entries, receiver) = mpsc::channel(WAITING_MAX);
        (Recorder { entries, tally: Arc::default() }, receiver)
    }

    /// Leaves an entry for the writer. Never waits.
    pub fn record(&self, entry: Entry) {
        if self.entries.try_send(entry).is_err() {
            self.tally.dropped.fetch_add(1, Relaxed);
        }
    }

    /// What became of entries so far.
    pub fn counts(&self) -> Counts {
        let Tally { written, dropped, failed } = &*self.tally;
        Counts {
            written: written.load(Relaxed),
            dropped: dropped.load(Relaxed),
            failed: failed.load(Relaxed),
        }
    }
}

impl Tally {
    pub fn wrote(&self, lines: u64) {
        self.written.fetch_add(lines, Relaxed);
    }

    pub fn failed(&self, lines: u64) {
        self.failed.fetch_add(lines, Relaxed);
    }
}

#[cfg(test)]
mod tests;
