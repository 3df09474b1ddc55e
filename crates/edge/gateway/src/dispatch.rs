//! The middle phases: route, send, and try another worker while nothing has reached the client.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};
use warmroute_fleet::Worker;
use warmroute_prompt::Api;
use warmroute_router::{Decision, Scratch};
use warmroute_types::{Micros, WorkerId};

use crate::admission_gate::{self, Permit};
use crate::attempt::{Attempt, blame_worker, suspect_worker};
use crate::drain::Drain;
use crate::fallback_response::{FallbackResponse, read_rejection};
use crate::first_byte_wait::FirstByteWait;
use crate::gateway::Gateway;
use crate::idle_timeout::earlier;
use crate::intake::{self, Intake};
use crate::keys::Tenant;
use crate::metrics::AttemptOutcome;
use crate::random::random;
use crate::refusal::Refusal;
use crate::relay::{EndMarker, Framing, Relay, RelayParams};
use crate::response_body::ResponseBody;
use crate::status_class::StatusClass;
use crate::upstream::{Upstream, UpstreamError, UpstreamResponse};
use crate::upstream_body::UpstreamBody;
use crate::write_stall::ResponseDeadline;
use crate::{Config, DecisionHeaders, headers};

/// A kept connection that breaks this soon, without a word, had been closed by the worker before the request reached it:
/// the request may go to the same worker again. After this long the worker may have started to work, and it may not.
const STALE_WITHIN: Duration = Duration::from_millis(20);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// One request on its way to a worker.
struct Dispatch {
    gateway: Arc<Gateway>,
    /// As it was when the request came.
    config: Arc<Config>,
    api: Api,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    intake: Intake,
    received: Micros,
    /// When it must be over, if ever.
    deadline: Option<Instant>,
    /// Tells whether everything is ended.
    drain: Drain,
    /// The worker that the client wants, where it may say so.
    requested_worker: Option<String>,
    failed_workers: Vec<WorkerId>,
    /// How many of them it may have reached.
    workers_reached: u32,
    /// Workers that took the request and broke off. They are blamed once another one has shown that it can be served: a
    /// request that breaks every worker must not take the fleet out of service. Rows of such requests are looked at elsewhere.
    suspects: Vec<Arc<Worker>>,
    /// What to say should nobody else be left.
    fallback: Option<FallbackResponse>,
    /// What lets it be here, where that is limited. Last, so that whoever is let in next finds everything else given back.
    permit: Option<Permit>,
}

/// A worker's answer, up to its first chunk.
struct StartedResponse {
    head: Response<()>,
    answer: UpstreamResponse,
    first: Option<bytes::Bytes>,
}

/// Takes a request all the way: reads it, sends it to a worker, returns the worker's answer.
pub(crate) async fn forward(
    gateway: &Arc<Gateway>,
    api: Api,
    request: Request<Incoming>,
    tenant: Option<&Tenant>,
    request_id: &HeaderValue,
) -> Result<Response<ResponseBody>, Refusal> {
    let received = gateway.now();
    let config = gateway.config();
    let deadline = config.timeouts.total.map(|total| Instant::now() + total);
    let (mut parts, body) = request.into_parts();
    if let Some(response_deadline) = parts.extensions.get::<ResponseDeadline>() {
        response_deadline.set(deadline);
    }
    let drain = parts.extensions.remove::<Drain>().unwrap_or_default();
    let intake = intake::receive(&parts.method, api, &parts.headers, body, gateway, &config).await?;
    let requested_worker = headers::requested_worker(&parts.headers, config.worker_choice);
    let permit =
        admission_gate::admit(gateway, &config.admission, &parts.headers, tenant, &intake.request).await?;
    gateway.retries.earn(received);
    headers::towards_worker(&mut parts.headers, api, request_id, config.forwarded);
    headers::set_credentials(&mut parts.headers, &config, tenant);
    let exchange = Dispatch {
        gateway: Arc::clone(gateway),
        config,
        api,
        method: parts.method,
        uri: parts.uri,
        headers: parts.headers,
        intake,
        received,
        deadline,
        drain,
        requested_worker,
        failed_workers: Vec::new(),
        workers_reached: 0,
        suspects: Vec::new(),
        fallback: None,
        permit,
    };
    exchange.run().await
}

