//! The interface of a transport: outbox, inbox and status.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use warmroute_types::{RouterId, To};

use crate::TransportStatus;
use crate::departure::Departure;
use crate::queue::{ByteSize, Queue, QueueLimits};

/// Largest message in bytes. Larger ones are rejected when they are sent and when they arrive; the sharing
/// router splits its messages.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// Longest time that a leaving router waits for its peers.
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);

/// Limits of the outbox and the inbox: two of the largest messages, or about a second of a busy router's
/// small ones.
pub(crate) const QUEUE_LIMITS: QueueLimits = QueueLimits { items: 4_096, bytes: 2 * MAX_MESSAGE_BYTES };

/// A message to peers.
#[derive(Clone, Debug)]
pub struct OutgoingMessage {
    /// One peer, or all of them.
    pub to: To,
    /// The opaque content.
    pub bytes: Arc<[u8]>,
}

/// A message from an authenticated peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The sender.
    pub from: RouterId,
    /// The content as it was sent.
    pub bytes: Vec<u8>,
}

impl ByteSize for OutgoingMessage {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl ByteSize for ReceivedMessage {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// A running transport. It ends when its [`MessageInbox`] is dropped.
#[derive(Debug)]
pub struct Link {
    /// Messages to peers.
    pub outgoing: MessageOutbox,
    /// Messages from peers.
    pub incoming: MessageInbox,
    /// Connected peers, traffic and problems.
    pub status: Arc<TransportStatus>,
    /// Leaves the other routers.
    pub leave: LeaveHandle,
}

/// Announces the departure of this router, so that peers do not report it as lost.
#[derive(Clone, Debug)]
pub struct LeaveHandle(Departure);

/// Accepts messages without waiting. Clones refer to the same outbox.
#[derive(Clone, Debug)]
pub struct MessageOutbox {
    queue: Arc<Queue<OutgoingMessage>>,
    status: Arc<TransportStatus>,
}

/// Received messages.
#[derive(Debug)]
pub struct MessageInbox {
    queue: Arc<Queue<ReceivedMessage>>,
    task: AbortHandle,
}

/// The message exceeds the size limit of all transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has {bytes} bytes, more than the limit of {MAX_MESSAGE_BYTES}")]
pub struct MessageTooLarge {
    /// Size of the message.
    pub bytes: usize,
}

/// The transport's side of a [`Link`].
#[derive(Clone, Debug)]
pub(crate) struct TransportEnd {
    pub outgoing: Arc<Queue<OutgoingMessage>>,
    incoming: Arc<Queue<ReceivedMessage>>,
    pub status: Arc<TransportStatus>,
    pub departure: Departure,
}

impl LeaveHandle {
    /// Says goodbye to all connected routers, within a second. Nothing is shared afterwards.
    pub async fn leave(&self) {
        // Longer than each transport's own limit.
        _ = tokio::time::timeout(2 * GOODBYE_TIMEOUT, self.0.leave()).await;
    }
}

impl MessageOutbox {
    /// Queues a message. If the queue is full, the oldest message is dropped and counted.
    pub fn send(&self, to: To, bytes: impl Into<Arc<[u8]>>) -> Result<(), MessageTooLarge> {
        let bytes: Arc<[u8]> = bytes.into();
        if bytes.len() > MAX_MESSAGE_BYTES {
            self.status.count(|counters| &counters.refused, 1);
            return Err(MessageTooLarge { bytes: bytes.len() });
        }
        let dropped = self.queue.push(OutgoingMessage { to, bytes });
        self.status.count(|counters| &counters.dropped_out, dropped);
        Ok(())
    }
}

impl MessageInbox {
    /// Waits for the next message. Cancelling the wait loses nothing, so it may stand in a `select!`.
    pub async fn recv(&mut self) -> ReceivedMessage {
        self.queue.pop().await
    }

    /// The next message, if one has arrived.
    pub fn try_recv(&mut self) -> Option<ReceivedMessage> {
        self.queue.try_pop()
    }
}

impl Drop for MessageInbox {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TransportEnd {
    pub(crate) fn new(status: TransportStatus) -> TransportEnd {
        let status = Arc::new(status);
        let (outgoing, incoming) = (Arc::new(Queue::new(QUEUE_LIMITS)), Arc::new(Queue::new(QUEUE_LIMITS)));
        TransportEnd { outgoing, incoming, status, departure: Departure::new() }
    }

    /// The sharing router's side. All tasks of the transport must end with this one.
    pub(crate) fn link(&self, task: AbortHandle) -> Link {
        let status = Arc::clone(&self.status);
        let outgoing = MessageOutbox { queue: Arc::clone(&self.outgoing), status: Arc::clone(&status) };
        let incoming = MessageInbox { queue: Arc::clone(&self.incoming), task };
        Link { outgoing, incoming, status, leave: LeaveHandle(self.departure.clone()) }
    }

    /// Delivers a message from an authenticated peer.
    pub(crate) fn deliver(&self, message: ReceivedMessage) {
        self.status.count(|counters| &counters.messages_in, 1);
        let dropped = self.incoming.push(message);
        self.status.count(|counters| &counters.dropped_in, dropped);
    }
}
