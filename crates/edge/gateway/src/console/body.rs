//! The body of an admin response: bytes in memory, or events for a page.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use tokio::sync::mpsc;

/// A response body of the admin listener.
pub(crate) enum AdminBody {
    /// Bytes in memory.
    Whole(Full<Bytes>),
    /// Events until the sender is dropped.
    Events(mpsc::Receiver<Bytes>),
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            AdminBody::Whole(bytes) => Pin::new(bytes).poll_frame(cx),
            AdminBody::Events(events) => events.poll_recv(cx).map(|event| event.map(Frame::data).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AdminBody::Whole(bytes) => bytes.is_end_stream(),
            AdminBody::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AdminBody::Whole(bytes) => bytes.size_hint(),
            AdminBody::Events(_) => SizeHint::default(),
        }
    }
}
