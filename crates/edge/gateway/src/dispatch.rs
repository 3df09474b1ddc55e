//! Routing, sending and retrying: everything until a worker's response starts to reach the client.

mod resuming;

use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, Uri, Version};
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};
use warmroute_admission::TtftBudget;
use warmroute_fleet::Worker;
use warmroute_prompt::Api;
use warmroute_router::{Decision, Vacancy};
use warmroute_types::{Micros, WorkerId};

use crate::attempt::{Attempt, blame_worker, note_unreachable, suspect_worker};
use crate::attempt_outcome::AttemptOutcome;
use crate::body_deadline;
use crate::cached_tokens::CachedTokens;
use crate::client_connection::ClientConnection;
use crate::drain::Drain;
use crate::early_lease::EarlyLease;
use crate::fallback_response::{FallbackResponse, read_rejection};
use crate::first_byte_wait::{Began, FirstByteWait};
use crate::forwarding::Forwarding;
use crate::framing::Framing;
use crate::gateway::Gateway;
use crate::gateway_error::GatewayError;
use crate::idle_timeout::earlier;
use crate::intake::{self, Intake, RequestBody};
use crate::keys::Tenant;
use crate::open_connections::OpenConnection;
use crate::permit::{self, Entry, Permit};
use crate::relay::{Continuation, Relay, RelayParams};
use crate::request_log::RequestLog;
use crate::response_body::ResponseBody;
use crate::routing;
use crate::started_response::{StartedResponse, read_first_chunk};
use crate::status_class::StatusClass;
use crate::stored_objects;
use crate::ttft_budget;
use crate::upstream::{Upstream, UpstreamError, UpstreamRequest};
use crate::upstream_body::UpstreamBody;
use crate::{Config, DecisionHeaders, headers};

/// If a reused connection fails this soon without a response, the worker had closed it before the request arrived, so
/// the request may go to the same worker again. Later, the worker may already be computing.
const STALE_WITHIN: Duration = Duration::from_millis(20);

/// A worker that took the request and failed.
struct Suspect {
    worker: Arc<Worker>,
    failed_at: Micros,
}

/// One request on its way to a worker, across all its attempts.
pub(crate) struct Dispatch {
    forwarding: Arc<Forwarding>,
    /// The settings in force when the request arrived.
    config: Arc<Config>,
    api: Api,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    request_id: HeaderValue,
    intake: Intake,
    received: Micros,
    /// Time by which the response must have ended, if limited.
    deadline: Option<Instant>,
    /// When the first token must come, if the request has a budget for it.
    ttft_budget: Option<TtftBudget>,
    /// Tells whether a shutdown aborts requests.
    drain: Drain,
    /// The worker that the client requests by header, if clients may.
    requested_worker: Option<String>,
    failed_workers: Vec<WorkerId>,
    /// Whether it has waited for a worker that vanished after admission.
    has_waited: bool,
    /// Failed attempts, without those whose worker could not be connected to: they cost nothing. Only retries after these are
    /// limited.
    attempts_used: u32,
    /// Those of them that sent something. Only retries after these draw on the budget that all requests share.
    attempts_sent: u32,
    /// Workers that accepted the request and then failed. They are blamed only when another worker serves the
    /// request: a request that crashes every worker must not take the whole fleet out of service.
    suspects: Vec<Suspect>,
    /// The response if no other worker can be tried.
    fallback: Option<FallbackResponse>,
    /// Present while requests are limited. Released last, see [`Dispatch::drop`].
    permit: Option<Permit>,
    log: RequestLog,
}

