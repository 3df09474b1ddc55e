//! gRPC over one HTTP/2 stream: messages in, messages out, a status at the end.
//!
//! A message is a byte for compression, four bytes of length, and the content. Messages are read without a copy where one
//! HTTP/2 frame has all of one, and bodies are written without a copy.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use tokio::time::{Instant, timeout, timeout_at};
use warmroute_gateway::{MessageMemory, Refusal};

/// Bytes before a message.
const PREFIX_BYTES: usize = 5;

/// A body up to this size is sent in the frame of its message.
const COPIED_BYTES_MAX: usize = 1 << 10;

/// Room that is made for a message before its bytes come. Longer ones get more as they arrive: their sender may stop.
const ROOM_BYTES: usize = 128 << 10;

/// Time for the first message of a stream. Proxies open a stream to send it.
const FIRST_MESSAGE_TIME: Duration = Duration::from_secs(10);

/// Time for the rest of a message that has begun to arrive.
const MESSAGE_TIME: Duration = Duration::from_secs(60);

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The codes of gRPC that the picker sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    Unimplemented = 12,
}

/// Why a stream cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// The other side has gone, or the connection has.
    #[error(transparent)]
    Transport(#[from] h2::Error),
    #[error("the stream is closed")]
    Closed,
    #[error(
        "a message of {bytes} bytes is larger than the limit of {bytes_max}; max-payload-size limits those with a body"
    )]
    TooLarge { bytes: usize, bytes_max: usize },
    #[error("compressed messages are not supported")]
    Compressed,
    #[error("the stream ends within a message")]
    Truncated,
    #[error("a message did not arrive in time")]
    Slow,
    #[error("there is no memory for a message; raise max-buffered-bytes")]
    NoMemory(Box<Refusal>),
    #[error(transparent)]
    Message(#[from] warmroute_protobuf::BadMessage),
}

impl StreamError {
    /// The status that the other side gets; `None` if it has gone.
    pub(crate) fn status(&self) -> Option<Status> {
        match self {
            StreamError::Transport(_) | StreamError::Closed => None,
            StreamError::TooLarge { .. } | StreamError::NoMemory(_) => Some(Status::ResourceExhausted),
            StreamError::Slow => Some(Status::DeadlineExceeded),
            StreamError::Compressed => Some(Status::Unimplemented),
            StreamError::Truncated | StreamError::Message(_) => Some(Status::InvalidArgument),
        }
    }
}

/// Finds messages in the bytes of a stream.
#[derive(Debug)]
pub(crate) struct MessageDecoder {
    /// The rest of the last frame, while it begins with a message.
    frame: Bytes,
    /// A message that several frames have parts of.
    partial: BytesMut,
    bytes_max: usize,
}

impl MessageDecoder {
    pub(crate) fn new(bytes_max: usize) -> MessageDecoder {
        MessageDecoder { frame: Bytes::new(), partial: BytesMut::new(), bytes_max }
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        if self.frame.is_empty() && self.partial.is_empty() {
            self.frame = bytes;
        } else {
            self.partial.extend_from_slice(&std::mem::take(&mut self.frame));
            self.partial.extend_from_slice(&bytes);
        }
    }

    /// The next whole message.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, StreamError> {
        let held = if self.partial.is_empty() { &self.frame[..] } else { &self.partial[..] };
        let Some(length) = self.length_of(held)? else { return Ok(None) };
        let whole = PREFIX_BYTES + length;
        if held.len() >= whole {
            let mut message = match self.partial.is_empty() {
                true => self.frame.split_to(whole),
                false => self.partial.split_to(whole).freeze(),
            };
            message.advance(PREFIX_BYTES);
            return Ok(Some(message));
        }
        // Room for the rest, so that most messages are copied once.
        let (rest, room) = (whole - self.partial.len(), held.len().max(ROOM_BYTES));
        let frame = std::mem::take(&mut self.frame);
        self.partial.reserve(rest.min(room));
        self.partial.extend_from_slice(&frame);
        Ok(None)
    }

    fn length_of(&self, held: &[u8]) -> Result<Option<usize>, StreamError> {
        let Some([is_compressed, length @ ..]) = held.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
        let bytes = u32::from_be_bytes(*length) as usize;
        match () {
            () if *is_compressed != 0 => Err(StreamError::Compressed),
            () if bytes > self.bytes_max => Err(StreamError::TooLarge { bytes, bytes_max: self.bytes_max }),
            () => Ok(Some(bytes)),
        }
    }

    /// Whether a message has begun and is not whole.
    pub(crate) fn is_within_message(&self) -> bool {
        self.held() > 0
    }

    /// Bytes of messages that were not taken.
    fn held(&self) -> usize {
        self.frame.len() + self.partial.len()
    }
}

