//! The span of one attempt: a client's call to a worker, from the decision to the end of the response.

use http::HeaderMap;
use warmroute_otel::{Attributes, SpanEvent, SpanId, SpanKind, SpanStatus};
use warmroute_router::Decision;
use warmroute_types::{Delivery, Micros, Usage};
use warmroute_wire::Target;

use crate::attempt_outcome::AttemptOutcome;
use crate::parsed_request::ParsedRequest;
use crate::request_log::RequestLog;
use crate::request_spans::{ChildSpan, RequestSpans, new_span_id};

/// An attempt's span while it lasts; empty unless the request is sampled.
#[derive(Default)]
pub(crate) struct AttemptSpan(Option<Box<OpenSpan>>);

struct OpenSpan {
    log: RequestLog,
    id: SpanId,
    name: String,
    start: Micros,
    attributes: Attributes,
    events: Vec<SpanEvent>,
    usage: Option<Usage>,
    status: Option<u16>,
    error: Option<&'static str>,
}

impl AttemptSpan {
    /// Adds the decision's span to the request's, and begins the attempt's.
    pub(crate) fn begin(log: &RequestLog, decision: &Decision, request: &ParsedRequest) -> AttemptSpan {
        let Some((spans, start)) = log.spans() else { return AttemptSpan(None) };
        spans.add_decision(decision, start);
        let mut attributes = Attributes::default();
        if let Some(operation) = spans.operation {
            attributes.add("gen_ai.operation.name", operation);
            attributes.add("gen_ai.provider.name", spans.provider);
            add_request(&mut attributes, request);
        }
        attributes.add("http.request.method", log.method());
        if let Ok(target) = decision.worker.address.url.parse::<Target>() {
            attributes.add("server.address", target.host);
            attributes.add("server.port", target.port);
        }
        attributes.add("url.full", format!("{}{}", decision.worker.address.url, log.path()));
        attributes.add("warmroute.worker", decision.worker.label.to_string());
        // The line counts this attempt already.
        let resent = log.attempts().saturating_sub(1);
        attributes.add_some("http.request.resend_count", Some(resent).filter(|&resent| resent > 0));
        AttemptSpan(Some(Box::new(OpenSpan {
            log: log.clone(),
            id: new_span_id(),
            name: name_of(spans, request),
            start,
            attributes,
            events: Vec::new(),
            usage: None,
            status: None,
            error: None,
        })))
    }

    /// Makes the worker's spans children of this one.
    pub(crate) fn inject(&self, headers: &mut HeaderMap) {
        let Some(open) = &self.0 else { return };
        if let Some((spans, _)) = open.log.spans() {
            spans.context().child(open.id).inject(headers);
        }
    }

    /// Notes the status of the worker's response.
    pub(crate) fn set_status(&mut self, status: u16) {
        self.0.iter_mut().for_each(|open| open.status = Some(status));
    }

    /// Notes why the attempt failed.
    pub(crate) fn set_error(&mut self, error: &'static str) {
        self.0.iter_mut().for_each(|open| open.error = Some(error));
    }

    /// Notes the token counts of the response.
    pub(crate) fn set_usage(&mut self, usage: Usage) {
        self.0.iter_mut().for_each(|open| open.usage = Some(usage));
    }

    /// Notes the first token, `ttft` after the decision.
    pub(crate) fn mark_first_token(&mut self, at: Micros, ttft: Micros) {
        let Some(open) = &mut self.0 else { return };
        let Some((spans, _)) = open.log.spans() else { return };
        let attributes = Attributes::default();
        open.events.push(SpanEvent { at: spans.time_of(at), name: "first token", attributes });
        open.attributes.add("gen_ai.response.time_to_first_chunk", ttft.as_secs_f64());
    }

    /// Ends the span.
    pub(crate) fn end(&mut self, outcome: AttemptOutcome) {
        let Some(mut open) = self.0.take() else { return };
        let Some((spans, end)) = open.log.spans() else { return };
        let attributes = &mut open.attributes;
        attributes.add_some("http.response.status_code", open.status);
        if let Some(usage) = open.usage {
            attributes.add("gen_ai.usage.input_tokens", usage.prompt_tokens);
            attributes.add("gen_ai.usage.output_tokens", usage.output_tokens);
            attributes.add_some("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens);
        }
        attributes.add("warmroute.outcome", outcome.as_str());
        let failure = failure_of(outcome).map(|failure| open.error.unwrap_or(failure));
        match open.status.filter(|status| *status >= 400) {
            Some(status) if failure.is_some() => attributes.add("error.type", status.to_string()),
            _ => attributes.add_some("error.type", failure),
        }
        spans.add(ChildSpan {
            id: open.id,
            name: std::mem::take(&mut open.name),
            kind: SpanKind::Client,
            start: open.start,
            end,
            attributes: std::mem::take(&mut open.attributes),
            events: std::mem::take(&mut open.events),
            status: failure.map_or(SpanStatus::Unset, SpanStatus::Error),
        });
    }
}

/// `chat MODEL`, by the conventions for generative AI. Other calls are named after their method.
fn name_of(spans: &RequestSpans, request: &ParsedRequest) -> String {
    match (spans.operation, &request.model) {
        (Some(operation), Some(model)) => {
            // A model's name may have any length.
            format!("{operation} {}", &model[..model.floor_char_boundary(128)])
        }
        (Some(operation), None) => operation.to_owned(),
        (None, _) => "forward".to_owned(),
    }
}

fn add_request(attributes: &mut Attributes, request: &ParsedRequest) {
    attributes.add_some("gen_ai.request.model", request.model.clone());
    attributes.add_some("gen_ai.request.max_tokens", request.answer_tokens_max);
    attributes.add_some("gen_ai.request.choice.count", Some(request.answers).filter(|&answers| answers > 1));
    attributes.add("gen_ai.request.stream", request.delivery == Delivery::Streamed);
}

/// How the worker failed; `None` if it did not, also when the client disconnected.
fn failure_of(outcome: AttemptOutcome) -> Option<&'static str> {
    match outcome {
        AttemptOutcome::Ok | AttemptOutcome::Cancelled | AttemptOutcome::Unobserved => None,
        AttemptOutcome::ClientError
        | AttemptOutcome::ServerError
        | AttemptOutcome::Failed
        | AttemptOutcome::EndedByGateway => Some(outcome.as_str()),
    }
}
