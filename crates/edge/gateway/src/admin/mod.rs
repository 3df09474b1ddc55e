//! The admin listener: health, metrics, workers, configuration.

mod access;
mod configuration;
mod explain;
mod flush;
mod prefixes;
mod reports;
mod ui;
mod worker_api;
mod workers;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use warmroute_wire::Acceptor;

use crate::Token;
use crate::body_budget::BodyMemory;
use crate::body_deadline::BodyDeadline;
use crate::client_connection::ClientConnection;
use crate::connection::accept;
use crate::console::{self, AdminBody};
use crate::drain::{Drain, Serving};
use crate::gateway::Gateway;
use crate::intake::buffer;
use crate::listener_limits::{ClientTimeouts, ListenerLimits};
use crate::peers_page::peers_page;

pub use access::Reach;
use access::UNAUTHORIZED;
pub use configuration::Configuration;
pub use reports::{ReportError, ReportSink};
pub(crate) use worker_api::ClientWorkerApi;

/// Largest body of most admin requests.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Limits of the admin listener.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECTIONS_MAX: usize = 1_024;

/// Anyone on this machine could otherwise add a worker of their own and read the key that it gets.
const KEY_NEEDS_TOKEN: &str = "a new worker would get worker-api-key; set an admin-token to add workers";

/// Whether the gateway wants traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// A worker is ready or requests may wait for one, and the gateway is not draining.
    Ready,
    /// No worker is ready.
    NoWorker,
    /// The gateway is draining.
    Draining,
}

/// The admin listener of a gateway.
pub struct Admin {
    gateway: Arc<Gateway>,
    configuration: Arc<dyn Configuration>,
    reach: Reach,
    /// The drain of the client listener.
    clients: Drain,
    reports: Option<reports::ReportReceiver>,
}

/// An error response.
struct AdminError(StatusCode, String);

