//! What an answer's status says about the worker that gave it.
//!
//! A worker that says "not now" and names a time is well: it is left alone for that time. One that says that something
//! behind it is broken, or "not now" and no time, has failed. One that says 500 may have met a request that nobody can
//! serve: that is passed on, and looked at beside what it says to others. Everything else, a client's error among it, is an answer.

use http::{HeaderMap, HeaderValue, StatusCode, header};
use warmroute_types::Micros;

/// No worker is left alone for longer, whatever it asks for: it may be well again, and it will say so once more if not.
const PAUSE_MAX: Micros = Micros::from_secs(10);

/// Where the time is written as a date: clocks differ, and a second is soon enough to ask again.
const PAUSE_FOR_DATE: Micros = Micros::from_secs(1);

/// What is to be thought of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusClass {
    /// The client's, whatever it says.
    Answered,
    /// The worker has enough to do, and wants to be left alone for this long.
    Backpressure { pause: Micros },
    /// The client's, because another worker would most likely say the same; but one that says it to everybody is not well.
    ServerError,
    /// The worker has failed.
    WorkerFailure,
}

impl StatusClass {
    pub(crate) fn of(status: StatusCode, headers: &HeaderMap) -> StatusClass {
        let pause = headers.get(header::RETRY_AFTER).map(pause);
        match (status.as_u16(), pause) {
            (429 | 503, Some(pause)) => StatusClass::Backpressure { pause },
            (500, _) => StatusClass::ServerError,
            (502..=504, _) => StatusClass::WorkerFailure,
            _ => StatusClass::Answered,
        }
    }
}

fn pause(retry_after: &HeaderValue) -> Micros {
    let seconds = retry_after.to_str().ok().and_then(|text| text.trim().parse().ok());
    seconds.map_or(PAUSE_FOR_DATE, |seconds: u32| Micros::from_secs(seconds.into()).min(PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backpressure_with_a_time_is_no_fault_and_a_client_error_is_an_answer() {
        let busy = |pause| StatusClass::Backpressure { pause };
        for (status, retry_after, class) in [
            (200, None, StatusClass::Answered),
            (400, None, StatusClass::Answered),
            (404, Some("3"), StatusClass::Answered),
            (429, None, StatusClass::Answered),
            (429, Some("2"), busy(Micros::from_secs(2))),
            (429, Some("86400"), busy(PAUSE_MAX)),
            (429, Some("Wed, 21 Oct 2026 07:28:00 GMT"), busy(PAUSE_FOR_DATE)),
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
