//! The body sent to a worker: the client's body with a few bytes spliced in, or streamed through.

use std::error::Error;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::Instant;
use xxhash_rust::xxh3::Xxh3;

use crate::body_deadline;
use crate::form_fields::FormScan;
use crate::open_connections::ArrivingBody;

/// A body in memory. Clones share the bytes, so a retry costs nothing.
#[derive(Clone, Default)]
pub(crate) struct BufferedBody {
    /// The pieces in order. Some may be empty.
    pieces: [Bytes; 7],
    /// Whether it is not the client's own body.
    is_changed: bool,
}

/// A range to replace, and the replacement.
type Splice = (Range<usize>, Bytes);

impl BufferedBody {
    /// Applies up to three splices, given in order of position. Only the replacements are copied.
    pub(crate) fn spliced(body: &Bytes, splices: [Option<Splice>; 3]) -> BufferedBody {
        let mut pieces: [Bytes; 7] = Default::default();
        let is_changed = splices.iter().any(Option::is_some);
        let (mut next, mut at) = (0, 0);
        for (range, replacement) in splices.into_iter().flatten() {
            pieces[next] = body.slice(at..range.start);
            pieces[next + 1] = replacement;
            (next, at) = (next + 2, range.end);
        }
        pieces[next] = body.slice(at..);
        BufferedBody { pieces, is_changed }
    }

    /// The pieces that are not empty.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter().filter(|piece| !piece.is_empty())
    }

    /// Whether it is not the client's own body.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// The body of a client, changed before.
    pub(crate) fn changed(self) -> BufferedBody {
        BufferedBody { is_changed: true, ..self }
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// The body as one piece, which is copied only if it was changed.
    pub(crate) fn joined(&self) -> Bytes {
        let mut pieces = self.pieces();
        match (pieces.next(), pieces.next()) {
            (None, _) => Bytes::new(),
            (Some(only), None) => only.clone(),
            _ => Bytes::from(self.pieces.concat()),
        }
    }

    /// The body as one piece.
    pub(crate) fn concat(&self) -> Vec<u8> {
        self.pieces.concat()
    }
}

impl BufferedBody {
    /// A hash of the body.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = Xxh3::new();
        self.pieces.iter().for_each(|piece| hasher.update(piece));
        hasher.digest()
    }
}

/// A client's upload that is streamed through. It can be sent once.
pub(crate) struct Upload {
    /// The part that was read to find the model. It is sent first.
    head: Option<Bytes>,
    /// `None` once it was refused.
    rest: Option<Incoming>,
    /// Reads the names of a form's fields.
    scan: Option<FormScan>,
    status: Arc<UploadStatus>,
    /// The client waits for `100 Continue`, and nothing has been read that would have sent it.
    is_withheld: bool,
    /// Until the body has arrived, its connection may give way to others.
    pub(crate) arriving: Option<ArrivingBody>,
}

/// The client's side of an upload. If it failed, the request to the worker fails too, and the worker must not be blamed.
#[derive(Debug, Default)]
pub(crate) struct UploadStatus {
    failure: OnceLock<UploadFailure>,
    arrived_at: OnceLock<Instant>,
    /// Since when the worker has taken nothing of what waits for it; `None` while the client sets the pace.
    blocked_since: Mutex<Option<Instant>>,
}

/// Why the client's side of an upload failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UploadFailure {
    BrokenOff,
    /// A form has a field that is refused.
    Field(&'static str),
}

impl UploadStatus {
    pub(crate) fn failure(&self) -> Option<UploadFailure> {
        self.failure.get().copied()
    }

    /// When its last byte came. From then on the worker is waited for, not the client.
    pub(crate) fn arrived_at(&self) -> Option<Instant> {
        self.arrived_at.get().copied()
    }

    #[cfg(test)]
    pub(crate) fn blocked_for(time: Option<std::time::Duration>) -> UploadStatus {
        let since = time.map(|time| Instant::now() - time);
        UploadStatus { blocked_since: Mutex::new(since), ..UploadStatus::default() }
    }

    /// Since when the worker has taken nothing of what waits for it. The client is not read meanwhile.
    pub(crate) fn blocked_since(&self) -> Option<Instant> {
        *self.blocked_since.lock()
    }

    /// Notes that the worker takes nothing now, or has taken something.
    fn note_worker(&self, pace: WorkerPace) {
        let mut since = self.blocked_since.lock();
        match pace {
            WorkerPace::Blocked => _ = since.get_or_insert_with(Instant::now),
            WorkerPace::Reading => *since = None,
        }
    }
}

