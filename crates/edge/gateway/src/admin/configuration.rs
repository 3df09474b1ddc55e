//! `/config`: shows and replaces the configuration.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::Value;

use super::{AdminError, AdminResult, as_json};
use crate::Token;

/// The source of the configuration.
pub trait Configuration: Send + Sync {
    /// The current configuration without secrets.
    fn in_force(&self) -> Value;

    /// The admin token; `None`: no authentication.
    fn admin_token(&self) -> Option<Token>;

    /// Replaces the whole configuration, or nothing. Returns what changed, or why it was refused.
    fn replace(&self, content_type: &str, body: &[u8]) -> Result<Value, String>;
}

pub(super) async fn put(
    configuration: Arc<dyn Configuration>,
    headers: &HeaderMap,
    body: Bytes,
) -> AdminResult {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let kind = String::from_utf8_lossy(kind).into_owned();
    // This reads keys and certificates, and a file system may be slow.
    let replaced = tokio::task::spawn_blocking(move || configuration.replace(&kind, &body)).await;
    let replaced =
        replaced.map_err(|error| AdminError(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    replaced.map(|changed| as_json(&changed)).map_err(|why| AdminError(StatusCode::BAD_REQUEST, why))
}