/// Reads a request. It counts among its tenant's concurrent ones from its head on.
async fn read(
    gateway: &Arc<Gateway>,
    config: &Config,
    api: Api,
    parts: &Parts,
    body: Incoming,
    tenant: Option<&Tenant>,
) -> Result<(Option<EarlyLease>, Intake), GatewayError> {
    let connection = ClientConnection::of(&parts.extensions).map(|connection| &connection.open);
    let named = stored_objects::named_object(&parts.method, parts.uri.path());
    let early = match body.is_end_stream() {
        true => Ok(None),
        false => EarlyLease::take(&gateway.gate, &config.admission, &parts.headers, tenant, named).await,
    };
    let early = match early {
        Ok(early) => early,
        Err(refusal) => {
            connection.iter().for_each(|connection| connection.refuse());
            body_deadline::drain_refused_body(&parts.headers, body, config.timeouts.body);
            return Err(refusal);
        }
    };
    let arriving = connection.map(OpenConnection::begin_body);
    let received =
        intake::receive(&parts.method, api, &parts.headers, body, &gateway.reader, config, tenant).await;
    if received.is_err() {
        connection.iter().for_each(|connection| connection.refuse());
    }
    let mut intake = received?;
    if let RequestBody::Upload { upload: Some(upload), .. } = &mut intake.body {
        // Its body still arrives while the worker gets it.
        upload.arriving = arriving;
    }
    Ok((early, intake))
}

impl Dispatch {
    /// Reads a request and waits for its admission.
    pub(crate) async fn receive(
        gateway: &Arc<Gateway>,
        api: Api,
        request: Request<Incoming>,
        tenant: Option<&Tenant>,
        request_id: &HeaderValue,
        log: RequestLog,
    ) -> Result<Box<Dispatch>, GatewayError> {
        let received = gateway.now();
        let config = gateway.config();
        let deadline = config.timeouts.total.map(|total| Instant::now() + total);
        let (mut parts, body) = request.into_parts();
        if let Some(connection) = ClientConnection::of(&parts.extensions) {
            connection.deadline.set(deadline);
        }
        let drain = ClientConnection::drain_of(&parts.extensions);
        let (early, mut intake) = read(gateway, &config, api, &parts, body, tenant).await?;
        log.note(|entry| {
            (entry.model, entry.prompt_tokens) =
                (intake.request.model.clone(), Some(intake.request.prompt_tokens));
        });
        // Only this future has the request yet.
        let parsed = Arc::get_mut(&mut intake.request).ok_or(GatewayError::NotReady)?;
        stored_objects::settle(parsed, &gateway.gate, &parts.method, parts.uri.path(), tenant).await?;
        let requested_worker = headers::requested_worker(&parts.headers, config.worker_choice);
        let queue = log.begin_queue();
        let ttft_budget = permit::ttft_budget(&gateway.gate, &config.admission, &parts.headers, tenant)?;
        let (admission, request_headers) = (&config.admission, &parts.headers);
        let entry = Entry { early, budget: ttft_budget };
        let permit =
            permit::admit(&gateway.gate, admission, request_headers, tenant, &intake.request, entry, &[])
                .await;
        let permit = queue.end(permit).map_err(|refusal| intake.request.stored.explain(refusal))?;
        if let (RequestBody::Buffered(body), Some(source)) =
            (&intake.body, intake.request.prompt_source(api, &gateway.reader.alignments))
        {
            gateway.forwarding.observers.prefixes.observe(body, source, received);
        }
        gateway.forwarding.retries.earn(received);
        headers::towards_worker(&mut parts.headers, api, config.forwarded);
        if intake.request.cached_tokens == CachedTokens::Hidden || intake.request.stored.named.is_some() {
            // The gateway reads the answer.
            parts.headers.remove(header::ACCEPT_ENCODING);
        }
        headers::set_credentials(&mut parts.headers, &config, tenant);
        Ok(Box::new(Dispatch {
            forwarding: Arc::clone(&gateway.forwarding),
            config,
            api,
            method: parts.method,
            uri: parts.uri,
            headers: parts.headers,
            request_id: request_id.clone(),
            intake,
            received,
            deadline,
            drain,
            ttft_budget,
            requested_worker,
            failed_workers: Vec::new(),
            has_waited: false,
            attempts_used: 0,
            attempts_sent: 0,
            suspects: Vec::new(),
            fallback: None,
            permit,
            log,
        }))
    }

