//! What a response's status says about the worker.
//!
//! A worker that answers 429 or 503 with `Retry-After` is well; it is left alone for that time. A worker that answers
//! 502-504, or 503 without `Retry-After`, has failed. A 500 may be caused by a request that no worker can serve, so
//! it is passed on and counts against the worker only together with others. Everything else, including client errors,
//! is a normal response.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use warmroute_types::Micros;
use warmroute_wire::retry_after;

/// Longest pause after backpressure, whatever the worker asks for. If it is still busy it will say so again.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Pause for a `Retry-After` given as a date. Clocks differ, and a second is a fair time to try again.
const PAUSE_FOR_DATE: Duration = Duration::from_secs(1);

/// The class of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusClass {
    /// A normal response: passed to the client.
    Normal,
    /// The worker is busy and asks for a pause.
    Backpressure { pause: Micros },
    /// Passed to the client, because other workers would most likely answer the same. A worker that answers so to many
    /// requests is not well.
    ServerError,
    /// The worker has failed.
    WorkerFailure,
}

impl StatusClass {
    pub(crate) fn of(status: StatusCode, headers: &HeaderMap) -> StatusClass {
        let pause = || retry_after(headers, PAUSE_FOR_DATE).map(|pause| Micros::from(pause.min(PAUSE_MAX)));
        match status.as_u16() {
            429 | 503 if let Some(pause) = pause() => StatusClass::Backpressure { pause },
            500 => StatusClass::ServerError,
            502..=504 => StatusClass::WorkerFailure,
            _ => StatusClass::Normal,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    #[test]
    fn backpressure_with_a_time_is_no_failure_and_client_errors_are_normal_responses() {
        let busy = |pause| StatusClass::Backpressure { pause };
        for (status, retry_after, class) in [
            (200, None, StatusClass::Normal),
            (400, None, StatusClass::Normal),
            (404, Some("3"), StatusClass::Normal),
            (429, None, StatusClass::Normal),
            (429, Some("2"), busy(Micros::from_secs(2))),
            (429, Some("86400"), busy(Micros::from_secs(10))),
            (429, Some("Wed, 21 Oct 2026 07:28:00 GMT"), busy(Micros::from_secs(1))),
            (500, None, StatusClass::ServerError),
            (502, Some("2"), StatusClass::WorkerFailure),
            (503, Some("1"), busy(Micros::from_secs(1))),
            (503, None, StatusClass::WorkerFailure),
            (504, None, StatusClass::WorkerFailure),
        ] {
            let mut headers = HeaderMap::new();
            retry_after.map(|text| headers.insert(header::RETRY_AFTER, HeaderValue::from_static(text)));
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(StatusClass::of(status, &headers), class, "{status} {retry_after:?}");
        }
    }
}
