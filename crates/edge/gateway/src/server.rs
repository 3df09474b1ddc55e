//! The client listener: which requests are answered here, refused, or sent to a worker.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use warmroute_prompt::Api;
use warmroute_wire::{Acceptor, percent_decoded};

use crate::admin::ClientWorkerApi;
use crate::body_deadline;
use crate::client_connection::ClientConnection;
use crate::client_path::is_client_path;
use crate::connection::accept;
use crate::dispatch::Dispatch;
use crate::drain::{Drain, Serving};
use crate::gateway::Gateway;
use crate::gateway_error::{ErrorFormat, GatewayError};
use crate::keys::Tenant;
use crate::listener_limits::{ClientTimeouts, ListenerLimits};
use crate::request_log::{RequestLog, text_of};
use crate::response_body::ResponseBody;
use crate::{headers, models};

/// Requests with larger heads get 431. Beyond 96 KiB or 100 headers hyper itself answers, with an empty body.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Requests with longer targets get 414. Paths and queries of the supported APIs are far shorter.
const TARGET_BYTES_MAX: usize = 8 << 10;

/// Methods whose requests every server delimits alike.
const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];

/// Serves clients until a drain begins; ends when the last connection has closed.
pub fn serve(gateway: Arc<Gateway>, listener: TcpListener, acceptor: Acceptor, drain: Drain) -> Serving {
    gateway.log_sinks.set_client_scheme(acceptor.scheme());
    let settings = Arc::clone(&gateway);
    let timeouts = move || {
        let timeouts = settings.config().timeouts;
        ClientTimeouts { head: timeouts.head, write_stall: timeouts.idle }
    };
    let limits = ListenerLimits {
        open: gateway.forwarding.observers.metrics.client_connections.clone(),
        ..ListenerLimits::new(gateway.config().connections_max, acceptor, timeouts)
    };
    let service = move |request| {
        let gateway = Arc::clone(&gateway);
        async move { Ok(handle(&gateway, request).await) }
    };
    Box::pin(accept(listener, drain, limits, service))
}

async fn handle(gateway: &Arc<Gateway>, mut request: Request<Incoming>) -> Response<ResponseBody> {
    let request_id = headers::request_id(request.headers());
    let path = request.uri().path();
    let (api, format) = (Api::of_path(path), ErrorFormat::of_path(path));
    let drain = ClientConnection::drain_of(request.extensions());
    let log = RequestLog::open(&gateway.log_sinks, &mut request, &request_id);
    // The future takes kilobytes. Boxed, it is not copied into every connection's state.
    let responding = Box::pin(async {
        let (parts, body) = request.into_parts();
        let (head, mut body) = (Request::from_parts(parts, ()), Some(body));
        let screened = screen(gateway, api, &head, &mut body, &log).await;
        if let Err(refusal) = &screened
            && let Some(body) = body.take()
        {
            discard_refused(gateway, refusal, &head, body);
        }
        match (screened?, body) {
            (Screened::Answered(response), _) => Ok(response),
            (Screened::Passed { .. }, None) => Err(GatewayError::BrokenBody),
            (Screened::Passed { tenant }, Some(body)) => {
                let (request, tenant) = (head.map(|()| body), tenant.as_deref());
                let dispatch = Dispatch::receive(gateway, api, request, tenant, &request_id, log.clone());
                dispatch.await?.run().await
            }
        }
    });
    let result = drain.unless_aborted(responding).await;
    let mut response = match result.unwrap_or(Err(GatewayError::ShuttingDown)) {
        Ok(response) => response,
        Err(refusal) => {
            report_refusal(gateway, &refusal, &request_id);
            log.note(|entry| entry.error = Some(refusal.code()));
            let mut response = refusal.respond(format).map(ResponseBody::whole);
            if matches!(refusal, GatewayError::Unauthorized | GatewayError::AmbiguousHead(_)) {
                close_after(&mut response);
            }
            response
        }
    };
    log.note(|entry| {
        entry.status = Some(response.status().as_u16());
        if entry.attempts == 0 {
            entry.outcome = if entry.error.is_some() { "refused" } else { "answered" };
        }
    });
    response.body_mut().set_log(log);
    response.headers_mut().insert(headers::REQUEST_ID, request_id);
    response
}

