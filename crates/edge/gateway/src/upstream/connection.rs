//! One HTTP/1.1 connection to a worker, driven by the request that uses it.
//!
//! hyper splits a client connection into a handle and a future that does the work; usually that future is a task of its
//! own, and every request pays for two wake-ups between the tasks. Here the request polls it itself. So an exchange stays
//! on one task, a dropped exchange closes its socket at once (that is how a worker learns that the client left),
//! and a connection nobody uses costs nothing.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use warmroute_wire::{Dialer, Stream, Target};

use crate::upstream_body::UpstreamBody;

/// What went wrong between us and a worker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("no connection: {0}")]
    Connect(std::io::Error),
    #[error("no connection in time")]
    ConnectTimeout,
    #[error("the exchange broke off: {0}")]
    Http(hyper::Error),
    #[error("the connection was closed")]
    Closed,
    /// It was closed before the request was put on the wire: nobody has seen it, and here it is back.
    #[error("the connection was closed before the request was sent")]
    NotSent(Box<Request<UpstreamBody>>),
    #[error("no first byte came in time")]
    FirstByteTimeout,
    #[error("it was found unhealthy before its first byte came")]
    Unhealthy,
    #[error("it fell silent in the middle of its answer")]
    IdleTimeout,
    /// The request's own time is over. The worker may be as good as any.
    #[error("it took longer than request-timeout-secs allows")]
    RequestTimeout,
    /// The gateway's is.
    #[error("the gateway was stopped before it had ended")]
    ShuttingDown,
    #[error("it wants to speak another protocol")]
    Upgrade,
}

impl UpstreamError {
    /// Whether nobody would get through, whatever was asked.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, UpstreamError::Connect(_) | UpstreamError::ConnectTimeout)
    }

    /// Whether the gateway stopped waiting for the worker.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, UpstreamError::FirstByteTimeout | UpstreamError::IdleTimeout)
    }

    /// Whether it may say something about the worker.
    pub(crate) fn is_worker_fault(&self) -> bool {
        !matches!(self, UpstreamError::RequestTimeout | UpstreamError::ShuttingDown)
    }
}

/// An open connection.
pub(crate) struct UpstreamConnection {
    sender: http1::SendRequest<UpstreamBody>,
    driver: http1::Connection<TokioIo<Stream>, UpstreamBody>,
}

/// A worker's answer: its head, then its chunks, then the connection back if it can be used again.
pub(crate) struct UpstreamResponse {
    connection: UpstreamConnection,
    body: Incoming,
}

impl UpstreamConnection {
    pub(crate) async fn open(dialer: &Dialer, target: &Target) -> Result<UpstreamConnection, UpstreamError> {
        let stream = dialer.dial(target).await.map_err(UpstreamError::Connect)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(UpstreamError::Http)?;
        Ok(UpstreamConnection { sender, driver })
    }

    /// Whether an unused connection is still open, as far as can be seen without waiting.
    pub(crate) fn is_alive(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.driver).poll(&mut cx).is_pending() && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(
        mut self,
        request: Request<UpstreamBody>,
    ) -> Result<(Response<()>, UpstreamResponse), UpstreamError> {
        let mut answered = pin!(self.sender.try_send_request(request));
        let driver = &mut self.driver;
        let send_error = |mut error: TrySendError<Request<UpstreamBody>>| match error.take_message() {
            Some(request) => UpstreamError::NotSent(Box::new(request)),
            None => UpstreamError::Http(error.into_error()),
        };
        let response = poll_fn(|cx| {
            if let Poll::Ready(answer) = answered.as_mut().poll(cx) {
                return Poll::Ready(answer.map_err(send_error));
            }
            let closed = Pin::new(&mut *driver).poll(cx);
            // Driving it may have brought the answer; look before believing that it is closed.
            match (answered.as_mut().poll(cx), closed) {
                (Poll::Ready(answer), _) => Poll::Ready(answer.map_err(send_error)),
                (Poll::Pending, Poll::Ready(_)) => Poll::Ready(Err(UpstreamError::Closed)),
                (Poll::Pending, Poll::Pending) => Poll::Pending,
            }
        })
        .await?;
        let (head, body) = response.into_parts();
        Ok((Response::from_parts(head, ()), UpstreamResponse { connection: self, body }))
    }
}

impl UpstreamResponse {
    /// The next bytes; `None` at the end.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, UpstreamError>>> {
        if let Poll::Ready(chunk) = self.poll_received(cx) {
            return Poll::Ready(chunk);
        }
        let closed = Pin::new(&mut self.connection.driver).poll(cx).is_ready();
        // Driving the connection may have brought something, even its last bytes before it was closed.
        match self.poll_received(cx) {
            Poll::Pending if closed => Poll::Ready(Some(Err(UpstreamError::Closed))),
            polled => polled,
        }
    }

    /// What the connection has handed over already. Trailers and empty chunks mean nothing here.
    fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, UpstreamError>>> {
        loop {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) if !chunk.is_empty() => return Poll::Ready(Some(Ok(chunk))),
                    _ => {}
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(UpstreamError::Http(error)))),
                None => return Poll::Ready(None),
            }
        }
    }

    /// Waits for the next bytes.
    pub(crate) async fn next_chunk(&mut self) -> Option<Result<Bytes, UpstreamError>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Nothing more will come.
    pub(crate) fn is_over(&self) -> bool {
        self.body.is_end_stream()
    }

    /// The connection, when the answer was read to its end and the worker keeps the connection open.
    pub(crate) fn reclaim_connection(mut self) -> Option<UpstreamConnection> {
        self.connection.is_alive().then_some(self.connection)
    }
}