    /// Sends the request to a worker, and to another one if that fails, until a response starts.
    pub(crate) async fn run(mut self: Box<Self>) -> Result<Response<ResponseBody>, GatewayError> {
        loop {
            let decision = match self.route().and_then(|decision| self.spend_retry(decision)) {
                Ok(decision) => decision,
                Err(refusal) if self.may_wait(&refusal) => match self.requeue().await {
                    Ok(()) => continue,
                    Err(refusal) => return self.give_up(refusal),
                },
                Err(refusal) => return self.give_up(refusal),
            };
            let (attempt, upstream) = self.begin_attempt(decision)?;
            match self.try_worker(&upstream, &attempt.decision.worker).await {
                Ok(started) => {
                    if let Some((head, relay)) = self.accept_or_retry(attempt, upstream, started).await {
                        return Ok(self.into_response(head, relay));
                    }
                }
                // The dropped attempt counts as cancelled by the client.
                Err(error) => match self.intake.body.client_failure() {
                    Some(failure) => return Err(failure),
                    None => self.record_failure(attempt, &error),
                },
            }
            if !self.has_attempts_left() {
                return self.give_up(GatewayError::NotReady);
            }
        }
    }

    /// Begins an attempt at the chosen worker.
    fn begin_attempt(&mut self, decision: Box<Decision>) -> Result<(Attempt, Arc<Upstream>), GatewayError> {
        self.permit.iter_mut().for_each(Permit::mark_routed);
        let (request, drain, log) = (&self.intake.request, &self.drain, &self.log);
        let request_id = Some(&self.request_id);
        let mut attempt =
            Attempt::new(&self.forwarding, request, decision, self.received, request_id, drain, log);
        attempt.set_ttft_due(self.ttft_budget.map(|budget| budget.due));
        attempt.span.inject(&mut self.headers);
        let upstream = self.forwarding.upstreams.get_or_create(&attempt.decision.worker);
        let upstream = upstream.map_err(|bad| GatewayError::WorkerFailed(bad.to_string()))?;
        Ok((attempt, upstream))
    }

    /// Whether to wait for a worker instead of refusing the request. A worker that vanished between admission and routing
    /// is waited for, and a paused one once.
    fn may_wait(&mut self, refusal: &GatewayError) -> bool {
        let waits_for_workers = self.config.admission.waits_for_workers() && self.failed_workers.is_empty();
        match refusal {
            GatewayError::WorkersFull => self.permit.is_some(),
            GatewayError::NotReady if waits_for_workers && self.permit.is_some() => {
                !std::mem::replace(&mut self.has_waited, true) || self.has_no_worker()
            }
            _ => false,
        }
    }

    /// Whether no worker that the request may use is ready.
    fn has_no_worker(&self) -> bool {
        let request = &self.intake.request;
        let vacancy = |avoid: Vec<WorkerId>| {
            self.forwarding.router.inspect().vacancy(request.model.as_deref(), request.usable(&avoid))
        };
        self.excluded_workers().is_ok_and(|avoid| vacancy(avoid) == Vacancy::NoWorker)
    }

    /// Waits for a worker with room, after all usable workers turned out to be full or gone.
    async fn requeue(&mut self) -> Result<(), GatewayError> {
        let (request, avoid) = (Arc::clone(&self.intake.request), self.excluded_workers()?);
        let Some(permit) = &mut self.permit else { return Ok(()) };
        let queue = self.log.begin_queue();
        let admitted = permit.requeue(&request, avoid).await;
        queue.end(admitted.map(Some)).map(|_| ())
    }

    /// Whether the request may be sent to another worker after the failed ones.
    fn has_attempts_left(&self) -> bool {
        let is_in_time = self.deadline.is_none_or(|deadline| Instant::now() < deadline);
        let has_attempts = self.attempts_used <= self.config.retries_max;
        has_attempts && is_in_time && self.intake.body.can_resend()
    }

    /// Whether the request may be retried if the current worker rejects it, and the retry budget allows that.
    fn may_retry(&self) -> bool {
        let has_attempts = self.attempts_used < self.config.retries_max;
        let is_possible = has_attempts && self.intake.body.can_resend();
        let is_allowed = is_possible && self.forwarding.retries.has_room(self.forwarding.clock.now());
        if is_possible && !is_allowed {
            self.forwarding.observers.metrics.count_denied_retry();
        }
        is_allowed
    }

