//! Why a request to a worker failed.

use std::io;

use warmroute_wire::is_own_shortage;

use crate::upstream_body::BodyError;

/// Why a request to a worker failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// This machine or process lacks file descriptors, ports or buffers. It says nothing about the worker.
    #[error("this machine lacks resources for the connection: {0}")]
    OwnShortage(io::Error),
    #[error("connect timeout")]
    ConnectTimeout,
    #[error("the worker's response is not valid HTTP: {0}")]
    Http(#[from] BadResponse),
    #[error("connection to the worker failed: {0}")]
    Io(io::Error),
    #[error("the worker closed the connection")]
    Closed,
    /// The worker ended a stream as if it were complete, in the middle of the answer.
    #[error("the worker ended its stream in the middle of the answer")]
    Unfinished,
    /// The worker gave a stream up with an error event.
    #[error("the worker ended its stream with an error")]
    GivenUp,
    /// The client's upload broke off, or was refused on its way.
    #[error("the request's body cannot be sent: {0}")]
    Upload(BodyError),
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

/// What is wrong with a worker's HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadResponse {
    #[error("malformed status line or header")]
    Head,
    #[error("the head breaks off")]
    HeadTruncated,
    #[error(
        "the head, or the interim responses before it, are longer than 128 KiB, or it has more than 100 headers"
    )]
    HeadTooLong,
    #[error("invalid or contradictory Content-Length")]
    Length,
    #[error("a Transfer-Encoding other than chunked, or one in an HTTP/1.0 response")]
    Encoding,
    #[error("malformed chunk")]
    Chunk,
}

impl From<io::Error> for UpstreamError {
    fn from(error: io::Error) -> UpstreamError {
        match is_own_shortage(&error) {
            true => UpstreamError::OwnShortage(error),
            false => UpstreamError::Io(error),
        }
    }
}

impl UpstreamError {
    /// A connection that could not be opened.
    pub(super) fn of_connect(error: io::Error) -> UpstreamError {
        match is_own_shortage(&error) {
            true => UpstreamError::OwnShortage(error),
            false => UpstreamError::Connect(error),
        }
    }

    /// The kind of error, for traces.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            UpstreamError::Connect(_) => "connect_failed",
            UpstreamError::OwnShortage(_) => "out_of_resources",
            UpstreamError::ConnectTimeout => "connect_timeout",
            UpstreamError::Http(_) => "http_error",
            UpstreamError::Closed | UpstreamError::Io(_) => "connection_closed",
            UpstreamError::Unfinished => "stream_unfinished",
            UpstreamError::GivenUp => "stream_given_up",
            UpstreamError::Upload(_) => "upload_failed",
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

    /// Whether the attempt had a connection, so that the worker may have seen the request.
    pub(crate) fn is_after_connecting(&self) -> bool {
        !self.is_unreachable() && !matches!(self, UpstreamError::OwnShortage(_))
    }

    /// Whether the gateway stopped waiting for the worker.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, UpstreamError::FirstByteTimeout | UpstreamError::IdleTimeout)
    }

    /// Whether the worker may be at fault.
    pub(crate) fn is_worker_fault(&self) -> bool {
        !matches!(
            self,
            UpstreamError::RequestTimeout
                | UpstreamError::ShuttingDown
                | UpstreamError::OwnShortage(_)
                | UpstreamError::Upload(_)
        )
    }
}
