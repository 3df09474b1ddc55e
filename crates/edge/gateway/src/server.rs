//! Listeners: accepting connections, serving HTTP on them, closing them on drain.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use warmroute_prompt::Api;
use warmroute_wire::Acceptor;

use crate::accept::accept_until_drained;
use crate::admin::ClientWorkerApi;
use crate::busy_body::{BusyBody, RequestCount};
use crate::dispatch::Dispatch;
use crate::drain::{Drain, Drained};
use crate::gateway::Gateway;
use crate::gateway_error::{ErrorFormat, GatewayError};
use crate::keys::Tenant;
use crate::listener_limits::{ClientTimeouts, ListenerLimits};
use crate::percent::percent_decoded;
use crate::request_log::{RequestLog, text_of};
use crate::response_body::ResponseBody;
use crate::silent_connections::SilentConnection;
use crate::stored_objects::is_stored_path;
use crate::write_stall::{ResponseDeadline, WriteStall};
use crate::{headers, intake, models};

/// Requests with larger heads get 431. Beyond about 400 KB or 100 headers hyper itself answers, with an empty body.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Requests with longer targets get 414. Paths and queries of the supported APIs are far shorter.
const TARGET_BYTES_MAX: usize = 8 << 10;

/// Paths that are still percent-encoded after this many decodings get 404.
pub(crate) const DECODINGS_MAX: usize = 4;

/// Engine endpoints outside `/v1` that clients may use. Endpoints that control an engine (sleep, reset, load an
/// adapter) are deliberately absent.
const ENGINE_PATHS: [&str; 6] = ["/tokenize", "/detokenize", "/score", "/rerank", "/pooling", "/classify"];

/// Endpoints under `/v1` that control an engine. Clients may not use them.
const ENGINE_CONTROL_PATHS: [&str; 2] = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"];

/// Serves clients until a drain begins; returns when the last connection has closed.
pub async fn serve(
    gateway: Arc<Gateway>,
    listener: TcpListener,
    acceptor: Acceptor,
    drain: Drain,
) -> Drained {
    gateway.set_client_scheme(acceptor.scheme());
    let settings = Arc::clone(&gateway);
    let timeouts = move || {
        let timeouts = settings.config().timeouts;
        ClientTimeouts { head: timeouts.head, write_stall: timeouts.idle }
    };
    let limits = ListenerLimits {
        open: gateway.metrics.client_connections.clone(),
        ..ListenerLimits::new(gateway.config().connections_max, acceptor, timeouts)
    };
    let service = move |request| {
        let gateway = Arc::clone(&gateway);
        async move { Ok(handle(&gateway, request).await) }
    };
    accept(listener, drain, limits, service).await
}

/// The accept loop of the client listener and of the admin listener.
pub(crate) async fn accept<S, F, B>(
    listener: TcpListener,
    drain: Drain,
    limits: ListenerLimits,
    service: S,
) -> Drained
where
    S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: hyper::body::Body<Data = bytes::Bytes, Error: std::error::Error + Send + Sync>
        + Send
        + Unpin
        + 'static,
{
    // The slot is taken after the accept, so that the gauge counts connections only.
    accept_until_drained(
        listener,
        &drain,
        || limits.acquire_slot(),
        |stream, peer| {
            let timeouts = (limits.timeouts)();
            let silent = limits.silent.add(peer.ip(), timeouts.head);
            let context = ConnectionContext { drain: drain.clone(), timeouts, silent };
            connection(stream, limits.acceptor.clone(), context, service.clone())
        },
    )
    .await
}

/// What belongs to one connection.
struct ConnectionContext {
    drain: Drain,
    timeouts: ClientTimeouts,
    silent: Arc<SilentConnection>,
}

