//! The last phase: a worker's bytes to the client, each chunk as it comes.
//!
//! The relay holds everything the request still owns: its trip and its upstream connection. At the end the connection goes
//! back to the pool; when the client leaves, hyper drops the relay and both are gone.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::time::Instant;
use warmroute_prompt::Api;
use warmroute_types::Usage;

use crate::Timeouts;
use crate::door::Permit;
use crate::drain::Drain;
use crate::first_token::FirstToken;
use crate::gateway::Gateway;
use crate::metrics::Ending;
use crate::patience::Patience;
use crate::refusal::{Refusal, Shape as ErrorShape};
use crate::trip::{Trip, suspect};
use crate::upstream::{Answer, Fault, Upstream};
use crate::usage::{UsageEvents, UsageWatch};
use crate::verdict::Verdict;

/// The worker failed in the middle of an answer whose length was promised: the connection must be cut, or the client
/// would take half an answer for a whole one.
#[derive(Debug, thiserror::Error)]
#[error("the worker failed in the middle of its answer")]
pub(crate) struct Broken;

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
pub(crate) enum End {
    /// Its length, or its last chunk.
    Framed,
    /// The end of the connection, which looks the same when the worker has died. Of a stream of a known API, its last event does.
    Closed,
}

/// A worker's answer on its way.
pub(crate) struct Relay {
    gateway: Arc<Gateway>,
    upstream: Arc<Upstream>,
    shape: Shape,
    /// Read before the head was released; sent first.
    first: Option<Bytes>,
    /// `None` once it is over.
    live: Option<Live>,
}

struct Live {
    answer: Answer,
    patience: Patience,
    trip: Trip,
    /// Watches for the first token; `None` once it was seen, or where none will come.
    awaited: Option<FirstToken>,
    usage: UsageWatch,
    /// Takes out the usage that the client did not ask for.
    ours: Option<UsageEvents>,
    /// Last, so that whoever is let in next finds the worker free.
    permit: Option<Permit>,
}

/// What is known of an answer when its head is released.
pub(crate) struct Shape {
    pub api: Api,
    pub framing: Framing,
    pub end: End,
    /// How the request has ended, should the answer come to its end.
    pub ending: Ending,
    /// And what that says about the worker.
    pub verdict: Verdict,
    /// The stream carries usage that the client did not ask for.
    pub usage_is_ours: bool,
    /// Tells the request from others, should it break its worker.
    pub fingerprint: Option<u64>,
    /// When it must be over, if ever.
    pub deadline: Option<Instant>,
    /// How long its chunks are waited for.
    pub timeouts: Timeouts,
    /// Tells whether everything is ended.
    pub drain: Drain,
}

impl Shape {
    /// Whether the answer is half an answer, should it end without a last event.
    fn should_say_goodbye(&self) -> bool {
        let is_stream = self.framing == Framing::Events && self.ending == Ending::Ok;
        is_stream && self.end == End::Closed && self.api != Api::Other
    }
}