    /// Takes a retry from the budget that all requests share. First attempts are free, and so are attempts after failed
    /// connects.
    fn spend_retry(&self, decision: Box<Decision>) -> Result<Box<Decision>, GatewayError> {
        if self.attempts_sent > 0 && self.forwarding.retries.spend(self.forwarding.clock.now()).is_err() {
            self.forwarding.observers.metrics.count_denied_retry();
            return Err(GatewayError::NotReady);
        }
        if !self.failed_workers.is_empty() {
            self.forwarding.observers.metrics.count_retry();
        }
        Ok(decision)
    }

    /// Ends the request without a further attempt. The client gets the best response of the earlier attempts, if any.
    fn give_up(mut self: Box<Self>, refusal: GatewayError) -> Result<Response<ResponseBody>, GatewayError> {
        self.permit.iter_mut().for_each(Permit::refund);
        // Only requests that reached a worker count in the duration histogram.
        let Some(fallback) = self.fallback.take() else {
            return Err(self.intake.request.stored.explain(refusal));
        };
        let Forwarding { clock, observers, .. } = &*self.forwarding;
        observers.metrics.observe_request_end(clock.now().since(self.received));
        fallback.into_result()
    }

    /// Passes a response on. Returns `None` if the request should be retried on another worker.
    async fn accept_or_retry(
        &mut self,
        mut attempt: Attempt,
        upstream: Arc<Upstream>,
        mut started: StartedResponse,
    ) -> Option<(http::response::Parts, Relay)> {
        attempt.span.set_status(started.head.status().as_u16());
        let class = StatusClass::of(started.head.status(), started.head.headers());
        if let StatusClass::Backpressure { pause } = class {
            attempt.back_off(pause);
        }
        if matches!(class, StatusClass::Normal | StatusClass::ServerError) || !self.may_retry() {
            return Some(self.respond(attempt, upstream, started, class));
        }
        let body = match read_rejection(&mut started.response, started.first).await {
            Ok(body) => body,
            Err(error) => {
                self.record_failure(attempt, &error);
                return None;
            }
        };
        let worker = Arc::clone(&attempt.decision.worker);
        let status = started.head.status().as_u16();
        let head = self.client_head(started.head, &attempt.decision);
        self.set_fallback(FallbackResponse::Rejection(Response::from_parts(head, body)));
        self.log_worker_error(&attempt, status, "worker rejected the request; trying another");
        attempt.reject(class);
        started.response.reclaim_connection().into_iter().for_each(|connection| upstream.keep(connection));
        self.failed_workers.push(worker.id);
        (self.attempts_used, self.attempts_sent) = (self.attempts_used + 1, self.attempts_sent + 1);
        if class == StatusClass::WorkerFailure {
            self.suspect(worker);
        }
        None
    }

    /// Logs a response with which a worker refuses or fails the request.
    fn log_worker_error(&self, attempt: &Attempt, status: u16, what: &'static str) {
        if let Some(left_out) = self.forwarding.observers.worker_errors.take(self.forwarding.clock.now()) {
            let (request, worker) = (attempt.request_id(), &attempt.decision.worker.label);
            tracing::info!(request, %worker, status, left_out, "{what}");
        }
    }

    fn set_fallback(&mut self, newer: FallbackResponse) {
        match &mut self.fallback {
            Some(fallback) => fallback.update(newer),
            none => *none = Some(newer),
        }
    }

    fn route(&self) -> Result<Box<Decision>, GatewayError> {
        let excluded = self.excluded_workers()?;
        let request_id = Some(&self.request_id);
        let decision = routing::route(&self.forwarding, &self.intake.request, &excluded, request_id)?;
        if let Some(budget) = self.ttft_budget {
            let expected_ttft = routing::expected_ttft_of(&decision);
            // A refused decision is dropped, and its booking with it.
            let cached_tokens = self.intake.request.cached_tokens;
            ttft_budget::check(budget, expected_ttft, self.forwarding.clock.now(), cached_tokens)?;
            self.forwarding.gate.typical_ttft.learn(expected_ttft.total());
        }
        Ok(decision)
    }

