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

use crate::door::{self, Permit};
use crate::drain::Drain;
use crate::gateway::Gateway;
use crate::intake::{self, Intake};
use crate::keys::Tenant;
use crate::last_word::{LastWord, read_out};
use crate::metrics::Ending;
use crate::outgoing::Outgoing;
use crate::patience::sooner;
use crate::random::random;
use crate::refusal::Refusal;
use crate::relay::{End, Framing, Relay, Shape};
use crate::reply::Reply;
use crate::trip::{Trip, blame, suspect};
use crate::unread::Due;
use crate::upstream::{Answer, Fault, Upstream};
use crate::verdict::Verdict;
use crate::wait::Wait;
use crate::{Config, DecisionHeaders, headers};

/// A kept connection that breaks this soon, without a word, had been closed by the worker before the request reached it:
/// the request may go to the same worker again. After this long the worker may have begun to work, and it may not.
const STALE_WITHIN: Duration = Duration::from_millis(20);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// One request on its way to a worker.
struct Exchange {
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
    chosen: Option<String>,
    failed: Vec<WorkerId>,
    /// How many of them it may have reached.
    sent: u32,
    /// Workers that took the request and broke off. They are blamed once another one has shown that it can be served: a
    /// request that breaks every worker must not take the fleet out of service. Rows of such requests are looked at elsewhere.
    suspects: Vec<Arc<Worker>>,
    /// What to say should nobody else be left.
    last_word: Option<LastWord>,
    /// What lets it be here, where that is limited. Last, so that whoever is let in next finds everything else given back.
    permit: Option<Permit>,
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
    tenant: Option<&Tenant>,
    request_id: &HeaderValue,
) -> Result<Response<Reply>, Refusal> {
    let received = gateway.now();
    let config = gateway.config();
    let deadline = config.timeouts.total.map(|total| Instant::now() + total);
    let (mut parts, body) = request.into_parts();
    if let Some(due) = parts.extensions.get::<Due>() {
        due.set(deadline);
    }
    let drain = parts.extensions.remove::<Drain>().unwrap_or_default();
    let intake = intake::receive(&parts.method, api, &parts.headers, body, gateway, &config).await?;
    let chosen = headers::chosen_worker(&parts.headers, config.worker_choice);
    let permit = door::enter(gateway, &config.door, &parts.headers, tenant, &intake.asked).await?;
    gateway.retries.earn(received);
    headers::towards_worker(&mut parts.headers, api, request_id, config.forwarded);
    headers::show_credentials(&mut parts.headers, &config, tenant);
    let exchange = Exchange {
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
        chosen,
        failed: Vec::new(),
        sent: 0,
        suspects: Vec::new(),
        last_word: None,
        permit,
    };
    exchange.run().await
}

impl Exchange {
    async fn run(mut self) -> Result<Response<Reply>, Refusal> {
        loop {
            let decision = match self.route().and_then(|decision| self.allow(decision)) {
                Ok(decision) => decision,
                Err(Refusal::WorkersFull) if self.permit.is_some() => match self.wait_again().await {
                    Ok(()) => continue,
                    Err(refusal) => return self.give_up(refusal),
                },
                Err(refusal) => return self.give_up(refusal),
            };
            self.permit.iter_mut().for_each(Permit::routed);
            let request_id = self.headers.get(headers::REQUEST_ID);
            let (asked, drain) = (&self.intake.asked, &self.drain);
            let trip = Trip::new(&self.gateway, asked, decision, self.received, request_id, drain);
            let upstream = self.gateway.upstreams.of(&trip.decision.worker);
            let upstream = upstream.map_err(|bad| Refusal::WorkerFailed(bad.to_string()))?;
            match self.attempt(&upstream, &trip.decision.worker).await {
                Ok(begun) => {
                    if let Some(response) = self.take(trip, upstream, begun).await {
                        return Ok(response);
                    }
                }
                // Dropping the trip counts it as cancelled, which it was.
                Err(_) if self.intake.body.client_broke_off() => return Err(Refusal::BrokenBody),
                Err(fault) => self.note_failure(trip, &fault),
            }
            if !self.has_tries_left() {
                return self.give_up(Refusal::NotReady);
            }
        }
    }

    /// It was let in, and found every worker full that it may go to.
    async fn wait_again(&mut self) -> Result<(), Refusal> {
        let (asked, avoid) = (Arc::clone(&self.intake.asked), self.avoid()?);
        match &mut self.permit {
            Some(permit) => permit.wait_again(&asked, avoid).await,
            None => Ok(()),
        }
    }

    /// Whether the request may be sent to another worker after this one.
    fn has_tries_left(&self) -> bool {
        let is_in_time = self.deadline.is_none_or(|deadline| Instant::now() < deadline);
        let has_tries = self.failed.len() <= self.config.retries_max as usize;
        has_tries && is_in_time && self.intake.body.is_left()
    }

