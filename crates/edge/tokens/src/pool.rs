//! A thread pool for tokenizing, apart from the threads that serve sockets.
//!
//! A prompt of 26,000 tokens takes tens of milliseconds; on an I/O thread it would delay thousands of streams. So it
//! waits in a bounded queue for one of a few threads. A full queue refuses at once and counts it: the request is then
//! routed by presumed spans, which costs a little precision and no time.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;
use warmroute_prompt::Around;

use crate::{Encoder, EncoderError};

/// Size of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Threads that tokenize.
    pub workers: usize,
    /// Most prompts that may wait for a thread.
    pub queue: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config { workers: 2, queue: 64 }
    }
}

/// Why a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is no thread.
    #[error("the tokenizer pool has no thread; set at least one")]
    NoWorkers,
    /// There is no room in the queue.
    #[error("the tokenizer pool has no queue; allow at least one waiting prompt")]
    NoQueue,
}

impl Config {
    /// Checks that the pool can work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self {
            Config { workers: 0, .. } => Err(ConfigError::NoWorkers),
            Config { queue: 0, .. } => Err(ConfigError::NoQueue),
            _ => Ok(()),
        }
    }
}

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer queue is full")]
pub struct Busy;

/// Counts of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Prompts tokenized.
    pub encoded: u64,
    /// Prompts refused because the queue was full.
    pub refused: u64,
    /// Prompts on which the tokenizer failed.
    pub failed: u64,
    /// Prompts whose caller had left before their turn.
    pub abandoned: u64,
}

#[derive(Default)]
struct Counters {
    encoded: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    abandoned: AtomicU64,
}

struct Job {
    text: String,
    around: Around,
    answer: oneshot::Sender<Result<Vec<u32>, EncoderError>>,
}

/// A pool of tokenizing threads.
pub struct EncoderPool {
    /// `None` only while the pool closes.
    queue: Option<SyncSender<Job>>,
    workers: Vec<JoinHandle<()>>,
    counters: Arc<Counters>,
}

impl EncoderPool {
    /// Starts the threads.
    pub fn new(encoder: Arc<Encoder>, config: Config) -> Result<EncoderPool, ConfigError> {
        config.validate()?;
        let (queue, jobs) = sync_channel(config.queue);
        let jobs = Arc::new(Mutex::new(jobs));
        let counters = Arc::new(Counters::default());
        let workers = (0..config.workers).map(|_| {
            let (encoder, jobs, counters) = (encoder.clone(), jobs.clone(), counters.clone());
            thread::spawn(move || work(&encoder, &jobs, &counters))
        });
        Ok(EncoderPool { queue: Some(queue), workers: workers.collect(), counters })
    }

    /// Queues a prompt and returns a future of its ids. Dropping the future cancels the prompt.
    pub fn encode(&self, text: String, around: Around) -> Result<Encoding, Busy> {
        let (answer, encoding) = oneshot::channel();
        let sent = self.queue.as_ref().map(|queue| queue.try_send(Job { text, around, answer }));
        match sent {
            Some(Ok(())) => Ok(Encoding(encoding)),
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                Err(Busy)
            }
        }
    }

    /// Counts so far.
    pub fn stats(&self) -> PoolStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PoolStats {
            encoded: read(&self.counters.encoded),
            refused: read(&self.counters.refused),
            failed: read(&self.counters.failed),
            abandoned: read(&self.counters.abandoned),
        }
    }
}

impl Drop for EncoderPool {
    /// Ends the threads once they have emptied the queue.
    fn drop(&mut self) {
        self.queue = None;
        for worker in self.workers.drain(..) {
            // A worker catches its tokenizer's panics; if it died anyway, there is nothing left to end.
            worker.join().ok();
        }
    }
}

impl std::fmt::Debug for EncoderPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncoderPool")
            .field("workers", &self.workers.len())
            .field("stats", &self.stats())
            .finish()
    }
}

fn work(encoder: &Encoder, jobs: &Mutex<Receiver<Job>>, counters: &Counters) {
    loop {
        // The lock is held while waiting: one worker waits for a job, the others for the lock.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { text, around, answer }) = job else { return };
        let (counter, result) = match answer.is_closed() {
            true => (&counters.abandoned, Err(EncoderError::Failed)),
            false => match catch_unwind(AssertUnwindSafe(|| encoder.encode(&text, around))) {
                Ok(Ok(ids)) => (&counters.encoded, Ok(ids)),
                Ok(Err(_)) | Err(_) => (&counters.failed, Err(EncoderError::Failed)),
            },
        };
        counter.fetch_add(1, Ordering::Relaxed);
        // The caller may have left, and does not need the result then.
        answer.send(result).ok();
    }
}

/// A future of token ids.
#[derive(Debug)]
pub struct Encoding(oneshot::Receiver<Result<Vec<u32>, EncoderError>>);

impl Future for Encoding {
    type Output = Result<Vec<u32>, EncoderError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(EncoderError::Failed)))
    }
}
