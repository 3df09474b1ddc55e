//! What whoever shares holds of a transport: a way out, a way in, and how it goes.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use warmroute_types::{RouterId, To};

use crate::Status;
use crate::departure::Departure;
use crate::queue::{Queue, Room, Weigh};

/// The largest message. Larger ones are refused where they are sent and where they come in: whoever shares splits them.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// Who leaves waits no longer than this for the others to hear it.
pub(crate) const GOODBYE_WITHIN: Duration = Duration::from_millis(500);

/// What may wait to go out, and to be taken in. Two of the largest messages, or a second of a busy router's small ones.
pub(crate) const ROOM: Room = Room { items: 4_096, bytes: 2 * MAX_MESSAGE_BYTES };

/// A message to others.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// For whom.
    pub to: To,
    /// What, of no meaning here.
    pub bytes: Arc<[u8]>,
}

/// A message of another router, which has proved to be one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Whose.
    pub from: RouterId,
    /// What, as it was sent.
    pub bytes: Vec<u8>,
}

impl Weigh for Outgoing {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl Weigh for Incoming {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// A transport at work. It ends when its [`Inbox`] is dropped.
#[derive(Debug)]
pub struct Link {
    /// The way out.
    pub outgoing: Outbox,
    /// The way in.
    pub incoming: Inbox,
    /// How it goes.
    pub status: Arc<Status>,
    /// How to go.
    pub leave: Leave,
}

/// By which a router leaves the others, instead of being missed by them.
#[derive(Clone, Debug)]
pub struct Leave(Departure);

/// Takes messages without ever waiting. Clones are the same outbox.
#[derive(Clone, Debug)]
pub struct Outbox {
    queue: Arc<Queue<Outgoing>>,
    status: Arc<Status>,
}

/// Gives the messages that came.
#[derive(Debug)]
pub struct Inbox {
    queue: Arc<Queue<Incoming>>,
    task: AbortHandle,
}

/// A message that no transport carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {bytes} bytes; at most {MAX_MESSAGE_BYTES} go at once")]
pub struct TooLarge {
    /// Its size.
    pub bytes: usize,
}

/// What a transport holds of it.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    pub outgoing: Arc<Queue<Outgoing>>,
    incoming: Arc<Queue<Incoming>>,
    pub status: Arc<Status>,
    pub departure: Departure,
}

impl Leave {
    /// Says goodbye to everybody who is connected, for a moment at most. Nothing is shared from then on.
    pub async fn say_goodbye(&self) {
        // Longer than any transport takes for it.
        _ = tokio::time::timeout(2 * GOODBYE_WITHIN, self.0.leave()).await;
    }
}

impl Outbox {
    /// On its way, as far as that can be said. Where too much waits already, the oldest is dropped and counted.
    pub fn send(&self, to: To, bytes: impl Into<Arc<[u8]>>) -> Result<(), TooLarge> {
        let bytes: Arc<[u8]> = bytes.into();
        if bytes.len() > MAX_MESSAGE_BYTES {
            self.status.count(|counts| &counts.refused, 1);
            return Err(TooLarge { bytes: bytes.len() });
        }
        let dropped = self.queue.push(Outgoing { to, bytes });
        self.status.count(|counts| &counts.dropped_out, dropped);
        Ok(())
    }
}

impl Inbox {
    /// The next message. It may be awaited in a `select!`: giving up loses nothing.
    pub async fn recv(&mut self) -> Incoming {
        self.queue.pop().await
    }

    /// The next message, if one is there.
    pub fn try_recv(&mut self) -> Option<Incoming> {
        self.queue.try_pop()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Ends {
    pub(crate) fn new(status: Status) -> Ends {
        let status = Arc::new(status);
        let (outgoing, incoming) = (Arc::new(Queue::new(ROOM)), Arc::new(Queue::new(ROOM)));
        Ends { outgoing, incoming, status, departure: Departure::new() }
    }

    /// The other half, for whoever shares. All that the transport does must be below this task.
    pub(crate) fn link(&self, task: AbortHandle) -> Link {
        let status = Arc::clone(&self.status);
        let outgoing = Outbox { queue: Arc::clone(&self.outgoing), status: Arc::clone(&status) };
        let incoming = Inbox { queue: Arc::clone(&self.incoming), task };
        Link { outgoing, incoming, status, leave: Leave(self.departure.clone()) }
    }

    /// A message has come, and is known to be of one of ours.
    pub(crate) fn arrived(&self, message: Incoming) {
        self.status.count(|counts| &counts.messages_in, 1);
        let dropped = self.incoming.push(message);
        self.status.count(|counts| &counts.dropped_in, dropped);
    }
}
