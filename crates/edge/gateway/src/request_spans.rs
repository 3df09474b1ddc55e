//! The spans of a sampled request: one of the server, and below it the time in the queue, each decision and each attempt.
//!
//! ```text
//! POST /v1/chat/completions                     server
//! ├─ queue                                      with limits set
//! ├─ route            one event per candidate
//! ├─ chat MODEL       first token               client: an attempt, see `attempt_span`
//! ├─ route, chat MODEL ...                      a retry
//! ```
//!
//! They are built from what the request's log line collects (`request_log`), and leave when that line is over. Names of
//! attributes are those of OpenTelemetry's conventions for HTTP and generative AI; others begin with `warmroute.`.
//! Prompts and answers are in none of them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{Request, header};
use parking_lot::Mutex;
use warmroute_otel::{
    Attributes, RemoteContext, SpanEvent, SpanId, SpanKind, SpanStatus, TraceContext, TraceId, TraceSpan,
    Tracer,
};
use warmroute_prompt::Api;
use warmroute_record::AccessEntry;
use warmroute_router::{CandidateRecord, Decision};
use warmroute_types::Micros;

use crate::log_sinks::LogSinks;
use crate::random::random;

/// Paths that name a span, beside those of [`Api`]. Clients may send any other path.
const ROUTES: [&str; 9] = [
    "/v1/embeddings",
    "/v1/models",
    "/v1/rerank",
    "/tokenize",
    "/detokenize",
    "/score",
    "/rerank",
    "/pooling",
    "/classify",
];

/// Methods that the conventions know.
const METHODS: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

/// The finished spans of one request, and what all of them share.
pub(crate) struct RequestSpans {
    tracer: Arc<Tracer>,
    /// The server's span.
    context: TraceContext,
    /// The client's span.
    parent: Option<SpanId>,
    state: Option<Arc<str>>,
    route: Option<&'static str>,
    /// What attempts do, by the conventions for generative AI.
    pub(super) operation: Option<&'static str>,
    /// The format of the API.
    pub(super) provider: &'static str,
    scheme: &'static str,
    host: Option<String>,
    /// The same moment on two clocks: the request's arrival.
    at: SystemTime,
    received: Micros,
    finished: Mutex<Vec<TraceSpan>>,
}

impl RequestSpans {
    /// Begins the spans of a request, if it is sampled. Its headers then contain a valid trace context or none, and the
    /// context of a request that is not sampled, so that no worker begins a trace of its own.
    pub(crate) fn begin<B>(
        sinks: &LogSinks,
        request: &mut Request<B>,
        received: Micros,
    ) -> Option<RequestSpans> {
        let tracer = sinks.tracer.as_ref()?;
        let remote = RemoteContext::extract(request.headers_mut());
        let context = match &remote {
            Some(remote) => remote.context.child(new_span_id()),
            None => {
                let id = TraceId::from_random(u128::from(random()) << 64 | u128::from(random()));
                TraceContext::root(id, new_span_id(), tracer.samples(id))
            }
        };
        if !context.is_sampled() {
            if remote.is_none() {
                context.inject(request.headers_mut());
            }
            return None;
        }
        let path = request.uri().path();
        let api = Api::of_path(path);
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        Some(RequestSpans {
            tracer: Arc::clone(tracer),
            context,
            parent: remote.as_ref().map(|remote| remote.context.span_id),
            state: remote.and_then(|remote| remote.state),
            route: route_of(path),
            operation: operation_of(api, path),
            provider: if api == Api::Messages { "anthropic" } else { "openai" },
            scheme: sinks.client_scheme(),
            host: host.map(str::to_owned),
            at: SystemTime::now(),
            received,
            finished: Mutex::default(),
        })
    }

    /// The server's span, of which others are children.
    pub(crate) fn context(&self) -> TraceContext {
        self.context
    }

    /// A moment of the gateway's clock as a time of day. One clock orders all spans of a request.
    pub(crate) fn time_of(&self, moment: Micros) -> SystemTime {
        self.at + Duration::from(moment.since(self.received))
    }

    /// Adds a finished span below the server's.
    pub(crate) fn add(&self, span: ChildSpan) {
        self.finished.lock().push(TraceSpan {
            context: self.context.child(span.id),
            parent: Some(self.context.span_id),
            is_parent_remote: false,
            state: self.state.clone(),
            name: span.name.into(),
            kind: span.kind,
            start: self.time_of(span.start),
            end: self.time_of(span.end),
            attributes: span.attributes,
            events: span.events,
            status: span.status,
        });
    }

