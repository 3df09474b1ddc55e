//! What a request leaves behind: a line in the access log and the spans of its trace when everything about it is over,
//! and a line for operators when the gateway refuses it or a worker fails it.
//!
//! All parts of a request share its line: the handler, the attempts and the response body. The line is written when the
//! last of them is dropped, wherever the request stands then; the spans are built from the same line and leave with it.
//! Without an access log, and for a request that is not sampled, there is nothing to share.

use std::sync::Arc;

use http::{HeaderValue, Request};
use parking_lot::Mutex;
use warmroute_otel::SpanStatus;
use warmroute_record::{AccessEntry, AccessLog};
use warmroute_types::Micros;

use crate::clock::Clock;
use crate::gateway_error::GatewayError;
use crate::log_sinks::LogSinks;
use crate::request_spans::{ChildSpan, RequestSpans};

/// A request's line in the access log and its spans; empty if there are neither.
#[derive(Clone, Default)]
pub(crate) struct RequestLog(Option<Arc<OpenLine>>);

struct OpenLine {
    log: Option<Arc<AccessLog>>,
    clock: Clock,
    received: Micros,
    entry: Mutex<Option<AccessEntry>>,
    spans: Option<RequestSpans>,
}

impl RequestLog {
    /// Opens the line of a request, and begins its spans. Health checks of load balancers have none.
    pub(crate) fn open<B>(sinks: &LogSinks, request: &mut Request<B>, id: &HeaderValue) -> RequestLog {
        if sinks.is_empty() || request.uri().path() == "/health" {
            return RequestLog(None);
        }
        let received = sinks.clock.now();
        let (log, spans) = (sinks.access_log.clone(), RequestSpans::begin(sinks, request, received));
        if log.is_none() && spans.is_none() {
            return RequestLog(None);
        }
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let mut entry = AccessEntry::new(text_of(id).to_owned(), method, path);
        entry.trace_id = spans.as_ref().map(|spans| spans.context().trace_id.to_string());
        let (clock, entry) = (sinks.clock, Mutex::new(Some(entry)));
        RequestLog(Some(Arc::new(OpenLine { log, clock, received, entry, spans })))
    }

    /// The request's spans and the time, if it is sampled.
    pub(crate) fn spans(&self) -> Option<(&RequestSpans, Micros)> {
        let line = self.0.as_ref()?;
        Some((line.spans.as_ref()?, line.clock.now()))
    }

    /// Begins to wait for admission.
    pub(crate) fn begin_queue(&self) -> QueueSpan<'_> {
        QueueSpan { log: self, start: self.spans().map(|(_, now)| now), refusal: None }
    }

    /// Workers that got the request.
    pub(crate) fn attempts(&self) -> u32 {
        self.read(|entry| entry.attempts).unwrap_or(0)
    }

    /// The request's method.
    pub(crate) fn method(&self) -> String {
        self.read(|entry| entry.method.clone()).unwrap_or_default()
    }

    /// The request's path.
    pub(crate) fn path(&self) -> String {
        self.read(|entry| entry.path.clone()).unwrap_or_default()
    }

    fn read<T>(&self, field: impl FnOnce(&AccessEntry) -> T) -> Option<T> {
        self.0.as_ref().and_then(|line| line.entry.lock().as_ref().map(field))
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
        let now = self.clock.now();
        let Some(entry) = self.entry.get_mut().take() else { return };
        if let Some(spans) = &mut self.spans {
            spans.finish(&entry, now);
        }
        if let Some(log) = &self.log {
            log.log(AccessEntry { duration: now.since(self.received), ..entry });
        }
    }
}

/// The wait for admission, also if the client leaves meanwhile. It has a span if the request is sampled.
pub(crate) struct QueueSpan<'a> {
    log: &'a RequestLog,
    start: Option<Micros>,
    refusal: Option<&'static str>,
}

impl QueueSpan<'_> {
    /// Ends the wait. Where nothing is limited, and nothing was waited for, there is no span.
    pub(crate) fn end<T>(
        mut self,
        admitted: Result<Option<T>, GatewayError>,
    ) -> Result<Option<T>, GatewayError> {
        match &admitted {
            Ok(Some(_)) => {}
            Ok(None) => self.start = None,
            Err(refusal) => self.refusal = Some(refusal.code()),
        }
        admitted
    }
}

impl Drop for QueueSpan<'_> {
    fn drop(&mut self) {
        let (Some(start), Some((spans, now))) = (self.start, self.log.spans()) else { return };
        let mut span = ChildSpan::new("queue", start, now);
        if let Some(refusal) = self.refusal {
            span.status = SpanStatus::Error(refusal);
            span.attributes.add("error.type", refusal);
        }
        spans.add(span);
    }
}

/// A request id as text. Ids are ASCII, see `headers::request_id`.
pub(crate) fn text_of(request_id: &HeaderValue) -> &str {
    request_id.to_str().unwrap_or("unprintable")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::size_of;

    use warmroute_record::AccessLogConfig;

    use crate::attempt_span::AttemptSpan;

    /// Sinks with an access log in a file of their own.
    fn sinks_with_log(name: &str) -> (LogSinks, std::path::PathBuf) {
        let file = std::env::temp_dir().join(format!("warmroute-request-log-{name}-{}", std::process::id()));
        _ = std::fs::remove_file(&file);
        let config = AccessLogConfig { file: Some(file.clone()), ..AccessLogConfig::default() };
        let log = AccessLog::start(config).unwrap().map(Arc::new);
        (LogSinks::new(log, None, Clock::start()), file)
    }

    #[tokio::test]
    async fn a_line_is_written_once_when_the_last_part_of_its_request_is_dropped() {
        let (sinks, file) = sinks_with_log("once");
        let log = sinks.access_log.clone().unwrap();
        let open = |path: &str| {
            let mut request = Request::builder().uri(path).body(()).unwrap();
            RequestLog::open(&sinks, &mut request, &HeaderValue::from_static("id"))
        };
        drop(open("/health"));
        let (handler, other) = (open("/v1/models"), open("/v1/other"));
        let body = handler.clone();
        handler.note(|entry| entry.status = Some(200));
        drop(handler);
        // The other line is written, so one that was due before it would be there too.
        drop(other);
        wait_for_lines(&log, 1);
        body.note(|entry| entry.bytes = 77);
        drop(body);
        wait_for_lines(&log, 2);
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("/v1/other"), "{text}");
        assert!(["/v1/models", "200", "77"].iter().all(|part| lines[1].contains(part)), "{text}");
        _ = std::fs::remove_file(file);
    }

    fn wait_for_lines(log: &AccessLog, lines: u64) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while log.counts().written < lines && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(log.counts().written, lines);
    }

    #[test]
    fn without_log_and_collector_a_request_carries_two_empty_pointers() {
        let sinks = LogSinks::new(None, None, Clock::start());
        let mut request = Request::new(());
        request.headers_mut().insert("traceparent", HeaderValue::from_static("anything"));
        let log = RequestLog::open(&sinks, &mut request, &HeaderValue::from_static("id"));
        assert!(log.0.is_none() && log.spans().is_none() && log.begin_queue().start.is_none());
        assert_eq!(request.headers()["traceparent"], "anything", "it passes as any other header");
        // Neither is allocated, so neither costs more than a comparison.
        assert_eq!(
            (size_of::<RequestLog>(), size_of::<AttemptSpan>()),
            (size_of::<usize>(), size_of::<usize>())
        );
    }
}