/// Whether a worker reads an upload.
#[derive(Clone, Copy)]
pub(crate) enum WorkerPace {
    Reading,
    Blocked,
}

/// An error of a body, for the connection that sends it.
pub(crate) type BodyError = Box<dyn Error + Send + Sync>;

impl Upload {
    /// The upload with this start, which `scan` has read. `headers` are the request's.
    pub(crate) fn new(
        head: Option<Bytes>,
        headers: &HeaderMap,
        rest: Incoming,
        scan: Option<FormScan>,
        status: Arc<UploadStatus>,
    ) -> Upload {
        let is_withheld = head.is_none() && headers.contains_key(header::EXPECT);
        Upload { head, rest: Some(rest), scan, status, is_withheld, arriving: None }
    }

    /// Notes whether the worker reads what has arrived.
    pub(crate) fn note_worker(&self, pace: WorkerPace) {
        self.status.note_worker(pace);
    }

    /// The next part as it arrives.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(head) = self.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        self.is_withheld = false;
        let frame = ready!(Pin::new(&mut *rest).poll_frame(cx));
        if frame.is_none() || rest.is_end_stream() {
            self.arriving = None;
            self.status.arrived_at.get_or_init(Instant::now);
        }
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(self.checked(frame)),
            Some(Err(error)) => Some(Err(self.fail(UploadFailure::BrokenOff, error))),
            None => None,
        })
    }

    /// A frame, unless it completes the name of a field that is refused: the worker then gets no end of the form.
    fn checked(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        let data = frame.data_ref().map(Bytes::as_ref).unwrap_or_default();
        match self.scan.iter_mut().try_for_each(|scan| scan.push(data)) {
            Ok(()) => Ok(frame),
            Err(field) => {
                self.rest.take().into_iter().for_each(body_deadline::discard_refused);
                Err(self.fail(UploadFailure::Field(field), "a field of the form is refused"))
            }
        }
    }

    fn fail(&self, failure: UploadFailure, error: impl Into<BodyError>) -> BodyError {
        // The first failure is the reason of the others.
        _ = self.status.failure.set(failure);
        error.into()
    }

    /// The length in bytes, if the client gave one.
    pub(crate) fn length(&self) -> Option<u64> {
        let head = self.head.as_ref().map_or(0, |head| head.len() as u64);
        self.rest.as_ref().map_or(Some(0), |rest| rest.size_hint().exact()).map(|rest| head + rest)
    }
}

impl Drop for Upload {
    /// The request is refused, or the worker has answered before it had all. The client is read on for a while, so that it
    /// sees the answer instead of a reset connection.
    fn drop(&mut self) {
        let is_over = self.status.arrived_at().is_some() || self.status.failure().is_some();
        if let Some(rest) = self.rest.take().filter(|_| !is_over && !self.is_withheld) {
            body_deadline::discard_refused(rest);
        }
    }
}

/// A body on its way to a worker.
pub(crate) enum UpstreamBody {
    /// In memory: it can be sent again.
    Buffered(BufferedBody),
    /// Streamed from the client.
    Upload(Upload),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(body: BufferedBody) -> (usize, Vec<u8>) {
        (body.len(), body.concat())
    }

    #[test]
    fn splices_replace_their_ranges_only() {
        let body = Bytes::from_static(b"{\"model\":\"alias\",\"x\":1}");
        assert_eq!(sent(BufferedBody::spliced(&body, [None, None, None])), (23, body.to_vec()));
        assert!(!BufferedBody::spliced(&body, [None, None, None]).is_changed());
        assert!(BufferedBody::spliced(&body, [None, None, None]).changed().is_changed());
        let rename = || Some((9..16, Bytes::from_static(b"\"m\"")));
        let insert = Some((1..1, Bytes::from_static(b"\"y\":2,")));
        assert_eq!(
            sent(BufferedBody::spliced(&body, [None, None, rename()])),
            (19, b"{\"model\":\"m\",\"x\":1}".to_vec())
        );
        let both = BufferedBody::spliced(&body, [insert, rename(), None]);
        assert!(both.is_changed());
        assert_eq!(sent(both), (25, b"{\"y\":2,\"model\":\"m\",\"x\":1}".to_vec()));
        assert_eq!(sent(BufferedBody::default()), (0, vec![]));
    }
}
