//! The paths of the server.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, SERVER};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::api::{Ask, FINGERPRINT, chat, completions, messages, responses};
use crate::body::Body;
use crate::connection_control::ConnectionControl;
use crate::error::{ApiError, Dialect};
use crate::fault::Fault;
use crate::generate::generate;
use crate::server::Server;
use crate::tokens::Tokenizer;
use crate::{metrics, models, tokenize};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const FAULT: &str = "/fault";

/// The purpose of a path.
#[derive(Clone, Copy)]
enum Route {
    Generate(fn(&[u8], Tokenizer) -> Result<Ask, ApiError>),
    /// Converts a request body to a JSON response.
    Convert(fn(&Server, &[u8]) -> Result<Value, ApiError>),
    /// Responds with JSON.
    Tell(fn(&Server) -> Value),
    /// Responds with an empty 200.
    Well,
    Metrics,
    ClearCache,
    Fault,
}

fn route(path: &str) -> Option<(Method, Route)> {
    let found = match path {
        "/v1/chat/completions" => (Method::POST, Route::Generate(chat::read)),
        "/v1/completions" => (Method::POST, Route::Generate(completions::read)),
        "/v1/responses" => (Method::POST, Route::Generate(responses::read)),
        "/v1/messages" => (Method::POST, Route::Generate(messages::read)),
        "/v1/messages/count_tokens" => (
            Method::POST,
            Route::Convert(|server, body| messages::count_tokens(body, server.config.tokenizer)),
        ),
        "/tokenize" => {
            (Method::POST, Route::Convert(|server, body| tokenize::tokenize(&server.config, body)))
        }
        "/detokenize" => {
            (Method::POST, Route::Convert(|server, body| tokenize::detokenize(&server.config, body)))
        }
        "/v1/models" => (Method::GET, Route::Tell(|server| models::list(&server.config, server.started_s))),
        "/version" => (Method::GET, Route::Tell(|_| models::version())),
        "/kv_event_sources" => (Method::GET, Route::Tell(Server::event_sources)),
        "/load" => (Method::GET, Route::Tell(|server| json!({"server_load": server.in_flight()}))),
        "/health" | "/ping" => (Method::GET, Route::Well),
        "/metrics" => (Method::GET, Route::Metrics),
        "/reset_prefix_cache" => (Method::POST, Route::ClearCache),
        FAULT => (Method::POST, Route::Fault),
        _ => return None,
    };
    Some(found)
}

/// Answers one request.
pub(crate) async fn answer(
    server: Arc<Server>,
    line: Arc<ConnectionControl>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    if parts.uri.path() != FAULT {
        server.faults.until_answering().await;
    }
    let id = parts.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let id = id.unwrap_or_else(|| server.new_id());
    let echoed = HeaderValue::try_from(id.as_str());
    let outcome = dispatch(&server, &line, &parts, body, id).await;
    let mut response = outcome.unwrap_or_else(|error| refusal(&error, dialect(parts.uri.path())));
    response.headers_mut().insert(SERVER, HeaderValue::from_static(FINGERPRINT));
    if let Ok(echoed) = echoed {
        response.headers_mut().insert(REQUEST_ID, echoed);
    }
    response
}

async fn dispatch(
    server: &Server,
    line: &Arc<ConnectionControl>,
    parts: &Parts,
    body: Incoming,
    id: String,
) -> Result<Response<Body>, ApiError> {
    let path = parts.uri.path();
    let (method, route) =
        route(path).ok_or_else(|| ApiError::not_found(format!("there is no endpoint {path}")))?;
    if method != parts.method && !(method == Method::GET && parts.method == Method::HEAD) {
        return Ok(method_not_allowed(&method, path));
    }
    match route {
        Route::Generate(read_ask) => {
            refuse_by_fault(server)?;
            let ask = read_ask(&read(server, body).await?, server.config.tokenizer)?;
            generate(server, line, &parts.headers, id, ask).await
        }
        Route::Convert(convert) => Ok(json_response(&convert(server, &read(server, body).await?)?)),
        Route::Tell(tell) => Ok(json_response(&tell(server))),
        Route::Well => Ok(Response::new(Body::empty())),
        Route::Metrics => Ok(metrics_page(server)),
        Route::ClearCache => Ok(json_response(&json!({"success": server.clear_cache().await}))),
        Route::Fault => order_fault(server, line, &read(server, body).await?).await,
    }
}

async fn read(server: &Server, body: Incoming) -> Result<Bytes, ApiError> {
    let bytes_max = server.config.body_bytes_max;
    match Limited::new(body, bytes_max).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request body is larger than {bytes_max} bytes"),
        )),
        Err(error) => Err(ApiError::bad_request(format!("the request body could not be read: {error}"))),
    }
}

fn refuse_by_fault(server: &Server) -> Result<(), ApiError> {
    let Some((code, retry_after_s)) = server.faults.status() else { return Ok(()) };
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    Err(ApiError {
        retry_after_s,
        ..ApiError::new(
            status,
            "this replica refuses requests because of an injected fault; POST /fault with kind none ends it",
        )
    })
}

async fn order_fault(
    server: &Server,
    line: &Arc<ConnectionControl>,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    let fault: Fault = serde_json::from_slice(body)?;
    fault.validate().map_err(|error| ApiError::bad_request(error.to_string()))?;
    let mut response = json_response(&json!({"fault": serde_json::from_slice::<Value>(body)?}));
    if fault == Fault::Die {
        // The response is the replica's last: its connection closes, and then the replica dies.
        line.set_last();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    } else {
        server.fault(fault, Some(line)).await;
    }
    Ok(response)
}

fn metrics_page(server: &Server) -> Response<Body> {
    let mut page = metrics::render(&server.config, &server.boards().collect::<Vec<_>>());
    if !server.config.adapters.is_empty() {
        page.push_str(&metrics::adapters(&server.adapters, server.now_s()));
    }
    with_type("text/plain; version=0.0.4; charset=utf-8", page.into_bytes())
}

fn json_response(value: &Value) -> Response<Body> {
    with_type("application/json", value.to_string().into_bytes())
}

fn with_type(kind: &'static str, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn method_not_allowed(method: &Method, path: &str) -> Response<Body> {
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} accepts {method} only"));
    let mut response = refusal(&error, dialect(path));
    let allowed = HeaderValue::from_str(method.as_str()).expect("a method is a valid header value");
    response.headers_mut().insert(ALLOW, allowed);
    response
}

fn refusal(error: &ApiError, dialect: Dialect) -> Response<Body> {
    let mut response = with_type("application/json", error.body(dialect));
    *response.status_mut() = error.status;
    if let Some(retry_after_s) = error.retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after_s));
    }
    response
}

fn dialect(path: &str) -> Dialect {
    match path.starts_with("/v1/messages") {
        true => Dialect::Anthropic,
        false => Dialect::OpenAi,
    }
}
