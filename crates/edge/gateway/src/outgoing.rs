//! The body sent to a worker: the client's, untouched, with a few bytes spliced in, or streamed through.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// What a worker is sent. Cloning shares the bytes: a retry costs nothing.
#[derive(Clone, Default)]
pub(crate) struct Buffered {
    /// In order. Empty pieces are allowed.
    pieces: [Bytes; 3],
}

impl Buffered {
    /// The body as it came.
    pub(crate) fn as_it_came(body: Bytes) -> Buffered {
        Buffered { pieces: [body, Bytes::new(), Bytes::new()] }
    }

    /// The body with `range` replaced. Nothing is copied but the replacement.
    pub(crate) fn spliced(body: &Bytes, range: Range<usize>, replacement: Bytes) -> Buffered {
        Buffered { pieces: [body.slice(..range.start), replacement, body.slice(range.end..)] }
    }

    fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }
}

/// A client's upload, streamed through. It can be sent once.
pub(crate) struct Upload {
    /// Read to find out what is asked for; sent first.
    head: Option<Bytes>,
    rest: Incoming,
    sender: Arc<Sender>,
}

/// What became of the client's side of an upload. When the body breaks off there, the exchange with the worker fails
/// too, and the worker must not be blamed.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    broke: AtomicBool,
}

impl Sender {
    pub(crate) fn broke(&self) -> bool {
        self.broke.load(Ordering::Relaxed)
    }
}

impl Upload {
    pub(crate) fn new(head: Option<Bytes>, rest: Incoming, sender: Arc<Sender>) -> Upload {
        Upload { head, rest, sender }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(head) = self.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        let frame = ready!(Pin::new(&mut self.rest).poll_frame(cx));
        if matches!(frame, Some(Err(_))) {
            self.sender.broke.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.rest.size_hint();
        let head = self.head.as_ref().map_or(0, |head| head.len() as u64);
        if let Some(exact) = hint.exact() {
            hint.set_exact(exact + head);
        }
        hint
    }
}

/// A body on its way to a worker.
pub(crate) enum Outgoing {
    /// At hand: it can be sent again.
    Buffered(Buffered),
    /// Streamed from the client.
    Upload(Upload),
}

impl fmt::Debug for Outgoing {
    /// Prompts stay out of logs, whoever prints this.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outgoing(..)")
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Outgoing::Upload(upload) => upload.poll_frame(cx),
            Outgoing::Buffered(body) => {
                let piece = body.pieces.iter_mut().find(|piece| !piece.is_empty()).map(std::mem::take);
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Outgoing::Upload(upload) => upload.head.is_none() && upload.rest.is_end_stream(),
            Outgoing::Buffered(body) => body.len() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Outgoing::Upload(upload) => upload.size_hint(),
            Outgoing::Buffered(body) => SizeHint::with_exact(body.len() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    fn sent(body: Buffered) -> (u64, Vec<u8>) {
        let outgoing = Outgoing::Buffered(body);
        let length = outgoing.size_hint().exact().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        (length, runtime.block_on(outgoing.collect()).unwrap().to_bytes().to_vec())
    }

    #[test]
    fn a_splice_changes_the_range_and_nothing_else() {
        let body = Bytes::from_static(b"{\"model\":\"alias\",\"x\":1}");
        assert_eq!(sent(Buffered::as_it_came(body.clone())), (23, body.to_vec()));
        let spliced = Buffered::spliced(&body, 9..16, Bytes::from_static(b"\"m\""));
        assert_eq!(sent(spliced), (19, b"{\"model\":\"m\",\"x\":1}".to_vec()));
        assert_eq!(sent(Buffered::default()), (0, vec![]));
    }
}
