//! The way in of a request that another proxy forwards: its head and body arrive in parts, then a worker is chosen.
//!
//! ```text
//! PickHead ──▶ PickIntake ──▶ Pick ──▶ the proxy forwards the request, and may report the response
//!              limits, parse,  worker,
//!              admit, route    booking
//! ```
//!
//! The same code as for the gateway's own requests parses, admits and routes; only sending is missing.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use tokio::time::Instant;
use warmroute_prompt::Api;
use warmroute_router::{Decision, Vacancy, WorkerGroup};
use warmroute_types::{Delivery, Micros, WorkerId};

use crate::attempt::Attempt;
use crate::body_budget::BodyBudget;
use crate::body_deadline::BodyDeadline;
use crate::client_path::is_client_path;
use crate::early_lease::EarlyLease;
use crate::gateway::Gateway;
use crate::gateway_error::{ErrorFormat, GatewayError};
use crate::keys::Tenant;
use crate::parsed_request::{ParseContext, ParsedRequest, UsageDemand};
use crate::permit::{self, Entry, Permit};
use crate::pick::{Pick, ResponseSight};
use crate::request_log::RequestLog;
use crate::server::report_refusal;
use crate::stored_objects;
use crate::ttft_budget;
use crate::upstream::Upstream;
use crate::upstream_body::BufferedBody;
use crate::{Config, Drain, headers, intake, routing};

/// The head of a request that another proxy forwards.
#[derive(Clone, Debug, Default)]
pub struct PickHead {
    /// The request's method.
    pub method: Method,
    /// The request's path, with or without its query.
    pub path: String,
    /// The request's headers.
    pub headers: HeaderMap,
    /// Whether a body follows.
    pub has_body: bool,
    /// Addresses that may be chosen, as `IP:PORT` or `IP`; `None`: all workers.
    pub allowed: Option<Vec<String>>,
    /// The group of workers that may be chosen; `None`: all workers.
    pub group: Option<Arc<WorkerGroup>>,
    /// Whether paths are allowed that the gateway's own clients may not request; for conformance tests.
    pub allows_any_path: bool,
}

/// How much of a body is needed to choose a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyNeed {
    /// All of it: the prompt is read.
    Whole,
    /// Its first part: the body is not JSON. The rest may be large and is not kept.
    Start,
}

/// What is known from the first parts of a body that is an upload by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadStart {
    /// It may be a JSON object: too little has come.
    Unknown,
    /// It begins like a JSON object.
    Object,
    /// It does not.
    Other,
}

/// Parts of a body that tell whether it begins like a JSON object. Of one that begins with as many parts of space, that is
/// not known.
const STARTING_PARTS: usize = 8;

impl UploadStart {
    fn of(start: &[u8]) -> UploadStart {
        match intake::is_object_start(start) {
            None => UploadStart::Unknown,
            Some(true) => UploadStart::Object,
            Some(false) => UploadStart::Other,
        }
    }
}

/// A refused request, and the response that its client gets.
#[derive(Clone, Debug)]
pub struct Refusal {
    error: GatewayError,
    format: ErrorFormat,
}

impl Refusal {
    /// The response.
    pub fn response(&self) -> Response<Bytes> {
        self.error.respond(self.format)
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        self.error.status()
    }

    /// The reason, as metrics and clients see it.
    pub fn code(&self) -> &'static str {
        self.error.code()
    }
}

/// The memory of a proxy's messages, counted with the bodies (`max-buffered-bytes`): a message may be as large as one.
/// Dropping it gives the bytes back.
pub struct MessageMemory {
    gateway: Arc<Gateway>,
    budget: BodyBudget,
}

impl MessageMemory {
    /// Counts bytes as they arrive.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.budget.reserve(bytes).map_err(|error| {
            report_refusal(&self.gateway, &error, &HeaderValue::from_static("-"));
            Refusal { error, format: ErrorFormat::of_path("") }
        })
    }

    /// Gives the counted bytes back.
    pub fn release(&mut self) {
        self.budget.release();
    }
}