/// Counts and logs a request that the gateway itself refuses.
pub(crate) fn report_refusal(gateway: &Gateway, refusal: &GatewayError, request_id: &http::HeaderValue) {
    gateway.forwarding.observers.metrics.count_refusal(refusal.code());
    let Some(left_out) = gateway.log_sinks.refusals.take(gateway.now()) else { return };
    // The text may contain what a client sent. As a string it is quoted and cannot forge a log line.
    let (request, why, status) = (text_of(request_id), refusal.to_string(), refusal.status().as_u16());
    let what = if refusal.is_worker_failure() { "request failed" } else { "request refused" };
    tracing::info!(request, status, code = refusal.code(), why, left_out, "{what}");
}

/// A request after the checks of its head.
enum Screened {
    /// The gateway has answered it without a worker.
    Answered(Response<ResponseBody>),
    /// It goes to a worker.
    Passed { tenant: Option<Arc<Tenant>> },
}

/// Reads the rest of a refused request while its client gets the answer. Where a body ends is not known if its head is
/// ambiguous.
fn discard_refused(gateway: &Gateway, refusal: &GatewayError, head: &Request<()>, body: Incoming) {
    if !matches!(refusal, GatewayError::AmbiguousHead(_)) {
        body_deadline::drain_refused_body(head.headers(), body, gateway.config().timeouts.body);
    }
}

/// Checks the head, the path and the API key, and answers what needs no worker.
async fn screen(
    gateway: &Arc<Gateway>,
    api: Api,
    request: &Request<()>,
    body: &mut Option<Incoming>,
    log: &RequestLog,
) -> Result<Screened, GatewayError> {
    if headers::size_bytes(request.headers()) > HEAD_BYTES_MAX {
        return Err(GatewayError::HeadTooLarge { limit: HEAD_BYTES_MAX });
    }
    if target_bytes(request.uri()) > TARGET_BYTES_MAX {
        return Err(GatewayError::TargetTooLong { limit: TARGET_BYTES_MAX });
    }
    check_framing(request)?;
    if !METHODS.contains(request.method()) {
        let allowed = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
        return Err(GatewayError::MethodNotAllowed { method: request.method().clone(), allowed });
    }
    let path = request.uri().path();
    let only = |allowed: Method, header: &'static str| match request.method() {
        method if *method == allowed || (allowed == Method::GET && *method == Method::HEAD) => Ok(()),
        method => Err(GatewayError::MethodNotAllowed { method: method.clone(), allowed: header }),
    };
    if path == "/health" {
        // Load balancers check this endpoint without a key.
        only(Method::GET, "GET, HEAD")?;
        let mut response = health(gateway);
        match gateway.requires_keys() {
            true => close_after(&mut response),
            false => accept_connection(request, None),
        }
        return Ok(Screened::Answered(response));
    }
    let worker_api = ClientWorkerApi(gateway);
    let with_body = |body: &mut Option<Incoming>| body.take().map(|body| request.clone().map(|()| body));
    if worker_api.has_token_path(path) {
        let request = with_body(body).ok_or(GatewayError::BrokenBody)?;
        return Ok(Screened::Answered(answer_worker_api(&worker_api, request, log).await));
    }
    let tenant = gateway.authenticate(request.headers())?;
    accept_connection(request, tenant.as_deref());
    log.note(|entry| entry.key = tenant.as_ref().map(|tenant| tenant.name.clone()));
    if asks_for_websocket(request.headers()) {
        return Err(GatewayError::NoWebSocket);
    }
    if worker_api.has_open_path(path) {
        let request = with_body(body).ok_or(GatewayError::BrokenBody)?;
        return Ok(Screened::Answered(answer_worker_api(&worker_api, request, log).await));
    }
    if api != Api::Other {
        only(Method::POST, "POST")?;
    } else if path == "/v1/models" {
        only(Method::GET, "GET, HEAD")?;
        return Ok(Screened::Answered(models::list(&gateway.router, &gateway.config())));
    } else if let Some(id) = path.strip_prefix("/v1/models/") {
        only(Method::GET, "GET, HEAD")?;
        return models::one(&gateway.router, &gateway.config(), &percent_decoded(id)).map(Screened::Answered);
    } else if !is_client_path(path) {
        return Err(GatewayError::UnknownPath(path.to_owned()));
    }
    Ok(Screened::Passed { tenant })
}

