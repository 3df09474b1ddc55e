//! Management of workers by other programs: `/workers`, and the names that SMG and RL frameworks call.
//!
//! | Request | Effect |
//! |---|---|
//! | `GET /workers`, `GET /list_workers` | lists workers; the second only their URLs |
//! | `POST /workers`, `POST /add_worker?url=` | adds a worker; with `wait=true`, and for `/add_worker`, answers when it is routable |
//! | `DELETE /workers?url=`, `DELETE /workers/ID`, `DELETE /workers/URL`, `POST /remove_worker?url=` | drains a worker and removes it |
//! | `POST /flush_cache` | empties the caches of all engines, and what the router presumes about them |
//! | `POST /finish_session` | accepted; sessions have no state here |
//!
//! The admin listener always has them, the client listener where the operator allows it ([`WorkerApi`]).

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use hyper::body::Incoming;
use serde_json::json;
use warmroute_types::Address;
use warmroute_wire::percent_decoded;

use super::workers::{self, WorkerSpec, parameter};
use super::{AdminError, AdminResult, BODY_BYTES_MAX, as_json, bounded_body, flush};
use crate::WorkerApi;
use crate::gateway::Gateway;
use crate::response_body::ResponseBody;

/// How long `wait=true` waits. Engines load large models for minutes.
const WAIT_MAX: Duration = Duration::from_secs(600);
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// Whether this path belongs to the worker API.
pub(super) fn is_path(path: &str) -> bool {
    const PATHS: [&str; 6] =
        ["/workers", "/add_worker", "/remove_worker", "/list_workers", "/flush_cache", "/finish_session"];
    PATHS.contains(&path) || path.starts_with("/workers/")
}

