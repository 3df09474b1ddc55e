//! Errors that the gateway itself returns to clients, in the format that their SDK expects.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;
use warmroute_admission::{Exceeded, Limit};
use warmroute_prompt::{Api, BadJson};
use warmroute_router::NoRoute;
use warmroute_types::Micros;

use crate::stored_reference::StoredReference;
use crate::upstream::UpstreamError;

/// `Retry-After` when no worker is ready or body memory is full. Health checks run about this often, and bodies are
/// freed when their responses start.
const RETRY_AFTER_S: u32 = 2;

/// Why the gateway answers a request with an error. The text is the error message that the client sees.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum GatewayError {
    #[error("Missing or invalid API key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    Unauthorized,
    #[error("The request body is not valid JSON: expected {} at line {line}, column {column}", bad.expected)]
    BadJson { bad: BadJson, line: usize, column: usize },
    #[error("The request body is larger than the limit of {limit} bytes")]
    TooLarge { limit: usize },
    #[error("The gateway's memory for request bodies is full; try again in {RETRY_AFTER_S} s")]
    MemoryFull,
    #[error(
        "This client's request bodies fill its part of the gateway's memory; send fewer at a time, or try again in \
         {RETRY_AFTER_S} s"
    )]
    MemoryShareFull,
    #[error("The request body ended early or has invalid HTTP framing")]
    BrokenBody,
    #[error("Timed out reading the request body")]
    SlowBody,
    #[error("Request bodies with content-encoding `{0}` are not supported; send them uncompressed")]
    UnsupportedEncoding(String),
    #[error("The model `{0}` does not exist")]
    UnknownModel(String),
    #[error("The worker `{0}` named in x-warmroute-worker is not in the fleet")]
    UnknownWorker(String),
    #[error("{} with id '{}' not found.", .0.kind.title(), .0.id)]
    StoredNotFound(StoredReference),
    #[error(
        "{} with id '{}' is lost: the worker that stored it has left the fleet. Send the whole conversation in `input`",
        .0.kind.title(), .0.id
    )]
    StoredLost(StoredReference),
    #[error(
        "The worker that stores the {} with id '{}' is not ready; try again in {RETRY_AFTER_S} s",
        .0.kind.title().to_lowercase(), .0.id
    )]
    StoredNotReady(StoredReference),
    #[error(
        "The {} with id '{}' is stored by another worker than the other object that the request names. \
         Send the whole conversation in `input`",
        .0.kind.title().to_lowercase(), .0.id
    )]
    StoredApart(StoredReference),
    #[error("The field `{0}` steers engines and is not allowed for this key; remove it")]
    FieldRefused(&'static str),
    #[error("The field `{0}` stands twice in the body; send it once")]
    RepeatedField(&'static str),
    #[error("The request's head is ambiguous: {0}")]
    AmbiguousHead(&'static str),
    #[error("The request's headers are larger than the limit of {limit} bytes")]
    HeadTooLarge { limit: usize },
    #[error("The request's path and query are longer than the limit of {limit} bytes")]
    TargetTooLong { limit: usize },
    #[error(
        "No worker is ready that serves the request; try again in {RETRY_AFTER_S} s. GET /v1/models lists the models \
         of ready workers"
    )]
    NotReady,
    #[error(
        "No worker is ready among the {allowed} endpoints that the proxy allows \
         (x-gateway-destination-endpoint-subset); try again in {RETRY_AFTER_S} s"
    )]
    NoAllowedWorker { allowed: usize },
    #[error("No worker became ready within {} s; try again in {RETRY_AFTER_S} s", seconds(*waited))]
    NoWorkerInTime { waited: Micros },
    #[error("All workers are at their concurrency limit; try again in {RETRY_AFTER_S} s")]
    WorkersFull,
    #[error("The admission queue is full; try again in {retry_after_s} s")]
    QueueFull { retry_after_s: u32 },
    #[error("This client's requests fill its part of the admission queue; try again in {retry_after_s} s")]
    QueueShareFull { retry_after_s: u32 },
    #[error("Timed out in the admission queue after {} s; try again in {retry_after_s} s", seconds(*waited))]
    QueueTimeout { waited: Micros, retry_after_s: u32 },
    #[error(
        "The first token is expected after {}; with a budget of {} only up to {} can be promised. Try again in \
         {retry_after_s} s, or with a larger budget",
        time_text(*expected), time_text(*budget), time_text(*accepted)
    )]
    TtftBudget { expected: Micros, accepted: Micros, budget: Micros, retry_after_s: u32 },
    #[error(
        "The predicted wait in the admission queue is {} s, longer than the time budget; try again in {retry_after_s} s, \
         or with a larger budget",
        seconds(*wait)
    )]
    QueueTooLate { wait: Micros, retry_after_s: u32 },
    #[error(
        "Dropped from the admission queue for requests of higher priority; try again in {retry_after_s} s"
    )]
    Shed { retry_after_s: u32 },
    #[error(
        "x-warmroute-ttft-budget-ms must be a number of milliseconds, or a time such as 2s: 0, or 1 ms to one day"
    )]
    BadTtftBudget,
    #[error("{}; try again in {} s", limit_text(.0.limit), .0.retry_after_s)]
    RateLimited(Exceeded),
    #[error("No such endpoint: {}", with_hint(.0))]
    UnknownPath(String),
    #[error("{method} is not allowed for this endpoint; use {allowed}")]
    MethodNotAllowed { method: http::Method, allowed: &'static str },
    #[error("WebSockets are not offered; send the request by HTTP")]
    NoWebSocket,
    #[error("The worker failed before it responded: {0}")]
    WorkerFailed(String),
    #[error(
        "The gateway lacks a resource of its machine, not the worker: {0}; try again in {RETRY_AFTER_S} s"
    )]
    OutOfResources(String),
    #[error("The worker did not respond: {0}")]
    WorkerTimeout(String),
    #[error("The worker stopped sending its response")]
    WorkerStalled,
    #[error("The worker failed in the middle of its response")]
    WorkerBrokeOff,
    #[error("The request exceeded the time limit for a whole request (request-timeout-secs)")]
    RequestTimeout,
    #[error("The gateway is shutting down; send the request again")]
    ShuttingDown,
}