    /// The same before the worker at hand is counted, and as far as the budget goes.
    fn may_go_on(&self) -> bool {
        let has_tries = self.failed.len() < self.config.retries_max as usize;
        let is_possible = has_tries && self.intake.body.is_left();
        let is_allowed = is_possible && self.gateway.retries.has_room(self.gateway.now());
        if is_possible && !is_allowed {
            self.gateway.metrics.retry_denied();
        }
        is_allowed
    }

    /// The first try is free; another one must be within the budget that all requests share. So is one after a connection that
    /// could not be made: nothing was sent, so nothing is sent again.
    fn allow(&self, decision: Decision) -> Result<Decision, Refusal> {
        if self.sent > 0 && self.gateway.retries.spend(self.gateway.now()).is_err() {
            self.gateway.metrics.retry_denied();
            return Err(Refusal::NotReady);
        }
        if !self.failed.is_empty() {
            self.gateway.metrics.retried();
        }
        Ok(decision)
    }

    /// No worker is left to try: what the last one said is what there is to say, if there was one.
    fn give_up(mut self, refusal: Refusal) -> Result<Response<Reply>, Refusal> {
        self.permit.iter_mut().for_each(Permit::refund);
        // Refused before any worker saw it, a request has taken no time worth a histogram; failed, it has.
        let Some(word) = self.last_word else { return Err(refusal) };
        self.gateway.metrics.ended(self.gateway.now().since(self.received));
        word.speak()
    }

    /// Passes an answer on; `None` where it says that another worker should be asked.
    async fn take(
        &mut self,
        trip: Trip,
        upstream: Arc<Upstream>,
        mut begun: Begun,
    ) -> Option<Response<Reply>> {
        let verdict = Verdict::of(begun.head.status(), begun.head.headers());
        if let Verdict::Busy { rest } = verdict {
            trip.rest(rest);
        }
        if matches!(verdict, Verdict::Answer | Verdict::Error) || !self.may_go_on() {
            return Some(self.respond(trip, upstream, begun, verdict));
        }
        let body = match read_out(&mut begun.answer, begun.first).await {
            Ok(body) => body,
            Err(fault) => {
                self.note_failure(trip, &fault);
                return None;
            }
        };
        let worker = Arc::clone(&trip.decision.worker);
        let head = self.towards_client(begun.head, &trip.decision);
        self.say(LastWord::Answer(Response::from_parts(head, body)));
        tracing::debug!(worker = %worker.label, ?verdict, "turned away; another worker is tried");
        trip.turned_away(verdict);
        begun.answer.into_connection().into_iter().for_each(|connection| upstream.keep(connection));
        self.failed.push(worker.id);
        self.sent += 1;
        if verdict == Verdict::Fault {
            self.suspect(worker);
        }
        None
    }

    fn say(&mut self, word: LastWord) {
        match &mut self.last_word {
            Some(last) => last.replace(word),
            none => *none = Some(word),
        }
    }

    fn route(&self) -> Result<Decision, Refusal> {
        let texts = self.intake.asked.texts();
        let avoid = self.avoid()?;
        let ask = self.intake.asked.request(&texts, &avoid);
        let (now, random) = (self.gateway.now(), random());
        let decision =
            SCRATCH.with_borrow_mut(|scratch| self.gateway.router.route(&ask, scratch, now, random));
        let decision = decision.map_err(|why| Refusal::no_route(&why, ask.model))?;
        self.gateway.has_news();
        self.gateway.metrics.decided(decision.policy, decision.reason);
        tracing::debug!(
            request = ?self.headers.get(headers::REQUEST_ID), worker = %decision.worker.label,
            policy = decision.policy, reason = decision.reason, view = %decision.view,
            query_tokens = decision.prompt_tokens, matched_tokens = decision.cached_tokens,
            longest_match_tokens = decision.longest_match, "routed",
        );
        Ok(decision)
    }

    /// Whoever failed, and where one was chosen, everybody else.
    fn avoid(&self) -> Result<Vec<WorkerId>, Refusal> {
        let Some(chosen) = &self.chosen else { return Ok(self.failed.clone()) };
        let workers = self.gateway.router.workers();
        let others = workers.iter().filter(|view| *view.worker.label != **chosen).map(|view| view.worker.id);
        let others: Vec<WorkerId> = others.collect();
        if others.len() == workers.len() {
            return Err(Refusal::UnknownWorker(chosen.clone()));
        }
        Ok(others.into_iter().chain(self.failed.iter().copied()).collect())
    }

