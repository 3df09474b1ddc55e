//! Log lines are written by a thread of their own, so that an output which is slow, full or gone holds up no request.
//!
//! Lines wait in a bounded queue. Those that do not fit, or cannot be written, are left out, and their number is
//! written as soon as that is possible again.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written.
const WAITING_MAX: usize = 1_024;

/// How long the end of the process waits for the last lines, and for the error that ends it.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// The log of the process.
static LOG: OnceLock<LogThread> = OnceLock::new();

enum Message {
    Line(Vec<u8>),
    /// Answered when all lines before it were written.
    Flush(SyncSender<()>),
}

/// A thread that writes lines.
#[derive(Clone)]
pub struct LogThread {
    messages: SyncSender<Message>,
    left_out: Arc<AtomicU64>,
}

impl LogThread {
    /// Starts the thread, which ends with the last handle.
    pub fn start(output: impl Write + Send + 'static) -> io::Result<LogThread> {
        let (messages, received) = sync_channel(WAITING_MAX);
        let left_out = Arc::new(AtomicU64::new(0));
        let log = LogThread { messages, left_out: Arc::clone(&left_out) };
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_all(&received, output, &left_out))?;
        Ok(log)
    }

    /// The thread that writes to stderr, started once.
    pub fn of_process() -> io::Result<LogThread> {
        let log = LogThread::start(io::stderr())?;
        Ok(LOG.get_or_init(|| log).clone())
    }

    /// Waits until all lines so far are written, for a bounded time.
    pub fn flush(&self) {
        let (done, written) = sync_channel(1);
        // A full queue means that the output is not read.
        if self.messages.try_send(Message::Flush(done)).is_ok() {
            let (Ok(()) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)) =
                written.recv_timeout(FLUSH_MAX);
        }
    }
}

/// Waits for the last lines of the process's log, for a bounded time.
pub fn flush() {
    LOG.get().into_iter().for_each(LogThread::flush);
}

/// Writes an error to stderr after the log's lines. An output that is not read delays the end for a bounded time.
pub fn print_error(error: &anyhow::Error) {
    flush();
    let line = format!("error: {error:#}\n");
    let (done, written) = sync_channel(1);
    let print = move || {
        // Where stderr is gone, the exit code has to do.
        _ = io::stderr().write_all(line.as_bytes());
        _ = done.try_send(());
    };
    if std::thread::Builder::new().spawn(print).is_ok() {
        let (Ok(()) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)) =
            written.recv_timeout(FLUSH_MAX);
    }
}

fn write_all(received: &Receiver<Message>, mut output: impl Write, left_out: &AtomicU64) {
    for message in received {
        match message {
            Message::Line(line) => {
                let before = left_out.swap(0, Relaxed);
                let note =
                    if before > 0 { format!("{before} log lines were left out\n") } else { String::new() };
                let written = output.write_all(note.as_bytes()).and_then(|()| output.write_all(&line));
                if written.and_then(|()| output.flush()).is_err() {
                    left_out.fetch_add(before + 1, Relaxed);
                }
            }
            Message::Flush(done) => _ = done.try_send(()),
        }
    }
}

impl<'a> MakeWriter<'a> for LogThread {
    type Writer = LogThread;

    fn make_writer(&'a self) -> LogThread {
        self.clone()
    }
}

impl Write for LogThread {
    /// Queues a line. Never fails, and never waits.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.messages.try_send(Message::Line(line.to_vec())).is_err() {
            self.left_out.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use parking_lot::Mutex;

    /// An output that works or does not.
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<(bool, String)>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.0.lock();
            if state.0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            state.1.push_str(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let output = Output::default();
        let mut log = LogThread::start(output.clone()).unwrap();
        log.write_all(b"one\n").unwrap();
        LogThread::flush(&log);
        output.0.lock().0 = true;
        log.write_all(b"two\n").unwrap();
        log.write_all(b"three\n").unwrap();
        LogThread::flush(&log);
        output.0.lock().0 = false;
        log.write_all(b"four\n").unwrap();
        LogThread::flush(&log);
        assert_eq!(output.0.lock().1, "one\n2 log lines were left out\nfour\n");
    }

    #[test]
    fn an_output_that_blocks_holds_up_no_request() {
        let output = Output::default();
        let blocked = output.0.lock();
        let mut log = LogThread::start(output.clone()).unwrap();
        (0..3 * WAITING_MAX).for_each(|_| log.write_all(b"line\n").unwrap());
        assert!(log.left_out.load(Relaxed) >= WAITING_MAX as u64);
        drop(blocked);
    }
}
