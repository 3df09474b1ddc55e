//! Every way in which the gateway itself says no, in the format that the client's SDK understands.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;
use warmroute_admission::{Exceeded, Limit};
use warmroute_prompt::BadJson;
use warmroute_router::NoRoute;

use crate::response_body::ResponseBody;
use crate::upstream::UpstreamError;

/// Seconds after which a client may try again when no worker is ready, or there is no memory for its body: health checks run about
/// this often, and bodies are forgotten as soon as their answers begin.
const RETRY_AFTER_S: u32 = 2;

/// Why a request got no answer from a worker.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("no valid API key came with the request: send it as Authorization: Bearer KEY, or as x-api-key")]
    Unauthorized,
    #[error("the body is not valid JSON: expected {} at line {line}, column {column}", bad.expected)]
    BadJson { bad: BadJson, line: usize, column: usize },
    #[error("the body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the bodies of other requests take all the memory that there is for them")]
    MemoryFull,
    #[error("the body broke off, or is not framed as HTTP wants it")]
    BrokenBody,
    #[error("the body did not come in time")]
    SlowBody,
    #[error("bodies with content-encoding `{0}` are not accepted; send them plain")]
    Encoded(String),
    #[error("the model `{0}` does not exist")]
    UnknownModel(String),
    #[error("there is no worker `{0}`")]
    UnknownWorker(String),
    #[error("the request's head is larger than {limit} bytes")]
    HeadTooLarge { limit: usize },
    #[error("the request's target is longer than {limit} bytes")]
    TargetTooLong { limit: usize },
    #[error("no worker is ready to take the request")]
    NotReady,
    #[error("every worker has as many requests as it may")]
    WorkersFull,
    #[error("too many requests wait already; try again in {retry_after_s} s")]
    QueueFull { retry_after_s: u32 },
    #[error("it was not this request's turn in time; try again in {retry_after_s} s")]
    QueueTimeout { retry_after_s: u32 },
    #[error("too many {} a minute; try again in {} s", of(.0.limit), .0.retry_after_s)]
    TooMany(Exceeded),
    #[error("there is no such endpoint: {0}")]
    NoSuchPath(String),
    #[error("{method} is not allowed here; {allowed} is")]
    MethodNotAllowed { method: http::Method, allowed: &'static str },
    #[error("the worker failed before it answered: {0}")]
    WorkerFailed(String),
    #[error("the worker did not answer: {0}")]
    WorkerTimeout(String),
    #[error("the worker's answer did not go on in time")]
    FellSilent,
    #[error("the worker broke off in the middle of its answer")]
    BrokeOff,
    #[error(
        "the request was ended: it reached the limit that is set for a whole request (request-timeout-secs)"
    )]
    TimeOver,
    #[error("the gateway was stopped before the answer had ended; send the request again")]
    Stopping,
}

fn of(limit: Limit) -> &'static str {
    match limit {
        Limit::Requests => "requests",
        Limit::Tokens => "tokens",
    }
}

/// Whose error objects the client understands.
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

impl Refusal {
    pub(crate) fn bad_json(bad: BadJson, body: &[u8]) -> Refusal {
        let (line, column) = bad.line_and_column(body);
        Refusal::BadJson { bad, line, column }
    }

    /// A worker failed before its first byte.
    pub(crate) fn failed(error: &UpstreamError) -> Refusal {
        match error {
            UpstreamError::RequestTimeout => Refusal::TimeOver,
            UpstreamError::ShuttingDown => Refusal::Stopping,
            error if error.is_timeout() => Refusal::WorkerTimeout(error.to_string()),
            error => Refusal::WorkerFailed(error.to_string()),
        }
    }

    /// A worker failed after it.
    pub(crate) fn broke_off(error: &UpstreamError) -> Refusal {
        match error {
            UpstreamError::RequestTimeout => Refusal::TimeOver,
            UpstreamError::ShuttingDown => Refusal::Stopping,
            error if error.is_timeout() => Refusal::FellSilent,
            _ => Refusal::BrokeOff,
        }
    }

    pub(crate) fn no_route(why: &NoRoute, model: Option<&str>) -> Refusal {
        match why {
            NoRoute::UnknownModel => Refusal::UnknownModel(model.unwrap_or_default().to_owned()),
            NoRoute::NotReady | NoRoute::NoWorkers => Refusal::NotReady,
            NoRoute::Full => Refusal::WorkersFull,
        }
    }

