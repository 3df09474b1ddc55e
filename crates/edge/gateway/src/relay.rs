//! The last phase: a worker's bytes to the client, each chunk as it comes.
//!
//! The relay holds everything the request still owns: its attempt and its upstream connection. At the end the connection goes
//! back to the pool; when the client leaves, hyper drops the relay and both are gone.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::time::Instant;
use warmroute_prompt::Api;
use warmroute_types::Usage;

use crate::Timeouts;
use crate::admission_gate::Permit;
use crate::attempt::{Attempt, suspect_worker};
use crate::drain::Drain;
use crate::first_token::FirstToken;
use crate::gateway::Gateway;
use crate::idle_timeout::IdleTimeout;
use crate::metrics::AttemptOutcome;
use crate::refusal::{ErrorFormat, Refusal};
use crate::status_class::StatusClass;
use crate::upstream::{Upstream, UpstreamError, UpstreamResponse};
use crate::usage::{UsageFilter, UsageWatch};

/// The worker failed in the middle of an answer whose length was promised: the connection must be cut, or the client
/// would take half an answer for a whole one.
#[derive(Debug, thiserror::Error)]
#[error("the worker failed in the middle of its answer")]
pub(crate) struct TruncatedResponse;

/// How an answer is framed; that decides how its failure can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events: an error event can follow whatever came before.
    Events,
    /// One document.
    Document,
}

/// What tells that an answer is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndMarker {
    /// Its length, or its last chunk.
    Framed,
    /// The end of the connection, which looks the same when the worker has died. Of a stream of a known API, its last event does.
    Closed,
}

/// A worker's answer on its way.
pub(crate) struct Relay {
    gateway: Arc<Gateway>,
    upstream: Arc<Upstream>,
    params: RelayParams,
    /// Read before the head was released; sent first.
    first: Option<Bytes>,
    /// `None` once it is over.
    open: Option<OpenResponse>,
}

struct OpenResponse {
    answer: UpstreamResponse,
    idle_timeout: IdleTimeout,
    attempt: Attempt,
    /// Watches for the first token; `None` once it was seen, or where none will come.
    first_token: Option<FirstToken>,
    usage: UsageWatch,
    /// Takes out the usage that the client did not ask for.
    usage_filter: Option<UsageFilter>,
    /// Last, so that whoever is let in next finds the worker free.
    permit: Option<Permit>,
}

/// What is known of an answer when its head is released.
pub(crate) struct RelayParams {
    pub api: Api,
    pub framing: Framing,
    pub end_marker: EndMarker,
    /// How the request has ended, should the answer come to its end.
    pub outcome: AttemptOutcome,
    /// And what that says about the worker.
    pub class: StatusClass,
    /// The stream carries usage that the client did not ask for.
    pub usage_injected: bool,
    /// Tells the request from others, should it break its worker.
    pub fingerprint: Option<u64>,
    /// When it must be over, if ever.
    pub deadline: Option<Instant>,
    /// How long its chunks are waited for.
    pub timeouts: Timeouts,
    /// Tells whether everything is ended.
    pub drain: Drain,
}

impl RelayParams {
    /// Whether the answer is half an answer, should it end without a last event.
    fn needs_final_event(&self) -> bool {
        let is_stream = self.framing == Framing::Events && self.outcome == AttemptOutcome::Ok;
        is_stream && self.end_marker == EndMarker::Closed && self.api != Api::Other
    }
}

