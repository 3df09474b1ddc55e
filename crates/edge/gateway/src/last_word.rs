//! What the client is told when no other worker is left to try.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;

use crate::refusal::Refusal;
use crate::reply::Reply;
use crate::upstream::{Answer, Fault};

/// An answer longer than this is not kept while others are tried: no engine says so much to say no.
const BYTES_MAX: usize = 64 << 10;

/// The best that there is to say so far.
pub(crate) enum LastWord {
    /// A worker turned the request away; its answer, as it came.
    Answer(Response<Bytes>),
    /// A worker failed.
    Failure(Refusal),
}

impl LastWord {
    /// What a worker said is worth more than that another one failed: it names its reason, and when to come back.
    pub(crate) fn replace(&mut self, word: LastWord) {
        if !matches!((&*self, &word), (LastWord::Answer(_), LastWord::Failure(_))) {
            *self = word;
        }
    }

    pub(crate) fn speak(self) -> Result<Response<Reply>, Refusal> {
        match self {
            LastWord::Answer(answer) => Ok(answer.map(Reply::whole)),
            LastWord::Failure(refusal) => Err(refusal),
        }
    }
}

/// An answer that turns a request away comes in one piece, nearly always.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The rest of an answer that turns a request away, its first chunk before it.
pub(crate) async fn read_out(answer: &mut Answer, first: Option<Bytes>) -> Result<Bytes, Fault> {
    let reading = tokio::time::timeout(TIMEOUT, read_to_end(answer, first));
    reading.await.unwrap_or(Err(Fault::Silent))
}

async fn read_to_end(answer: &mut Answer, first: Option<Bytes>) -> Result<Bytes, Fault> {
    let first = first.unwrap_or_default();
    if answer.is_over() {
        return Ok(first);
    }
    let mut whole = BytesMut::from(&first[..]);
    while let Some(chunk) = answer.chunk().await.transpose()? {
        if whole.len() + chunk.len() > BYTES_MAX {
            return Err(Fault::Closed);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}