/// A request on its way in.
pub struct PickIntake {
    gateway: Arc<Gateway>,
    /// The settings in force when the request arrived.
    config: Arc<Config>,
    head: PickHead,
    api: Api,
    received: Micros,
    parts: Vec<Bytes>,
    /// Whether the body is JSON by its path and content type.
    is_declared: bool,
    /// What the start of an upload says about it.
    start: UploadStart,
    bytes: usize,
    budget: BodyBudget,
    deadline: BodyDeadline,
    tenant: Option<Arc<Tenant>>,
    /// Whether the request has a valid key, or needs none.
    is_authenticated: bool,
    /// Its place among its tenant's concurrent requests, which it has from its head on.
    early: Option<EarlyLease>,
    drain: Drain,
}

impl Gateway {
    /// Largest JSON body.
    pub fn body_bytes_max(&self) -> usize {
        self.config().body_bytes_max
    }

    /// Memory for the messages of one stream of a proxy.
    pub fn message_memory(self: &Arc<Gateway>) -> MessageMemory {
        let budget = self.reader.body_memory.share(&self.config(), None);
        MessageMemory { gateway: Arc::clone(self), budget }
    }

    /// Begins to choose a worker for a request that another proxy forwards. `drain` tells whether a shutdown aborts
    /// requests.
    pub fn begin_pick(self: &Arc<Gateway>, head: PickHead, drain: &Drain) -> PickIntake {
        let config = self.config();
        let path = head.path.split('?').next().unwrap_or_default();
        let authenticated = self.authenticate(&head.headers);
        let is_authenticated = authenticated.is_ok();
        let tenant = authenticated.ok().flatten();
        let api = Api::of_path(path);
        PickIntake {
            is_declared: intake::is_json(&head.method, api, &head.headers),
            api,
            budget: self.reader.body_memory.share(&config, tenant.as_deref()),
            received: self.now(),
            gateway: Arc::clone(self),
            deadline: BodyDeadline::new(config.timeouts.body),
            tenant,
            is_authenticated,
            early: None,
            config,
            head,
            parts: Vec::new(),
            start: UploadStart::Unknown,
            bytes: 0,
            drain: drain.clone(),
        }
    }
}

impl PickIntake {
    /// How much of the body is needed, by the parts that have arrived.
    pub fn need(&self) -> BodyNeed {
        match self.is_declared || self.start != UploadStart::Other || self.parts.is_empty() {
            true => BodyNeed::Whole,
            false => BodyNeed::Start,
        }
    }

    /// Refuses a request without a valid key, one for a path or with a method that clients may not use, and one beyond the
    /// concurrent requests of its tenant. The others count from now on, while their body arrives.
    pub async fn check(&mut self) -> Result<(), Refusal> {
        self.check_head().map_err(|error| self.refuse(error))?;
        if self.head.has_body {
            let (admission, tenant) = (&self.config.admission, self.tenant.as_deref());
            let path = self.head.path.split('?').next().unwrap_or_default();
            let named = stored_objects::named_object(&self.head.method, path);
            let early =
                EarlyLease::take(&self.gateway.gate, admission, &self.head.headers, tenant, named).await;
            self.early = early.map_err(|error| self.refuse(error))?;
        }
        Ok(())
    }

    fn check_head(&self) -> Result<(), GatewayError> {
        if !self.is_authenticated {
            return Err(GatewayError::Unauthorized);
        }
        let path = self.head.path.split('?').next().unwrap_or_default();
        let is_known = self.api != Api::Other || path == "/health" || is_client_path(path);
        if !is_known && !self.head.allows_any_path {
            return Err(GatewayError::UnknownPath(path.to_owned()));
        }
        match &self.head.method {
            method if self.api != Api::Other && *method != Method::POST && !self.head.allows_any_path => {
                Err(GatewayError::MethodNotAllowed { method: method.clone(), allowed: "POST" })
            }
            _ => Ok(()),
        }
    }

    /// When the next part of the body must have arrived.
    pub fn deadline(&self) -> Instant {
        self.deadline.at()
    }

    /// The refusal of a body that arrives too slowly.
    pub fn slow_body(&self) -> Refusal {
        self.refuse(GatewayError::SlowBody)
    }