/// The path, and what a client meant whose base URL lacks `/v1`.
fn with_hint(path: &str) -> String {
    let meant = format!("/v1{path}");
    let is_known = Api::of_path(&meant) != Api::Other || meant == "/v1/models" || meant == "/v1/embeddings";
    let is_of_admin = ["/metrics", "/ui", "/workers", "/readyz", "/explain", "/prefixes", "/config"]
        .contains(&path)
        || ["/add_worker", "/remove_worker", "/list_workers", "/flush_cache", "/finish_session"]
            .contains(&path);
    match (is_known, is_of_admin) {
        (true, _) => format!("{path}; use {meant}: base URLs end with /v1"),
        (false, true) => format!("{path}; it is on the admin listener (--admin-port, 29000)"),
        (false, false) => path.to_owned(),
    }
}

/// Seconds with at most one digit after the point.
fn seconds(time: Micros) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

/// A time with its unit: `5.6 ms`, `1.25 s`.
fn time_text(time: Micros) -> String {
    match time.as_millis_f64() {
        ms if ms < 1_000.0 => format!("{} ms", (ms * 10.0).round() / 10.0),
        ms => format!("{} s", (ms / 10.0).round() / 100.0),
    }
}

fn limit_text(limit: Limit) -> &'static str {
    match limit {
        Limit::Requests => "Rate limit reached: too many requests per minute",
        Limit::Tokens => "Rate limit reached: too many tokens per minute",
        Limit::Concurrent => "Concurrency limit reached: too many requests at once",
    }
}

/// The client's format of error objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorFormat {
    OpenAi,
    Anthropic,
}

impl ErrorFormat {
    pub(crate) fn of_path(path: &str) -> ErrorFormat {
        if path.starts_with("/v1/messages") { ErrorFormat::Anthropic } else { ErrorFormat::OpenAi }
    }
}

/// Defines the error codes. Every kind of error has one, so that `CODES` is complete.
macro_rules! codes {
    ($( $errors:pat => $code:literal, )*) => {
        impl GatewayError {
            /// All error codes.
            pub(crate) const CODES: [&str; [$($code),*].len()] = [$($code),*];

            /// The `code` of OpenAI error objects and of the `refusals` metric.
            pub(crate) fn code(&self) -> &'static str {
                match self { $( $errors => $code, )* }
            }
        }
    };
}

