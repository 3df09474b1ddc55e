//! The response phase: passes a worker's response to the client, chunk by chunk.
//!
//! The relay owns everything the request still holds: the attempt, the upstream connection and the permit. See
//! [`OpenResponse::release`] for the order in which they are released.

mod switching;

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use tokio::time::Instant;
use warmroute_prompt::Api;

use crate::Timeouts;
use crate::attempt::{Attempt, suspect_worker};
use crate::attempt_outcome::AttemptOutcome;
use crate::cached_tokens::{CachedTokens, CachedTokensFilter};
use crate::continuation::{GuardedState, StreamGuard, Switch};
use crate::drain::Drain;
use crate::forwarding::Forwarding;
use crate::framing::Framing;
use crate::gateway_error::{ErrorFormat, GatewayError};
use crate::idle_timeout::IdleTimeout;
use crate::permit::Permit;
use crate::response_content::{ChunkKind, Follows};
use crate::response_watch::ResponseWatch;
use crate::status_class::StatusClass;
use crate::stream_end::StreamEnd;
use crate::tenant_tokens::PartialTokens;
use crate::upstream::{Upstream, UpstreamError, UpstreamResponse};
use crate::usage::UsageFilter;

pub(crate) use switching::Continuation;
use switching::{AfterFailure, Defect};

/// Chunks that one poll inspects at most, if all of them are removed.
const CHUNKS_A_POLL: usize = 32;

/// A worker failed in the middle of a response with a declared length. The client connection must be cut, or the client
/// would take the part for the whole.
#[derive(Debug, thiserror::Error)]
#[error("the worker failed in the middle of its response")]
pub(crate) struct TruncatedResponse;

/// A response on its way from a worker to the client.
///
/// With a guard, only complete events pass, and a failure may be followed by a switch to another worker. Then `open` is
/// `None` until that worker's response has started.
pub(crate) struct Relay {
    forwarding: Arc<Forwarding>,
    upstream: Arc<Upstream>,
    params: RelayParams,
    /// The first chunk, read before the head was sent. It is sent first.
    first: Option<Bytes>,
    /// `None` once the response is complete or has failed.
    open: Option<OpenResponse>,
    /// Present if the stream may be continued.
    guard: Option<StreamGuard>,
    continuation: Option<Continuation>,
    /// The switch in progress.
    switch: Option<Switch>,
    /// What the worker before it has streamed.
    partial_tokens: Option<PartialTokens>,
    /// What is wrong with the worker's stream, noticed with its last chunk.
    defect: Option<Defect>,
}

struct OpenResponse {
    response: UpstreamResponse,
    idle_timeout: IdleTimeout,
    watch: ResponseWatch,
    /// Removes injected usage events.
    usage_filter: Option<UsageFilter>,
    /// Hides how much was cached.
    cached_filter: Option<CachedTokensFilter>,
}

/// What is known about a response when its head is sent.
pub(crate) struct RelayParams {
    pub api: Api,
    pub framing: Framing,
    /// Outcome if the response completes.
    pub outcome: AttemptOutcome,
    pub status: StatusCode,
    /// What the status says about the worker.
    pub class: StatusClass,
    /// Whether the stream carries usage that the client did not request.
    pub usage_injected: bool,
    /// Whether the client sees how much was cached.
    pub cached_tokens: CachedTokens,
    /// Identifies the request body, to tell apart requests on which a worker fails.
    pub fingerprint: Option<u64>,
    /// Time by which the response must have ended, if limited.
    pub deadline: Option<Instant>,
    /// Time limits between chunks.
    pub timeouts: Timeouts,
    /// Tells whether a shutdown aborts requests.
    pub drain: Drain,
    /// Whether the stream may be continued on another worker.
    pub is_continuable: bool,
}