    /// Adds the span of a decision, with an event for each candidate.
    pub(crate) fn add_decision(&self, decision: &Decision, end: Micros) {
        let mut attributes = Attributes::default();
        attributes.add("warmroute.policy", decision.policy);
        attributes.add("warmroute.reason", decision.reason);
        attributes.add("warmroute.worker", decision.worker.label.to_string());
        attributes.add("warmroute.cache.view", decision.view.as_str());
        attributes.add("warmroute.prompt_tokens", decision.prompt_tokens);
        attributes.add_some("warmroute.expected_cached_tokens", decision.cached_tokens);
        attributes.add_some("warmroute.longest_match_tokens", decision.longest_match);
        attributes.add("warmroute.expected_ttft_ms", decision.expected_ttft_ms());
        let records = decision.candidate_records.iter().flatten();
        let candidates = records.enumerate().map(|(n, record)| SpanEvent {
            at: self.time_of(decision.made),
            name: "candidate",
            attributes: candidate_attributes(record, n == 0),
        });
        self.add(ChildSpan {
            events: candidates.collect(),
            attributes,
            ..ChildSpan::new("route", decision.made, end)
        });
    }

    /// Ends the server's span and exports all.
    pub(crate) fn finish(&mut self, entry: &AccessEntry, end: Micros) {
        let attributes = self.server_attributes(entry);
        let method = method_of(&entry.method);
        let mut spans = std::mem::take(self.finished.get_mut());
        spans.push(TraceSpan {
            context: self.context,
            parent: self.parent,
            is_parent_remote: self.parent.is_some(),
            state: self.state.take(),
            name: match self.route {
                Some(route) => format!("{method} {route}").into(),
                None => if method == "_OTHER" { "HTTP" } else { method }.into(),
            },
            kind: SpanKind::Server,
            start: self.at,
            end: self.time_of(end),
            attributes,
            events: Vec::new(),
            status: failure_of(entry).map_or(SpanStatus::Unset, SpanStatus::Error),
        });
        self.tracer.export(spans);
    }

    fn server_attributes(&self, entry: &AccessEntry) -> Attributes {
        let mut attributes = Attributes::default();
        attributes.add("http.request.method", method_of(&entry.method));
        attributes.add("url.scheme", self.scheme);
        attributes.add("url.path", entry.path.clone());
        attributes.add_some("http.route", self.route);
        attributes.add_some("http.response.status_code", entry.status);
        if let Some(host) = &self.host {
            let (address, port) = split_host(host);
            attributes.add("server.address", address.to_owned());
            attributes.add_some("server.port", port);
        }
        attributes.add("warmroute.request_id", entry.request_id.clone());
        attributes.add("warmroute.outcome", entry.outcome);
        attributes.add("warmroute.attempts", entry.attempts);
        attributes.add("http.response.body.size", entry.bytes);
        attributes.add_some("warmroute.key", entry.key.clone());
        attributes.add_some("warmroute.model", entry.model.clone());
        attributes.add_some("warmroute.error", entry.error);
        let status = entry.status.filter(|status| *status >= 500 && entry.error.is_none());
        match (failure_of(entry), status) {
            (Some(_), Some(status)) => attributes.add("error.type", status.to_string()),
            (failure, _) => attributes.add_some("error.type", failure),
        }
        attributes
    }
}

/// A finished span below the server's.
pub(crate) struct ChildSpan {
    pub id: SpanId,
    pub name: String,
    pub kind: SpanKind,
    pub start: Micros,
    pub end: Micros,
    pub attributes: Attributes,
    pub events: Vec<SpanEvent>,
    pub status: SpanStatus,
}

impl ChildSpan {
    /// Work within the gateway.
    pub(crate) fn new(name: &str, start: Micros, end: Micros) -> ChildSpan {
        ChildSpan {
            id: new_span_id(),
            name: name.to_owned(),
            kind: SpanKind::Internal,
            start,
            end,
            attributes: Attributes::default(),
            events: Vec::new(),
            status: SpanStatus::Unset,
        }
    }
}

pub(crate) fn new_span_id() -> SpanId {
    SpanId::from_random(random())
}