/// The messages of the other side. What waits for its rest counts as memory, and has to arrive in time.
pub(crate) struct Messages {
    stream: RecvStream,
    decoder: MessageDecoder,
    /// Frames that were read ahead. The other side does not know yet that they were read.
    ahead: VecDeque<Bytes>,
    memory: MessageMemory,
    /// Bytes that `memory` has counted.
    counted: usize,
    /// Since when the rest of a message is awaited.
    awaited: Option<Instant>,
}

impl Messages {
    /// `bytes_max`: largest first message.
    pub(crate) fn new(stream: RecvStream, bytes_max: usize, memory: MessageMemory) -> Messages {
        let decoder = MessageDecoder::new(bytes_max);
        Messages { stream, decoder, ahead: VecDeque::new(), memory, counted: 0, awaited: None }
    }

    /// The first message; `None` if there is none.
    pub(crate) async fn first(&mut self) -> Result<Option<Bytes>, StreamError> {
        timeout(FIRST_MESSAGE_TIME, self.next()).await.unwrap_or(Err(StreamError::Slow))
    }

    /// Allows messages of this size from now on.
    pub(crate) fn allow_bytes(&mut self, bytes_max: usize) {
        self.decoder.bytes_max = bytes_max;
    }

    /// The next message; `None` at the end. Dropping the future loses nothing. The memory of the last message is free again. A
    /// message that comes in one frame is not counted: headers and events pass while bodies use up the memory.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, StreamError> {
        if self.awaited.is_none() && self.counted > 0 {
            self.memory.release();
            self.counted = 0;
        }
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            let more = self.decoder.held() - self.counted;
            if more > 0 {
                self.counted += more;
                self.memory.reserve(more).map_err(|refusal| StreamError::NoMemory(Box::new(refusal)))?;
            }
            match self.frame_in_time().await? {
                Some(bytes) => self.decoder.push(bytes),
                None => return Ok(None),
            }
        }
    }

    /// The next message. Its caller counts the bytes as they arrive.
    pub(crate) async fn next_counted<E: From<StreamError>>(
        &mut self,
        mut count: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<Option<Bytes>, E> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            match self.frame_in_time().await? {
                Some(bytes) => {
                    count(bytes.len())?;
                    self.decoder.push(bytes);
                }
                None => return Ok(None),
            }
        }
    }

    fn take_message(&mut self) -> Result<Option<Bytes>, StreamError> {
        let message = self.decoder.next()?;
        if message.is_some() {
            self.awaited = None;
        }
        Ok(message)
    }

    /// The next frame; `None` at the end. The rest of a message has to come in time.
    async fn frame_in_time(&mut self) -> Result<Option<Bytes>, StreamError> {
        if !self.decoder.is_within_message() {
            return self.frame().await;
        }
        let due = *self.awaited.get_or_insert_with(Instant::now) + MESSAGE_TIME;
        let frame = timeout_at(due, self.frame()).await.map_err(|_| StreamError::Slow)??;
        frame.map(Some).ok_or(StreamError::Truncated)
    }

    async fn frame(&mut self) -> Result<Option<Bytes>, StreamError> {
        let frame = match self.ahead.pop_front() {
            Some(frame) => Some(frame),
            None => self.stream.data().await.transpose()?,
        };
        if let Some(frame) = &frame {
            self.stream.flow_control().release_capacity(frame.len())?;
        }
        Ok(frame)
    }

    /// Returns when the other side has ended the stream. What it sends before is kept for [`Messages::next`], and is no
    /// more than its window, which stays closed.
    pub(crate) async fn wait_end(&mut self) -> Result<(), StreamError> {
        while let Some(frame) = self.stream.data().await.transpose()? {
            if !frame.is_empty() {
                self.ahead.push_back(frame);
            }
        }
        Ok(())
    }
}

/// The messages to the other side.
pub(crate) struct Replies {
    stream: SendStream<Bytes>,
}

impl Replies {
    /// Begins the answer.
    pub(crate) fn begin(mut respond: SendResponse<Bytes>) -> Result<Replies, h2::Error> {
        Ok(Replies { stream: respond.send_response(head(), false)? })
    }

