//! One replay: a dealer requests everything from a number on, and forwards the replies in order.
//!
//! Data is `["", (topic,) seq, payload]`, the end is `["", ("",) ff×8, ""]`. vLLM 0.26 added the topic, so both are
//! read from their end.
//!
//! Engines send a whole replay at once from a socket that drops what its peer has not read yet (ZeroMQ's default limit
//! is 1,000 messages), the end included. A number that is skipped, or a pause in the middle, shows that; the rest is
//! then requested again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use warmroute_feed::ReplayEnd;
use warmroute_zmtp::{Dealer, Endpoint, Error, Message, Options};

/// Most replies that wait for the feed; beyond that the engine drops its replies.
const WAITING_MAX: usize = 16_384;
/// Most kilobytes in them. A larger reply waits until it is alone.
const WAITING_KIB_MAX: u32 = 16 << 10;
/// Longest pause between two replies to one request, once the first has come.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Most requests for one replay. One brings at least the thousand batches that the engine's socket keeps.
const REQUESTS_MAX: usize = 64;
/// More than any engine keeps; an endless replay ends here.
const BATCHES_MAX: u64 = 1 << 20;

/// One reply of a replay.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Batch { seq: u64, payload: Bytes },
    End(ReplayEnd),
}

/// A replay in progress. Dropping it ends it.
pub struct Replay {
    replies: mpsc::Receiver<(Reply, Option<OwnedSemaphorePermit>)>,
    task: JoinHandle<()>,
}

impl Replay {
    /// Sends the request after a pause. Its first reply must arrive within `reply_timeout`.
    pub fn ask(
        endpoint: Endpoint,
        from_seq: u64,
        options: Options,
        reply_timeout: Duration,
        pause: Duration,
    ) -> Replay {
        let (sender, replies) = mpsc::channel(WAITING_MAX);
        let room = Arc::new(Semaphore::new(WAITING_KIB_MAX as usize));
        let task = tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let mut reader =
                Reader { endpoint, options, reply_timeout, sender, room, next: from_seq, count: 0 };
            let end = reader.read_all().await.unwrap_or_else(|error| {
                tracing::debug!(endpoint = %reader.endpoint, %error, "a replay failed");
                ReplayEnd::Failed
            });
            // A replay that was replaced has no receiver.
            let _ = reader.sender.send((Reply::End(end), None)).await;
        });
        Replay { replies, task }
    }

    /// The next reply. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Reply {
        self.replies.recv().await.map_or(Reply::End(ReplayEnd::Failed), |(reply, _room)| reply)
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads a replay, with as many requests as it takes.
struct Reader {
    endpoint: Endpoint,
    options: Options,
    reply_timeout: Duration,
    sender: mpsc::Sender<(Reply, Option<OwnedSemaphorePermit>)>,
    room: Arc<Semaphore>,
    /// The batch to request next.
    next: u64,
    /// Batches forwarded.
    count: u64,
}

/// How the replies to one request ended.
enum Replies {
    Complete,
    /// The rest was dropped on the way.
    CutOff,
}

impl Reader {
    async fn read_all(&mut self) -> Result<ReplayEnd, Error> {
        for _ in 0..REQUESTS_MAX {
            match self.request().await? {
                Replies::Complete => return Ok(ReplayEnd::Complete),
                Replies::CutOff if self.count >= BATCHES_MAX => break,
                Replies::CutOff => {
                    tracing::debug!(endpoint = %self.endpoint, from = self.next, "the rest of a replay is requested again");
                }
            }
        }
        Ok(ReplayEnd::Failed)
    }

    /// Requests everything from the next batch on, and forwards the replies until one is missing.
    async fn request(&mut self) -> Result<Replies, Error> {
        let mut dealer = Dealer::connect(&self.endpoint, &self.options).await?;
        dealer.send(&[&[][..], &self.next.to_be_bytes()]).await?;
        // The engine's memory may begin later than requested.
        let late = Error::Late(self.reply_timeout);
        let mut message = timeout(self.reply_timeout, dealer.receive()).await.map_err(|_| late)??;
        let mut is_first = true;
        loop {
            let missing = Error::Protocol("a replay reply has no sequence number");
            let (seq, payload) = batch_id(&message).ok_or(missing)?;
            if payload.is_empty() {
                return Ok(Replies::Complete);
            }
            if (!is_first && seq > self.next) || self.count >= BATCHES_MAX {
                return Ok(Replies::CutOff);
            }
            self.forward(seq, payload).await?;
            is_first = false;
            message = match timeout(PAUSE_MAX, dealer.receive()).await {
                Ok(message) => message?,
                Err(_) => return Ok(Replies::CutOff),
            };
        }
    }

    async fn forward(&mut self, seq: u64, payload: Bytes) -> Result<(), Error> {
        let kib = u32::try_from(payload.len() >> 10).unwrap_or(u32::MAX).clamp(1, WAITING_KIB_MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| Error::Gone)?;
        (self.next, self.count) = (seq.saturating_add(1), self.count + 1);
        let sent = self.sender.send((Reply::Batch { seq, payload }, Some(room))).await;
        sent.map_err(|_| Error::Gone)
    }
}

/// Number and payload of a message, live or replayed.
pub fn batch_id(message: &Message) -> Option<(u64, Bytes)> {
    let [.., seq, payload] = message.as_slice() else { return None };
    let seq = <[u8; 8]>::try_from(&seq[..]).ok()?;
    Some((u64::from_be_bytes(seq), payload.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_are_read_from_their_end() {
        let parts =
            |parts: &[&'static [u8]]| -> Message { parts.iter().map(|p| Bytes::from_static(p)).collect() };
        let expected = Some((7, Bytes::from_static(b"x")));
        assert_eq!(batch_id(&parts(&[b"", b"\0\0\0\0\0\0\0\x07", b"x"])), expected);
        assert_eq!(batch_id(&parts(&[b"", b"topic", b"\0\0\0\0\0\0\0\x07", b"x"])), expected);
        assert_eq!(batch_id(&parts(&[b"", b"\0\x07", b"x"])), None);
        assert_eq!(batch_id(&parts(&[b"x"])), None);
    }
}
