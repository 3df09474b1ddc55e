//! The thread that writes the access log, so that no request waits for a disk or a terminal.

use std::sync::Arc;

use tokio::sync::mpsc::Receiver;

use super::log_output::LogOutput;
use super::{AccessEntry, LineFormat};
use crate::shared_counts::SharedCounts;

/// Most lines written at once: some tens of kilobytes.
const BATCH_MAX: usize = 128;

pub(super) struct LogWriter {
    output: LogOutput,
    format: LineFormat,
    counts: Arc<SharedCounts>,
    is_failing: bool,
}

impl LogWriter {
    pub fn new(output: LogOutput, format: LineFormat, counts: Arc<SharedCounts>) -> LogWriter {
        LogWriter { output, format, counts, is_failing: false }
    }

    /// Writes entries until all senders are gone.
    pub fn run(mut self, mut entries: Receiver<AccessEntry>) {
        let (mut batch, mut lines) = (Vec::with_capacity(BATCH_MAX), String::new());
        loop {
            let count = entries.blocking_recv_many(&mut batch, BATCH_MAX) as u64;
            if count == 0 {
                return;
            }
            lines.clear();
            if self.is_failing {
                // The last line may have been cut.
                lines.push('\n');
            }
            batch.drain(..).for_each(|entry| entry.write(self.format, &mut lines));
            match self.output.write(lines.as_bytes()) {
                Ok(()) => {
                    self.counts.wrote(count);
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!("the access log is written again");
                    }
                }
                Err(why) => self.record_loss(count, &why),
            }
        }
    }

    /// Lines are lost. The first loss is logged, and further ones are counted until a write succeeds.
    fn record_loss(&mut self, lines: u64, why: &std::io::Error) {
        self.counts.failed(lines);
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(%why, "the access log cannot be written: requests go on, their lines are lost");
        }
    }
}