codes! {
    GatewayError::Unauthorized => "invalid_api_key",
    GatewayError::BadJson { .. } => "invalid_json",
    GatewayError::TooLarge { .. } => "request_too_large",
    GatewayError::MemoryFull => "memory_full",
    GatewayError::MemoryShareFull => "memory_share_full",
    GatewayError::OutOfResources(_) => "out_of_resources",
    GatewayError::BrokenBody => "broken_body",
    GatewayError::SlowBody => "slow_body",
    GatewayError::UnsupportedEncoding(_) => "unsupported_encoding",
    GatewayError::UnknownModel(_) => "model_not_found",
    GatewayError::UnknownWorker(_) => "unknown_worker",
    GatewayError::StoredNotFound(_) => "response_not_found",
    GatewayError::StoredLost(_) => "response_lost",
    GatewayError::StoredApart(_) => "responses_apart",
    GatewayError::AmbiguousHead(_) => "ambiguous_head",
    GatewayError::FieldRefused(_) => "field_not_allowed",
    GatewayError::RepeatedField(_) => "repeated_field",
    GatewayError::HeadTooLarge { .. } => "head_too_large",
    GatewayError::TargetTooLong { .. } => "target_too_long",
    GatewayError::NotReady
    | GatewayError::NoAllowedWorker { .. }
    | GatewayError::NoWorkerInTime { .. }
    | GatewayError::WorkersFull
    | GatewayError::StoredNotReady(_) => "no_worker_ready",
    GatewayError::QueueFull { .. } => "queue_full",
    GatewayError::QueueShareFull { .. } => "queue_share_full",
    GatewayError::QueueTimeout { .. } => "queue_timeout",
    GatewayError::TtftBudget { .. } | GatewayError::QueueTooLate { .. } => "ttft_budget",
    GatewayError::Shed { .. } => "queue_shed",
    GatewayError::BadTtftBudget => "invalid_ttft_budget",
    GatewayError::RateLimited(Exceeded { limit: Limit::Requests, .. }) => "rate_limit_requests",
    GatewayError::RateLimited(Exceeded { limit: Limit::Tokens, .. }) => "rate_limit_tokens",
    GatewayError::RateLimited(Exceeded { limit: Limit::Concurrent, .. }) => "concurrency_limit",
    GatewayError::UnknownPath(_) => "unknown_url",
    GatewayError::MethodNotAllowed { .. } => "method_not_allowed",
    GatewayError::NoWebSocket => "websocket_not_offered",
    GatewayError::WorkerFailed(_) | GatewayError::WorkerBrokeOff => "worker_failed",
    GatewayError::WorkerTimeout(_) | GatewayError::WorkerStalled => "worker_timeout",
    GatewayError::RequestTimeout => "request_timeout",
    GatewayError::ShuttingDown => "shutting_down",
}

impl GatewayError {
    pub(crate) fn bad_json(bad: BadJson, body: &[u8]) -> GatewayError {
        let (line, column) = bad.line_and_column(body);
        GatewayError::BadJson { bad, line, column }
    }

    /// The error for a worker that failed before its first byte.
    pub(crate) fn before_first_byte(error: &UpstreamError) -> GatewayError {
        match error {
            UpstreamError::RequestTimeout => GatewayError::RequestTimeout,
            UpstreamError::ShuttingDown => GatewayError::ShuttingDown,
            UpstreamError::OwnShortage(error) => GatewayError::OutOfResources(error.to_string()),
            error if error.is_timeout() => GatewayError::WorkerTimeout(error.to_string()),
            error => GatewayError::WorkerFailed(error.to_string()),
        }
    }

    /// The error for a worker that failed after its first byte.
    pub(crate) fn after_first_byte(error: &UpstreamError) -> GatewayError {
        match error {
            UpstreamError::RequestTimeout => GatewayError::RequestTimeout,
            UpstreamError::ShuttingDown => GatewayError::ShuttingDown,
            error if error.is_timeout() => GatewayError::WorkerStalled,
            _ => GatewayError::WorkerBrokeOff,
        }
    }

    pub(crate) fn no_route(why: &NoRoute, model: Option<&str>) -> GatewayError {
        match why {
            NoRoute::UnknownModel => GatewayError::UnknownModel(model.unwrap_or_default().to_owned()),
            NoRoute::NotReady | NoRoute::NoWorkers => GatewayError::NotReady,
            NoRoute::Full => GatewayError::WorkersFull,
        }
    }

