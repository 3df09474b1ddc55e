//! Writes a request: the head, and the body as it becomes available.
//!
//! A short body goes out with the head in one write. A longer one is not copied: its pieces follow the head in vectored
//! writes. An upload is written as it arrives, in chunks if the client did not say how long it is.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};
use tokio::io::AsyncWrite;
use warmroute_wire::Stream;

use super::error::UpstreamError;
use crate::headers::{DATA_PARALLEL_RANK, REQUEST_ID};
use crate::upstream_body::{BufferedBody, Upload, UpstreamBody, WorkerPace};

/// Longer bodies are not copied behind the head.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// Pieces of one vectored write.
const PIECES_MAX: usize = 8;
/// Memory for heads that an idle connection keeps.
const KEPT_BYTES_MAX: usize = 32 << 10;

/// A request to a worker: the client's, and what an attempt sets itself.
pub(crate) struct UpstreamRequest<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: Uri,
    pub(crate) host: &'a HeaderValue,
    /// The id of the attempt.
    pub(crate) id: HeaderValue,
    /// The data-parallel rank.
    pub(crate) rank: Option<u16>,
    /// The client's headers, without those above.
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: UpstreamBody,
}

/// The part of a request that has not been written yet.
#[derive(Default)]
pub(super) struct RequestWriter {
    /// The head, and a short body.
    head: Vec<u8>,
    /// Bytes of `head` that have been written.
    written: usize,
    /// What follows it.
    pieces: VecDeque<Bytes>,
    upload: Option<(Upload, Framing)>,
    /// Whether everything has been handed to the connection, which may keep some of it until a flush.
    is_flushed: bool,
    /// Whether the upload failed. The worker must never see its end.
    is_broken: bool,
}

/// How the worker finds the end of an upload.
#[derive(Clone, Copy, PartialEq)]
enum Framing {
    Length,
    Chunks,
}

impl RequestWriter {
    /// Begins a request. Nothing is written yet.
    pub(super) fn begin(&mut self, request: UpstreamRequest<'_>) {
        self.head.clear();
        (self.written, self.is_flushed, self.is_broken) = (0, false, false);
        self.pieces.clear();
        self.upload = None;
        request.write_head(&mut self.head);
        match request.body {
            UpstreamBody::Buffered(body) => self.begin_buffered(request.method, &body),
            UpstreamBody::Upload(upload) => self.begin_upload(request.method, upload),
        }
    }

    fn begin_buffered(&mut self, method: &Method, body: &BufferedBody) {
        let length = body.len();
        write_length(&mut self.head, method, length as u64);
        self.head.extend_from_slice(b"\r\n");
        if length <= COPIED_BYTES_MAX {
            body.pieces().for_each(|piece| self.head.extend_from_slice(piece));
        } else {
            self.pieces.extend(body.pieces().cloned());
        }
    }

    fn begin_upload(&mut self, method: &Method, upload: Upload) {
        let framing = match upload.length() {
            Some(length) => {
                write_length(&mut self.head, method, length);
                Framing::Length
            }
            None => {
                self.head.extend_from_slice(b"transfer-encoding: chunked\r\n");
                Framing::Chunks
            }
        };
        self.head.extend_from_slice(b"\r\n");
        self.upload = Some((upload, framing));
    }

    /// Frees what only a long head needed.
    pub(super) fn shrink(&mut self) {
        self.head.clear();
        self.head.shrink_to(KEPT_BYTES_MAX);
        self.written = 0;
    }

    /// Whether the whole request has been sent.
    pub(super) fn is_done(&self) -> bool {
        self.is_flushed && self.upload.is_none() && !self.is_broken
    }

    /// Writes as much as is possible now. Ready when the whole request has been sent.
    pub(super) fn poll_send(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), UpstreamError>> {
        while !self.is_done() {
            if self.is_broken {
                return Poll::Pending;
            }
            let written = self.poll_write(stream, cx);
            if let Some((upload, _)) = &self.upload {
                upload.note_worker(if written.is_ready() {
                    WorkerPace::Reading
                } else {
                    WorkerPace::Blocked
                });
            }
            ready!(written)?;
            if self.upload.is_some() {
                ready!(self.poll_upload(cx))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes and flushes what is there.
    fn poll_write(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.head.len() || !self.pieces.is_empty() {
            let head = &self.head[self.written..];
            let count = if self.pieces.is_empty() {
                ready!(Pin::new(&mut *stream).poll_write(cx, head))?
            } else {
                let mut slices = [IoSlice::new(&[]); PIECES_MAX];
                let sources = std::iter::once(head).chain(self.pieces.iter().map(Bytes::as_ref));
                let sources = sources.filter(|source| !source.is_empty());
                let count = slices
                    .iter_mut()
                    .zip(sources)
                    .map(|(slice, source)| *slice = IoSlice::new(source))
                    .count();
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..count]))?
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(count);
        }
        if !self.is_flushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Drops bytes that have been written.
    fn advance(&mut self, count: usize) {
        if let Some((upload, _)) = &self.upload {
            upload.note_worker(WorkerPace::Reading);
        }
        let of_head = count.min(self.head.len() - self.written);
        self.written += of_head;
        let mut rest = count - of_head;
        while let Some(piece) = self.pieces.front_mut().filter(|_| rest > 0) {
            let of_piece = rest.min(piece.len());
            piece.advance(of_piece);
            rest -= of_piece;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    /// Waits for the next part of the upload.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), UpstreamError>> {
        let Some((upload, framing)) = &mut self.upload else { return Poll::Ready(Ok(())) };
        let framing = *framing;
        let part = match ready!(upload.poll_frame(cx)) {
            Some(Ok(frame)) => Some(frame.into_data().unwrap_or_default()),
            Some(Err(error)) => {
                self.is_broken = true;
                return Poll::Ready(Err(UpstreamError::Upload(error)));
            }
            None => None,
        };
        self.is_flushed = false;
        match part {
            // An empty chunk would end the body; trailers are dropped.
            Some(part) if part.is_empty() => {}
            Some(part) if framing == Framing::Length => self.pieces.push_back(part),
            Some(part) => {
                let size = Bytes::from(format!("{:x}\r\n", part.len()));
                self.pieces.extend([size, part, Bytes::from_static(b"\r\n")]);
            }
            None => {
                self.upload = None;
                if framing == Framing::Chunks {
                    self.pieces.push_back(Bytes::from_static(b"0\r\n\r\n"));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl UpstreamRequest<'_> {
    fn write_head(&self, head: &mut Vec<u8>) {
        let target = self.uri.path_and_query().map_or("/", |target| target.as_str());
        for part in [self.method.as_str(), " ", target, " HTTP/1.1\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        write_field(head, &header::HOST, self.host);
        // The writer delimits the body: a second length would let one request look like two.
        let is_framing =
            |name: &HeaderName| *name == header::CONTENT_LENGTH || *name == header::TRANSFER_ENCODING;
        for (name, value) in self.headers.iter().filter(|(name, _)| !is_framing(name)) {
            write_field(head, name, value);
        }
        write_field(head, &REQUEST_ID, &self.id);
        if let Some(rank) = self.rank {
            write_field(head, &DATA_PARALLEL_RANK, &HeaderValue::from(rank));
        }
    }
}

fn write_field(head: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        head.extend_from_slice(part);
    }
}

/// Servers may wait for the body of a request with certain methods unless its length is given, also of 0.
fn write_length(head: &mut Vec<u8>, method: &Method, length: u64) {
    if length > 0 || matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        write!(head, "content-length: {length}\r\n").expect("a vector takes all bytes");
    }
}
