//! Where the records of requests go: the access log, the collector of traces, and the process's log.

use std::sync::{Arc, OnceLock};

use warmroute_otel::Tracer;
use warmroute_record::AccessLog;

use crate::clock::Clock;
use crate::line_throttle::LineThrottle;

/// What a request's log line and its spans are written to.
pub(crate) struct LogSinks {
    pub access_log: Option<Arc<AccessLog>>,
    pub tracer: Option<Arc<Tracer>>,
    pub clock: Clock,
    /// Bounds the lines about refused requests in the process's log.
    pub refusals: LineThrottle,
    /// `http` or `https`, once clients are served.
    client_scheme: OnceLock<&'static str>,
}

impl LogSinks {
    /// Without an access log and a tracer, requests leave no records but lines in the process's log.
    pub(crate) fn new(
        access_log: Option<Arc<AccessLog>>,
        tracer: Option<Arc<Tracer>>,
        clock: Clock,
    ) -> LogSinks {
        let (refusals, client_scheme) = (LineThrottle::default(), OnceLock::new());
        LogSinks { access_log, tracer, clock, refusals, client_scheme }
    }

    /// Whether requests have a line or spans at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.access_log.is_none() && self.tracer.is_none()
    }

    /// Sets the scheme under which clients are served. Later calls have no effect.
    pub(crate) fn set_client_scheme(&self, scheme: &'static str) {
        _ = self.client_scheme.set(scheme);
    }

    /// The scheme under which clients are served.
    pub(crate) fn client_scheme(&self) -> &'static str {
        self.client_scheme.get().copied().unwrap_or("http")
    }
}
