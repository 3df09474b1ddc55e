//! `/config`: what is in force, and something else from now on.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::Value;

use super::{Answer, Problem, as_json};
use crate::Token;

/// Whoever knows where the settings come from.
pub trait Configuration: Send + Sync {
    /// What is in force, without its secrets.
    fn in_force(&self) -> Value;

    /// What operators must show; `None`: nothing.
    fn admin_token(&self) -> Option<Token>;

    /// Puts another one in force, as a whole or not at all; what that changed, or why it was refused.
    fn replace(&self, content_type: &str, body: &[u8]) -> Result<Value, String>;
}

pub(super) fn put(configuration: &dyn Configuration, headers: &HeaderMap, body: &Bytes) -> Answer {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let replaced = configuration.replace(&String::from_utf8_lossy(kind), body);
    replaced.map(|changed| as_json(&changed)).map_err(|why| Problem(StatusCode::BAD_REQUEST, why))
}