    /// One try at one worker, up to the first chunk of its answer, for as long as that may take.
    async fn attempt(&mut self, upstream: &Upstream, worker: &Worker) -> Result<Begun, Fault> {
        let gateway = Arc::clone(&self.gateway);
        let (deadline, wait) = (self.deadline, self.wait_for(worker));
        // Kilobytes of it, which would be copied as a part of all that waits for it.
        let mut trying = Box::pin(self.try_once(upstream));
        loop {
            let until = sooner(wait.next_look(), deadline);
            if let Ok(tried) = timeout_at(until, trying.as_mut()).await {
                return tried;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Fault::Overdue);
            }
            wait.look(&gateway)?;
        }
    }

    fn wait_for(&self, worker: &Worker) -> Wait {
        let is_upload = self.intake.body.is_upload();
        let first_byte = (!is_upload).then_some(self.config.timeouts.first_byte);
        let has_tries = self.failed.len() < self.config.retries_max as usize;
        let avoid = (has_tries && !is_upload).then(|| self.failed.clone());
        Wait::new(Arc::clone(&self.intake.asked), worker.id, first_byte, avoid)
    }

    async fn try_once(&mut self, upstream: &Upstream) -> Result<Begun, Fault> {
        let body = self.intake.body.take().ok_or(Fault::Closed)?;
        let mut request = self.request(upstream, body);
        // An upload cannot be taken back once it is under way, so it is not risked on a kept connection.
        let kept = if self.intake.body.is_upload() { None } else { upstream.reuse() };
        if let Some(kept) = kept {
            let sent = Instant::now();
            request = match kept.send(request).await {
                Ok(answer) => return begin(answer).await,
                Err(Fault::NotSent(request)) => *request,
                Err(_) if sent.elapsed() < STALE_WITHIN => {
                    let body = self.intake.body.take().ok_or(Fault::Closed)?;
                    self.request(upstream, body)
                }
                Err(fault) => return Err(fault),
            };
        }
        let fresh = upstream.connect(self.config.timeouts.connect).await?;
        begin(fresh.send(request).await?).await
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

    /// Counts a failure.
    fn note_failure(&mut self, trip: Trip, fault: &Fault) {
        let worker = Arc::clone(&trip.decision.worker);
        match fault.is_the_workers() {
            true => tracing::warn!(worker = %worker.label, %fault, "worker failed before its first byte"),
            false => tracing::info!(worker = %worker.label, why = %fault, "ended before its first byte"),
        }
        trip.fail(fault);
        self.failed.push(worker.id);
        self.sent += u32::from(!fault.is_unreachable());
        if fault.is_unreachable() {
            blame(&self.gateway, &worker, fault);
        } else if fault.is_the_workers() {
            self.suspect(worker);
        }
        self.say(LastWord::Failure(Refusal::failed(fault)));
    }

    /// It may have been the request's fault: that is known when another worker serves it, or when this one breaks others, too.
    fn suspect(&mut self, worker: Arc<Worker>) {
        suspect(&self.gateway, &worker, self.intake.body.fingerprint());
        self.suspects.push(worker);
    }

    fn towards_client(&self, head: Response<()>, decision: &Decision) -> http::response::Parts {
        let (mut head, ()) = head.into_parts();
        head.version = Version::HTTP_11;
        headers::towards_client(&mut head.headers);
        if self.config.decision_headers == DecisionHeaders::On {
            headers::describe(&mut head.headers, decision);
        }
        head
    }

    fn respond(
        &mut self,
        trip: Trip,
        upstream: Arc<Upstream>,
        begun: Begun,
        verdict: Verdict,
    ) -> Response<Reply> {
        match verdict {
            Verdict::Answer => {
                self.suspects.iter().for_each(|worker| blame(&self.gateway, worker, &Fault::Closed));
            }
            Verdict::Error | Verdict::Fault => self.suspect(Arc::clone(&trip.decision.worker)),
            Verdict::Busy { .. } => {}
        }
        let end = end_of(begun.head.headers());
        let head = self.towards_client(begun.head, &trip.decision);
        let shape = Shape {
            api: self.api,
            framing: framing_of(&head.headers),
            end,
            ending: Ending::of(head.status),
            verdict,
            usage_is_ours: self.intake.asked.usage_is_ours,
            fingerprint: self.intake.body.fingerprint(),
            deadline: self.deadline,
            timeouts: self.config.timeouts,
            drain: self.drain.clone(),
        };
        let mut relay = Relay::new(
            Arc::clone(&self.gateway),
            upstream,
            trip,
            begun.answer,
            begun.first,
            shape,
            self.permit.take(),
        );
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

fn end_of(headers: &HeaderMap) -> End {
    let is_framed =
        headers.contains_key(header::CONTENT_LENGTH) || headers.contains_key(header::TRANSFER_ENCODING);
    if is_framed { End::Framed } else { End::Closed }
}