fn candidate_attributes(record: &CandidateRecord, is_chosen: bool) -> Attributes {
    let CandidateRecord { worker, view, numbers } = record;
    let mut attributes = Attributes::default();
    attributes.add("warmroute.worker", worker.label.to_string());
    attributes.add("warmroute.chosen", is_chosen);
    attributes.add("warmroute.cache.view", view.as_str());
    attributes.add("warmroute.overlap_tokens", numbers.overlap_tokens);
    attributes.add("warmroute.in_flight", numbers.in_flight);
    attributes.add("warmroute.queue_ms", numbers.estimate.queue_ms);
    attributes.add("warmroute.prefill_ms", numbers.estimate.prefill_ms);
    attributes.add("warmroute.expected_ttft_ms", numbers.estimate.ttft_ms());
    attributes
}

/// Why the server failed the request; `None` if it did not. A client's mistake or disconnect is no failure of the server.
fn failure_of(entry: &AccessEntry) -> Option<&'static str> {
    let is_server_error = entry.status.is_some_and(|status| status >= 500);
    let is_broken = matches!(entry.outcome, "failed" | "cut");
    (is_server_error || is_broken).then(|| entry.error.unwrap_or(entry.outcome))
}

fn method_of(method: &str) -> &'static str {
    METHODS.into_iter().find(|known| *known == method).unwrap_or("_OTHER")
}

/// The path if it is one of few, which a span's name must be.
fn route_of(path: &str) -> Option<&'static str> {
    match Api::of_path(path) {
        Api::Chat => Some("/v1/chat/completions"),
        Api::Completions => Some("/v1/completions"),
        Api::Responses => Some("/v1/responses"),
        Api::Messages => Some("/v1/messages"),
        Api::Generate => Some("/generate"),
        Api::Other if path.starts_with("/v1/models/") => Some("/v1/models/{model}"),
        Api::Other => ROUTES.into_iter().find(|route| *route == path),
    }
}

fn operation_of(api: Api, path: &str) -> Option<&'static str> {
    match api {
        Api::Chat | Api::Responses | Api::Messages => Some("chat"),
        Api::Completions | Api::Generate => Some("text_completion"),
        Api::Other => (path == "/v1/embeddings").then_some("embeddings"),
    }
}

/// Address and port of a `Host` header.
fn split_host(host: &str) -> (&str, Option<u16>) {
    let split = host.rsplit_once(':').filter(|(address, _)| !address.contains(':') || address.ends_with(']'));
    let (address, port) = match split {
        Some((address, port)) => (address, port.parse().ok()),
        None => (host, None),
    };
    (address.trim_matches(['[', ']']), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_names_have_few_values() {
        for (path, route) in [
            ("/v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1/models/a/b", Some("/v1/models/{model}")),
            ("/tokenize", Some("/tokenize")),
            ("/v1/anything/42", None),
            ("/", None),
        ] {
            assert_eq!(route_of(path), route, "{path}");
        }
        assert_eq!((method_of("POST"), method_of("BREW")), ("POST", "_OTHER"));
    }

    #[test]
    fn a_host_is_split() {
        for (host, address, port) in [
            ("a.example", "a.example", None),
            ("a.example:80", "a.example", Some(80)),
            ("[::1]:80", "::1", Some(80)),
            ("[::1]", "::1", None),
            ("a:b", "a", None),
        ] {
            assert_eq!(split_host(host), (address, port), "{host}");
        }
    }

    #[test]
    fn only_what_the_server_did_wrong_is_an_error() {
        let failure = |status: Option<u16>, outcome, error| {
            let entry = AccessEntry::new(String::new(), String::new(), String::new());
            failure_of(&AccessEntry { status, outcome, error, ..entry })
        };
        assert_eq!(failure(Some(200), "ok", None), None);
        assert_eq!(failure(Some(400), "refused", Some("invalid_json")), None);
        assert_eq!(failure(Some(429), "refused", Some("queue_full")), None);
        assert_eq!(failure(None, "cancelled", None), None);
        assert_eq!(failure(Some(503), "refused", Some("no_worker_ready")), Some("no_worker_ready"));
        assert_eq!(failure(Some(500), "server_error", None), Some("server_error"));
        assert_eq!(failure(Some(200), "failed", None), Some("failed"), "a stream that broke off");
    }
}
