//! Errors of starting a replica, and of requests.

use std::io;

use http::StatusCode;
use serde_json::json;
use thiserror::Error;

use crate::config::ConfigError;

/// Why a replica could not be started.
#[derive(Debug, Error)]
pub enum Error {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The sockets for events cannot be used.
    #[error("cannot publish events: {0}")]
    Events(warmroute_zmtp::Error),
    /// The listener cannot be used.
    #[error("cannot listen: {0}")]
    Listen(io::Error),
}

// The text contains the cause, so it is not a `source`: a printed chain of causes would repeat it.
impl From<warmroute_zmtp::Error> for Error {
    fn from(error: warmroute_zmtp::Error) -> Error {
        Error::Events(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Listen(error)
    }
}

/// An error for a client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The request field that it concerns.
    pub(crate) param: Option<&'static str>,
    /// Seconds after which to retry.
    pub(crate) retry_after_s: Option<u32>,
}

/// The API whose error object a client expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, retry_after_s: None }
    }

    /// The request is invalid.
    pub(crate) fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// The requested thing does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, message)
    }

    /// Names the field that the error concerns.
    pub(crate) fn about(self, param: &'static str) -> ApiError {
        ApiError { param: Some(param), ..self }
    }

    /// The error object.
    pub(crate) fn body(&self, dialect: Dialect) -> Vec<u8> {
        let body = match dialect {
            Dialect::OpenAi => json!({"error": {
                "message": self.message,
                "type": openai_type(self.status),
                "param": self.param,
                "code": self.status.as_u16(),
            }}),
            Dialect::Anthropic => json!({"type": "error", "error": {
                "type": anthropic_type(self.status),
                "message": self.message,
            }}),
        };
        body.to_string().into_bytes()
    }
}

impl From<serde_json::Error> for ApiError {
    fn from(error: serde_json::Error) -> ApiError {
        ApiError::bad_request(format!("the request body is not valid: {error}"))
    }
}

/// vLLM's names.
fn openai_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        404 => "NotFoundError",
        405 => "MethodNotAllowedError",
        413 => "RequestEntityTooLargeError",
        429 => "RateLimitError",
        503 => "ServiceUnavailableError",
        400..500 => "BadRequestError",
        _ => "InternalServerError",
    }
}

fn anthropic_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_openai_shape_is_vllms() {
        let error = ApiError::not_found("The model `x` does not exist.").about("model");
        let body: Value = serde_json::from_slice(&error.body(Dialect::OpenAi)).unwrap();
        let expected = json!({"error": {"message": "The model `x` does not exist.", "type": "NotFoundError",
            "param": "model", "code": 404}});
        assert_eq!(body, expected);
    }

    #[test]
    fn the_anthropic_shape_says_error_twice() {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "later");
        let body: Value = serde_json::from_slice(&error.body(Dialect::Anthropic)).unwrap();
        assert_eq!(body, json!({"type": "error", "error": {"type": "rate_limit_error", "message": "later"}}));
    }
}