impl RelayParams {
    /// Whether a response that ended here is a stream that was cut off: a worker that gives up may still end its
    /// response as HTTP wants it. What ends a stream of another API is not known.
    fn is_cut_off(&self, watch: &ResponseWatch) -> bool {
        let is_stream = self.framing == Framing::Events && self.outcome == AttemptOutcome::Ok;
        let Some(events) = watch.events().filter(|_| is_stream) else { return false };
        match self.api {
            Api::Chat | Api::Completions => !events.is_complete(watch.attempt.answers()),
            Api::Responses | Api::Messages | Api::Generate => !events.has_final_event(),
            // The events of a stored response, from any of them on.
            Api::Other if watch.attempt.reads_response() => events.has_events() && !events.has_final_event(),
            Api::Other => false,
        }
    }
}

impl Relay {
    pub(crate) fn new(
        forwarding: Arc<Forwarding>,
        upstream: Arc<Upstream>,
        attempt: Attempt,
        response: UpstreamResponse,
        first: Option<Bytes>,
        params: RelayParams,
        permit: Option<Permit>,
    ) -> Relay {
        let open = OpenResponse::new(response, attempt, permit, &params);
        let guard = params.is_continuable.then(StreamGuard::default);
        let (continuation, switch, defect) = (None, None, None);
        let mut relay = Relay {
            forwarding,
            upstream,
            params,
            first: None,
            open: Some(open),
            guard,
            continuation,
            switch,
            partial_tokens: None,
            defect,
        };
        relay.first = first.map(|chunk| relay.take_chunk(chunk));
        relay.finish_if_over();
        relay
    }

    /// Whether the stream may be continued on another worker.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Sets what identifies the request body.
    pub(crate) fn set_fingerprint(&mut self, fingerprint: Option<u64>) {
        self.params.fingerprint = fingerprint;
    }

    pub(crate) fn set_continuation(&mut self, continuation: Continuation) {
        self.continuation = Some(continuation);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.open.is_none() && self.switch.is_none() && self.first.is_none()
    }