    /// Every code that there is.
    pub(crate) const CODES: [&str; 22] = [
        "broken_body",
        "invalid_api_key",
        "invalid_json",
        "memory_full",
        "method_not_allowed",
        "model_not_found",
        "no_worker_ready",
        "queue_full",
        "queue_timeout",
        "rate_limit_requests",
        "rate_limit_tokens",
        "head_too_large",
        "request_timeout",
        "request_too_large",
        "shutting_down",
        "slow_body",
        "target_too_long",
        "unknown_url",
        "unknown_worker",
        "unsupported_encoding",
        "worker_failed",
        "worker_timeout",
    ];

    /// A short name for metrics and OpenAI's `code`.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Refusal::Unauthorized => "invalid_api_key",
            Refusal::BadJson { .. } => "invalid_json",
            Refusal::TooLarge { .. } => "request_too_large",
            Refusal::MemoryFull => "memory_full",
            Refusal::BrokenBody => "broken_body",
            Refusal::SlowBody => "slow_body",
            Refusal::Encoded(_) => "unsupported_encoding",
            Refusal::UnknownModel(_) => "model_not_found",
            Refusal::UnknownWorker(_) => "unknown_worker",
            Refusal::HeadTooLarge { .. } => "head_too_large",
            Refusal::TargetTooLong { .. } => "target_too_long",
            Refusal::NotReady | Refusal::WorkersFull => "no_worker_ready",
            Refusal::QueueFull { .. } => "queue_full",
            Refusal::QueueTimeout { .. } => "queue_timeout",
            Refusal::TooMany(Exceeded { limit: Limit::Requests, .. }) => "rate_limit_requests",
            Refusal::TooMany(Exceeded { limit: Limit::Tokens, .. }) => "rate_limit_tokens",
            Refusal::NoSuchPath(_) => "unknown_url",
            Refusal::MethodNotAllowed { .. } => "method_not_allowed",
            Refusal::WorkerFailed(_) | Refusal::BrokeOff => "worker_failed",
            Refusal::WorkerTimeout(_) | Refusal::FellSilent => "worker_timeout",
            Refusal::TimeOver => "request_timeout",
            Refusal::Stopping => "shutting_down",
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Refusal::Unauthorized => StatusCode::UNAUTHORIZED,
            Refusal::BadJson { .. } | Refusal::BrokenBody => StatusCode::BAD_REQUEST,
            Refusal::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::Encoded(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Refusal::UnknownModel(_) | Refusal::UnknownWorker(_) | Refusal::NoSuchPath(_) => {
                StatusCode::NOT_FOUND
            }
            Refusal::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Refusal::HeadTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Refusal::TargetTooLong { .. } => StatusCode::URI_TOO_LONG,
            Refusal::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Refusal::NotReady | Refusal::WorkersFull | Refusal::MemoryFull | Refusal::Stopping => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Refusal::QueueFull { .. } | Refusal::QueueTimeout { .. } | Refusal::TooMany(_) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Refusal::WorkerFailed(_) | Refusal::BrokeOff => StatusCode::BAD_GATEWAY,
            Refusal::WorkerTimeout(_) | Refusal::FellSilent | Refusal::TimeOver => {
                StatusCode::GATEWAY_TIMEOUT
            }
        }
    }

    /// When to come back, where that is the answer.
    fn retry_after_s(&self) -> Option<u32> {
        match self {
            Refusal::QueueFull { retry_after_s }
            | Refusal::QueueTimeout { retry_after_s }
            | Refusal::TooMany(Exceeded { retry_after_s, .. }) => Some(*retry_after_s),
            Refusal::NotReady | Refusal::WorkersFull | Refusal::MemoryFull | Refusal::Stopping => {
                Some(RETRY_AFTER_S)
            }
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

    /// The error object as JSON.
    pub(crate) fn to_json(&self, format: ErrorFormat) -> String {
        let message = self.to_string();
        match format {
            ErrorFormat::Anthropic => {
                json!({"type": "error", "error": {"type": self.anthropic_type(), "message": message}})
                    .to_string()
            }
            ErrorFormat::OpenAi => json!({"error": {
                "message": message, "type": self.openai_type(), "param": null, "code": self.code(),
            }})
            .to_string(),
        }
    }

    /// The whole response.
    pub(crate) fn respond(&self, format: ErrorFormat) -> Response<ResponseBody> {
        let mut response = Response::new(ResponseBody::whole(Bytes::from(self.to_json(format))));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, Refusal::Unauthorized) {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Refusal::MethodNotAllowed { allowed, .. } = self {
            headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }
}