/// Answers a request that is allowed.
pub(super) async fn answer(gateway: &Arc<Gateway>, parts: &Parts, body: Incoming) -> AdminResult {
    let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
    match (&parts.method, path) {
        (&Method::GET, "/workers") => Ok(as_json(&workers::list(gateway))),
        (&Method::GET, "/list_workers") => Ok(as_json(&json!({"urls": urls(gateway)}))),
        (&Method::POST, "/workers") => {
            let body = bounded_body(body, &parts.headers, BODY_BYTES_MAX).await?;
            let spec = WorkerSpec::read(&body)?;
            let wait = spec.wait.unwrap_or_default() || is_true(parameter(query, "wait").as_deref());
            add(gateway, spec, wait.then_some(WAIT_MAX)).await
        }
        (&Method::POST, "/add_worker") => {
            let body = bounded_body(body, &parts.headers, BODY_BYTES_MAX).await?;
            let spec = match parameter(query, "url") {
                Some(url) => WorkerSpec::of_url(url),
                None if !body.is_empty() => WorkerSpec::read(&body)?,
                None => return Err(missing("POST /add_worker?url=URL")),
            };
            let wait = spec.wait.unwrap_or(true) && parameter(query, "wait").as_deref() != Some("false");
            add(gateway, spec, wait.then_some(WAIT_MAX)).await
        }
        (&Method::DELETE, "/workers") => workers::remove(gateway, query),
        (&Method::POST, "/remove_worker") => match parameter(query, "url") {
            Some(_) => workers::remove(gateway, query),
            None => {
                let body = bounded_body(body, &parts.headers, BODY_BYTES_MAX).await?;
                let spec = WorkerSpec::read(&body).map_err(|_| missing("POST /remove_worker?url=URL"))?;
                workers::remove_url(gateway, &spec.url, None)
            }
        },
        (&Method::DELETE, _) if path.starts_with("/workers/") => {
            workers::remove_named(gateway, &percent_decoded(&path["/workers/".len()..]))
        }
        (&Method::POST, "/flush_cache") => flush::flush_all(&gateway.router, &gateway.config().dialer).await,
        (&Method::POST, "/finish_session") => Ok(as_json(&json!({"status": "ok"}))),
        (method, _) => {
            Err(AdminError(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not allowed for this page")))
        }
    }
}

fn is_true(value: Option<&str>) -> bool {
    matches!(value, Some("true" | "1"))
}

fn missing(usage: &str) -> AdminError {
    AdminError(StatusCode::BAD_REQUEST, format!("missing parameter: {usage}"))
}

/// The URLs of all workers, each once however many ranks it has.
fn urls(gateway: &Gateway) -> Vec<String> {
    let workers = gateway.router.inspect().workers();
    let mut urls: Vec<String> = workers.into_iter().map(|view| view.worker.address.url.clone()).collect();
    urls.sort();
    urls.dedup();
    urls
}

async fn add(gateway: &Arc<Gateway>, spec: WorkerSpec, wait: Option<Duration>) -> AdminResult {
    let addresses = workers::add(gateway, &spec)?;
    let status = match wait {
        Some(limit) => {
            await_routable(gateway, &addresses, limit).await?;
            StatusCode::OK
        }
        None => StatusCode::ACCEPTED,
    };
    let mut response = as_json(&workers::list_with_added(gateway, &spec));
    *response.status_mut() = status;
    Ok(response)
}

/// Returns when all these workers take requests. A worker that is removed meanwhile never will.
async fn await_routable(gateway: &Gateway, addresses: &[Address], limit: Duration) -> Result<(), AdminError> {
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        let workers = gateway.router.inspect().workers();
        let state = |address: &Address| {
            let view = workers.iter().find(|view| view.worker.address == *address);
            view.map(|view| view.load.state)
        };
        let waiting =
            addresses.iter().find(|address| !state(address).is_some_and(|state| state.takes_requests()));
        let Some(address) = waiting else { return Ok(()) };
        let Some(state) = state(address) else {
            return Err(AdminError(
                StatusCode::CONFLICT,
                format!("{address} was removed before it was ready"),
            ));
        };
        if tokio::time::Instant::now() >= deadline {
            let why = format!("{address} is {state} after {} s; it stays in the fleet", limit.as_secs());
            return Err(AdminError(StatusCode::GATEWAY_TIMEOUT, why));
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

/// The worker API on the client listener.
pub(crate) struct ClientWorkerApi<'a>(pub &'a Arc<Gateway>);

impl ClientWorkerApi<'_> {
    /// Whether this request is one for the worker API, which its token then has to allow.
    pub(crate) fn has_token_path(&self, path: &str) -> bool {
        self.0.config().worker_api == WorkerApi::Token && is_path(path) && path != "/finish_session"
    }

    /// Whether this request, whose API key is valid, is one for the worker API. Sessions may always be finished:
    /// frameworks that do so do not ask before.
    pub(crate) fn has_open_path(&self, path: &str) -> bool {
        path == "/finish_session" || (self.0.config().worker_api == WorkerApi::Open && is_path(path))
    }

    /// Whether the request may use the worker API.
    pub(crate) fn allows(&self, request: &http::Request<Incoming>) -> bool {
        self.authorize(request.method(), request.uri().path(), request.headers()).is_ok()
    }

    /// Answers a request for the worker API.
    pub(crate) async fn answer(&self, request: http::Request<Incoming>) -> http::Response<ResponseBody> {
        let (parts, body) = request.into_parts();
        let answered = match self.authorize(&parts.method, parts.uri.path(), &parts.headers) {
            Ok(()) => answer(self.0, &parts, body).await,
            Err(refused) => Err(refused),
        };
        let response = answered.unwrap_or_else(AdminError::into_response);
        response.map(|body| ResponseBody::whole(body.into_inner().unwrap_or_default()))
    }

    fn authorize(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), AdminError> {
        let config = self.0.config();
        let adds_worker = *method == Method::POST && matches!(path, "/workers" | "/add_worker");
        let has_token = || config.admin_token.is_some_and(|token| token.matches(headers));
        match config.worker_api {
            WorkerApi::Token if path != "/finish_session" && !has_token() => {
                Err(AdminError(StatusCode::UNAUTHORIZED, super::UNAUTHORIZED.to_owned()))
            }
            WorkerApi::Open if adds_worker && config.dialer.authorization().is_some() => {
                Err(AdminError(StatusCode::FORBIDDEN, super::KEY_NEEDS_TOKEN.to_owned()))
            }
            WorkerApi::Open if headers.contains_key(header::ORIGIN) => Err(AdminError(
                StatusCode::FORBIDDEN,
                "the worker API refuses requests of web pages".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}