    /// Counts bytes of the proxy's messages as they arrive, before a part of the body is whole. They stay in memory with it.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.deadline.extend(bytes, Instant::now());
        self.budget.reserve(bytes).map_err(|error| self.refuse(error))
    }

    /// Adds a part of the body, whose bytes have been counted.
    pub fn push(&mut self, part: Bytes) -> Result<(), Refusal> {
        self.bytes += part.len();
        let limit = self.config.body_bytes_max;
        if self.bytes > limit {
            return Err(self.refuse(GatewayError::TooLarge { limit }));
        }
        if !part.is_empty() {
            self.parts.push(part);
            let is_open = !self.is_declared && self.start == UploadStart::Unknown;
            if is_open && self.parts.len() <= STARTING_PARTS {
                self.start = UploadStart::of(&joined(self.parts.clone()));
            }
        }
        Ok(())
    }

    /// Chooses a worker and books the request on it, after waiting in the admission queue if necessary. Without a body
    /// the choice goes by load alone, among the workers of any model.
    pub async fn pick(mut self, sight: ResponseSight) -> Result<Box<Pick>, Refusal> {
        match self.choose(sight).await {
            Ok(pick) => Ok(pick),
            Err(error) => Err(self.refuse(self.in_terms_of_subset(error))),
        }
    }

    /// That no worker is ready, as one of those that the proxy allows: the others may be.
    fn in_terms_of_subset(&self, error: GatewayError) -> GatewayError {
        match (&self.head.allowed, error) {
            (Some(allowed), GatewayError::NotReady) => {
                GatewayError::NoAllowedWorker { allowed: allowed.len() }
            }
            (_, error) => error,
        }
    }

    fn refuse(&self, error: GatewayError) -> Refusal {
        let none = HeaderValue::from_static("-");
        let request_id = self.head.headers.get(headers::REQUEST_ID).unwrap_or(&none);
        report_refusal(&self.gateway, &error, request_id);
        Refusal { error, format: ErrorFormat::of_path(&self.head.path) }
    }

    async fn choose(&mut self, sight: ResponseSight) -> Result<Box<Pick>, GatewayError> {
        self.check_head()?;
        let tenant = self.tenant.clone();
        let (mut request, body) = self.parse(tenant.as_deref()).await?;
        request.within.clone_from(&self.head.group);
        if sight == ResponseSight::Unseen {
            // The end of the prefill is not seen either, as with a response that does not stream.
            request.delivery = Delivery::Whole;
        }
        let path = self.head.path.split('?').next().unwrap_or_default();
        let (method, gate) = (&self.head.method, &self.gateway.gate);
        stored_objects::settle(&mut request, gate, method, path, tenant.as_deref()).await?;
        let request = Arc::new(request);
        let avoid = self.excluded_workers()?;
        let (gateway, headers) = (&self.gateway, &self.head.headers);
        let admission = &self.config.admission;
        let budget = permit::ttft_budget(&gateway.gate, admission, headers, tenant.as_deref())?;
        let entry = Entry { early: self.early.take(), budget };
        let mut permit =
            permit::admit(&gateway.gate, admission, headers, tenant.as_deref(), &request, entry, &avoid)
                .await?;
        let routed = self.route(&request, &mut permit).await;
        let (decision, upstream) = routed.map_err(|refusal| request.stored.explain(refusal))?;
        if let Some(budget) = budget {
            let expected = routing::expected_ttft_of(&decision);
            ttft_budget::check(budget, expected, gateway.now(), request.cached_tokens)?;
        }
        permit.iter_mut().for_each(Permit::mark_routed);
        if let Some(source) = request.prompt_source(self.api, &gateway.reader.alignments) {
            gateway.forwarding.observers.prefixes.observe(&body, source, self.received);
        }
        let request_id = headers.get(headers::REQUEST_ID);
        // The proxy that forwards the request has its own access log.
        let (log, drain) = (RequestLog::default(), &self.drain);
        let mut attempt =
            Attempt::new(&gateway.forwarding, &request, decision, self.received, request_id, drain, &log);
        attempt.set_ttft_due(budget.map(|budget| budget.due));
        let passes_credentials = headers::passes_credentials(&self.config, tenant.as_deref());
        let authorization = self.config.dialer.authorization();
        let mut pick = Box::new(Pick::new(&gateway.forwarding, attempt, permit, upstream));
        let rest = self.empty_budget();
        let has_length = self.head.headers.contains_key(header::CONTENT_LENGTH);
        pick.set_body(body, std::mem::replace(&mut self.budget, rest), sight, has_length);
        pick.remove_steering(&self.head.headers);
        pick.set_credentials(passes_credentials, authorization);
        Ok(pick)
    }

    fn empty_budget(&self) -> BodyBudget {
        self.gateway.reader.body_memory.share(&self.config, None)
    }

    async fn parse(
        &mut self,
        tenant: Option<&Tenant>,
    ) -> Result<(ParsedRequest, BufferedBody), GatewayError> {
        let need = self.need();
        let (bytes, headers) = (joined(std::mem::take(&mut self.parts)), &self.head.headers);
        if bytes.is_empty() || need == BodyNeed::Start {
            // Of a form only the start is known here.
            intake::scan_start(&bytes, headers, &self.config, tenant)?;
            let request = intake::unparsed(&bytes, headers, &self.config, tenant);
            return Ok((request, BufferedBody::spliced(&bytes, [None, None, None])));
        }
        // The usage of a stream is not requested: the client would see it, unless the response were changed too.
        let usage = UsageDemand::None;
        let (reader, config) = (&self.gateway.reader, &self.config);
        intake::parse(&bytes, ParseContext { api: self.api, headers, reader, config, tenant, usage }).await
    }

    /// Routes the request to a worker whose address the proxy can use.
    async fn route(
        &self,
        request: &Arc<ParsedRequest>,
        permit: &mut Option<Permit>,
    ) -> Result<(Box<Decision>, Arc<Upstream>), GatewayError> {
        let request_id = self.head.headers.get(headers::REQUEST_ID);
        let (mut without_address, mut has_waited) = (Vec::new(), false);
        loop {
            // Workers join and leave while the request waits, and ids are used again.
            let mut avoid = self.excluded_workers()?;
            avoid.extend_from_slice(&without_address);
            let decision =
                match (routing::route(&self.gateway.forwarding, request, &avoid, request_id), &mut *permit) {
                    (Ok(decision), _) => decision,
                    (Err(refusal), Some(permit)) if self.may_wait(&refusal, request, &avoid, has_waited) => {
                        permit.requeue(request, avoid).await?;
                        has_waited = true;
                        without_address.clear();
                        continue;
                    }
                    (Err(refusal), _) => return Err(refusal),
                };
            let upstream = self.gateway.forwarding.upstreams.get_or_create(&decision.worker);
            match upstream.map_err(|bad| GatewayError::WorkerFailed(bad.to_string()))? {
                upstream if upstream.endpoint.is_some() => return Ok((decision, upstream)),
                upstream => {
                    upstream.warn_without_endpoint();
                    without_address.push(decision.worker.id);
                }
            }
        }
    }

    /// Whether to wait for a worker instead of refusing the request: all usable workers are full, or none is there. A
    /// paused worker is waited for once.
    fn may_wait(
        &self,
        refusal: &GatewayError,
        request: &ParsedRequest,
        avoid: &[WorkerId],
        has_waited: bool,
    ) -> bool {
        let vacancy =
            || self.gateway.router.inspect().vacancy(request.model.as_deref(), request.usable(avoid));
        match refusal {
            GatewayError::WorkersFull => true,
            GatewayError::NotReady if self.config.admission.waits_for_workers() => {
                !has_waited || vacancy() == Vacancy::NoWorker
            }
            _ => false,
        }
    }

    /// Workers that the proxy does not allow or that the client does not request. An error if the proxy allows no address at all: no worker that joins would change that.
    fn excluded_workers(&self) -> Result<Vec<WorkerId>, GatewayError> {
        let mut excluded = match headers::requested_worker(&self.head.headers, self.config.worker_choice) {
            Some(requested) => routing::all_but(&self.gateway.router, &requested)?,
            None => Vec::new(),
        };
        let Some(allowed) = &self.head.allowed else { return Ok(excluded) };
        let (allowed, upstreams) = (AllowedAddresses::parse(allowed), &self.gateway.forwarding.upstreams);
        if allowed.is_empty() {
            return Err(GatewayError::NotReady);
        }
        let is_allowed = |upstream: Arc<Upstream>| upstream.endpoint.is_some_and(|at| allowed.contains(at));
        let workers = self.gateway.router.inspect().workers();
        let others =
            workers.iter().filter(|view| !upstreams.get_or_create(&view.worker).is_ok_and(is_allowed));
        excluded.extend(others.map(|view| view.worker.id));
        Ok(excluded)
    }
}