    /// The whole response body, if it is complete already.
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
        for _ in 0..CHUNKS_A_POLL {
            if self.switch.is_some() {
                match ready!(self.poll_switch(cx)) {
                    Some(last) => return Poll::Ready(Some(last)),
                    None => {
                        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
                            return Poll::Ready(Some(Ok(first)));
                        }
                    }
                }
            }
            if let Some(defect) = self.defect.take() {
                match self.after_defect(defect) {
                    AfterFailure::Switching => continue,
                    AfterFailure::Ended(Ok(last)) if last.is_empty() => return Poll::Ready(None),
                    AfterFailure::Ended(last) => return Poll::Ready(Some(last)),
                }
            }
            let Some(open) = &mut self.open else { return Poll::Ready(None) };
            let polled = match open.response.poll_chunk(cx) {
                // A client slower than the worker always finds a chunk, so the deadline is checked here too.
                Poll::Ready(Some(Ok(_))) if open.idle_timeout.deadline_passed() => {
                    Some(Err(UpstreamError::RequestTimeout))
                }
                Poll::Ready(Some(Ok(_))) if self.params.drain.is_aborted() && !open.response.is_over() => {
                    Some(Err(UpstreamError::ShuttingDown))
                }
                Poll::Pending if self.params.drain.is_aborted() => Some(Err(UpstreamError::ShuttingDown)),
                Poll::Pending => Some(Err(ready!(open.idle_timeout.poll_expired(cx)))),
                Poll::Ready(polled) => polled,
            };
            open.idle_timeout.reset();
            let chunk = match polled {
                Some(Ok(chunk)) => self.take_chunk(chunk),
                Some(Err(error)) => match self.after_failure(&error) {
                    AfterFailure::Switching => continue,
                    AfterFailure::Ended(last) => return Poll::Ready(Some(last)),
                },
                None if is_unfinished(self.guard.as_ref()) => {
                    self.defect = Some(Defect::Unfinished);
                    continue;
                }
                None if self.params.is_cut_off(&open.watch) => {
                    return Poll::Ready(Some(self.fail(&UpstreamError::Unfinished)));
                }
                None => {
                    let rest = open.take_withheld();
                    self.finish();
                    return Poll::Ready(rest.map(Ok));
                }
            };
            self.finish_if_over();
            // The filter may have removed the whole chunk.
            if !chunk.is_empty() {
                return Poll::Ready(Some(Ok(chunk)));
            }
        }
        // A worker that sends much that is removed must not keep the thread from others.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads a chunk. Returns what the client gets of it.
    fn take_chunk(&mut self, chunk: Bytes) -> Bytes {
        let Some(open) = &mut self.open else { return chunk };
        let mut bytes = chunk;
        if let Some(guard) = &mut self.guard {
            let guarded = guard.pass(&bytes);
            bytes = guarded.bytes;
            if guarded.state == GuardedState::Broken {
                self.defect = Some(Defect::Broken);
            } else if open.response.is_over() {
                match guard.is_complete() || guard.delivered.obstacle.is_some() {
                    true => bytes = Bytes::from([bytes, guard.take_rest()].concat()),
                    false => self.defect = Some(Defect::Unfinished),
                }
            }
        }
        let bytes = open.inspect(bytes);
        if open.response.is_over() && self.params.is_cut_off(&open.watch) {
            self.defect.get_or_insert(Defect::Unfinished);
        }
        bytes
    }

    /// Releases the worker with the last chunk, not when the client has read it.
    fn finish_if_over(&mut self) {
        if self.defect.is_none() && self.open.as_ref().is_some_and(|open| open.response.is_over()) {
            self.finish();
        }
    }

    fn finish(&mut self) {
        // The request's body is released before the permit.
        self.continuation = None;
        let Some(mut open) = self.open.take() else { return };
        let (outcome, class) = (self.params.outcome, self.params.class);
        let is_stream = self.params.framing == Framing::Events && outcome == AttemptOutcome::Ok;
        if is_stream && open.watch.events().is_some_and(StreamEnd::has_named_error) {
            // The client has seen the event. Whether the worker or the request is at fault is not known.
            open.watch.charge_partial_answer().into_iter().for_each(PartialTokens::count);
            return open.release(|attempt| attempt.fail(&UpstreamError::GivenUp), Some(&self.upstream));
        }
        let usage = open.watch.charge_answer(outcome, class);
        open.release(|attempt| attempt.end(outcome, class, usage), Some(&self.upstream));
    }

    /// Ends a response that failed after its first byte; retries are no longer possible. A stream ends with an error
    /// event, a document is cut off. No other worker's response will show whether the worker or the request is at
    /// fault.
    fn fail(&mut self, error: &UpstreamError) -> Result<Bytes, TruncatedResponse> {
        self.continuation = None;
        self.partial_tokens.take().into_iter().for_each(PartialTokens::count);
        if let Some(mut open) = self.open.take() {
            if error.is_worker_fault() {
                open.watch.note_worker_failure();
            }
            open.watch.charge_partial_answer().into_iter().for_each(PartialTokens::count);
            open.release(|attempt| self.end_failed(attempt, error), None);
        }
        match self.params.framing {
            Framing::Document => Err(TruncatedResponse),
            Framing::Events => Ok(error_event(self.params.api, error)),
        }
    }

    fn end_failed(&self, attempt: Attempt, error: &UpstreamError) {
        let worker = Arc::clone(&attempt.decision.worker);
        let (request, why) = (attempt.request_id(), error.to_string());
        if error.is_worker_fault() {
            tracing::warn!(request, worker = %worker.label, error = why, "worker failed in the middle of a response");
        } else {
            tracing::info!(request, worker = %worker.label, why, "response ended early");
        }
        attempt.fail(error);
        if error.is_worker_fault() {
            suspect_worker(&self.forwarding.router, self.forwarding.clock, &worker, self.params.fingerprint);
        }
    }
}

