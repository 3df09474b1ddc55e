//! The connections of a socket that serves several peers, each with a bounded queue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::Message;

/// Bytes that are handed to the system before the queue is looked at again.
pub const OUT_BYTES_MAX: usize = 256 << 10;

/// A peer's own number.
pub type Number = u64;

/// One peer.
pub struct Peer {
    pub queue: mpsc::Sender<Message>,
    /// What it subscribed to, once for each time.
    pub topics: Vec<Bytes>,
    task: Option<AbortHandle>,
}

/// All of them.
#[derive(Default)]
pub struct Peers {
    open: Mutex<BTreeMap<Number, Peer>>,
    numbers: AtomicU64,
    pub dropped: AtomicU64,
}

impl Peers {
    /// The peers; a panic elsewhere does not make the list wrong.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<Number, Peer>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A peer has connected; its task takes from the queue.
    pub fn join(&self, queue_max: usize) -> (Number, mpsc::Receiver<Message>) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (queue, waiting) = mpsc::channel(queue_max.max(1));
        self.lock().insert(number, Peer { queue, topics: Vec::new(), task: None });
        (number, waiting)
    }

    /// Which task serves it, so that it can be cut off.
    pub fn serve_by(&self, number: Number, task: AbortHandle) {
        match self.lock().get_mut(&number) {
            Some(peer) => peer.task = Some(task),
            None => task.abort(),
        }
    }

    /// It is gone.
    pub fn leave(&self, number: Number) {
        self.lock().remove(&number);
    }

    /// Cuts all off.
    pub fn cut_all(&self) {
        for (_, peer) in std::mem::take(&mut *self.lock()) {
            if let Some(task) = peer.task {
                task.abort();
            }
        }
    }

    /// Offers a message to every peer that wants it; one whose queue is full misses it.
    pub fn offer(&self, message: &Message) {
        let topic: &[u8] = message.first().map_or(&[], |topic| topic);
        for peer in self.lock().values() {
            let is_wanted = peer.topics.iter().any(|wanted| topic.starts_with(wanted));
            if is_wanted && peer.queue.try_send(message.clone()).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Shared by a socket and its tasks.
pub type Shared = Arc<Peers>;