impl Relay {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        upstream: Arc<Upstream>,
        attempt: Attempt,
        answer: UpstreamResponse,
        first: Option<Bytes>,
        params: RelayParams,
        permit: Option<Permit>,
    ) -> Relay {
        let first_token = (params.framing == Framing::Events && params.outcome == AttemptOutcome::Ok)
            .then(FirstToken::default);
        let usage_filter =
            (params.usage_injected && params.framing == Framing::Events).then(UsageFilter::default);
        let idle_timeout = IdleTimeout::new(params.timeouts, params.deadline);
        let mut open = OpenResponse {
            answer,
            idle_timeout,
            attempt,
            first_token,
            usage: UsageWatch::default(),
            usage_filter,
            permit,
        };
        let first = first.map(|chunk| open.inspect(chunk));
        let mut relay = Relay { gateway, upstream, params, first, open: Some(open) };
        relay.finish_if_over();
        relay
    }

    pub(crate) fn is_over(&self) -> bool {
        self.open.is_none() && self.first.is_none()
    }

    /// The bytes at hand, if they are all there is.
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        if self.open.is_some() { None } else { Some(self.first.take().unwrap_or_default()) }
    }

    pub(crate) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, TruncatedResponse>>> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Poll::Ready(Some(Ok(first)));
        }
        loop {
            let Some(open) = &mut self.open else { return Poll::Ready(None) };
            let polled = match open.answer.poll_chunk(cx) {
                // There is always more where the client is slower than the worker.
                Poll::Ready(Some(Ok(_))) if open.idle_timeout.deadline_passed() => {
                    Some(Err(UpstreamError::RequestTimeout))
                }
                Poll::Ready(Some(Ok(_))) if self.params.drain.is_aborted() && !open.answer.is_over() => {
                    Some(Err(UpstreamError::ShuttingDown))
                }
                Poll::Pending if self.params.drain.is_aborted() => Some(Err(UpstreamError::ShuttingDown)),
                Poll::Pending => Some(Err(ready!(open.idle_timeout.poll_expired(cx)))),
                Poll::Ready(polled) => polled,
            };
            open.idle_timeout.reset();
            let chunk = match polled {
                Some(Ok(chunk)) => open.inspect(chunk),
                Some(Err(error)) => return Poll::Ready(Some(self.fail(&error))),
                None if self.params.needs_final_event() && !open.usage.has_final_event() => {
                    return Poll::Ready(Some(self.fail(&UpstreamError::Closed)));
                }
                None => {
                    let rest = open.take_withheld();
                    self.finish();
                    return Poll::Ready(rest.map(Ok));
                }
            };
            self.finish_if_over();
            // Nothing of it may be left for the client.
            if !chunk.is_empty() {
                return Poll::Ready(Some(Ok(chunk)));
            }
        }
    }

    /// When the last chunk is known to be the last, the worker is free now, not when the client has read it.
    fn finish_if_over(&mut self) {
        if self.open.as_ref().is_some_and(|open| open.answer.is_over()) {
            self.finish();
        }
    }

    fn finish(&mut self) {
        let Some(OpenResponse { answer, mut attempt, usage, mut permit, .. }) = self.open.take() else {
            return;
        };
        match (self.params.outcome, usage.read()) {
            (AttemptOutcome::Ok, Some(usage)) => {
                permit.iter_mut().for_each(|permit| permit.charge_answer(usage));
                attempt.report_usage(usage);
            }
            _ if self.params.class != StatusClass::Answered => permit.iter_mut().for_each(Permit::refund),
            _ => {}
        }
        attempt.end(self.params.outcome, self.params.class);
        if let Some(connection) = answer.reclaim_connection() {
            self.upstream.keep(connection);
        }
    }

    /// After the first byte nothing is tried again. A stream is told what happened and ends cleanly; a document is cut. Whether it was
    /// the worker or the request that broke it, no other worker's answer will tell.
    fn fail(&mut self, error: &UpstreamError) -> Result<Bytes, TruncatedResponse> {
        if let Some(mut open) = self.open.take() {
            open.charge_partial_answer();
            let attempt = open.attempt;
            let worker = Arc::clone(&attempt.decision.worker);
            attempt.fail(error);
            if error.is_worker_fault() {
                tracing::warn!(worker = %worker.label, %error, "worker failed in the middle of an answer");
                suspect_worker(&self.gateway, &worker, self.params.fingerprint);
            } else {
                tracing::info!(worker = %worker.label, why = %error, "ended in the middle of an answer");
            }
        }
        match self.params.framing {
            Framing::Document => Err(TruncatedResponse),
            Framing::Events => Ok(error_event(self.params.api, error)),
        }
    }
}

impl Drop for Relay {
    /// The client has left, if the answer is not over.
    fn drop(&mut self) {
        self.open.iter_mut().for_each(OpenResponse::charge_partial_answer);
    }
}

impl OpenResponse {
    /// It will not be finished. What came of it has been counted, or whoever hangs up before the last event would have it for nothing;
    /// but the engine may have said what the prompt was.
    fn charge_partial_answer(&mut self) {
        let Some(permit) = &mut self.permit else { return };
        if let Some(usage) = self.usage.read() {
            permit
                .charge_usage(Usage { output_tokens: usage.output_tokens.max(self.usage.events()), ..usage });
        }
    }

    /// Sees a chunk on its way; what the client is to see of it.
    fn inspect(&mut self, chunk: Bytes) -> Bytes {
        self.watch_first_token(&chunk);
        self.usage.observe(&chunk);
        if let Some(permit) = &mut self.permit {
            permit.charge_streamed(self.usage.events());
        }
        let seen = match &mut self.usage_filter {
            Some(usage_filter) => usage_filter.strip(chunk),
            None => return chunk,
        };
        match self.answer.is_over().then(|| self.take_withheld()).flatten() {
            Some(rest) => Bytes::from([seen, rest].concat()),
            None => seen,
        }
    }

    /// The beginning of an event that was never ended, when the stream is.
    fn take_withheld(&mut self) -> Option<Bytes> {
        self.usage_filter.as_mut().and_then(UsageFilter::take_rest)
    }

    /// Only streams have a first token that can be seen: of a document, everything comes at the end.
    fn watch_first_token(&mut self, chunk: &[u8]) {
        if self.first_token.as_mut().is_some_and(|first_token| first_token.is_in(chunk)) {
            self.first_token = None;
            self.attempt.mark_first_token();
        }
    }
}

/// The event that ends a stream which broke. A blank line first, should the worker have stopped within an event.
fn error_event(api: Api, error: &UpstreamError) -> Bytes {
    let format = if api == Api::Messages { ErrorFormat::Anthropic } else { ErrorFormat::OpenAi };
    let error = Refusal::broke_off(error).to_json(format);
    Bytes::from(match api {
        Api::Messages | Api::Responses => format!("\n\nevent: error\ndata: {error}\n\n"),
        _ => format!("\n\ndata: {error}\n\n"),
    })
}
