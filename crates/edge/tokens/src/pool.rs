//! Tokenizing, away from the threads that serve sockets.
//!
//! A prompt of 26,000 tokens takes tens of milliseconds; on an I/O thread it would hold up thousands of streams. So it waits
//! in a bounded queue for one of a few threads. A full queue refuses at once and is counted: the request is then routed by
//! what is presumed, which costs a little precision and no time.

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

/// How many threads, and how many prompts may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Threads that tokenize.
    pub workers: usize,
    /// Prompts that may wait for one of them.
    pub queue: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config { workers: 2, queue: 64 }
    }
}

/// A configuration that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Nobody would tokenize.
    #[error("a tokenizer pool needs at least one worker")]
    NoWorkers,
    /// Nothing would ever be taken.
    #[error("a tokenizer pool needs room for at least one prompt")]
    NoQueue,
}

impl Config {
    /// Refuses what cannot work.
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
#[error("too many prompts wait to be tokenized")]
pub struct Busy;

/// What a pool has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Prompts tokenized.
    pub encoded: u64,
    /// Prompts refused because the queue was full.
    pub refused: u64,
    /// Prompts on which the tokenizer failed.
    pub failed: u64,
    /// Prompts nobody waited for any more when their turn came.
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

/// Threads that tokenize.
pub struct EncoderPool {
    /// `None` only while it is being closed.
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

    /// Puts a prompt into the queue; what comes back is to be awaited. Dropping it takes the prompt out again.
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

    /// What it has done so far.
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
            // A worker catches what its tokenizer does; if it died all the same there is nothing left to end.
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
        // Whoever asked may have left by now; then nobody needs the answer.
        answer.send(result).ok();
    }
}

/// Ids to come.
#[derive(Debug)]
pub struct Encoding(oneshot::Receiver<Result<Vec<u32>, EncoderError>>);

impl Future for Encoding {
    type Output = Result<Vec<u32>, EncoderError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(EncoderError::Failed)))
    }
}
