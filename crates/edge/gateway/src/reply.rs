//! The body of a response: nothing, some bytes, or a worker's stream.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::relay::{Broken, Relay};

/// What the client is sent.
pub(crate) enum Reply {
    /// Bytes at hand, or none (left).
    Whole(Option<Bytes>),
    /// A worker's answer, as it comes.
    Relay(Box<Relay>),
}

impl Reply {
    pub(crate) fn whole(bytes: Bytes) -> Reply {
        Reply::Whole(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut *self {
            Reply::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Reply::Relay(relay) => relay.poll_chunk(cx).map_ok(Frame::data),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Reply::Whole(bytes) => bytes.is_none(),
            Reply::Relay(relay) => relay.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Reply::Relay(_) => SizeHint::default(),
        }
    }
}
