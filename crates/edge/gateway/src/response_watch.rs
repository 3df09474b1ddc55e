//! Watches a response as it passes: its first token, its usage, and what its tenant is charged.

use http::{HeaderMap, HeaderValue, header};
use warmroute_types::Usage;

use crate::attempt::Attempt;
use crate::attempt_outcome::AttemptOutcome;
use crate::first_token::FirstToken;
use crate::id_watch::IdWatch;
use crate::meta_info::{Counting, MetaInfoWatch};
use crate::permit::Permit;
use crate::status_class::StatusClass;
use crate::usage::UsageWatch;

/// Framing of a response. It decides how a failure can be reported to the client, and whether a first token is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events: an error event can follow.
    Events,
    /// A single document, which can only be cut off.
    Document,
}

impl Framing {
    pub(crate) fn of(headers: &HeaderMap) -> Framing {
        let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        if kind.starts_with(b"text/event-stream") { Framing::Events } else { Framing::Document }
    }
}

/// The attempt and the permit of a response, and what its bytes have shown so far.
pub(crate) struct ResponseWatch {
    pub(crate) attempt: Attempt,
    /// Looks for the first token; `None` once seen, or if the response is not a stream. A document arrives when
    /// everything has been computed.
    first_token: Option<FirstToken>,
    usage: UsageWatch,
    /// Output tokens of the workers before, if this one continues a stream.
    streamed_before: u32,
    /// Looks for the identifier of what the worker stores; `None` once seen, or if it stores nothing.
    stored_id: Option<IdWatch>,
    /// The hash of that identifier, once it has come.
    stored: Option<u128>,
    /// Present while requests are limited.
    pub(crate) permit: Option<Permit>,
}

impl ResponseWatch {
    pub(crate) fn new(
        attempt: Attempt,
        permit: Option<Permit>,
        framing: Framing,
        outcome: AttemptOutcome,
    ) -> ResponseWatch {
        let is_stream = framing == Framing::Events && outcome == AttemptOutcome::Ok;
        let first_token = is_stream.then(FirstToken::default);
        let is_stored = outcome == AttemptOutcome::Ok && attempt.stores_response();
        let stored_id = is_stored.then(IdWatch::default);
        let usage = match (attempt.returns_meta_info(), framing) {
            (false, _) => UsageWatch::default(),
            (true, Framing::Events) => UsageWatch::of_meta_info(MetaInfoWatch::new(Counting::Largest)),
            (true, Framing::Document) => UsageWatch::of_meta_info(MetaInfoWatch::new(Counting::Sum)),
        };
        ResponseWatch { attempt, first_token, usage, streamed_before: 0, stored_id, stored: None, permit }
    }

    /// Counts the tokens that workers before have streamed.
    pub(crate) fn set_streamed_before(&mut self, tokens: u32) {
        self.streamed_before = tokens;
    }

    /// Reads a chunk.
    pub(crate) fn observe(&mut self, chunk: &[u8]) {
        if self.first_token.as_mut().is_some_and(|first_token| first_token.is_in(chunk)) {
            self.first_token = None;
            self.attempt.mark_first_token();
        }
        if let Some(id) = self.stored_id.as_mut().and_then(|watch| watch.walk(chunk)) {
            self.stored_id = None;
            self.stored = self.attempt.note_stored(&id);
        }
        self.usage.observe(chunk);
        // What a request for a stored response shows was computed, and charged, before.
        let charges = self.attempt.named_object().is_none();
        if let Some(permit) = self.permit.as_mut().filter(|_| charges) {
            permit.charge_streamed(self.usage.streamed_tokens().saturating_add(self.streamed_before));
        }
    }

    /// Notes a first token that was seen elsewhere.
    pub(crate) fn mark_first_token(&mut self) {
        if self.first_token.take().is_some() {
            self.attempt.mark_first_token();
        }
    }

    /// Notes what was read elsewhere: the usage, and the identifier of what the worker may have stored.
    pub(crate) fn note_report(&mut self, usage: Option<Usage>, id: Option<&str>) {
        usage.into_iter().for_each(|usage| self.usage.set(usage));
        if let (Some(_), Some(id)) = (self.stored_id.take(), id) {
            self.stored = self.attempt.note_stored(id);
        }
    }

    /// Whether the stream contains the final event of its API.
    pub(crate) fn has_final_event(&self) -> bool {
        self.usage.has_final_event()
    }

    /// Whether the stream ended with an event that is named an error.
    pub(crate) fn has_error_event(&self) -> bool {
        self.usage.has_error_event()
    }

    /// Whether a chat or completion stream has said why its answer ends.
    pub(crate) fn has_finish_reason(&self) -> bool {
        self.usage.has_finish_reason()
    }

    /// Charges a complete response. Returns the usage that the engine reported.
    pub(crate) fn charge_answer(&mut self, outcome: AttemptOutcome, class: StatusClass) -> Option<Usage> {
        let usage = self.usage.read().filter(|_| outcome == AttemptOutcome::Ok);
        if let Some(id) = self.attempt.named_object() {
            if outcome == AttemptOutcome::Ok && !self.usage.is_of_running_response() {
                self.attempt.end_background(id, usage);
            }
            self.permit.iter_mut().for_each(Permit::refund);
            return None;
        }
        if outcome == AttemptOutcome::Ok && self.keep_in_background() {
            return None;
        }
        match usage {
            Some(usage) => self.permit.iter_mut().for_each(|permit| permit.charge_answer(usage)),
            None if class != StatusClass::Normal => self.permit.iter_mut().for_each(Permit::refund),
            None if outcome == AttemptOutcome::Ok => {
                self.permit.iter_mut().for_each(Permit::charge_reserved);
            }
            None => {}
        }
        usage
    }

    /// Keeps the limits of a response that the engine goes on to compute. Returns whether it does.
    fn keep_in_background(&mut self) -> bool {
        let is_running = self.attempt.is_background() && self.usage.is_of_running_response();
        let Some(id) = self.stored.filter(|_| is_running) else { return false };
        self.permit.iter_mut().for_each(|permit| permit.keep_in_background(id));
        true
    }

    /// Charges a response that ends early. Streamed tokens are charged already; the engine may have reported the
    /// prompt's.
    pub(crate) fn charge_partial_answer(&mut self) {
        if self.attempt.named_object().is_some() {
            return self.permit.iter_mut().for_each(Permit::refund);
        }
        // The engine goes on although the client has left.
        if self.keep_in_background() {
            return;
        }
        let Some(permit) = &mut self.permit else { return };
        if let Some(usage) = self.usage.read() {
            permit.charge_usage(Usage {
                output_tokens: usage
                    .output_tokens
                    .max(self.usage.streamed_tokens().saturating_add(self.streamed_before)),
                ..usage
            });
        }
    }
}
