//! The middle phases: route, send, and try another worker while nothing has reached the client.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use warmroute_fleet::Worker;
use warmroute_prompt::Api;
use warmroute_router::{Decision, Scratch};
use warmroute_types::{Micros, WorkerId};

use crate::gateway::Gateway;
use crate::intake::{self, Intake};
use crate::metrics::Ending;
use crate::outgoing::Outgoing;
use crate::random::random;
use crate::refusal::Refusal;
use crate::relay::{Framing, Relay, Shape};
use crate::reply::Reply;
use crate::trip::{Trip, blame};
use crate::upstream::{Answer, Fault, Upstream};
use crate::{DecisionHeaders, headers};

/// A kept connection that breaks this soon, without a word, had been closed by the worker before the request reached it:
/// the request may go to the same worker again. After this long the worker may have begun to work, and it may not.
const STALE_WITHIN: Duration = Duration::from_millis(20);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// One request on its way to a worker.
struct Exchange {
    gateway: Arc<Gateway>,
    api: Api,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    intake: Intake,
    received: Micros,
    failed: Vec<WorkerId>,
    /// Workers that took the request and broke off. They are blamed once another one has shown that it can be served: a
    /// request that breaks every worker must not take the fleet out of service.
    suspects: Vec<Arc<Worker>>,
}

/// A worker's answer, up to its first chunk.
struct Begun {
    head: Response<()>,
    answer: Answer,
    first: Option<bytes::Bytes>,
}

/// Takes a request all the way: reads it, sends it to a worker, returns the worker's answer.
pub(crate) async fn forward(
    gateway: &Arc<Gateway>,
    api: Api,
    request: Request<Incoming>,
    request_id: &HeaderValue,
) -> Result<Response<Reply>, Refusal> {
    let received = gateway.now();
    let (mut parts, body) = request.into_parts();
    let intake = intake::receive(&parts.method, api, &parts.headers, body, gateway).await?;
    headers::towards_worker(&mut parts.headers, api, request_id);
    let exchange = Exchange {
        gateway: Arc::clone(gateway),
        api,
        method: parts.method,
        uri: parts.uri,
        headers: parts.headers,
        intake,
        received,
        failed: Vec::new(),
        suspects: Vec::new(),
    };
    let answered = exchange.run().await;
    // Refused before any worker saw it, a request has taken no time worth a histogram; failed, it has.
    if matches!(answered, Err(Refusal::WorkerFailed(_))) {
        gateway.metrics.ended(gateway.now().since(received));
    }
    answered
}

impl Exchange {
    async fn run(mut self) -> Result<Response<Reply>, Refusal> {
        let mut last_fault = None;
        loop {
            // Nobody is left to try: then the last one's failure is what there is to say.
            let decision = self.route().map_err(|refusal| last_fault.take().unwrap_or(refusal))?;
            if last_fault.is_some() {
                self.gateway.metrics.retried();
            }
            let request_id = self.headers.get(headers::REQUEST_ID);
            let trip = Trip::new(&self.gateway, &self.intake.asked, decision, self.received, request_id);
            let upstream = self.gateway.upstreams.of(&trip.decision.worker);
            let upstream = upstream.map_err(|bad| Refusal::WorkerFailed(bad.to_string()))?;
            match self.attempt(&upstream).await {
                Ok(begun) => return Ok(self.respond(trip, upstream, begun)),
                // Dropping the trip counts it as cancelled, which it was.
                Err(_) if self.intake.body.client_broke_off() => return Err(Refusal::BrokenBody),
                Err(fault) => last_fault = Some(self.note_failure(trip, &fault)?),
            }
        }
    }

    fn route(&self) -> Result<Decision, Refusal> {
        let texts = self.intake.asked.texts();
        let ask = self.intake.asked.request(&texts, &self.failed);
        let (now, random) = (self.gateway.now(), random());
        let decision =
            SCRATCH.with_borrow_mut(|scratch| self.gateway.router.route(&ask, scratch, now, random));
        let decision = decision.map_err(|why| Refusal::no_route(&why, ask.model))?;
        self.gateway.metrics.decided(decision.policy, decision.reason);
        tracing::debug!(
            request = ?self.headers.get(headers::REQUEST_ID), worker = %decision.worker.label,
            policy = decision.policy, reason = decision.reason, view = %decision.view,
            query_tokens = decision.prompt_tokens, matched_tokens = decision.cached_tokens,
            longest_match_tokens = decision.longest_match, "routed",
        );
        Ok(decision)
    }