/// Serves a connection. It ends early if it stays silent, see `silent_connections`.
async fn connection<S, F, B>(stream: TcpStream, acceptor: Acceptor, context: ConnectionContext, service: S)
where
    S: Fn(Request<Incoming>) -> F,
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: hyper::body::Body<Data = bytes::Bytes, Error: std::error::Error + Send + Sync> + Unpin + 'static,
{
    let (silent, drain) = (Arc::clone(&context.silent), context.drain.clone());
    tokio::select! {
        () = serve_connection(stream, acceptor, context, service) => {}
        () = silent.wait_expired(&drain) => tracing::debug!("closed a connection without an accepted request"),
    }
}

async fn serve_connection<S, F, B>(
    stream: TcpStream,
    acceptor: Acceptor,
    context: ConnectionContext,
    service: S,
) where
    S: Fn(Request<Incoming>) -> F,
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: hyper::body::Body<Data = bytes::Bytes, Error: std::error::Error + Send + Sync> + Unpin + 'static,
{
    let ConnectionContext { drain, timeouts, silent } = context;
    let stream = match tokio::time::timeout(timeouts.head, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake timed out"),
    };
    let (draining, requests) = (drain.clone(), RequestCount::default());
    let in_progress = requests.clone();
    let deadline = ResponseDeadline::default();
    let stream = WriteStall::new(stream, timeouts.write_stall, deadline.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        deadline.set(None);
        request.extensions_mut().insert(deadline.clone());
        request.extensions_mut().insert(draining.clone());
        request.extensions_mut().insert(Arc::clone(&silent));
        let _request = in_progress.begin();
        let (responding, draining) = (service(request), draining.clone());
        async move {
            let mut response = responding.await?;
            draining.add_close_header(response.headers_mut());
            Ok::<_, Infallible>(response.map(|body| BusyBody { body, _request }))
        }
    });
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.head)
        .serve_connection(TokioIo::new(stream), service);
    let mut http = std::pin::pin!(http);
    let served = tokio::select! {
        served = http.as_mut() => served,
        () = drain.wait_close_idle() => {
            http.as_mut().graceful_shutdown();
            tokio::select! {
                served = http.as_mut() => served,
                () = drain.wait_abort() => http.await,
                // A part of a next request is no reason to keep the process.
                () = requests.wait_idle() => return,
            }
        }
    };
    if let Err(error) = served {
        // Clients disconnect or send invalid HTTP all the time, so this is not worth a warning.
        tracing::debug!(%error, "client connection ended with an error");
    }
}

