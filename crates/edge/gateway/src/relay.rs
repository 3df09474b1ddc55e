//! The last phase: a worker's bytes to the client, each chunk as it comes.
//!
//! The relay holds everything the request still owns: its booking and its upstream connection. At the end the connection
//! goes back to the pool; when the client leaves, hyper drops the relay and both are gone.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use warmroute_prompt::Api;
use warmroute_router::{Decision, Outcome};
use warmroute_types::Micros;

use crate::gateway::Gateway;
use crate::metrics::Ending;
use crate::refusal::Refusal;
use crate::upstream::{Answer, Fault, Upstream};

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

/// A worker's answer on its way.
pub(crate) struct Relay {
    gateway: Arc<Gateway>,
    upstream: Arc<Upstream>,
    api: Api,
    framing: Framing,
    received: Micros,
    /// Read before the head was released; sent first.
    first: Option<Bytes>,
    /// `None` once it is over.
    live: Option<Live>,
}

struct Live {
    answer: Answer,
    decision: Decision,
    first_token: FirstToken,
    ending: Ending,
}

#[derive(Clone, Copy, PartialEq)]
enum FirstToken {
    Awaited,
    Seen,
}

/// What is known when the head is released.
pub(crate) struct Opening {
    pub api: Api,
    pub framing: Framing,
    pub received: Micros,
    pub ending: Ending,
    pub first: Option<Bytes>,
}

impl Relay {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        upstream: Arc<Upstream>,
        decision: Decision,
        answer: Answer,
        opening: Opening,
    ) -> Relay {
        let Opening { api, framing, received, ending, first } = opening;
        let live = Live { answer, decision, first_token: FirstToken::Awaited, ending };
        let mut relay = Relay { gateway, upstream, api, framing, received, first, live: Some(live) };
        if let Some(first) = relay.first.clone() {
            relay.look_for_first_token(&first);
        }
        if relay.live.as_ref().is_some_and(|live| live.answer.is_over()) {
            relay.finish();
        }
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
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let Some(live) = &mut self.live else { return Poll::Ready(None) };
        match std::task::ready!(live.answer.poll_chunk(cx)) {
            Some(Ok(chunk)) => {
                self.look_for_first_token(&chunk);
                // When the last chunk is known to be the last, the worker is free now, not when the client has read it.
                if self.live.as_ref().is_some_and(|live| live.answer.is_over()) {
                    self.finish();
                }
                Poll::Ready(Some(Ok(chunk)))
            }
            None => {
                self.finish();
                Poll::Ready(None)
            }
            Some(Err(fault)) => Poll::Ready(Some(self.fail(&fault))),
        }
    }

    /// In a stream the first token is the first event that carries data: comments keep connections alive before it.
    fn look_for_first_token(&mut self, chunk: &[u8]) {
        let Some(live) = self.live.as_mut().filter(|live| live.first_token == FirstToken::Awaited) else {
            return;
        };
        if self.framing == Framing::Events && !carries_data(chunk) {
            return;
        }
        live.first_token = FirstToken::Seen;
        self.gateway.router.observe(&mut live.decision, Outcome::FirstToken);
        self.gateway.metrics.first_token(self.gateway.now().since(self.received));
    }

    fn finish(&mut self) {
        let Some(mut live) = self.live.take() else { return };
        self.gateway.router.observe(&mut live.decision, Outcome::Ended);
        self.gateway.metrics.ended(
            &live.decision.worker,
            live.ending,
            self.gateway.now().since(self.received),
        );
        if let Some(connection) = live.answer.into_connection() {
            self.upstream.keep(connection);
        }
    }

    /// After the first byte nothing is tried again. A stream is told what happened and ends cleanly; a document is cut.
    fn fail(&mut self, fault: &Fault) -> Result<Bytes, Broken> {
        if let Some(mut live) = self.live.take() {
            tracing::warn!(worker = %live.decision.worker.label, %fault, "worker failed in the middle of an answer");
            self.gateway.router.observe(&mut live.decision, Outcome::Failed);
            let lasted = self.gateway.now().since(self.received);
            self.gateway.metrics.ended(&live.decision.worker, Ending::Failed, lasted);
        }
        match self.framing {
            Framing::Document => Err(Broken),
            Framing::Events => Ok(error_event(self.api)),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            let lasted = self.gateway.now().since(self.received);
            self.gateway.metrics.ended(&live.decision.worker, Ending::Cancelled, lasted);
        }
    }
}

fn carries_data(chunk: &[u8]) -> bool {
    chunk.starts_with(b"data:") || memchr::memmem::find(chunk, b"\ndata:").is_some()
}

/// The event that ends a stream which broke. A blank line first, should the worker have stopped within an event.
fn error_event(api: Api) -> Bytes {
    let error = Refusal::WorkerFailed("it broke off in the middle of the stream".to_owned()).to_json(api);
    Bytes::from(match api {
        Api::Messages | Api::Responses => format!("\n\nevent: error\ndata: {error}\n\n"),
        _ => format!("\n\ndata: {error}\n\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_no_first_token() {
        for (chunk, is_data) in [
            (&b": ping\n\n"[..], false),
            (b"event: message_start\ndata: {}\n\n", true),
            (b"data: {}\n\n", true),
            (b": ping\n\ndata: {}", true),
            (b": data: no\n\n", false),
        ] {
            assert_eq!(carries_data(chunk), is_data, "{}", String::from_utf8_lossy(chunk));
        }
    }
}
