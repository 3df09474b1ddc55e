//! One HTTP/1.1 connection to a worker, driven by the request that uses it.
//!
//! hyper splits a client connection into a handle and a future that does the I/O. Usually that future is its own
//! task, and every request pays for two wake-ups between tasks. Here the request polls the future itself. A request
//! thus stays on one task, a dropped request closes its socket at once (which tells the worker that the client left),
//! and an idle connection costs nothing.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use warmroute_wire::{Dialer, Stream, Target, is_own_shortage};

use super::task_waker::TaskWaker;
use crate::upstream_body::UpstreamBody;

/// Why a request to a worker failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    /// This machine or process lacks file descriptors, ports or buffers. It says nothing about the worker.
    #[error("cannot open a connection: {0}")]
    OwnShortage(std::io::Error),
    #[error("connect timeout")]
    ConnectTimeout,
    #[error("HTTP error: {0}")]
    Http(hyper::Error),
    #[error("the worker closed the connection")]
    Closed,
    /// The worker ended a stream as if it were complete, in the middle of the answer.
    #[error("the worker ended its stream in the middle of the answer")]
    Unfinished,
    /// The worker gave a stream up with an error event.
    #[error("the worker ended its stream with an error")]
    GivenUp,
    /// The connection closed before the request was sent. The worker has not seen the request, which is returned here.
    #[error("the worker closed the connection before the request was sent")]
    NotSent(Box<Request<UpstreamBody>>),
    #[error("no response within first-byte-timeout-secs")]
    FirstByteTimeout,
    #[error("the worker became unhealthy before it responded")]
    Unhealthy,
    #[error("no data within idle-timeout-secs")]
    IdleTimeout,
    /// The request's own time limit. It says nothing about the worker.
    #[error("the request exceeded request-timeout-secs")]
    RequestTimeout,
    /// The gateway's drain timeout.
    #[error("the gateway is shutting down")]
    ShuttingDown,
    #[error("the worker tried to switch protocols")]
    Upgrade,
}

impl UpstreamError {
    /// The kind of error, for traces.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            UpstreamError::Connect(_) => "connect_failed",
            UpstreamError::OwnShortage(_) => "out_of_resources",
            UpstreamError::ConnectTimeout => "connect_timeout",
            UpstreamError::Http(_) => "http_error",
            UpstreamError::Closed | UpstreamError::NotSent(_) => "connection_closed",
            UpstreamError::Unfinished => "stream_unfinished",
            UpstreamError::GivenUp => "stream_given_up",
            UpstreamError::FirstByteTimeout => "first_byte_timeout",
            UpstreamError::Unhealthy => "worker_unhealthy",
            UpstreamError::IdleTimeout => "idle_timeout",
            UpstreamError::RequestTimeout => "request_timeout",
            UpstreamError::ShuttingDown => "shutting_down",
            UpstreamError::Upgrade => "protocol_upgrade",
        }
    }

    /// Whether the worker could not be reached at all.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, UpstreamError::Connect(_) | UpstreamError::ConnectTimeout)
    }

    /// Whether the gateway stopped waiting for the worker.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, UpstreamError::FirstByteTimeout | UpstreamError::IdleTimeout)
    }

    /// Whether the worker may be at fault.
    pub(crate) fn is_worker_fault(&self) -> bool {
        !matches!(
            self,
            UpstreamError::RequestTimeout | UpstreamError::ShuttingDown | UpstreamError::OwnShortage(_)
        )
    }
}

fn connect_error(error: std::io::Error) -> UpstreamError {
    match is_own_shortage(&error) {
        true => UpstreamError::OwnShortage(error),
        false => UpstreamError::Connect(error),
    }
}

/// An open connection. It is boxed, because it moves from request to request.
pub(crate) struct UpstreamConnection {
    sender: http1::SendRequest<UpstreamBody>,
    driver: http1::Connection<TokioIo<Stream>, UpstreamBody>,
    waker: TaskWaker,
}