    /// Whether workers failed the request, and the gateway did not refuse it.
    pub(crate) fn is_worker_failure(&self) -> bool {
        matches!(self.code(), "worker_failed" | "worker_timeout")
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            GatewayError::Unauthorized => StatusCode::UNAUTHORIZED,
            GatewayError::BadJson { .. }
            | GatewayError::StoredApart(_)
            | GatewayError::BrokenBody
            | GatewayError::AmbiguousHead(_)
            | GatewayError::BadTtftBudget
            | GatewayError::FieldRefused(_)
            | GatewayError::RepeatedField(_) => StatusCode::BAD_REQUEST,
            GatewayError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            GatewayError::UnsupportedEncoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            GatewayError::UnknownModel(_)
            | GatewayError::UnknownWorker(_)
            | GatewayError::StoredNotFound(_)
            | GatewayError::StoredLost(_)
            | GatewayError::UnknownPath(_) => StatusCode::NOT_FOUND,
            GatewayError::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            // Codex goes on by HTTP at once after this status, and after 405 only when it has tried five times.
            GatewayError::NoWebSocket => StatusCode::UPGRADE_REQUIRED,
            GatewayError::HeadTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            GatewayError::TargetTooLong { .. } => StatusCode::URI_TOO_LONG,
            GatewayError::SlowBody => StatusCode::REQUEST_TIMEOUT,
            GatewayError::NotReady
            | GatewayError::NoAllowedWorker { .. }
            | GatewayError::NoWorkerInTime { .. }
            | GatewayError::WorkersFull
            | GatewayError::StoredNotReady(_)
            | GatewayError::MemoryFull
            | GatewayError::OutOfResources(_)
            | GatewayError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            GatewayError::QueueFull { .. }
            | GatewayError::QueueShareFull { .. }
            | GatewayError::QueueTimeout { .. }
            | GatewayError::TtftBudget { .. }
            | GatewayError::QueueTooLate { .. }
            | GatewayError::Shed { .. }
            | GatewayError::MemoryShareFull
            | GatewayError::RateLimited(_) => StatusCode::TOO_MANY_REQUESTS,
            GatewayError::WorkerFailed(_) | GatewayError::WorkerBrokeOff => StatusCode::BAD_GATEWAY,
            GatewayError::WorkerTimeout(_) | GatewayError::WorkerStalled | GatewayError::RequestTimeout => {
                StatusCode::GATEWAY_TIMEOUT
            }
        }
    }

    /// The `Retry-After` header, if a retry may help.
    fn retry_after_s(&self) -> Option<u32> {
        match self {
            GatewayError::QueueFull { retry_after_s }
            | GatewayError::QueueShareFull { retry_after_s }
            | GatewayError::QueueTimeout { retry_after_s, .. }
            | GatewayError::TtftBudget { retry_after_s, .. }
            | GatewayError::QueueTooLate { retry_after_s, .. }
            | GatewayError::Shed { retry_after_s }
            | GatewayError::RateLimited(Exceeded { retry_after_s, .. }) => Some(*retry_after_s),
            GatewayError::NotReady
            | GatewayError::NoAllowedWorker { .. }
            | GatewayError::NoWorkerInTime { .. }
            | GatewayError::WorkersFull
            | GatewayError::StoredNotReady(_)
            | GatewayError::MemoryFull
            | GatewayError::MemoryShareFull
            | GatewayError::OutOfResources(_)
            | GatewayError::ShuttingDown => Some(RETRY_AFTER_S),
            _ => None,
        }
    }

    fn openai_type(&self) -> &'static str {
        match self.status() {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        }
    }

    /// The request's field that is wrong, if it is one.
    fn param(&self) -> Option<&'static str> {
        match self {
            GatewayError::StoredNotFound(reference)
            | GatewayError::StoredLost(reference)
            | GatewayError::StoredApart(reference) => Some(reference.kind.param()),
            _ => None,
        }
    }

    /// The error object as JSON.
    pub(crate) fn to_json(&self, format: ErrorFormat) -> String {
        let message = self.to_string();
        match format {
            ErrorFormat::Anthropic => {
                json!({"type": "error", "error": {"type": self.anthropic_type(), "message": message}})
                    .to_string()
            }
            ErrorFormat::OpenAi => json!({"error": {
                "message": message, "type": self.openai_type(), "param": self.param(), "code": self.code(),
            }})
            .to_string(),
        }
    }

    /// The complete response.
    pub(crate) fn respond(&self, format: ErrorFormat) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(self.to_json(format)));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, GatewayError::Unauthorized) {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self, GatewayError::NoWebSocket) {
            headers.insert(header::UPGRADE, HeaderValue::from_static("HTTP/1.1"));
        }
        if let GatewayError::MethodNotAllowed { allowed, .. } = self {
            headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn messages_tell_what_happened_and_when_to_retry() {
        let timeout = |ms: u64| GatewayError::QueueTimeout { waited: Micros(ms * 1_000), retry_after_s: 3 };
        for (error, message) in [
            (timeout(2_003), "Timed out in the admission queue after 2 s; try again in 3 s"),
            (timeout(260), "Timed out in the admission queue after 0.3 s; try again in 3 s"),
            (GatewayError::WorkersFull, "All workers are at their concurrency limit; try again in 2 s"),
            (
                GatewayError::RateLimited(Exceeded { limit: Limit::Tokens, retry_after_s: 7 }),
                "Rate limit reached: too many tokens per minute; try again in 7 s",
            ),
        ] {
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn each_code_is_defined_once() {
        let codes = BTreeSet::from(GatewayError::CODES);
        assert_eq!(codes.len(), GatewayError::CODES.len());
        assert!(codes.contains("repeated_field") && codes.contains("responses_apart"));
    }
}