impl Dispatch {
    async fn run(mut self) -> Result<Response<ResponseBody>, Refusal> {
        loop {
            let decision = match self.route().and_then(|decision| self.check_retry_budget(decision)) {
                Ok(decision) => decision,
                Err(Refusal::WorkersFull) if self.permit.is_some() => match self.requeue().await {
                    Ok(()) => continue,
                    Err(refusal) => return self.give_up(refusal),
                },
                Err(refusal) => return self.give_up(refusal),
            };
            self.permit.iter_mut().for_each(Permit::mark_routed);
            let request_id = self.headers.get(headers::REQUEST_ID);
            let (request, drain) = (&self.intake.request, &self.drain);
            let attempt = Attempt::new(&self.gateway, request, decision, self.received, request_id, drain);
            let upstream = self.gateway.upstreams.get_or_create(&attempt.decision.worker);
            let upstream = upstream.map_err(|bad| Refusal::WorkerFailed(bad.to_string()))?;
            match self.try_worker(&upstream, &attempt.decision.worker).await {
                Ok(started) => {
                    if let Some(response) = self.accept_or_retry(attempt, upstream, started).await {
                        return Ok(response);
                    }
                }
                // Dropping the attempt counts it as cancelled, which it was.
                Err(_) if self.intake.body.client_failed() => return Err(Refusal::BrokenBody),
                Err(error) => self.record_failure(attempt, &error),
            }
            if !self.has_attempts_left() {
                return self.give_up(Refusal::NotReady);
            }
        }
    }

    /// It was let in, and found every worker full that it may go to.
    async fn requeue(&mut self) -> Result<(), Refusal> {
        let (request, avoid) = (Arc::clone(&self.intake.request), self.excluded_workers()?);
        match &mut self.permit {
            Some(permit) => permit.requeue(&request, avoid).await,
            None => Ok(()),
        }
    }

    /// Whether the request may be sent to another worker after this one.
    fn has_attempts_left(&self) -> bool {
        let is_in_time = self.deadline.is_none_or(|deadline| Instant::now() < deadline);
        let has_attempts = self.failed_workers.len() <= self.config.retries_max as usize;
        has_attempts && is_in_time && self.intake.body.can_resend()
    }

    /// The same before the worker at hand is counted, and as far as the budget goes.
    fn may_retry(&self) -> bool {
        let has_attempts = self.failed_workers.len() < self.config.retries_max as usize;
        let is_possible = has_attempts && self.intake.body.can_resend();
        let is_allowed = is_possible && self.gateway.retries.has_room(self.gateway.now());
        if is_possible && !is_allowed {
            self.gateway.metrics.count_denied_retry();
        }
        is_allowed
    }

    /// The first try is free; another one must be within the budget that all requests share. So is one after a connection that
    /// could not be made: nothing was sent, so nothing is sent again.
    fn check_retry_budget(&self, decision: Decision) -> Result<Decision, Refusal> {
        if self.workers_reached > 0 && self.gateway.retries.spend(self.gateway.now()).is_err() {
            self.gateway.metrics.count_denied_retry();
            return Err(Refusal::NotReady);
        }
        if !self.failed_workers.is_empty() {
            self.gateway.metrics.count_retry();
        }
        Ok(decision)
    }

    /// No worker is left to try: what the last one said is what there is to say, if there was one.
    fn give_up(mut self, refusal: Refusal) -> Result<Response<ResponseBody>, Refusal> {
        self.permit.iter_mut().for_each(Permit::refund);
        // Refused before any worker saw it, a request has taken no time worth a histogram; failed, it has.
        let Some(fallback) = self.fallback else { return Err(refusal) };
        self.gateway.metrics.observe_request_end(self.gateway.now().since(self.received));
        fallback.into_result()
    }

    /// Passes an answer on; `None` where it says that another worker should be asked.
    async fn accept_or_retry(
        &mut self,
        attempt: Attempt,
        upstream: Arc<Upstream>,
        mut started: StartedResponse,
    ) -> Option<Response<ResponseBody>> {
        let class = StatusClass::of(started.head.status(), started.head.headers());
        if let StatusClass::Backpressure { pause } = class {
            attempt.back_off(pause);
        }
        if matches!(class, StatusClass::Answered | StatusClass::ServerError) || !self.may_retry() {
            return Some(self.respond(attempt, upstream, started, class));
        }
        let body = match read_rejection(&mut started.answer, started.first).await {
            Ok(body) => body,
            Err(error) => {
                self.record_failure(attempt, &error);
                return None;
            }
        };
        let worker = Arc::clone(&attempt.decision.worker);
        let head = self.client_head(started.head, &attempt.decision);
        self.set_fallback(FallbackResponse::Rejection(Response::from_parts(head, body)));
        tracing::debug!(worker = %worker.label, ?class, "turned away; another worker is started");
        attempt.reject(class);
        started.answer.reclaim_connection().into_iter().for_each(|connection| upstream.keep(connection));
        self.failed_workers.push(worker.id);
        self.workers_reached += 1;
        if class == StatusClass::WorkerFailure {
            self.suspect(worker);
        }
        None
    }

