//! A worker's response up to its first body chunk.

use http::{Response, StatusCode};

use crate::framing::Framing;
use crate::upstream::{UpstreamError, UpstreamResponse};

/// A worker's response up to its first body chunk.
pub(crate) struct StartedResponse {
    pub(crate) head: Response<()>,
    pub(crate) response: UpstreamResponse,
    pub(crate) first: Option<bytes::Bytes>,
}

impl StartedResponse {
    /// Whether the worker streams an answer.
    pub(crate) fn is_stream(&self) -> bool {
        self.head.status() == StatusCode::OK && Framing::of(self.head.headers()) == Framing::Events
    }
}

/// Waits for the first body chunk. Some servers send the response head before they start to compute.
pub(crate) async fn read_first_chunk(
    (head, mut response): (Response<()>, UpstreamResponse),
) -> Result<StartedResponse, UpstreamError> {
    if head.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(UpstreamError::Upgrade);
    }
    let first = response.next_chunk().await.transpose()?;
    Ok(StartedResponse { head, response, first })
}
