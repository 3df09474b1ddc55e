//! The connections of a socket that serves several peers, each with a bounded queue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
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
    /// Messages that were offered and are not yet in the system's hands.
    pub unsent: usize,
    task: Option<AbortHandle>,
}

/// All of them.
#[derive(Default)]
pub struct Peers {
    open: Mutex<BTreeMap<Number, Peer>>,
    numbers: AtomicU64,
    pub dropped: AtomicU64,
    /// Rung when a peer has been sent all, or has gone.
    pub quiet: Notify,
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
        self.lock().insert(number, Peer { queue, topics: Vec::new(), unsent: 0, task: None });
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
        self.quiet.notify_waiters();
    }

    /// Cuts all off.
    pub fn cut_all(&self) {
        for (_, peer) in std::mem::take(&mut *self.lock()) {
            if let Some(task) = peer.task {
                task.abort();
            }
        }
        self.quiet.notify_waiters();
    }

    /// So many messages were handed to the system on a peer's behalf.
    pub fn sent(&self, number: Number, messages: usize) {
        if let Some(peer) = self.lock().get_mut(&number) {
            peer.unsent -= messages;
        }
        self.quiet.notify_waiters();
    }

    /// Waits until everything that was offered is in the system's hands.
    pub async fn until_sent(&self) {
        loop {
            let mut quiet = std::pin::pin!(self.quiet.notified());
            // From here on no bell is missed.
            quiet.as_mut().enable();
            if self.lock().values().all(|peer| peer.unsent == 0) {
                return;
            }
            quiet.await;
        }
    }

    /// Offers a message to every peer that wants it; one whose queue is full misses it.
    pub fn offer(&self, message: &Message) {
        let topic: &[u8] = message.first().map_or(&[], |topic| topic);
        for peer in self.lock().values_mut() {
            let is_wanted = peer.topics.iter().any(|wanted| topic.starts_with(wanted));
            if !is_wanted {
                continue;
            }
            match peer.queue.try_send(message.clone()) {
                Ok(()) => peer.unsent += 1,
                Err(_) => _ = self.dropped.fetch_add(1, Ordering::Relaxed),
            }
        }
    }
}

/// Shared by a socket and its tasks.
pub type Shared = Arc<Peers>;