    /// Workers that failed; if the client requests one worker, also all other workers.
    fn excluded_workers(&self) -> Result<Vec<WorkerId>, GatewayError> {
        let mut excluded = match &self.requested_worker {
            Some(requested) => routing::all_but(&self.forwarding.router, requested)?,
            None => Vec::new(),
        };
        excluded.extend_from_slice(&self.failed_workers);
        Ok(excluded)
    }

    /// Sends the request to one worker and waits for the first chunk of its response, within all time limits.
    async fn try_worker(
        &mut self,
        upstream: &Upstream,
        worker: &Worker,
    ) -> Result<StartedResponse, UpstreamError> {
        let forwarding = Arc::clone(&self.forwarding);
        let (deadline, wait) = (self.deadline, self.first_byte_wait(worker));
        // The future takes kilobytes. Boxed, it is not copied into the futures that await it.
        let mut sending = Box::pin(self.send_once(upstream));
        loop {
            let until = earlier(wait.next_check(), deadline);
            if let Ok(started) = timeout_at(until, sending.as_mut()).await {
                return started;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(UpstreamError::RequestTimeout);
            }
            wait.check(&forwarding)?;
        }
    }

    fn first_byte_wait(&self, worker: &Worker) -> FirstByteWait {
        let upload = self.intake.body.upload_status();
        let has_attempts = self.attempts_used < self.config.retries_max;
        let avoid = (has_attempts && upload.is_none()).then(|| self.failed_workers.clone());
        let began = upload.map_or(Began::At(Instant::now()), |status| Began::WithUpload(Arc::clone(status)));
        let limit = (began, self.config.timeouts.first_byte);
        FirstByteWait::new(Arc::clone(&self.intake.request), worker.id, limit, avoid)
    }

    async fn send_once(&mut self, upstream: &Upstream) -> Result<StartedResponse, UpstreamError> {
        // An upload can be sent only once, and what a worker stores has no other worker. They do not risk a reused
        // connection that the worker may have closed.
        let risks_none = self.intake.body.is_upload() || self.intake.request.stored.worker.is_some();
        let reused = if risks_none { None } else { upstream.reuse() };
        if let Some(reused) = reused {
            let (sent, body) = (Instant::now(), self.intake.body.take().ok_or(UpstreamError::Closed)?);
            match reused.send(self.request(upstream, body)).await {
                Ok(response) => {
                    upstream.mark_keeps_open();
                    return read_first_chunk(response).await;
                }
                Err(UpstreamError::Closed | UpstreamError::Io(_)) if sent.elapsed() < STALE_WITHIN => {}
                Err(error) => return Err(error),
            }
        }
        let fresh = upstream.connect(self.config.timeouts.connect).await?;
        // Without a connection, an upload can still go to another worker.
        let body = self.intake.body.take().ok_or(UpstreamError::Closed)?;
        read_first_chunk(fresh.send(self.request(upstream, body)).await?).await
    }

    fn request<'a>(&'a self, upstream: &'a Upstream, body: UpstreamBody) -> UpstreamRequest<'a> {
        UpstreamRequest {
            method: &self.method,
            uri: upstream.target.uri_for(&self.uri),
            host: &upstream.target.host_header,
            id: headers::worker_request_id(&self.request_id),
            rank: upstream.rank(),
            headers: &self.headers,
            body,
        }
    }

    /// Records a failed attempt.
    fn record_failure(&mut self, attempt: Attempt, error: &UpstreamError) {
        let worker = Arc::clone(&attempt.decision.worker);
        // As a string, what a worker said is quoted and cannot forge a log line.
        let (request, why) = (attempt.request_id(), error.to_string());
        match error.is_worker_fault() {
            true => {
                tracing::warn!(request, worker = %worker.label, error = why, "worker failed before the first byte")
            }
            false => {
                tracing::info!(request, worker = %worker.label, why, "request ended before the first byte")
            }
        }
        attempt.fail(error);
        self.failed_workers.push(worker.id);
        self.attempts_used += u32::from(!error.is_unreachable());
        self.attempts_sent += u32::from(error.is_after_connecting());
        if error.is_unreachable() {
            note_unreachable(&self.forwarding.router, self.forwarding.clock, &worker);
        } else if error.is_worker_fault() {
            self.suspect(worker);
        }
        self.set_fallback(FallbackResponse::Failure(GatewayError::before_first_byte(error)));
    }