    /// Sends a message whose last field has the bytes of `tail`, which are not copied if they are many.
    pub(crate) async fn send(&mut self, message: &[u8], tail: &Bytes) -> Result<(), StreamError> {
        let length = message.len() + tail.len();
        let copied = if tail.len() <= COPIED_BYTES_MAX { &tail[..] } else { &[] };
        let mut frame = BytesMut::with_capacity(PREFIX_BYTES + message.len() + copied.len());
        frame.put_u8(0);
        frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        frame.put_slice(message);
        frame.put_slice(copied);
        self.write(frame.freeze()).await?;
        if copied.is_empty() { self.write(tail.clone()).await } else { Ok(()) }
    }

    /// Sends bytes as the other side takes them, so that what waits here is bounded.
    async fn write(&mut self, mut bytes: Bytes) -> Result<(), StreamError> {
        while !bytes.is_empty() {
            self.stream.reserve_capacity(bytes.len());
            while self.stream.capacity() == 0 {
                let more = poll_fn(|cx| self.stream.poll_capacity(cx)).await;
                more.ok_or(StreamError::Closed)??;
            }
            let part = bytes.split_to(self.stream.capacity().min(bytes.len()));
            self.stream.send_data(part, false)?;
        }
        Ok(())
    }

    /// Ends the stream.
    pub(crate) fn finish(mut self, status: Status, why: &str) {
        // A stream that the other side has closed needs no status.
        _ = self.stream.send_trailers(trailers(status, why));
    }

    /// Ends the stream with an error, if the other side is still there.
    pub(crate) fn fail(self, error: &StreamError) {
        if let Some(status) = error.status() {
            self.finish(status, &error.to_string());
        }
    }
}

/// Answers a call that is not offered.
pub(crate) fn refuse(mut respond: SendResponse<Bytes>, status: Status, why: &str) {
    let mut response = head();
    response.headers_mut().extend(trailers(status, why));
    // A caller that has gone needs no answer.
    _ = respond.send_response(response, true);
}

fn head() -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

fn trailers(status: Status, why: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(GRPC_STATUS, HeaderValue::from(status as u16));
    if let Some(why) = HeaderValue::from_str(why).ok().filter(|why| !why.is_empty()) {
        trailers.insert(GRPC_MESSAGE, why);
    }
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap();
        [&[0][..], &length.to_be_bytes(), content].concat()
    }

    fn decoded(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, bool) {
        let (mut decoder, mut messages) = (MessageDecoder::new(100), Vec::new());
        for piece in pieces {
            decoder.push(Bytes::copy_from_slice(piece));
            while let Some(message) = decoder.next().unwrap() {
                messages.push(message.to_vec());
            }
        }
        (messages, decoder.is_within_message())
    }

    #[test]
    fn messages_are_found_however_frames_cut_them() {
        let stream = [framed(b"first"), framed(b""), framed(&[7; 100])].concat();
        let expected = vec![b"first".to_vec(), Vec::new(), vec![7; 100]];
        assert_eq!(decoded(&[&stream]), (expected.clone(), false));
        for cut in 0..stream.len() {
            let (start, rest) = stream.split_at(cut);
            assert_eq!(decoded(&[start, rest]), (expected.clone(), false), "{cut}");
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(decoded(&bytes), (expected, false));
        assert!(decoded(&[&stream[..20]]).1, "a message has begun");
    }

    #[test]
    fn a_message_takes_the_memory_of_what_has_arrived_not_of_what_is_announced() {
        let mut decoder = MessageDecoder::new(1 << 30);
        decoder.push(Bytes::from_static(&[0, 0x30, 0, 0, 0, 1, 2, 3]));
        assert_eq!(decoder.next().unwrap(), None);
        assert!(decoder.partial.capacity() <= 2 * ROOM_BYTES, "{}", decoder.partial.capacity());
    }

    #[test]
    fn large_and_compressed_messages_are_refused_before_they_are_read() {
        let refusal = |prefix: &[u8]| {
            let mut decoder = MessageDecoder::new(100);
            decoder.push(Bytes::copy_from_slice(prefix));
            decoder.next().unwrap_err().status()
        };
        assert_eq!(refusal(&[0, 0, 0, 0, 101]), Some(Status::ResourceExhausted));
        assert_eq!(refusal(&[1, 0, 0, 0, 1]), Some(Status::Unimplemented));
    }
}