/// A worker's response body, and the connection it arrives on.
pub(crate) struct UpstreamResponse {
    connection: Box<UpstreamConnection>,
    body: Incoming,
}

impl UpstreamConnection {
    pub(crate) async fn open(
        dialer: &Dialer,
        target: &Target,
    ) -> Result<Box<UpstreamConnection>, UpstreamError> {
        let stream = dialer.dial(target).await.map_err(connect_error)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(UpstreamError::Http)?;
        Ok(Box::new(UpstreamConnection { sender, driver, waker: TaskWaker::default() }))
    }

    /// Whether an idle connection is still open, as far as can be seen without waiting.
    pub(crate) fn is_alive(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(&mut self.driver).poll(&mut cx).is_pending() && self.sender.is_ready()
    }

    /// Sends a request and waits for the response head.
    pub(crate) async fn send(
        mut self: Box<Self>,
        request: Request<UpstreamBody>,
    ) -> Result<(Response<()>, UpstreamResponse), UpstreamError> {
        let UpstreamConnection { sender, driver, waker } = &mut *self;
        let mut pending = pin!(sender.try_send_request(request));
        let send_error = |mut error: TrySendError<Request<UpstreamBody>>| match error.take_message() {
            Some(request) => UpstreamError::NotSent(Box::new(request)),
            None => UpstreamError::Http(error.into_error()),
        };
        let mut exchange = |cx: &mut Context<'_>| {
            if let Poll::Ready(response) = pending.as_mut().poll(cx) {
                return Poll::Ready(response.map_err(send_error));
            }
            let closed = Pin::new(&mut *driver).poll(cx);
            // Polling the connection may have produced the response, so check that before reporting it closed.
            match (pending.as_mut().poll(cx), closed) {
                (Poll::Ready(response), _) => Poll::Ready(response.map_err(send_error)),
                (Poll::Pending, Poll::Ready(_)) => Poll::Ready(Err(UpstreamError::Closed)),
                (Poll::Pending, Poll::Pending) => Poll::Pending,
            }
        };
        let response = poll_fn(|cx| waker.poll(cx, &mut exchange)).await?;
        let (head, body) = response.into_parts();
        Ok((Response::from_parts(head, ()), UpstreamResponse { connection: self, body }))
    }
}

impl UpstreamResponse {
    /// The next chunk; `None` at the end.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, UpstreamError>>> {
        let UpstreamResponse { connection, body } = self;
        let UpstreamConnection { driver, waker, .. } = &mut **connection;
        waker.poll(cx, |cx| {
            if let Poll::Ready(chunk) = poll_received(body, cx) {
                return Poll::Ready(chunk);
            }
            let closed = Pin::new(&mut *driver).poll(cx).is_ready();
            // Polling the connection may have produced a chunk, even just before it closed.
            match poll_received(body, cx) {
                Poll::Pending if closed => Poll::Ready(Some(Err(UpstreamError::Closed))),
                polled => polled,
            }
        })
    }

    /// Waits for the next chunk.
    pub(crate) async fn next_chunk(&mut self) -> Option<Result<Bytes, UpstreamError>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Whether the response has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.body.is_end_stream()
    }

    /// The connection, if the response was read to its end and the worker keeps the connection open.
    pub(crate) fn reclaim_connection(mut self) -> Option<Box<UpstreamConnection>> {
        self.connection.waker.forget_task();
        self.connection.is_alive().then_some(self.connection)
    }
}

/// A chunk that hyper has received already. Trailers and empty chunks are skipped.
fn poll_received(body: &mut Incoming, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, UpstreamError>>> {
    loop {
        match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(chunk) if !chunk.is_empty() => return Poll::Ready(Some(Ok(chunk))),
                _ => {}
            },
            Some(Err(error)) => return Poll::Ready(Some(Err(UpstreamError::Http(error)))),
            None => return Poll::Ready(None),
        }
    }
}