async fn handle(gateway: &Arc<Gateway>, mut request: Request<Incoming>) -> Response<ResponseBody> {
    let request_id = headers::request_id(request.headers());
    let path = request.uri().path();
    let (api, format) = (Api::of_path(path), ErrorFormat::of_path(path));
    let drain = request.extensions().get::<Drain>().cloned().unwrap_or_default();
    let log = RequestLog::open(gateway, &mut request, &request_id);
    // The future takes kilobytes. Boxed, it is not copied into every connection's state.
    let responding = Box::pin(async {
        match screen(gateway, api, request, &log).await? {
            Screened::Answered(response) => Ok(response),
            Screened::Passed { request, tenant } => {
                let tenant = tenant.as_deref();
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
    gateway.metrics.count_refusal(refusal.code());
    let Some(left_out) = gateway.throttles.refusals.take(gateway.now()) else { return };
    // The text may contain what a client sent. As a string it is quoted and cannot forge a log line.
    let (request, why, status) = (text_of(request_id), refusal.to_string(), refusal.status().as_u16());
    tracing::info!(request, status, code = refusal.code(), why, left_out, "request refused");
}

/// A request after the checks of its head.
enum Screened {
    /// The gateway has answered it without a worker.
    Answered(Response<ResponseBody>),
    /// It goes to a worker.
    Passed { request: Request<Incoming>, tenant: Option<Arc<Tenant>> },
}

/// Checks the head, the path and the API key, and answers what needs no worker.
async fn screen(
    gateway: &Arc<Gateway>,
    api: Api,
    request: Request<Incoming>,
    log: &RequestLog,
) -> Result<Screened, GatewayError> {
    if headers::size_bytes(request.headers()) > HEAD_BYTES_MAX {
        return Err(GatewayError::HeadTooLarge { limit: HEAD_BYTES_MAX });
    }
    if target_bytes(request.uri()) > TARGET_BYTES_MAX {
        return Err(GatewayError::TargetTooLong { limit: TARGET_BYTES_MAX });
    }
    check_framing(&request)?;
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
            false => accept_connection(&request),
        }
        return Ok(Screened::Answered(response));
    }
    let worker_api = ClientWorkerApi(gateway);
    if worker_api.has_token_path(path) {
        return Ok(Screened::Answered(answer_worker_api(&worker_api, request, log).await));
    }
    let tenant = match gateway.authenticate(request.headers()) {
        Ok(tenant) => {
            accept_connection(&request);
            tenant
        }
        Err(refusal) => {
            intake::drain_refused_body(request, gateway.config().timeouts.body).await;
            return Err(refusal);
        }
    };
    log.note(|entry| entry.key = tenant.as_ref().map(|tenant| tenant.name.clone()));
    if asks_for_websocket(request.headers()) {
        return Err(GatewayError::NoWebSocket);
    }
    if worker_api.has_open_path(path) {
        return Ok(Screened::Answered(answer_worker_api(&worker_api, request, log).await));
    }
    if api != Api::Other {
        only(Method::POST, "POST")?;
    } else if path == "/v1/models" {
        only(Method::GET, "GET, HEAD")?;
        return Ok(Screened::Answered(models::list(gateway)));
    } else if let Some(id) = path.strip_prefix("/v1/models/") {
        only(Method::GET, "GET, HEAD")?;
        return models::one(gateway, &percent_decoded(id)).map(Screened::Answered);
    } else if !is_client_path(path) {
        return Err(GatewayError::UnknownPath(path.to_owned()));
    }
    Ok(Screened::Passed { request, tenant })
}

/// Answers a request for the worker API on the client listener.
async fn answer_worker_api(
    worker_api: &ClientWorkerApi<'_>,
    request: Request<Incoming>,
    log: &RequestLog,
) -> Response<ResponseBody> {
    if worker_api.allows(&request) {
        // The answer may take minutes: an engine loads its model.
        accept_connection(&request);
        return worker_api.answer(request).await;
    }
    worker_api.0.metrics.count_refusal(GatewayError::Unauthorized.code());
    log.note(|entry| entry.error = Some(GatewayError::Unauthorized.code()));
    let mut response = worker_api.answer(request).await;
    close_after(&mut response);
    response
}

/// Refuses heads that another server might read differently. hyper has refused the worse ones.
fn check_framing(request: &Request<Incoming>) -> Result<(), GatewayError> {
    let headers = request.headers();
    let count = |name: http::HeaderName| headers.get_all(name).iter().count();
    let hosts = count(header::HOST);
    if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        return Err(GatewayError::AmbiguousHead("send exactly one Host header"));
    }
    let is_list = |length: &http::HeaderValue| length.as_bytes().contains(&b',');
    if count(header::CONTENT_LENGTH) > 1 || headers.get(header::CONTENT_LENGTH).is_some_and(is_list) {
        return Err(GatewayError::AmbiguousHead("send exactly one Content-Length header"));
    }
    let is_chunked = |coding: &http::HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    if count(header::TRANSFER_ENCODING) > 1 || !headers.get(header::TRANSFER_ENCODING).is_none_or(is_chunked)
    {
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

/// Notes that the connection has sent a request that was accepted.
fn accept_connection(request: &Request<Incoming>) {
    if let Some(connection) = request.extensions().get::<Arc<SilentConnection>>() {
        connection.accept();
    }
}

/// Closes the connection after a response that needed no key, so that it occupies no place.
fn close_after(response: &mut Response<ResponseBody>) {
    response.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
}

/// Whether clients may request this path from a worker. A path with dot segments could mean another path to the worker.
pub(crate) fn is_client_path(path: &str) -> bool {
    let Some(plain) = fully_decoded(path) else { return false };
    let has_dots = plain.split(['/', '\\']).any(|segment| segment == "." || segment == "..");
    // A proxy in front of the worker may merge slashes.
    // Some servers cut a segment at a semicolon, so that `..;` is `..` and `/v1/completions;a` is a known path.
    let is_odd = plain.contains("//") || plain.contains(';') || plain.contains(char::is_control);
    let is_offered = path.starts_with("/v1/") || ENGINE_PATHS.contains(&path);
    let plain = plain.trim_end_matches('/');
    // An encoded spelling of a known path would reach a worker unparsed, bypassing routing and limits.
    let is_disguised =
        (is_handled_here(plain) && !is_handled_here(path)) || (is_stored_path(plain) && plain != path);
    is_offered && !has_dots && !is_odd && !is_disguised && !ENGINE_CONTROL_PATHS.contains(&plain)
}

/// Whether the gateway parses or answers requests for this path instead of only passing them on.
fn is_handled_here(path: &str) -> bool {
    Api::of_path(path) != Api::Other || path == "/v1/models" || path.starts_with("/v1/models/")
}

/// Decodes a path until no escapes are left, as the most eager proxy would. `None` after [`DECODINGS_MAX`] rounds:
/// each round costs the whole length, so their number must not grow with the path.
fn fully_decoded(path: &str) -> Option<String> {
    let mut plain = path.to_owned();
    for _ in 0..=DECODINGS_MAX {
        match percent_decoded(&plain) {
            decoded if decoded == plain => return Some(plain),
            decoded => plain = decoded,
        }
    }
    None
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

#[cfg(test)]
mod tests {
    use super::is_client_path;

    #[test]
    fn clients_reach_apis_but_not_engine_control() {
        for path in [
            "/v1/embeddings",
            "/v1/new/thing",
            "/tokenize",
            "/v1/files/a..b",
            "/v1/files/x%2Fy",
            "/v1/100%25%",
            "/v1/%25252541",
            "/v1/chat/completions",
            "/v1/models/a%2Fb",
            "/v1/messages/count%5Ftokens",
            "/v1/responses/resp_1/input_items",
            "/v1/conversations",
        ] {
            assert!(is_client_path(path), "{path}");
        }
        for path in [
            "/",
            "/metrics",
            "/fault",
            "/reset_prefix_cache",
            "/v1",
            "/v1/../metrics",
            "/v1/%2e%2e/fault",
            "/v1/..%2ffault",
            "/v1/.%2E/x",
            "/v1/%252e%252e/fault",
            "/v1/%25252e./fault",
            "/v1/load%255Flora_adapter",
            "/v1/%2525252541",
            "/v1/..%5cfault",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter/",
            "/v1/load%5Flora_adapter",
            "/v1//load_lora_adapter",
            "/v1/%2Fload_lora_adapter",
            "/v1/files%0d%0ax",
            "/v1/chat/complet%69ons",
            "/v1/chat%2Fcompletions",
            "/v1/chat/completions/",
            "/v1/%2563ompletions",
            "/v1/%72esponses",
            "/v1/message%73/",
            "/v1/model%73",
            "/v1/%72esponses/resp_1",
            "/v1/responses/%72esp_1",
            "/v1/responses/resp_1%2Fcancel",
            "/v1/responses/resp_1/",
            "/v1/conversation%73/conv_1",
            "/v1/model%73/a",
            "/v1/..;/sleep",
            "/v1/..%3b/sleep",
            "/v1/completions;a=b",
            "/v1/x%253bsleep",
            "",
            "*",
        ] {
            assert!(!is_client_path(path), "{path}");
        }
    }
}
