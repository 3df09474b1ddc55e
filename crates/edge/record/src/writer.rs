//! The thread that writes the trace, so that no request waits for a disk.

use std::sync::Arc;

use tokio::sync::mpsc::Receiver;

use crate::shared_counts::SharedCounts;
use crate::trace_file::TraceFile;
use crate::{ModelNames, TraceEntry};

/// Most entries written at once.
const BATCH_MAX: usize = 64;

/// Writes entries until all senders are gone.
pub struct Writer {
    file: TraceFile,
    names: ModelNames,
    counts: Arc<SharedCounts>,
    /// Complete lines that are not written yet, and their number.
    lines: Vec<u8>,
    pending: u64,
    is_failing: bool,
}

impl Writer {
    pub fn new(file: TraceFile, names: ModelNames, counts: Arc<SharedCounts>) -> Writer {
        Writer { file, names, counts, lines: Vec::new(), pending: 0, is_failing: false }
    }

    /// Runs on its own thread.
    pub fn run(mut self, mut entries: Receiver<TraceEntry>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while entries.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
            batch.drain(..).for_each(|entry| self.add(&entry));
            self.flush();
        }
    }

    fn add(&mut self, entry: &TraceEntry) {
        let before = self.lines.len();
        entry.write(&self.file.key, self.names, &mut self.lines);
        let is_first = before == 0 && self.file.is_empty();
        if !is_first && self.file.is_full_with(self.lines.len()) {
            self.lines.truncate(before);
            self.flush();
            if let Err(why) = self.rotate() {
                return self.record_loss(1, &why);
            }
            // The new file has another key.
            entry.write(&self.file.key, self.names, &mut self.lines);
        }
        self.pending += 1;
    }

    /// A file to which nothing could be written stays: an empty one is not worth a place among the earlier files.
    fn rotate(&mut self) -> std::io::Result<()> {
        if self.file.is_empty() { Ok(()) } else { self.file.rotate() }
    }

    fn flush(&mut self) {
        let lines = std::mem::take(&mut self.pending);
        if lines == 0 {
            return;
        }
        match self.file.append(&self.lines) {
            Ok(()) => {
                self.counts.wrote(lines);
                self.is_failing = false;
            }
            Err(why) => self.record_loss(lines, &why),
        }
        self.lines.clear();
    }

    /// Lines are lost. The first loss is logged, and further ones are counted until a write succeeds.
    fn record_loss(&mut self, lines: u64, why: &std::io::Error) {
        self.counts.failed(lines);
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(%why, "the record cannot be written: requests go on, their lines are lost");
        }
    }
}