impl AdminError {
    fn into_response(self) -> Response<Full<Bytes>> {
        let AdminError(status, message) = self;
        let mut response = as_json(&json!({"error": {"message": message}}));
        *response.status_mut() = status;
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

type AdminResult = Result<Response<Full<Bytes>>, AdminError>;

impl Admin {
    /// `clients` is the drain of the client listener: once it begins, the gateway is not ready.
    pub fn new(
        gateway: Arc<Gateway>,
        configuration: Arc<dyn Configuration>,
        reach: Reach,
        clients: Drain,
    ) -> Admin {
        Admin { gateway, configuration, reach, clients, reports: None }
    }

    /// Accepts `POST /events` with this token.
    pub fn with_reports(self, reports: Arc<dyn ReportSink>, token: Token) -> Admin {
        Admin { reports: Some(reports::ReportReceiver::new(reports, token)), ..self }
    }

    /// Serves until a drain begins.
    pub fn serve(self, listener: TcpListener, acceptor: Acceptor, drain: Drain) -> Serving {
        let admin = Arc::new(self);
        let service = move |request| {
            let admin = Arc::clone(&admin);
            async move { Ok::<_, Infallible>(admin.handle(request).await) }
        };
        let timeouts = ClientTimeouts { head: HEAD_TIMEOUT, write_stall: HEAD_TIMEOUT };
        let limits = ListenerLimits::new(CONNECTIONS_MAX, acceptor, move || timeouts);
        Box::pin(accept(listener, drain, limits, service))
    }

    /// Whether load balancers should send requests here.
    pub fn readiness(&self) -> Readiness {
        if self.clients.has_begun() {
            return Readiness::Draining;
        }
        let workers = self.gateway.router.inspect().workers();
        let is_ready = workers.iter().any(|view| view.load.state.takes_requests());
        if is_ready || self.gateway.config().admission.waits_for_workers() {
            Readiness::Ready
        } else {
            Readiness::NoWorker
        }
    }

    async fn handle(&self, request: Request<Incoming>) -> Response<AdminBody> {
        let whole = |response: Response<Full<Bytes>>| response.map(AdminBody::Whole);
        self.answer(request).await.unwrap_or_else(|error| whole(error.into_response()))
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<AdminBody>, AdminError> {
        let (parts, body) = request.into_parts();
        let token = self.configuration.admin_token();
        access::authorize(token.as_ref(), self.reach, &parts.method, parts.uri.path(), &parts.headers)?;
        if let Some(connection) = ClientConnection::of(&parts.extensions) {
            connection.open.accept(0);
        }
        if (&parts.method, parts.uri.path()) == (&Method::GET, "/ui/stream") {
            return ui::stream(
                &self.gateway.forwarding,
                &self.gateway.fleet_notes,
                &ClientConnection::drain_of(&parts.extensions),
            );
        }
        let page = self.page(&parts, body, token.as_ref()).await?;
        Ok(page.map(AdminBody::Whole))
    }

    /// The pages that are sent as a whole.
    async fn page(&self, parts: &Parts, body: Incoming, token: Option<&Token>) -> AdminResult {
        let query = parts.uri.query().unwrap_or_default();
        match (&parts.method, parts.uri.path()) {
            (&Method::GET | &Method::HEAD, "/healthz") => Ok(as_json(&json!({"status": "alive"}))),
            (&Method::GET | &Method::HEAD, "/readyz") => self.readyz(),
            (&Method::GET, "/metrics") => {
                let gateway = Arc::clone(&self.gateway);
                metrics_page(move || gateway.forwarding.observers.metrics.encode()).await
            }
            (&Method::GET, "/config") => Ok(as_json(&self.configuration.in_force())),
            (&Method::PUT, "/config") => {
                let body = bounded_body(body, &parts.headers, BODY_BYTES_MAX).await?;
                configuration::put(Arc::clone(&self.configuration), &parts.headers, body).await
            }
            (&Method::POST, "/workers" | "/add_worker") if token.is_none() && self.sends_worker_key() => {
                Err(AdminError(StatusCode::FORBIDDEN, KEY_NEEDS_TOKEN.to_owned()))
            }
            (_, path) if worker_api::is_path(path) => worker_api::answer(&self.gateway, parts, body).await,
            (&Method::GET, "/peers") => {
                Ok(as_json(&peers_page(&self.gateway.router, self.gateway.now(), &self.gateway.peers)))
            }
            (&Method::GET, "/ui" | "/ui/") => Ok(console::page()),
            (&Method::GET, "/ui/request") => ui::request(&self.gateway.forwarding, query),
            (&Method::GET, "/prefixes") => Ok(as_json(&prefixes::report(
                &self.gateway.forwarding.observers.prefixes,
                self.gateway.now(),
            ))),
            (&Method::GET, "/explain") => explain::last(&self.gateway.forwarding, query),
            (&Method::POST, "/explain") => Ok(explain::preview(&self.gateway, parts, query, body).await),
            (&Method::POST, "/events") => self.receive_report(&parts.headers, query, body).await,
            (
                _,
                "/healthz" | "/readyz" | "/metrics" | "/config" | "/peers" | "/events" | "/explain"
                | "/prefixes" | "/ui",
            ) => Err(AdminError(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{} is not allowed for this page", parts.method),
            )),
            (_, path) => Err(AdminError(
                StatusCode::NOT_FOUND,
                format!(
                    "no such page: {path}; available: /healthz /readyz /metrics /workers /add_worker \
                     /remove_worker /list_workers /flush_cache /finish_session /peers /config /events /explain \
                     /prefixes /ui"
                ),
            )),
        }
    }

    /// Whether workers get a key from the gateway.
    fn sends_worker_key(&self) -> bool {
        self.gateway.config().dialer.authorization().is_some()
    }

    async fn receive_report(&self, headers: &HeaderMap, query: &str, body: Incoming) -> AdminResult {
        let Some(reports) = &self.reports else {
            return Err(AdminError(StatusCode::FORBIDDEN, reports::EVENTS_DISABLED.to_owned()));
        };
        reports.authorize(headers)?;
        let body = bounded_body(body, headers, reports::BODY_BYTES_MAX).await?;
        reports.receive(&self.gateway.router, headers, query, body).await
    }

    fn readyz(&self) -> AdminResult {
        match self.readiness() {
            Readiness::Ready => Ok(as_json(&json!({"status": "ready"}))),
            Readiness::NoWorker => {
                Err(AdminError(StatusCode::SERVICE_UNAVAILABLE, "no worker is ready".into()))
            }
            Readiness::Draining => Err(AdminError(StatusCode::SERVICE_UNAVAILABLE, "draining".into())),
        }
    }
}

/// The page of metrics. With a thousand workers it takes milliseconds, in which requests on the same thread would wait.
async fn metrics_page(
    encode: impl FnOnce() -> Result<String, std::fmt::Error> + Send + 'static,
) -> AdminResult {
    let failed = |error: String| AdminError(StatusCode::INTERNAL_SERVER_ERROR, error);
    let text = tokio::task::spawn_blocking(encode).await.map_err(|error| failed(error.to_string()))?;
    let mut response = Response::new(Full::from(text.map_err(|error| failed(error.to_string()))?));
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

async fn bounded_body(body: Incoming, headers: &HeaderMap, bytes_max: usize) -> Result<Bytes, AdminError> {
    // Admin bodies have their own limits and do not count against the clients' memory budget.
    let mut budget = BodyMemory::default().share_of(usize::MAX, usize::MAX, None);
    let body = buffer(None, body, headers, bytes_max, BodyDeadline::new(BODY_TIMEOUT), &mut budget).await;
    body.map_err(|refusal| AdminError(refusal.status(), refusal.to_string()))
}

fn as_json(value: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(value.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// On a runtime with one thread: a page that was encoded there would wait for ever for the other task.
    #[test]
    fn requests_go_on_while_metrics_are_encoded() {
        let (served, other_request) = mpsc::channel();
        let encode = move || {
            other_request.recv_timeout(Duration::from_secs(60)).map_err(|_| std::fmt::Error)?;
            Ok("# EOF\n".to_owned())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (page, ()) = runtime
            .block_on(async { tokio::join!(metrics_page(encode), async { served.send(()).unwrap() }) });
        assert_eq!(page.map(|page| page.status()).map_err(|error| error.1), Ok(StatusCode::OK));
    }
}
