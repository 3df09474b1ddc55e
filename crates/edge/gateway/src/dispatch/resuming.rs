//! A request whose stream another worker continues, see [`crate::continuation`].

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use warmroute_fleet::Worker;
use warmroute_prompt::Api;
use warmroute_wire::HttpClient;

use super::{Dispatch, Suspect};
use crate::attempt::Attempt;
use crate::attempt_outcome::AttemptOutcome;
use crate::continuation::{Interrupted, Remainder, Resumed, Switch};
use crate::framing::Framing;
use crate::gateway_error::GatewayError;
use crate::intake::RequestBody;
use crate::permit::Permit;
use crate::relay::RelayParams;
use crate::started_response::StartedResponse;
use crate::status_class::StatusClass;
use crate::upstream_body::BufferedBody;

/// Streams of larger requests are not continued: all streams of a dead engine switch at once, and each reads its request
/// again.
const CONTINUED_BYTES_MAX: usize = 4 << 20;

/// How long the next worker may take to count tokens. Without a count the stream goes on, by events.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);

impl Interrupted for Dispatch {
    fn recover(&mut self, worker: Arc<Worker>, permit: Option<Permit>) {
        self.failed_workers.push(worker.id);
        self.suspects.push(Suspect { worker, failed_at: self.forwarding.clock.now() });
        self.permit = permit;
        // The first token has come.
        self.ttft_budget = None;
    }

    fn allows_continuation(&self, continuations: u32, output_tokens: u32) -> bool {
        let tokens = self.intake.request.prompt_tokens.saturating_add(output_tokens);
        continuations < self.config.continuations_max && self.config.continue_streams.allows(tokens)
    }

    fn take_permit(&mut self) -> Option<Permit> {
        self.permit.take()
    }

    fn resume(mut self: Box<Self>, remainder: Remainder) -> Switch {
        Box::pin(async move {
            let resumed = self.send_remainder(remainder).await;
            (self as Box<dyn Interrupted>, resumed)
        })
    }
}

impl Dispatch {
    /// Whether a response is a stream that another worker could continue.
    pub(super) fn may_be_continued(&self, params: &RelayParams) -> bool {
        let is_known = matches!(self.api, Api::Chat | Api::Completions) && self.intake.request.is_single;
        let is_stream = params.framing == Framing::Events && params.outcome == AttemptOutcome::Ok;
        let is_bound = self.requested_worker.is_some();
        let is_allowed = self.config.continue_streams.allows(self.intake.request.prompt_tokens);
        let is_short = match &self.intake.body {
            RequestBody::Buffered(body) => body.len() <= CONTINUED_BYTES_MAX,
            _ => false,
        };
        is_known && is_stream && !is_bound && is_allowed && is_short
    }

    /// Sends the request with the text so far to another worker.
    async fn send_remainder(&mut self, mut remainder: Remainder) -> Result<Resumed, GatewayError> {
        let mut is_counted = false;
        let attempts_max = self.attempts_used.saturating_add(self.config.retries_max);
        loop {
            let decision = match self.route() {
                Err(refusal) if self.may_wait(&refusal) => {
                    self.requeue().await?;
                    continue;
                }
                routed => routed?,
            };
            let (mut attempt, upstream) = self.begin_attempt(decision)?;
            // The stream counts the prompt.
            attempt.mark_answered();
            if !is_counted && let Some(tokens) = self.count_tokens(&attempt, &remainder.text).await {
                remainder.recount(tokens);
                is_counted = true;
            }
            let body = BufferedBody::spliced(&remainder.body, [None, None, None]).changed();
            self.intake.body = RequestBody::Buffered(body);
            match self.try_worker(&upstream, &attempt.decision.worker).await {
                Ok(started) if started.is_stream() => {
                    attempt.span.set_status(started.head.status().as_u16());
                    attempt.mark_continuation();
                    self.blame_suspects();
                    return Ok(Resumed { tokens_before: remainder.tokens, attempt, upstream, started });
                }
                Ok(started) => {
                    attempt.span.set_status(started.head.status().as_u16());
                    self.reject(attempt, &started)?;
                }
                Err(error) => self.record_failure(attempt, &error),
            }
            let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if is_late || self.attempts_used > attempts_max {
                return Err(GatewayError::NotReady);
            }
        }
    }

    /// The tokens of a text as a worker counts them, if it has vLLM's `/tokenize`. Engines may send several tokens in
    /// one event, so events do not tell.
    async fn count_tokens(&self, attempt: &Attempt, text: &str) -> Option<u32> {
        #[derive(serde::Deserialize)]
        struct Count {
            count: u32,
        }
        let url = &attempt.decision.worker.address.url;
        let mut client = HttpClient::new(url, COUNT_TIMEOUT, self.config.dialer.clone());
        let model = self.intake.request.model.as_deref();
        let body = serde_json::json!({"model": model, "prompt": text, "add_special_tokens": false});
        let (status, answer) = client.post("/tokenize", body.to_string().into()).await.ok()?;
        let count: Count = serde_json::from_slice(&answer).ok().filter(|_| status == StatusCode::OK)?;
        // An absurd number would leave nothing to generate.
        Some(count.count).filter(|count| *count as usize <= text.len())
    }

    /// Records a worker that does not continue the stream. A request that it calls wrong is wrong for all.
    fn reject(&mut self, attempt: Attempt, started: &StartedResponse) -> Result<(), GatewayError> {
        let status = started.head.status();
        let class = StatusClass::of(status, started.head.headers());
        if let StatusClass::Backpressure { pause } = class {
            attempt.back_off(pause);
        }
        self.log_worker_error(&attempt, status.as_u16(), "worker does not continue the stream");
        self.failed_workers.push(attempt.decision.worker.id);
        self.attempts_used += 1;
        attempt.reject(class);
        match class {
            StatusClass::Normal => Err(GatewayError::WorkerFailed(format!("status {status}"))),
            _ => Ok(()),
        }
    }
}
