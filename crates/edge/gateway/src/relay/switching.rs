//! The switch of a relay to another worker, see [`crate::continuation`].

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use warmroute_fleet::Worker;

use super::{OpenResponse, Relay, TruncatedResponse};
use crate::continuation::{Continued, Interrupted, Remainder, Resumed, SentRequest, continued};
use crate::permit::Permit;
use crate::response_watch::ResponseWatch;
use crate::tenant_tokens::PartialTokens;
use crate::upstream::UpstreamError;
use crate::upstream_body::BufferedBody;

/// What it takes to continue a stream on another worker.
pub(crate) struct Continuation {
    /// `None` during a switch.
    request: Option<Box<dyn Interrupted>>,
    /// The body as the first worker got it.
    body: BufferedBody,
    switches: u32,
}

impl Continuation {
    pub(crate) fn new(request: Box<dyn Interrupted>, body: BufferedBody) -> Continuation {
        Continuation { request: Some(request), body, switches: 0 }
    }
}

/// A stream that is not as it should be, though its connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defect {
    /// The worker sent no event, or gave the answer up.
    Broken,
    /// The worker ended its response without the final event.
    Unfinished,
}

/// What follows a failure.
pub(super) enum AfterFailure {
    /// Another worker is asked.
    Switching,
    /// The client gets these last bytes.
    Ended(Result<Bytes, TruncatedResponse>),
}

impl Relay {
    /// A stream that was cut off or is no stream is continued if that is possible, and fails otherwise. A stream that has
    /// said why it ends, and only lacks its final event, ends as it did.
    pub(super) fn after_defect(&mut self, defect: Defect) -> AfterFailure {
        let is_cut_off = || self.open.as_ref().is_some_and(|open| self.params.is_cut_off(&open.watch));
        if defect == Defect::Broken {
            return self.after_failure(&UpstreamError::Closed);
        }
        if is_cut_off() {
            return self.after_failure(&UpstreamError::Unfinished);
        }
        let rest = self.guard.take().map(|mut guard| guard.take_rest()).unwrap_or_default();
        let last = self.open.as_mut().map(|open| open.inspect(rest)).unwrap_or_default();
        self.finish();
        AfterFailure::Ended(Ok(last))
    }

    pub(super) fn after_failure(&mut self, error: &UpstreamError) -> AfterFailure {
        self.begin_switch(error).unwrap_or_else(|| AfterFailure::Ended(self.fail(error)))
    }

    /// Begins to continue the stream on another worker; `None` if it cannot be continued.
    fn begin_switch(&mut self, error: &UpstreamError) -> Option<AfterFailure> {
        let (guard, continuation) = (self.guard.as_mut()?, self.continuation.as_mut()?);
        let request = continuation.request.as_ref()?;
        let is_allowed = request.allows_continuation(continuation.switches, guard.delivered.tokens);
        if !error.is_worker_fault() || !is_allowed {
            return None;
        }
        let body = continuation.body.concat();
        let sent =
            SentRequest { api: self.params.api, body: &body, usage_injected: self.params.usage_injected };
        let continued = match guard.delivered.obstacle {
            Some(why) => Continued::Impossible(why),
            None => continued(&sent, &guard.delivered),
        };
        let body = match continued {
            Continued::Body(body) => body,
            Continued::Complete { finish_reason, usage } => {
                let last = guard.closing_events(self.params.api, finish_reason, usage);
                let last = self.open.as_mut().map_or_else(Bytes::new, |open| open.inspect(last));
                self.end_open(error);
                self.partial_tokens.take().into_iter().for_each(PartialTokens::count);
                return Some(AfterFailure::Ended(Ok(last)));
            }
            Continued::Impossible(why) => {
                self.forwarding.observers.metrics.count_continuation("impossible");
                tracing::info!(why, "a stream whose worker failed cannot be continued");
                return None;
            }
        };
        let mut request = continuation.request.take()?;
        if continuation.switches == 0 {
            guard.cached_tokens = self.open.as_ref()?.watch.attempt.decision.cached_tokens;
        }
        continuation.switches += 1;
        let (text, tokens) = (guard.delivered.text.clone(), guard.delivered.tokens);
        let text_events = guard.delivered.text_events;
        let (worker, permit) = self.end_open(error)?;
        request.recover(worker, permit);
        self.switch = Some(request.resume(Remainder { body, text, tokens, text_events }));
        Some(AfterFailure::Switching)
    }

    /// Ends the attempt of a worker that failed. Returns the worker, and the permit that the request keeps.
    fn end_open(&mut self, error: &UpstreamError) -> Option<(Arc<Worker>, Option<Permit>)> {
        let mut open = self.open.take()?;
        self.partial_tokens = open.watch.charge_partial_answer();
        let OpenResponse { response, watch: ResponseWatch { attempt, permit, .. }, .. } = open;
        let worker = Arc::clone(&attempt.decision.worker);
        self.end_failed(attempt, error);
        drop(response);
        Some((worker, permit))
    }

    /// Waits for the next worker's response. Ready with the last bytes if there is none.
    pub(super) fn poll_switch(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, TruncatedResponse>>> {
        let Some(switch) = &mut self.switch else { return Poll::Ready(None) };
        let polled = match switch.as_mut().poll(cx) {
            Poll::Pending if self.params.drain.is_aborted() => {
                self.switch = None;
                return Poll::Ready(Some(self.fail(&UpstreamError::ShuttingDown)));
            }
            polled => ready!(polled),
        };
        self.switch = None;
        let (mut request, resumed) = polled;
        match resumed {
            Ok(Resumed { tokens_before, attempt, upstream, started }) => {
                let mut open =
                    OpenResponse::new(started.response, attempt, request.take_permit(), &self.params);
                self.guard.iter_mut().for_each(|guard| guard.begin_next(tokens_before));
                open.watch.set_streamed_before(tokens_before);
                // The end of the whole stream counts all of it.
                (self.open, self.upstream, self.partial_tokens) = (Some(open), upstream, None);
                if let Some(continuation) = &mut self.continuation {
                    continuation.request = Some(request);
                }
                self.first = started.first.map(|chunk| self.take_chunk(chunk));
                self.finish_if_over();
                Poll::Ready(None)
            }
            Err(refusal) => {
                let why = refusal.to_string();
                tracing::warn!(why, "no worker continues a stream whose worker failed");
                self.forwarding.observers.metrics.count_continuation("failed");
                drop(request);
                Poll::Ready(Some(self.fail(&UpstreamError::Closed)))
            }
        }
    }
}