    /// Notes that a worker failed on this request. Either may be at fault: the worker is blamed if another worker
    /// serves the request, or if it fails on other requests too.
    fn suspect(&mut self, worker: Arc<Worker>) {
        suspect_worker(
            &self.forwarding.router,
            self.forwarding.clock,
            &worker,
            self.intake.body.fingerprint(),
        );
        self.suspects.push(Suspect { worker, failed_at: self.forwarding.clock.now() });
    }

    fn client_head(&self, head: Response<()>, decision: &Decision) -> http::response::Parts {
        let (mut head, ()) = head.into_parts();
        head.version = Version::HTTP_11;
        headers::towards_client(&mut head.headers);
        let cached_tokens = self.intake.request.cached_tokens;
        if self.config.decision_headers == DecisionHeaders::On {
            headers::add_decision(&mut head.headers, decision, cached_tokens);
        }
        // The body gets another length where cached tokens are hidden, and in a stream: usage events are removed, error events added.
        if cached_tokens == CachedTokens::Hidden || Framing::of(&head.headers) == Framing::Events {
            head.headers.remove(header::CONTENT_LENGTH);
        }
        head
    }

    fn respond(
        &mut self,
        attempt: Attempt,
        upstream: Arc<Upstream>,
        started: StartedResponse,
        class: StatusClass,
    ) -> (http::response::Parts, Relay) {
        match class {
            StatusClass::Normal => {
                self.blame_suspects();
            }
            StatusClass::ServerError | StatusClass::WorkerFailure => {
                self.suspect(Arc::clone(&attempt.decision.worker))
            }
            StatusClass::Backpressure { .. } => {}
        }
        let status = started.head.status();
        if class != StatusClass::Normal || status.is_client_error() {
            self.log_worker_error(&attempt, status.as_u16(), "worker answered with an error");
        }
        let head = self.client_head(started.head, &attempt.decision);
        let mut params = RelayParams {
            api: self.api,
            framing: Framing::of(&head.headers),
            outcome: AttemptOutcome::of(head.status),
            status: head.status,
            class,
            usage_injected: self.intake.request.usage_injected,
            cached_tokens: self.intake.request.cached_tokens,
            fingerprint: None,
            deadline: self.deadline,
            timeouts: self.config.timeouts,
            drain: self.drain.clone(),
            is_continuable: false,
        };
        params.is_continuable = self.may_be_continued(&params);
        let relay = Relay::new(
            Arc::clone(&self.forwarding),
            upstream,
            attempt,
            started.response,
            started.first,
            params,
            self.permit.take(),
        );
        (head, relay)
    }

    /// The response. A stream that may have to be continued keeps the request.
    fn into_response(
        self: Box<Self>,
        head: http::response::Parts,
        mut relay: Relay,
    ) -> Response<ResponseBody> {
        if let Some(whole) = relay.take_whole() {
            return Response::from_parts(head, ResponseBody::whole(whole));
        }
        // Only a response that can still fail needs it, and it costs a pass over the body.
        relay.set_fingerprint(self.intake.body.fingerprint());
        if let (true, RequestBody::Buffered(body)) = (relay.is_guarded(), &self.intake.body) {
            let body = body.clone();
            relay.set_continuation(Continuation::new(self, body));
        }
        Response::from_parts(head, ResponseBody::relay(relay))
    }

    /// Blames the workers that failed a request which another one serves.
    fn blame_suspects(&mut self) {
        let suspects = std::mem::take(&mut self.suspects);
        let router = &self.forwarding.router;
        suspects.iter().for_each(|suspect| blame_worker(router, &suspect.worker, suspect.failed_at));
    }
}

impl Drop for Dispatch {
    /// Releases the body's memory, then the permit. The permit admits the next request, which must find everything else
    /// released. The current attempt is a local of [`Dispatch::run`] and ends before `self`; a response that has
    /// started owns its attempt and the permit, see `relay`.
    fn drop(&mut self) {
        self.intake.release_body();
        drop(self.permit.take());
    }
}