impl Relay {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        upstream: Arc<Upstream>,
        trip: Trip,
        answer: Answer,
        first: Option<Bytes>,
        shape: Shape,
        permit: Option<Permit>,
    ) -> Relay {
        let awaited =
            (shape.framing == Framing::Events && shape.ending == Ending::Ok).then(FirstToken::default);
        let ours = (shape.usage_is_ours && shape.framing == Framing::Events).then(UsageEvents::default);
        let patience = Patience::new(shape.timeouts, shape.deadline);
        let mut live = Live { answer, patience, trip, awaited, usage: UsageWatch::default(), ours, permit };
        let first = first.map(|chunk| live.look_at(chunk));
        let mut relay = Relay { gateway, upstream, shape, first, live: Some(live) };
        relay.finish_if_over();
        relay
    }

    pub(crate) fn is_over(&self) -> bool {
        self.live.is_none() && self.first.is_none()
    }

    /// The bytes at hand, if they are all there is.
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        if self.live.is_some() { None } else { Some(self.first.take().unwrap_or_default()) }
    }

    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Poll::Ready(Some(Ok(first)));
        }
        loop {
            let Some(live) = &mut self.live else { return Poll::Ready(None) };
            let polled = match live.answer.poll_chunk(cx) {
                // There is always more where the client is slower than the worker.
                Poll::Ready(Some(Ok(_))) if live.patience.is_overdue() => Some(Err(Fault::Overdue)),
                Poll::Ready(Some(Ok(_))) if self.shape.drain.is_over() && !live.answer.is_over() => {
                    Some(Err(Fault::Stopping))
                }
                Poll::Pending if self.shape.drain.is_over() => Some(Err(Fault::Stopping)),
                Poll::Pending => Some(Err(ready!(live.patience.poll_over(cx)))),
                Poll::Ready(polled) => polled,
            };
            live.patience.heard();
            let chunk = match polled {
                Some(Ok(chunk)) => live.look_at(chunk),
                Some(Err(fault)) => return Poll::Ready(Some(self.fail(&fault))),
                None if self.shape.should_say_goodbye() && !live.usage.says_goodbye() => {
                    return Poll::Ready(Some(self.fail(&Fault::Closed)));
                }
                None => {
                    let rest = live.held_back();
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
        if self.live.as_ref().is_some_and(|live| live.answer.is_over()) {
            self.finish();
        }
    }

    fn finish(&mut self) {
        let Some(Live { answer, mut trip, usage, mut permit, .. }) = self.live.take() else { return };
        match (self.shape.ending, usage.read()) {
            (Ending::Ok, Some(usage)) => {
                permit.iter_mut().for_each(|permit| permit.answered(usage));
                trip.used(usage);
            }
            _ if self.shape.verdict != Verdict::Answer => permit.iter_mut().for_each(Permit::refund),
            _ => {}
        }
        trip.end(self.shape.ending, self.shape.verdict);
        if let Some(connection) = answer.into_connection() {
            self.upstream.keep(connection);
        }
    }

    /// After the first byte nothing is tried again. A stream is told what happened and ends cleanly; a document is cut. Whether it was
    /// the worker or the request that broke it, no other worker's answer will tell.
    fn fail(&mut self, fault: &Fault) -> Result<Bytes, Broken> {
        if let Some(mut live) = self.live.take() {
            live.settle();
            let trip = live.trip;
            let worker = Arc::clone(&trip.decision.worker);
            trip.fail(fault);
            if fault.is_the_workers() {
                tracing::warn!(worker = %worker.label, %fault, "worker failed in the middle of an answer");
                suspect(&self.gateway, &worker, self.shape.fingerprint);
            } else {
                tracing::info!(worker = %worker.label, why = %fault, "ended in the middle of an answer");
            }
        }
        match self.shape.framing {
            Framing::Document => Err(Broken),
            Framing::Events => Ok(error_event(self.shape.api, fault)),
        }
    }
}

impl Drop for Relay {
    /// The client has left, if the answer is not over.
    fn drop(&mut self) {
        self.live.iter_mut().for_each(Live::settle);
    }
}

impl Live {
    /// It will not be finished. What came of it has been counted, or whoever hangs up before the last event would have it for nothing;
    /// but the engine may have said what the prompt was.
    fn settle(&mut self) {
        let Some(permit) = &mut self.permit else { return };
        if let Some(usage) = self.usage.read() {
            permit.used(Usage { output_tokens: usage.output_tokens.max(self.usage.events()), ..usage });
        }
    }

    /// Sees a chunk on its way; what the client is to see of it.
    fn look_at(&mut self, chunk: Bytes) -> Bytes {
        self.look_for_first_token(&chunk);
        self.usage.see(&chunk);
        if let Some(permit) = &mut self.permit {
            permit.streamed(self.usage.events());
        }
        let seen = match &mut self.ours {
            Some(ours) => ours.strip(chunk),
            None => return chunk,
        };
        match self.answer.is_over().then(|| self.held_back()).flatten() {
            Some(rest) => Bytes::from([seen, rest].concat()),
            None => seen,
        }
    }

    /// The beginning of an event that was never ended, when the stream is.
    fn held_back(&mut self) -> Option<Bytes> {
        self.ours.as_mut().and_then(UsageEvents::rest)
    }

    /// Only streams have a first token that can be seen: of a document, everything comes at the end.
    fn look_for_first_token(&mut self, chunk: &[u8]) {
        if self.awaited.as_mut().is_some_and(|awaited| awaited.is_in(chunk)) {
            self.awaited = None;
            self.trip.first_token();
        }
    }
}

/// The event that ends a stream which broke. A blank line first, should the worker have stopped within an event.
fn error_event(api: Api, fault: &Fault) -> Bytes {
    let shape = if api == Api::Messages { ErrorShape::Anthropic } else { ErrorShape::OpenAi };
    let error = Refusal::broke_off(fault).to_json(shape);
    Bytes::from(match api {
        Api::Messages | Api::Responses => format!("\n\nevent: error\ndata: {error}\n\n"),
        _ => format!("\n\ndata: {error}\n\n"),
    })
}
