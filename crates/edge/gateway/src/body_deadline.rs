//! How long a body may take to arrive, and what is done with the rest of one that is refused.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

/// How much of an oversized body is read and discarded. A client that is still sending would otherwise see a reset
/// connection instead of the 413.
pub(crate) const DISCARD_BYTES_MAX: usize = 16 << 20;

/// How long a refused body is read at most, so that refused clients do not occupy connections.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(5);

/// Slowest accepted upload rates: of the first part of a body, which a slow line may take long to send, and of the
/// rest, which would occupy much memory for long.
const BYTES_PER_S_MIN: f64 = 1_024.0;
const REST_BYTES_PER_S_MIN: f64 = 65_536.0;
pub(crate) const FIRST_PART_BYTES: usize = 64 << 10;

/// The deadline for reading a body. It moves on as bytes arrive, but is never further away than the body timeout: a
/// client cannot save up time by sending much and then stop.
pub(crate) struct BodyDeadline {
    at: Instant,
    timeout: Duration,
    received: usize,
}

impl BodyDeadline {
    pub(crate) fn new(timeout: Duration) -> BodyDeadline {
        BodyDeadline { at: Instant::now() + timeout, timeout, received: 0 }
    }

    /// When the next bytes must have arrived.
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    pub(crate) fn extend(&mut self, bytes: usize, now: Instant) {
        let first_part = bytes.min(FIRST_PART_BYTES.saturating_sub(self.received));
        self.received += bytes;
        let earned_s =
            first_part as f64 / BYTES_PER_S_MIN + (bytes - first_part) as f64 / REST_BYTES_PER_S_MIN;
        self.at = (self.at + Duration::from_secs_f64(earned_s)).min(now + self.timeout);
    }
}

/// Reads the rest of a refused request while its client gets the answer, so that the client sees the answer instead of a
/// reset connection. A client that waits for `100 Continue` sends nothing.
pub(crate) fn drain_refused_body(headers: &HeaderMap, body: Incoming, timeout: Duration) {
    let waits_for_continue = headers.contains_key(header::EXPECT);
    if !waits_for_continue && !body.is_end_stream() {
        discard(body, &BodyDeadline::new(timeout));
    }
}

/// Reads the rest of an upload that is refused.
pub(crate) fn discard_refused(body: Incoming) {
    discard(body, &BodyDeadline::new(DISCARD_TIME_MAX));
}

/// Reads and discards the rest of a body in the background, within bounds. The connection serves further requests if the
/// body ends within them, and is closed otherwise.
pub(crate) fn discard(mut body: Incoming, deadline: &BodyDeadline) {
    let deadline = deadline.at.min(Instant::now() + DISCARD_TIME_MAX);
    // Without a runtime no client is left.
    let Ok(runtime) = Handle::try_current() else { return };
    runtime.spawn(async move {
        let mut seen = 0;
        while seen < DISCARD_BYTES_MAX {
            match timeout_at(deadline, body.frame()).await {
                Ok(Some(Ok(frame))) => seen += frame.data_ref().map_or(0, Bytes::len),
                Ok(Some(Err(_)) | None) | Err(_) => return,
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_stalls_has_no_more_time_than_an_empty_one() {
        let timeout = Duration::from_secs(30);
        let (mut deadline, mut now) = (BodyDeadline::new(timeout), Instant::now());
        deadline.extend(5 << 20, now);
        assert_eq!(deadline.at, now + timeout, "five megabytes buy no time");
        // At 1,000 bytes a second a body loses time slowly, and beyond its first part quickly.
        let mut deadline = BodyDeadline::new(timeout);
        let mut received = 0;
        while deadline.at > now {
            now += Duration::from_secs(1);
            received += 1_000;
            deadline.extend(1_000, now);
        }
        assert!((64 << 10..110_000).contains(&received), "{received}");
    }
}
