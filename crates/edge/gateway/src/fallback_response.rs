//! What the client is told when no other worker is left to try.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;

use crate::refusal::Refusal;
use crate::response_body::ResponseBody;
use crate::upstream::{UpstreamError, UpstreamResponse};

/// An answer longer than this is not kept while others are tried: no engine says so much to say no.
const BYTES_MAX: usize = 64 << 10;

/// The best that there is to say so far.
pub(crate) enum FallbackResponse {
    /// A worker turned the request away; its answer, as it came.
    Rejection(Response<Bytes>),
    /// A worker failed.
    Failure(Refusal),
}

impl FallbackResponse {
    /// What a worker said is worth more than that another one failed: it names its reason, and when to come back.
    pub(crate) fn update(&mut self, newer: FallbackResponse) {
        if !matches!((&*self, &newer), (FallbackResponse::Rejection(_), FallbackResponse::Failure(_))) {
            *self = newer;
        }
    }

    pub(crate) fn into_result(self) -> Result<Response<ResponseBody>, Refusal> {
        match self {
            FallbackResponse::Rejection(answer) => Ok(answer.map(ResponseBody::whole)),
            FallbackResponse::Failure(refusal) => Err(refusal),
        }
    }
}

/// An answer that turns a request away comes in one piece, nearly always.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The rest of an answer that turns a request away, its first chunk before it.
pub(crate) async fn read_rejection(
    answer: &mut UpstreamResponse,
    first: Option<Bytes>,
) -> Result<Bytes, UpstreamError> {
    let reading = tokio::time::timeout(TIMEOUT, read_to_end(answer, first));
    reading.await.unwrap_or(Err(UpstreamError::IdleTimeout))
}

async fn read_to_end(answer: &mut UpstreamResponse, first: Option<Bytes>) -> Result<Bytes, UpstreamError> {
    let first = first.unwrap_or_default();
    if answer.is_over() {
        return Ok(first);
    }
    let mut whole = BytesMut::from(&first[..]);
    while let Some(chunk) = answer.next_chunk().await.transpose()? {
        if whole.len() + chunk.len() > BYTES_MAX {
            return Err(UpstreamError::Closed);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}
