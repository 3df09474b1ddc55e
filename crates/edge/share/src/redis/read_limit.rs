//! Limits the bytes that a server may send before they are processed.
//!
//! The client buffers without a limit, and a message may be as large as the server allows, by default 512
//! MiB. A client that can write to the server could so exhaust a router's memory; instead the connection
//! fails.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that were read and not yet processed.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnprocessedBytes(Arc<AtomicUsize>);

impl UnprocessedBytes {
    /// Subtracts a processed message with its framing.
    pub(crate) fn release(&self, channel: &str, payload: &[u8]) {
        let bytes = message_bytes(channel.len(), payload.len());
        let subtract = |unprocessed: usize| Some(unprocessed.saturating_sub(bytes));
        _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
    }
}

/// Bytes of a message on the wire: `*3 $7 message $.. channel $.. payload`, each with its line end. It must
/// be exact: if it were larger, a flood of small messages would not be noticed.
fn message_bytes(channel: usize, payload: usize) -> usize {
    let text = |bytes: usize| 1 + bytes.checked_ilog10().unwrap_or(0) as usize + 1 + 2 + bytes + 2;
    4 + text("message".len()) + text(channel) + text(payload)
}

/// A connection that fails when too many bytes are unprocessed.
#[derive(Debug)]
pub(crate) struct ReadLimited<S> {
    stream: S,
    unprocessed: UnprocessedBytes,
    bytes_max: usize,
}

impl<S> ReadLimited<S> {
    pub(crate) fn new(stream: S, unprocessed: UnprocessedBytes, bytes_max: usize) -> ReadLimited<S> {
        ReadLimited { stream, unprocessed, bytes_max }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadLimited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let bytes = buf.filled().len() - before;
        if self.unprocessed.0.fetch_add(bytes, Ordering::Relaxed) + bytes > self.bytes_max {
            return Poll::Ready(Err(io::Error::other("the server sent more than could be processed")));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadLimited<S> {
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
    fn message_size_matches_the_wire_format() {
        for payload in [0, 9, 10, 99, 100, 12_345] {
            let written = format!("*3\r\n$7\r\nmessage\r\n$3\r\nall\r\n${payload}\r\n{:payload$}\r\n", "");
            assert_eq!(message_bytes(3, payload), written.len());
        }
    }

    #[tokio::test]
    async fn processed_bytes_never_exhaust_the_limit_and_unprocessed_ones_do() {
        let unprocessed = UnprocessedBytes::default();
        let mut limited = ReadLimited::new(tokio::io::repeat(7), unprocessed.clone(), 4_096);
        let mut buffer = [0; 1_024];
        for _ in 0..100 {
            limited.read_exact(&mut buffer).await.unwrap();
            unprocessed.release("all", &buffer[..1_024 - message_bytes(3, 0) - 2]);
        }
        assert_eq!(unprocessed.0.load(Ordering::Relaxed), 0);
        for _ in 0..4 {
            limited.read_exact(&mut buffer).await.unwrap();
        }
        assert!(limited.read_exact(&mut buffer).await.is_err());
    }
}
