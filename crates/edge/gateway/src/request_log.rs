//! What a request leaves in the logs: a line in the access log when everything about it is over, and a line for
//! operators when the gateway refuses it or a worker fails it.
//!
//! All parts of a request share its line: the handler, the attempts and the response body. The line is written when the
//! last of them is dropped, wherever the request stands then. Without an access log there is nothing to share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::{HeaderValue, Request};
use parking_lot::Mutex;
use warmroute_record::{AccessEntry, AccessLog};
use warmroute_types::Micros;

use crate::gateway::Gateway;

/// A request's line in the access log; empty if there is none.
#[derive(Clone, Default)]
pub(crate) struct RequestLog(Option<Arc<OpenLine>>);

struct OpenLine {
    log: Arc<AccessLog>,
    gateway: Arc<Gateway>,
    received: Micros,
    entry: Mutex<Option<AccessEntry>>,
}

impl RequestLog {
    /// Opens the line of a request. Health checks of load balancers have none.
    pub(crate) fn open<B>(gateway: &Arc<Gateway>, request: &Request<B>, id: &HeaderValue) -> RequestLog {
        let Some(log) = gateway.access_log.as_ref().filter(|_| request.uri().path() != "/health") else {
            return RequestLog(None);
        };
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        RequestLog(Some(Arc::new(OpenLine {
            log: Arc::clone(log),
            gateway: Arc::clone(gateway),
            received: gateway.now(),
            entry: Mutex::new(Some(AccessEntry::new(text_of(id).to_owned(), method, path))),
        })))
    }

    /// Adds to the line, if there is one.
    pub(crate) fn note(&self, add: impl FnOnce(&mut AccessEntry)) {
        let mut entry = self.0.as_ref().map(|line| line.entry.lock());
        if let Some(entry) = entry.as_mut().and_then(|entry| entry.as_mut()) {
            add(entry);
        }
    }
}

impl Drop for OpenLine {
    fn drop(&mut self) {
        let duration = self.gateway.now().since(self.received);
        if let Some(entry) = self.entry.get_mut().take() {
            self.log.log(AccessEntry { duration, ..entry });
        }
    }
}

/// A request id as text. Ids are ASCII, see `headers::request_id`.
pub(crate) fn text_of(request_id: &HeaderValue) -> &str {
    request_id.to_str().unwrap_or("unprintable")
}

/// Lines of one kind in one second. Clients without a key, or an engine that fails every request, could fill a disk
/// with more, and the log is written in place.
const LINES_PER_S: u64 = 20;

/// Bounds the lines of one kind in the process's log.
#[derive(Default)]
pub(crate) struct LineThrottle {
    /// The second that counts now, and the lines asked for in it.
    second: AtomicU64,
    asked: AtomicU64,
    /// Lines left out since the last one that was written.
    left_out: AtomicU64,
}

impl LineThrottle {
    /// Whether a line may be written now. Returns how many were left out before it.
    pub(crate) fn take(&self, now: Micros) -> Option<u64> {
        let second = now.0 / 1_000_000;
        if self.second.swap(second, Relaxed) != second {
            self.asked.store(0, Relaxed);
        }
        if self.asked.fetch_add(1, Relaxed) >= LINES_PER_S {
            self.left_out.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Relaxed))
    }
}

/// Throttles of the lines that requests write into the process's log.
#[derive(Default)]
pub(crate) struct LogThrottles {
    pub refusals: LineThrottle,
    pub worker_errors: LineThrottle,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_those_left_out_are_counted() {
        let throttle = LineThrottle::default();
        let now = Micros::from_secs(100);
        let taken = (0..LINES_PER_S + 7).filter(|_| throttle.take(now).is_some()).count();
        assert_eq!(taken as u64, LINES_PER_S);
        assert_eq!(throttle.take(Micros::from_secs(101)), Some(7));
        assert_eq!(throttle.take(Micros::from_secs(101)), Some(0));
    }
}