/// One piece of the parts. A body that came in one part is not copied.
fn joined(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() <= 1 {
        return parts.pop().unwrap_or_default();
    }
    let mut whole = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| whole.extend_from_slice(part));
    whole.freeze()
}

/// The addresses that a proxy allows. They are compared as addresses, because IPv6 has several spellings.
#[derive(Default)]
struct AllowedAddresses {
    sockets: HashSet<SocketAddr>,
    /// Addresses without a port: every port of these is allowed.
    hosts: HashSet<IpAddr>,
}

impl AllowedAddresses {
    /// Entries that are no address allow nothing.
    fn parse(entries: &[String]) -> AllowedAddresses {
        let mut allowed = AllowedAddresses::default();
        for entry in entries.iter().map(|entry| entry.trim()) {
            if let Ok(socket) = entry.parse::<SocketAddr>() {
                allowed.sockets.insert(socket);
            } else if let Ok(host) = entry.trim_matches(['[', ']']).parse::<IpAddr>() {
                allowed.hosts.insert(host);
            }
        }
        allowed
    }

    fn is_empty(&self) -> bool {
        self.sockets.is_empty() && self.hosts.is_empty()
    }

    fn contains(&self, address: SocketAddr) -> bool {
        self.sockets.contains(&address) || self.hosts.contains(&address.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_start_of_an_upload_tells_the_model_and_json_is_read_whatever_it_is_called() {
        let policy: warmroute_policy::Standard = "random".parse().unwrap();
        let router = Arc::new(warmroute_router::Router::new(policy, warmroute_router::Config::default()));
        let gateway = Gateway::new(router, Config::default(), crate::gateway::Records::default()).unwrap();
        let form = &b"--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x--\r\n"[..];
        for (part, need) in [(form, BodyNeed::Start), (b" {\"model\":\"m\"}", BodyNeed::Whole)] {
            let kind = HeaderValue::from_static("multipart/form-data; boundary=x");
            let head = PickHead {
                method: Method::POST,
                path: "/v1/audio/transcriptions".to_owned(),
                headers: HeaderMap::from_iter([(header::CONTENT_TYPE, kind)]),
                ..PickHead::default()
            };
            let mut intake = gateway.begin_pick(head, &Drain::default());
            assert_eq!(intake.need(), BodyNeed::Whole, "nothing has come yet");
            intake.push(Bytes::from_static(part)).unwrap();
            assert_eq!(intake.need(), need);
            assert_ne!(intake.start, UploadStart::Unknown, "the first part tells, and is looked at once");
            assert_eq!(intake.parse(None).await.unwrap().0.model.as_deref(), Some("m"));
        }
    }

    #[test]
    fn the_start_of_an_upload_is_known_once_a_character_has_come() {
        for (start, expected) in [
            (&b""[..], UploadStart::Unknown),
            (b" {", UploadStart::Unknown),
            (b"     ", UploadStart::Unknown),
            (b"     {", UploadStart::Object),
            (b"RIFF", UploadStart::Other),
        ] {
            assert_eq!(UploadStart::of(start), expected, "{start:?}");
        }
    }

    #[test]
    fn allowed_addresses_are_compared_as_addresses() {
        let entries = ["10.0.0.1:8000", " 10.0.0.2 ", "[::1]:9", "[2001:db8::0:1]", "engine:8000", ""];
        let allowed = AllowedAddresses::parse(&entries.map(str::to_owned));
        for (address, is_allowed) in [
            ("10.0.0.1:8000", true),
            ("10.0.0.1:8001", false),
            ("10.0.0.2:1", true),
            ("10.0.0.3:8000", false),
            ("[0:0::1]:9", true),
            ("[2001:db8::1]:8000", true),
        ] {
            assert_eq!(allowed.contains(address.parse().unwrap()), is_allowed, "{address}");
        }
    }
}
