//! Watches a response as it passes: its first token, its usage, and what its tenant is charged.

use http::StatusCode;
use warmroute_types::Usage;

use crate::answer_state::AnswerState;
use crate::attempt::Attempt;
use crate::attempt_outcome::AttemptOutcome;
use crate::first_token::FirstToken;
use crate::framing::Framing;
use crate::id_watch::IdWatch;
use crate::meta_info::{Counting, MetaInfoWatch};
use crate::permit::Permit;
use crate::response_content::{ChunkKind, Follows, ResponseContent};
use crate::status_class::StatusClass;
use crate::stored_reference::StoredCall;
use crate::stream_end::StreamEnd;
use crate::tenant_tokens::PartialTokens;
use crate::usage::UsageWatch;

/// The attempt and the permit of a response, and what its bytes have shown so far.
pub(crate) struct ResponseWatch {
    pub(crate) attempt: Attempt,
    /// Looks for the first token; `None` once seen, or if the response is not a stream. A document arrives when
    /// everything has been computed.
    first_token: Option<FirstToken>,
    content: ResponseContent,
    /// Whether another picker has read that the response is computed.
    is_computed: bool,
    /// Whether the worker does not have what the request names.
    is_gone: bool,
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
        mut attempt: Attempt,
        permit: Option<Permit>,
        framing: Framing,
        status: StatusCode,
    ) -> ResponseWatch {
        attempt.mark_answered();
        let is_ok = AttemptOutcome::of(status) == AttemptOutcome::Ok;
        let is_stream = framing == Framing::Events && is_ok;
        let first_token = is_stream.then(FirstToken::default);
        let usage = match (attempt.returns_meta_info(), framing) {
            (false, _) => UsageWatch::default(),
            (true, Framing::Events) => UsageWatch::of_meta_info(MetaInfoWatch::new(Counting::Largest)),
            (true, Framing::Document) => UsageWatch::of_meta_info(MetaInfoWatch::new(Counting::Sum)),
        };
        let stored_id = (is_ok && attempt.needs_response_id()).then(IdWatch::default);
        let has_text = is_stream || (is_ok && attempt.answers() > 0);
        let counts_text = has_text && (permit.is_some() || attempt.has_tenant());
        let has_state = is_stream || attempt.is_background() || attempt.named_object().is_some();
        let content = ResponseContent::new(framing, usage).count_text(counts_text);
        ResponseWatch {
            attempt,
            first_token,
            content: content.read_state(has_state.then(|| AnswerState::new(framing))),
            is_computed: false,
            is_gone: matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE),
            streamed_before: 0,
            stored_id,
            stored: None,
            permit,
        }
    }

    /// Counts the tokens that workers before have streamed.
    pub(crate) fn set_streamed_before(&mut self, tokens: u32) {
        self.streamed_before = tokens;
    }

    /// Reads a chunk.
    pub(crate) fn observe(&mut self, chunk: &[u8], follows: Follows) -> ChunkKind {
        if self.first_token.as_mut().is_some_and(|first_token| first_token.is_in(chunk)) {
            self.first_token = None;
            self.attempt.mark_first_token();
        }
        if let Some(id) = self.stored_id.as_mut().and_then(|watch| watch.walk(chunk)) {
            self.stored_id = None;
            self.stored = self.attempt.note_stored(&id);
        }
        let kind = self.content.read(chunk, follows);
        let (charges, streamed) = (self.attempt.named_object().is_none(), self.streamed_tokens());
        if let Some(permit) = self.permit.as_mut().filter(|_| charges) {
            permit.charge_streamed(streamed);
        }
        kind
    }

    /// Output tokens so far, as estimated.
    fn streamed_tokens(&self) -> u32 {
        self.content.usage.streamed_tokens().saturating_add(self.streamed_before)
    }

    /// Notes a first token that was seen elsewhere.
    pub(crate) fn mark_first_token(&mut self) {
        if self.first_token.take().is_some() {
            self.attempt.mark_first_token();
        }
    }

    /// Notes what was read elsewhere: the usage, the identifier of what the worker may have stored, and whether it is
    /// computed.
    pub(crate) fn note_report(&mut self, usage: Option<Usage>, id: Option<&str>, is_computed: bool) {
        self.is_computed |= is_computed;
        usage.into_iter().for_each(|usage| self.content.usage.set(usage));
        if let (Some(_), Some(id)) = (self.stored_id.take(), id) {
            self.stored = self.attempt.note_stored(id);
        }
    }

    /// The events of a stream, as far as they tell its end.
    pub(crate) fn events(&self) -> Option<&StreamEnd> {
        self.content.state.as_ref().and_then(AnswerState::events)
    }

    /// Charges a complete response. Returns the usage that the engine reported.
    pub(crate) fn charge_answer(&mut self, outcome: AttemptOutcome, class: StatusClass) -> Option<Usage> {
        let usage = self.content.usage.read().filter(|_| outcome == AttemptOutcome::Ok);
        if let Some(named) = self.attempt.named_object() {
            if self.shows_end(named.call, outcome) {
                self.attempt.end_background(named.id, usage);
            }
            match usage.filter(|_| !named.call.is_free()) {
                Some(usage) => self.permit.iter_mut().for_each(|permit| permit.charge_usage(usage)),
                None => self.permit.iter_mut().for_each(Permit::refund),
            }
            return None;
        }
        if outcome == AttemptOutcome::Ok && self.keep_in_background() {
            return None;
        }
        self.permit.iter_mut().for_each(Permit::mark_computed);
        match usage {
            Some(usage) => self.permit.iter_mut().for_each(|permit| permit.charge_answer(usage)),
            None if class != StatusClass::Normal => self.permit.iter_mut().for_each(Permit::refund),
            None if outcome == AttemptOutcome::Ok => {
                let known = self.content.usage.tokens_with_prompt_of(self.attempt.prompt_tokens());
                self.permit.iter_mut().for_each(|permit| match known {
                    Some(tokens) => permit.charge_at_least(tokens),
                    None => permit.charge_reserved(),
                });
            }
            None => {}
        }
        usage
    }

    /// Whether the answer to a request for a stored response shows that the response is not computed any more. A worker
    /// that does not know it, or has deleted it, cannot say more. A worker without a way to cancel says 404 as well, and that
    /// shows nothing.
    fn shows_end(&self, call: StoredCall, outcome: AttemptOutcome) -> bool {
        let is_ok = outcome == AttemptOutcome::Ok;
        match call {
            StoredCall::Read => self.is_gone || (is_ok && self.has_ended()),
            StoredCall::Cancel => is_ok && self.has_ended(),
            StoredCall::Delete => is_ok,
            StoredCall::Part | StoredCall::Change => false,
        }
    }

    fn has_ended(&self) -> bool {
        let has_output = self.content.usage.read().is_some_and(|usage| usage.output_tokens > 0);
        self.is_computed || self.content.state.as_ref().is_some_and(|state| state.has_ended(has_output))
    }

    /// Keeps the limits of a response that the engine may go on to compute. Returns whether it does.
    fn keep_in_background(&mut self) -> bool {
        let is_running = self.attempt.is_background() && !self.has_ended();
        if is_running {
            self.permit.iter_mut().for_each(|permit| permit.keep_in_background(self.stored));
        }
        is_running
    }

    /// Notes that a failed worker does not go on to compute a response whose identifier has not come.
    pub(crate) fn note_worker_failure(&mut self) {
        if self.stored.is_none() {
            self.permit.iter_mut().for_each(Permit::mark_computed);
        }
    }

    /// Charges a response that ends early. Streamed tokens are charged already; the engine may have reported the
    /// prompt's. Returns what counts as used.
    pub(crate) fn charge_partial_answer(&mut self) -> Option<PartialTokens> {
        if self.attempt.named_object().is_some() {
            self.permit.iter_mut().for_each(Permit::refund);
            return None;
        }
        // The engine goes on although the client has left.
        if self.permit.as_ref().is_some_and(Permit::may_run_on) && self.keep_in_background() {
            return None;
        }
        self.permit.iter_mut().for_each(Permit::mark_computed);
        let streamed = self.streamed_tokens();
        let reported = self.content.usage.read();
        let reported =
            reported.map(|usage| Usage { output_tokens: usage.output_tokens.max(streamed), ..usage });
        if let (Some(permit), Some(usage)) = (&mut self.permit, reported) {
            permit.charge_usage(usage);
        }
        let prompt_tokens = self.attempt.prompt_tokens();
        let estimated = Usage { prompt_tokens, output_tokens: streamed, cached_tokens: None };
        self.attempt.partial_tokens(reported.unwrap_or(estimated))
    }
}
