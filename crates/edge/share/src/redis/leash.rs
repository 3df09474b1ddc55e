//! How much a server may send us before we have taken it in.
//!
//! The client collects what comes without a bound, and a message can be as large as the server allows, 512 MiB unless it is told
//! otherwise. Whoever can write to the server could so fill a router's memory; here the connection ends first.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that were read and not yet taken in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Untaken(Arc<AtomicUsize>);

impl Untaken {
    /// A message was taken in, with all that stood around it.
    pub(crate) fn taken(&self, channel: &str, payload: &[u8]) {
        let bytes = pushed_bytes(channel.len(), payload.len());
        let less = |untaken: usize| Some(untaken.saturating_sub(bytes));
        _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// What a message took on the wire: `*3 $7 message $.. channel $.. payload`, each with its line's end. It must be exact: were it more, a
/// flood of small messages would never be noticed.
fn pushed_bytes(channel: usize, payload: usize) -> usize {
    let text = |bytes: usize| 1 + bytes.checked_ilog10().unwrap_or(0) as usize + 1 + 2 + bytes + 2;
    4 + text("message".len()) + text(channel) + text(payload)
}

/// A connection whose other end may only be so far ahead of us.
#[derive(Debug)]
pub(crate) struct Leash<S> {
    stream: S,
    untaken: Untaken,
    bytes_max: usize,
}

impl<S> Leash<S> {
    pub(crate) fn new(stream: S, untaken: Untaken, bytes_max: usize) -> Leash<S> {
        Leash { stream, untaken, bytes_max }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Leash<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let bytes = buf.filled().len() - before;
        if self.untaken.0.fetch_add(bytes, Ordering::Relaxed) + bytes > self.bytes_max {
            return Poll::Ready(Err(io::Error::other("more came at once than is taken in")));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Leash<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[test]
    fn a_message_is_as_long_as_the_server_writes_it() {
        for payload in [0, 9, 10, 99, 100, 12_345] {
            let written = format!("*3\r\n$7\r\nmessage\r\n$3\r\nall\r\n${payload}\r\n{:payload$}\r\n", "");
            assert_eq!(pushed_bytes(3, payload), written.len());
        }
    }

    #[tokio::test]
    async fn what_is_taken_in_may_go_on_forever_and_what_is_not_ends() {
        let untaken = Untaken::default();
        let mut leash = Leash::new(tokio::io::repeat(7), untaken.clone(), 4_096);
        let mut buffer = [0; 1_024];
        for _ in 0..100 {
            leash.read_exact(&mut buffer).await.unwrap();
            untaken.taken("all", &buffer[..1_024 - pushed_bytes(3, 0) - 2]);
        }
        assert_eq!(untaken.0.load(Ordering::Relaxed), 0);
        for _ in 0..4 {
            leash.read_exact(&mut buffer).await.unwrap();
        }
        assert!(leash.read_exact(&mut buffer).await.is_err());
    }
}