    /// One try at one worker, up to the first chunk of its answer.
    async fn attempt(&mut self, upstream: &Upstream) -> Result<Begun, Fault> {
        let body = self.intake.body.take().ok_or(Fault::Closed)?;
        let request = self.request(upstream, body);
        // An upload cannot be taken back once it is under way, so it is not risked on a kept connection.
        let kept = if self.intake.body.is_upload() { None } else { upstream.reuse() };
        let Some(kept) = kept else { return begin(upstream.connect().await?.send(request).await?).await };
        let sent = Instant::now();
        match kept.send(request).await {
            Ok(answer) => begin(answer).await,
            Err(Fault::NotSent(request)) => begin(upstream.connect().await?.send(*request).await?).await,
            Err(_) if sent.elapsed() < STALE_WITHIN => {
                let body = self.intake.body.take().ok_or(Fault::Closed)?;
                let request = self.request(upstream, body);
                begin(upstream.connect().await?.send(request).await?).await
            }
            Err(fault) => Err(fault),
        }
    }

    fn request(&self, upstream: &Upstream, body: Outgoing) -> Request<Outgoing> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = upstream.target.uri_for(&self.uri);
        // The last try could take the headers instead of cloning them, but which try is the last is known too late.
        *request.headers_mut() = self.headers.clone();
        headers::address_to(request.headers_mut(), &upstream.target.host_header, upstream.rank());
        request
    }

    /// Counts the failure. Returns what to say should nobody else be left; an error when no more tries are.
    fn note_failure(&mut self, trip: Trip, fault: &Fault) -> Result<Refusal, Refusal> {
        let worker = Arc::clone(&trip.decision.worker);
        tracing::warn!(worker = %worker.label, %fault, "worker failed before its first byte");
        trip.fail();
        self.failed.push(worker.id);
        if fault.is_certain() {
            blame(&self.gateway, &worker);
        } else {
            self.suspects.push(worker);
        }
        let refusal = Refusal::WorkerFailed(fault.to_string());
        let tries_left = self.failed.len() <= self.gateway.config.retries_max as usize;
        if tries_left && self.intake.body.is_left() { Ok(refusal) } else { Err(refusal) }
    }

    fn respond(self, trip: Trip, upstream: Arc<Upstream>, begun: Begun) -> Response<Reply> {
        self.suspects.iter().for_each(|worker| blame(&self.gateway, worker));
        let (mut head, ()) = begun.head.into_parts();
        head.version = Version::HTTP_11;
        headers::towards_client(&mut head.headers);
        if self.gateway.config.decision_headers == DecisionHeaders::On {
            headers::describe(&mut head.headers, &trip.decision);
        }
        let shape = Shape {
            api: self.api,
            framing: framing_of(&head.headers),
            ending: Ending::of(head.status),
            usage_is_ours: self.intake.asked.usage_is_ours,
        };
        let mut relay = Relay::new(self.gateway, upstream, trip, begun.answer, begun.first, shape);
        match relay.take_whole() {
            Some(whole) => Response::from_parts(head, Reply::whole(whole)),
            None => Response::from_parts(head, Reply::Relay(Box::new(relay))),
        }
    }
}

/// Waits for the first chunk: some servers send their head before they begin to work.
async fn begin((head, mut answer): (Response<()>, Answer)) -> Result<Begun, Fault> {
    if head.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Fault::Upgrade);
    }
    let first = answer.chunk().await.transpose()?;
    Ok(Begun { head, answer, first })
}

fn framing_of(headers: &HeaderMap) -> Framing {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if kind.starts_with(b"text/event-stream") { Framing::Events } else { Framing::Document }
}
