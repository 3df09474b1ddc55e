//! The response for a client when no other worker can be tried.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;

use crate::gateway_error::GatewayError;
use crate::response_body::ResponseBody;
use crate::upstream::{UpstreamError, UpstreamResponse};

/// Longer rejections are not kept while other workers are tried. No engine sends such long ones.
const BYTES_MAX: usize = 64 << 10;

/// The best response so far.
pub(crate) enum FallbackResponse {
    /// A worker's rejection, unchanged.
    Rejection(Response<Bytes>),
    /// A worker failed without a response.
    Failure(GatewayError),
}

impl FallbackResponse {
    /// Replaces the response, but never a rejection by a failure: a rejection tells the reason and when to retry.
    pub(crate) fn update(&mut self, newer: FallbackResponse) {
        if !matches!((&*self, &newer), (FallbackResponse::Rejection(_), FallbackResponse::Failure(_))) {
            *self = newer;
        }
    }

    pub(crate) fn into_result(self) -> Result<Response<ResponseBody>, GatewayError> {
        match self {
            FallbackResponse::Rejection(response) => Ok(response.map(ResponseBody::whole)),
            FallbackResponse::Failure(refusal) => Err(refusal),
        }
    }
}

/// Rejections nearly always arrive in one piece.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads a rejection to its end, starting with its first chunk.
pub(crate) async fn read_rejection(
    response: &mut UpstreamResponse,
    first: Option<Bytes>,
) -> Result<Bytes, UpstreamError> {
    let reading = tokio::time::timeout(TIMEOUT, read_to_end(response, first));
    reading.await.unwrap_or(Err(UpstreamError::IdleTimeout))
}

async fn read_to_end(response: &mut UpstreamResponse, first: Option<Bytes>) -> Result<Bytes, UpstreamError> {
    let first = first.unwrap_or_default();
    if response.is_over() {
        return Ok(first);
    }
    let mut whole = BytesMut::from(&first[..]);
    while let Some(chunk) = response.next_chunk().await.transpose()? {
        if whole.len() + chunk.len() > BYTES_MAX {
            return Err(UpstreamError::Closed);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}
