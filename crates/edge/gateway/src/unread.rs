//! Clients that do not read: how long what is sent to one may wait to be taken.
//!
//! While a client takes nothing, hyper asks for no more of the answer, so nothing that an answer itself waits for can end it: its place,
//! its worker and its connection would be kept for as long as the client likes. So the clock is where the bytes wait, at the socket. It
//! runs only while a write is held up, which for a client that reads is never.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::patience::sooner;

/// A connection whose writes fail when the other side has taken nothing for too long.
pub(crate) struct Unread<S> {
    stream: S,
    /// How long a write may be held up.
    timeout: Duration,
    due: Due,
    held_up: Option<HeldUp>,
}

/// When the answer under way must be over, if ever. The connection and whoever answers share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Due(Arc<Mutex<Option<Instant>>>);

struct HeldUp {
    since: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Due {
    pub(crate) fn set(&self, deadline: Option<Instant>) {
        *self.0.lock() = deadline;
    }
}

impl<S> Unread<S> {
    pub(crate) fn new(stream: S, timeout: Duration, due: Due) -> Unread<S> {
        Unread { stream, timeout, due, held_up: None }
    }

    /// What became of a write, unless it is held up for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.held_up = None;
            return polled;
        }
        let held_up = self.held_up.get_or_insert_with(HeldUp::begin);
        let end = sooner(held_up.since + self.timeout, *self.due.0.lock());
        if held_up.alarm.deadline() != end {
            held_up.alarm.as_mut().reset(end);
        }
        held_up.alarm.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl HeldUp {
    fn begin() -> HeldUp {
        let since = Instant::now();
        HeldUp { since, alarm: Box::pin(sleep_until(since)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unread<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unread<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.judge(cx, polled)
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
    async fn a_write_fails_when_nothing_is_taken_for_too_long_and_not_while_something_is() {
        let (here, mut there) = tokio::io::duplex(8);
        let mut unread = Unread::new(here, SHORT, Due::default());
        let reading = async {
            for _ in 0..6 {
                tokio::time::sleep(SHORT / 4).await;
                there.read_exact(&mut [0; 8]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(unread.write_all(&[0; 56]), reading);
        written.unwrap();
        let begun = Instant::now();
        let failed = unread.write_all(&[0]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= SHORT, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn an_answer_that_must_be_over_is_over_though_nobody_reads_it() {
        let (here, _there) = tokio::io::duplex(8);
        let due = Due::default();
        let mut unread = Unread::new(here, LONG, due.clone());
        due.set(Some(Instant::now() + SHORT));
        let failed = unread.write_all(&[0; 9]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }
}
