//! One replay: a dealer requests everything from a number on, and forwards the replies in order.
//!
//! Data is `["", (topic,) seq, payload]`, the end is `["", ("",) ff×8, ""]`. vLLM 0.26 added the topic, so both are
//! read from their end.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use warmroute_feed::ReplayEnd;
use warmroute_zmtp::{Dealer, Endpoint, Error, Message, Options};

/// Most replies that wait for the feed; beyond that the engine waits.
const WAITING_MAX: usize = 64;
/// More than any engine keeps; an endless replay ends here.
const BATCHES_MAX: usize = 1 << 20;

/// One reply of a replay.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Batch { seq: u64, payload: Bytes },
    End(ReplayEnd),
}

/// A replay in progress. Dropping it ends it.
pub struct Replay {
    replies: mpsc::Receiver<Reply>,
    task: JoinHandle<()>,
}

impl Replay {
    /// Sends the request after a pause. Every reply must arrive within `patience` of the one before.
    pub fn ask(
        endpoint: Endpoint,
        from_seq: u64,
        options: Options,
        patience: Duration,
        pause: Duration,
    ) -> Replay {
        let (sender, replies) = mpsc::channel(WAITING_MAX);
        let task = tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let end = match read(&endpoint, from_seq, &options, patience, &sender).await {
                Ok(end) => end,
                Err(error) => {
                    tracing::debug!(%endpoint, %error, "a replay failed");
                    ReplayEnd::Failed
                }
            };
            // A replay that was replaced has no receiver.
            let _ = sender.send(Reply::End(end)).await;
        });
        Replay { replies, task }
    }

    /// The next reply. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Reply {
        self.replies.recv().await.unwrap_or(Reply::End(ReplayEnd::Failed))
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read(
    endpoint: &Endpoint,
    from_seq: u64,
    options: &Options,
    patience: Duration,
    replies: &mpsc::Sender<Reply>,
) -> Result<ReplayEnd, Error> {
    let mut dealer = Dealer::connect(endpoint, options).await?;
    dealer.send(&[&[][..], &from_seq.to_be_bytes()]).await?;
    for _ in 0..BATCHES_MAX {
        let late = Error::Late(patience);
        let message = tokio::time::timeout(patience, dealer.receive()).await.map_err(|_| late)??;
        match batch_id(&message) {
            Some((_, payload)) if payload.is_empty() => return Ok(ReplayEnd::Complete),
            Some((seq, payload)) => {
                if replies.send(Reply::Batch { seq, payload }).await.is_err() {
                    return Err(Error::Gone);
                }
            }
            None => return Err(Error::Protocol("a replay reply has no sequence number")),
        }
    }
    Ok(ReplayEnd::Failed)
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