impl Drop for Relay {
    /// Dropping a relay that is not complete means that the client disconnected.
    fn drop(&mut self) {
        self.continuation = None;
        self.partial_tokens.take().into_iter().for_each(PartialTokens::count);
        if let Some(mut open) = self.open.take() {
            open.watch.charge_partial_answer().into_iter().for_each(PartialTokens::count);
            open.release(drop, None);
        }
    }
}

impl OpenResponse {
    fn new(
        response: UpstreamResponse,
        attempt: Attempt,
        permit: Option<Permit>,
        params: &RelayParams,
    ) -> OpenResponse {
        let watch = ResponseWatch::new(attempt, permit, params.framing, params.status);
        let is_filtered = params.usage_injected && params.framing == Framing::Events;
        let is_hidden = params.cached_tokens == CachedTokens::Hidden;
        OpenResponse {
            response,
            idle_timeout: IdleTimeout::new(params.timeouts, params.deadline),
            watch,
            usage_filter: is_filtered.then(UsageFilter::default),
            cached_filter: is_hidden.then(CachedTokensFilter::default),
        }
    }

    /// Releases what the request holds, in this order:
    ///
    /// 1. the attempt, whose booking frees the worker in the router's view;
    /// 2. the connection, which goes back to `pool` if it is reusable, and is closed otherwise;
    /// 3. the permit, which admits the next request. That request must find the worker free.
    fn release(self, end_attempt: impl FnOnce(Attempt), pool: Option<&Upstream>) {
        let OpenResponse { response, watch: ResponseWatch { attempt, permit, .. }, .. } = self;
        end_attempt(attempt);
        match pool {
            Some(pool) => response.reclaim_connection().into_iter().for_each(|reusable| pool.keep(reusable)),
            None => drop(response),
        }
        drop(permit);
    }

    /// Inspects a chunk. Returns what the client gets of it.
    fn inspect(&mut self, chunk: Bytes) -> Bytes {
        let follows = if self.response.is_over() { Follows::Nothing } else { Follows::More };
        let kind = self.watch.observe(&chunk, follows);
        if self.usage_filter.is_none() && self.cached_filter.is_none() {
            return chunk;
        }
        let seen = match &mut self.usage_filter {
            // The filter removes only events without choices, and none of these is one.
            Some(usage_filter) if kind == ChunkKind::TextEvents && usage_filter.is_between_events() => chunk,
            Some(usage_filter) => usage_filter.strip(chunk),
            None => chunk,
        };
        let seen = match &mut self.cached_filter {
            Some(cached_filter) => cached_filter.filter(seen),
            None => seen,
        };
        match self.response.is_over().then(|| self.take_withheld()).flatten() {
            Some(rest) => Bytes::from([seen, rest].concat()),
            None => seen,
        }
    }

    /// The withheld beginning of an unfinished event, when the stream ends.
    fn take_withheld(&mut self) -> Option<Bytes> {
        let rest = self.usage_filter.as_mut().and_then(UsageFilter::take_rest);
        let Some(cached_filter) = &mut self.cached_filter else { return rest };
        let seen = rest.map(|rest| cached_filter.filter(rest));
        match (seen, cached_filter.take_rest()) {
            (Some(seen), Some(rest)) => Some(Bytes::from([seen, rest].concat())),
            (seen, rest) => seen.or(rest),
        }
    }
}

/// Whether a stream that could be continued lacks its final event.
fn is_unfinished(guard: Option<&StreamGuard>) -> bool {
    guard.is_some_and(|guard| !guard.is_complete() && guard.delivered.obstacle.is_none())
}

/// The error event at the end of a failed stream. It starts with a blank line in case the worker stopped within an
/// event.
fn error_event(api: Api, error: &UpstreamError) -> Bytes {
    let format = if api == Api::Messages { ErrorFormat::Anthropic } else { ErrorFormat::OpenAi };
    let error = GatewayError::after_first_byte(error).to_json(format);
    Bytes::from(match api {
        Api::Messages | Api::Responses => format!("\n\nevent: error\ndata: {error}\n\n"),
        _ => format!("\n\ndata: {error}\n\n"),
    })
}