    fn set_fallback(&mut self, newer: FallbackResponse) {
        match &mut self.fallback {
            Some(fallback) => fallback.update(newer),
            none => *none = Some(newer),
        }
    }

    fn route(&self) -> Result<Decision, Refusal> {
        let texts = self.intake.request.texts();
        let avoid = self.excluded_workers()?;
        let ask = self.intake.request.routing_request(&texts, &avoid);
        let (now, random) = (self.gateway.now(), random());
        let decision =
            SCRATCH.with_borrow_mut(|scratch| self.gateway.router.route(&ask, scratch, now, random));
        let decision = decision.map_err(|why| Refusal::no_route(&why, ask.model))?;
        self.gateway.notify_peers();
        self.gateway.metrics.count_decision(decision.policy, decision.reason);
        tracing::debug!(
            request = ?self.headers.get(headers::REQUEST_ID), worker = %decision.worker.label,
            policy = decision.policy, reason = decision.reason, view = %decision.view,
            query_tokens = decision.prompt_tokens, matched_tokens = decision.cached_tokens,
            longest_match_tokens = decision.longest_match, "routed",
        );
        Ok(decision)
    }

    /// Whoever failed, and where one was requested_worker, everybody else.
    fn excluded_workers(&self) -> Result<Vec<WorkerId>, Refusal> {
        let Some(requested_worker) = &self.requested_worker else { return Ok(self.failed_workers.clone()) };
        let workers = self.gateway.router.workers();
        let others =
            workers.iter().filter(|view| *view.worker.label != **requested_worker).map(|view| view.worker.id);
        let others: Vec<WorkerId> = others.collect();
        if others.len() == workers.len() {
            return Err(Refusal::UnknownWorker(requested_worker.clone()));
        }
        Ok(others.into_iter().chain(self.failed_workers.iter().copied()).collect())
    }

    /// One try at one worker, up to the first chunk of its answer, for as long as that may take.
    async fn try_worker(
        &mut self,
        upstream: &Upstream,
        worker: &Worker,
    ) -> Result<StartedResponse, UpstreamError> {
        let gateway = Arc::clone(&self.gateway);
        let (deadline, wait) = (self.deadline, self.first_byte_wait(worker));
        // Kilobytes of it, which would be copied as a part of all that waits for it.
        let mut sending = Box::pin(self.send_once(upstream));
        loop {
            let until = earlier(wait.next_check(), deadline);
            if let Ok(started) = timeout_at(until, sending.as_mut()).await {
                return started;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(UpstreamError::RequestTimeout);
            }
            wait.check(&gateway)?;
        }
    }

    fn first_byte_wait(&self, worker: &Worker) -> FirstByteWait {
        let is_upload = self.intake.body.is_upload();
        let first_byte = (!is_upload).then_some(self.config.timeouts.first_byte);
        let has_attempts = self.failed_workers.len() < self.config.retries_max as usize;
        let avoid = (has_attempts && !is_upload).then(|| self.failed_workers.clone());
        FirstByteWait::new(Arc::clone(&self.intake.request), worker.id, first_byte, avoid)
    }

    async fn send_once(&mut self, upstream: &Upstream) -> Result<StartedResponse, UpstreamError> {
        let body = self.intake.body.take().ok_or(UpstreamError::Closed)?;
        let mut request = self.request(upstream, body);
        // An upload cannot be taken back once it is under way, so it is not risked on a kept connection.
        let kept = if self.intake.body.is_upload() { None } else { upstream.reuse() };
        if let Some(kept) = kept {
            let sent = Instant::now();
            request = match kept.send(request).await {
                Ok(answer) => return read_first_chunk(answer).await,
                Err(UpstreamError::NotSent(request)) => *request,
                Err(_) if sent.elapsed() < STALE_WITHIN => {
                    let body = self.intake.body.take().ok_or(UpstreamError::Closed)?;
                    self.request(upstream, body)
                }
                Err(error) => return Err(error),
            };
        }
        let fresh = upstream.connect(self.config.timeouts.connect).await?;
        read_first_chunk(fresh.send(request).await?).await
    }

