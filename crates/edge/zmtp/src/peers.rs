//! The connections of a socket with several peers, each with a bounded queue.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use crate::Message;

/// Bytes handed to the system before the queue is read again.
pub const OUT_BYTES_MAX: usize = 256 << 10;

/// A peer's number.
pub type PeerNumber = u64;

/// One connected peer.
pub struct SocketPeer {
    pub queue: mpsc::Sender<Message>,
    /// Its subscriptions, one entry for each time.
    pub topics: Vec<Bytes>,
    /// Offered messages that are not yet handed to the system.
    pub unsent: usize,
    task: Option<AbortHandle>,
}

/// All connected peers.
#[derive(Default)]
pub struct Peers {
    open: Mutex<BTreeMap<PeerNumber, SocketPeer>>,
    numbers: AtomicU64,
    pub dropped: AtomicU64,
    /// Notified when a peer's queue is empty or a peer has disconnected.
    pub idle: Notify,
}

impl Peers {
    /// The peers. A panic in another thread leaves the list valid.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<PeerNumber, SocketPeer>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connected peer. Its task receives from the queue.
    pub fn join(&self, queue_max: usize) -> (PeerNumber, mpsc::Receiver<Message>) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (queue, waiting) = mpsc::channel(queue_max.max(1));
        self.lock().insert(number, SocketPeer { queue, topics: Vec::new(), unsent: 0, task: None });
        (number, waiting)
    }

    /// Records the task that serves a peer, so that it can be aborted.
    pub fn serve_by(&self, number: PeerNumber, task: AbortHandle) {
        match self.lock().get_mut(&number) {
            Some(peer) => peer.task = Some(task),
            None => task.abort(),
        }
    }

    /// Removes a peer.
    pub fn leave(&self, number: PeerNumber) {
        self.lock().remove(&number);
        self.idle.notify_waiters();
    }

    /// Disconnects all peers.
    pub fn cut_all(&self) {
        for (_, peer) in std::mem::take(&mut *self.lock()) {
            if let Some(task) = peer.task {
                task.abort();
            }
        }
        self.idle.notify_waiters();
    }

    /// Records that so many of a peer's messages were handed to the system.
    pub fn sent(&self, number: PeerNumber, messages: usize) {
        if let Some(peer) = self.lock().get_mut(&number) {
            peer.unsent -= messages;
        }
        self.idle.notify_waiters();
    }

    /// Waits until every offered message is handed to the system.
    pub async fn until_sent(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            // From here on no notification is missed.
            idle.as_mut().enable();
            if self.lock().values().all(|peer| peer.unsent == 0) {
                return;
            }
            idle.await;
        }
    }

    /// Offers a message to every subscribed peer; a peer whose queue is full misses it.
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
pub type SharedPeers = Arc<Peers>;
