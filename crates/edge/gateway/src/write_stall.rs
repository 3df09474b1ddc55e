//! A time limit for clients that do not read their response.
//!
//! While a client reads nothing, hyper polls no response body, so no timeout in a response can fire, and the client
//! would occupy its connection, worker and permit forever. The limit is therefore at the socket. Its timer runs only
//! while a write is stalled, which never happens for a client that reads.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::idle_timeout::earlier;

/// A stream whose writes fail if the other side has read nothing for too long.
pub(crate) struct WriteStall<S> {
    stream: S,
    /// How long a write may stall.
    timeout: Duration,
    deadline: ResponseDeadline,
    stalled: Option<StalledWrite>,
}

/// The deadline of the current response, if any. The connection and the request handler share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseDeadline(Arc<Mutex<Option<Instant>>>);

struct StalledWrite {
    since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl ResponseDeadline {
    pub(crate) fn set(&self, deadline: Option<Instant>) {
        *self.0.lock() = deadline;
    }
}

impl<S> WriteStall<S> {
    pub(crate) fn new(stream: S, timeout: Duration, deadline: ResponseDeadline) -> WriteStall<S> {
        WriteStall { stream, timeout, deadline, stalled: None }
    }

    /// Passes a finished write on; fails a write that has stalled for too long.
    fn check_stall<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let stalled = self.stalled.get_or_insert_with(StalledWrite::start);
        let end = earlier(stalled.since + self.timeout, *self.deadline.0.lock());
        if stalled.timer.deadline() != end {
            stalled.timer.as_mut().reset(end);
        }
        stalled.timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl StalledWrite {
    fn start() -> StalledWrite {
        let since = Instant::now();
        StalledWrite { since, timer: Box::pin(sleep_until(since)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteStall<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteStall<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check_stall(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.check_stall(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.check_stall(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check_stall(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LONG: Duration = Duration::from_secs(3_600);
    const SHORT: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn a_write_fails_only_if_nothing_is_read_for_too_long() {
        let (here, mut there) = tokio::io::duplex(8);
        let mut stream = WriteStall::new(here, SHORT, ResponseDeadline::default());
        let reading = async {
            for _ in 0..6 {
                tokio::time::sleep(SHORT / 4).await;
                there.read_exact(&mut [0; 8]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(stream.write_all(&[0; 56]), reading);
        written.unwrap();
        let begun = Instant::now();
        let failed = stream.write_all(&[0]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= SHORT, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_response_that_is_not_read_ends_at_its_deadline() {
        let (here, _there) = tokio::io::duplex(8);
        let deadline = ResponseDeadline::default();
        let mut stream = WriteStall::new(here, LONG, deadline.clone());
        deadline.set(Some(Instant::now() + SHORT));
        let failed = stream.write_all(&[0; 9]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }
}