    fn request(&self, upstream: &Upstream, body: UpstreamBody) -> Request<UpstreamBody> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = upstream.target.uri_for(&self.uri);
        // The last try could take the headers instead of cloning them, but which try is the last is known too late.
        *request.headers_mut() = self.headers.clone();
        headers::address_to(request.headers_mut(), &upstream.target.host_header, upstream.rank());
        request
    }

    /// Counts a failure.
    fn record_failure(&mut self, attempt: Attempt, error: &UpstreamError) {
        let worker = Arc::clone(&attempt.decision.worker);
        match error.is_worker_fault() {
            true => tracing::warn!(worker = %worker.label, %error, "worker failed before its first byte"),
            false => tracing::info!(worker = %worker.label, why = %error, "ended before its first byte"),
        }
        attempt.fail(error);
        self.failed_workers.push(worker.id);
        self.workers_reached += u32::from(!error.is_unreachable());
        if error.is_unreachable() {
            blame_worker(&self.gateway, &worker, error);
        } else if error.is_worker_fault() {
            self.suspect(worker);
        }
        self.set_fallback(FallbackResponse::Failure(Refusal::failed(error)));
    }

    /// It may have been the request's fault: that is known when another worker serves it, or when this one breaks others, too.
    fn suspect(&mut self, worker: Arc<Worker>) {
        suspect_worker(&self.gateway, &worker, self.intake.body.fingerprint());
        self.suspects.push(worker);
    }

    fn client_head(&self, head: Response<()>, decision: &Decision) -> http::response::Parts {
        let (mut head, ()) = head.into_parts();
        head.version = Version::HTTP_11;
        headers::towards_client(&mut head.headers);
        if self.config.decision_headers == DecisionHeaders::On {
            headers::add_decision(&mut head.headers, decision);
        }
        head
    }

    fn respond(
        &mut self,
        attempt: Attempt,
        upstream: Arc<Upstream>,
        started: StartedResponse,
        class: StatusClass,
    ) -> Response<ResponseBody> {
        match class {
            StatusClass::Answered => {
                self.suspects
                    .iter()
                    .for_each(|worker| blame_worker(&self.gateway, worker, &UpstreamError::Closed));
            }
            StatusClass::ServerError | StatusClass::WorkerFailure => {
                self.suspect(Arc::clone(&attempt.decision.worker))
            }
            StatusClass::Backpressure { .. } => {}
        }
        let end_marker = end_marker_of(started.head.headers());
        let head = self.client_head(started.head, &attempt.decision);
        let params = RelayParams {
            api: self.api,
            framing: framing_of(&head.headers),
            end_marker,
            outcome: AttemptOutcome::of(head.status),
            class,
            usage_injected: self.intake.request.usage_injected,
            fingerprint: self.intake.body.fingerprint(),
            deadline: self.deadline,
            timeouts: self.config.timeouts,
            drain: self.drain.clone(),
        };
        let mut relay = Relay::new(
            Arc::clone(&self.gateway),
            upstream,
            attempt,
            started.answer,
            started.first,
            params,
            self.permit.take(),
        );
        match relay.take_whole() {
            Some(whole) => Response::from_parts(head, ResponseBody::whole(whole)),
            None => Response::from_parts(head, ResponseBody::Relay(Box::new(relay))),
        }
    }
}

/// Waits for the first chunk: some servers send their head before they begin to work.
async fn read_first_chunk(
    (head, mut answer): (Response<()>, UpstreamResponse),
) -> Result<StartedResponse, UpstreamError> {
    if head.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(UpstreamError::Upgrade);
    }
    let first = answer.next_chunk().await.transpose()?;
    Ok(StartedResponse { head, answer, first })
}

fn framing_of(headers: &HeaderMap) -> Framing {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if kind.starts_with(b"text/event-stream") { Framing::Events } else { Framing::Document }
}

fn end_marker_of(headers: &HeaderMap) -> EndMarker {
    let is_framed =
        headers.contains_key(header::CONTENT_LENGTH) || headers.contains_key(header::TRANSFER_ENCODING);
    if is_framed { EndMarker::Framed } else { EndMarker::Closed }
}
