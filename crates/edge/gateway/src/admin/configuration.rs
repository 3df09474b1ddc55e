//! `/config`: what is in force, and something else from now on.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::Value;

use super::{AdminError, AdminResult, as_json};
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

pub(super) async fn put(
    configuration: Arc<dyn Configuration>,
    headers: &HeaderMap,
    body: Bytes,
) -> AdminResult {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let kind = String::from_utf8_lossy(kind).into_owned();
    // Keys and certificates are read for it, and a file system may be slow.
    let replaced = tokio::task::spawn_blocking(move || configuration.replace(&kind, &body)).await;
    let replaced =
        replaced.map_err(|error| AdminError(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    replaced.map(|changed| as_json(&changed)).map_err(|why| AdminError(StatusCode::BAD_REQUEST, why))
}
