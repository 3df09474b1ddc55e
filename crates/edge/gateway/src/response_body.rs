//! The body of a response to a client.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::relay::{Relay, TruncatedResponse};
use crate::request_log::RequestLog;

/// A response body.
pub(crate) struct ResponseBody {
    content: Content,
    /// Bytes handed to the connection.
    sent: u64,
    log: RequestLog,
}

enum Content {
    /// Bytes in memory; `None` if empty or sent.
    Whole(Option<Bytes>),
    /// A worker's response, streamed.
    Relay(Box<Relay>),
}

impl ResponseBody {
    pub(crate) fn whole(bytes: Bytes) -> ResponseBody {
        ResponseBody::of(Content::Whole(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }

    pub(crate) fn relay(relay: Relay) -> ResponseBody {
        ResponseBody::of(Content::Relay(Box::new(relay)))
    }

    fn of(content: Content) -> ResponseBody {
        ResponseBody { content, sent: 0, log: RequestLog::default() }
    }

    /// Keeps the request's log line open until the body is sent or dropped.
    pub(crate) fn set_log(&mut self, log: RequestLog) {
        self.log = log;
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.log.note(|entry| entry.bytes = self.sent);
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = TruncatedResponse;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TruncatedResponse>>> {
        let polled = match &mut self.content {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(Ok)),
            Content::Relay(relay) => relay.poll_chunk(cx),
        };
        if let Poll::Ready(Some(Ok(chunk))) = &polled {
            self.sent += chunk.len() as u64;
        }
        polled.map_ok(Frame::data)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(bytes) => bytes.is_none(),
            Content::Relay(relay) => relay.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Relay(_) => SizeHint::default(),
        }
    }
}
