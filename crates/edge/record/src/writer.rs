//! The thread that writes, so that no request waits for a disk.

use std::sync::Arc;

use tokio::sync::mpsc::Receiver;

use crate::recorder::Tally;
use crate::trace_file::TraceFile;
use crate::{Entry, ModelNames};

/// Entries that are written at once.
const BATCH_MAX: usize = 64;

/// Writes what comes until nobody can send any more.
pub struct Writer {
    file: TraceFile,
    names: ModelNames,
    tally: Arc<Tally>,
    /// Whole lines that are not written yet, and how many.
    lines: Vec<u8>,
    pending: u64,
    is_failing: bool,
}

impl Writer {
    pub fn new(file: TraceFile, names: ModelNames, tally: Arc<Tally>) -> Writer {
        Writer { file, names, tally, lines: Vec::new(), pending: 0, is_failing: false }
    }

    /// Runs on a thread of its own.
    pub fn run(mut self, mut entries: Receiver<Entry>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while entries.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
            batch.drain(..).for_each(|entry| self.add(&entry));
            self.flush();
        }
    }

    fn add(&mut self, entry: &Entry) {
        let before = self.lines.len();
        entry.write(&self.file.key, self.names, &mut self.lines);
        let is_first = before == 0 && self.file.is_empty();
        if !is_first && self.file.is_full_with(self.lines.len()) {
            self.lines.truncate(before);
            self.flush();
            if let Err(why) = self.go_on_in_a_new_file() {
                return self.lose(1, &why);
            }
            // Another file, another key.
            entry.write(&self.file.key, self.names, &mut self.lines);
        }
        self.pending += 1;
    }

    /// One to which nothing could be written stays: it would push out the one before.
    fn go_on_in_a_new_file(&mut self) -> std::io::Result<()> {
        if self.file.is_empty() { Ok(()) } else { self.file.rotate() }
    }

    fn flush(&mut self) {
        let lines = std::mem::take(&mut self.pending);
        if lines == 0 {
            return;
        }
        match self.file.append(&self.lines) {
            Ok(()) => {
                self.tally.wrote(lines);
                self.is_failing = false;
            }
            Err(why) => self.lose(lines, &why),
        }
        self.lines.clear();
    }

    /// Lines are lost. It is said once, and then counted, until one can be written again.
    fn lose(&mut self, lines: u64, why: &std::io::Error) {
        self.tally.failed(lines);
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(%why, "the record cannot be written: requests go on, their lines are lost");
        }
    }
}
