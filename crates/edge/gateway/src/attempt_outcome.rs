//! How attempts end, as metrics count it.

use http::StatusCode;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    /// The worker returned a success.
    Ok,
    /// The worker returned a client error.
    ClientError,
    /// The worker returned a server error or asked for a pause.
    ServerError,
    /// The worker could not be reached, or failed before or during its response.
    Failed,
    /// The client disconnected.
    Cancelled,
    /// The gateway ended it: a request timeout or a drain timeout.
    EndedByGateway,
    /// Another proxy forwarded it, and its response was not seen.
    Unobserved,
}

impl AttemptOutcome {
    pub(crate) const ALL: [AttemptOutcome; 7] = [
        AttemptOutcome::Ok,
        AttemptOutcome::ClientError,
        AttemptOutcome::ServerError,
        AttemptOutcome::Failed,
        AttemptOutcome::Cancelled,
        AttemptOutcome::EndedByGateway,
        AttemptOutcome::Unobserved,
    ];

    pub(crate) fn of(status: StatusCode) -> AttemptOutcome {
        match status.as_u16() {
            429 | 500.. => AttemptOutcome::ServerError,
            400..500 => AttemptOutcome::ClientError,
            _ => AttemptOutcome::Ok,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            AttemptOutcome::Ok => "ok",
            AttemptOutcome::ClientError => "client_error",
            AttemptOutcome::ServerError => "server_error",
            AttemptOutcome::Failed => "failed",
            AttemptOutcome::Cancelled => "cancelled",
            AttemptOutcome::EndedByGateway => "cut",
            AttemptOutcome::Unobserved => "unobserved",
        }
    }
}