/// Answers a request for the worker API on the client listener.
async fn answer_worker_api(
    worker_api: &ClientWorkerApi<'_>,
    request: Request<Incoming>,
    log: &RequestLog,
) -> Response<ResponseBody> {
    if worker_api.allows(&request) {
        // The answer may take minutes: an engine loads its model.
        accept_connection(&request, None);
        return worker_api.answer(request).await;
    }
    worker_api.0.forwarding.observers.metrics.count_refusal(GatewayError::Unauthorized.code());
    log.note(|entry| entry.error = Some(GatewayError::Unauthorized.code()));
    let mut response = worker_api.answer(request).await;
    close_after(&mut response);
    response
}

/// Refuses heads that another server might read differently. hyper has refused the worse ones.
fn check_framing(request: &Request<()>) -> Result<(), GatewayError> {
    if *request.method() == Method::CONNECT {
        // To many servers its body is the next request.
        return Err(GatewayError::AmbiguousHead("CONNECT is not supported"));
    }
    let (mut hosts, mut lengths, mut codings) = (0, 0, 0);
    let (mut has_list, mut is_chunked) = (false, true);
    for (name, value) in request.headers() {
        match name.as_str() {
            "host" => hosts += 1,
            "content-length" => {
                lengths += 1;
                has_list |= value.as_bytes().contains(&b',');
            }
            "transfer-encoding" => {
                codings += 1;
                is_chunked &= value.as_bytes().eq_ignore_ascii_case(b"chunked");
            }
            _ => {}
        }
    }
    if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        return Err(GatewayError::AmbiguousHead("send exactly one Host header"));
    }
    if lengths > 1 || has_list {
        return Err(GatewayError::AmbiguousHead("send exactly one Content-Length header"));
    }
    if codings > 1 || !is_chunked {
        return Err(GatewayError::AmbiguousHead("the only supported Transfer-Encoding is chunked"));
    }
    Ok(())
}

/// Whether the client wants to go on with another protocol than HTTP.
fn asks_for_websocket(headers: &http::HeaderMap) -> bool {
    headers
        .get(header::UPGRADE)
        .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Notes that the connection has sent a request that was accepted, with this tenant's key.
fn accept_connection<B>(request: &Request<B>, tenant: Option<&Tenant>) {
    if let Some(connection) = ClientConnection::of(request.extensions()) {
        connection.open.accept(tenant.map_or(0, |tenant| tenant.owner));
    }
}

/// Closes the connection after a response that needed no key, so that it occupies no place.
fn close_after(response: &mut Response<ResponseBody>) {
    response.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
}

/// Length of the request target, in bytes.
fn target_bytes(uri: &http::Uri) -> usize {
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    authority + uri.path_and_query().map_or(0, |path| path.as_str().len())
}

/// `GET /health` for load balancers: 200 if any worker takes requests, else 503.
fn health(gateway: &Gateway) -> Response<ResponseBody> {
    let is_ready = gateway.router.inspect().workers().iter().any(|view| view.load.state.takes_requests());
    let mut response = Response::new(ResponseBody::whole(bytes::Bytes::new()));
    if !is_ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}
