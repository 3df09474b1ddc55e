//! One HTTP/1.1 connection to a worker, driven by the request that uses it.
//!
//! ```text
//! open ──▶ send ──▶ response head ──▶ chunks ──▶ reclaim ──▶ idle ──▶ send …
//! ```
//!
//! The request's task polls the socket. A dropped request thus closes its socket at once, which tells the worker that the
//! client left, and an idle connection has no task and few bytes. While the response is read, what is left of an upload is
//! written: a client that does not read its response holds up its own upload.
//!
//! Three files hold the protocol: `request_writer` writes a request to the socket; `response_head` and `body_decoder` read a
//! response from bytes, without one.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http::{Method, Response};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::task::coop::unconstrained;
use warmroute_wire::{Dialer, Stream, Target};

use super::body_decoder::BodyDecoder;
use super::error::{BadResponse, UpstreamError};
use super::request_writer::{RequestWriter, UpstreamRequest};
use super::response_head::{HeadReader, ResponseHead};

/// Bytes that a read takes at first. Chunks of a stream are short.
const READ_BYTES_MIN: usize = 8 << 10;
/// Bytes that a read takes at most, after reads that filled what they could take.
const READ_BYTES_MAX: usize = 256 << 10;
/// A read with less room than this would split what has arrived.
const ROOM_BYTES_MIN: usize = 2 << 10;

/// An open connection. It is boxed, because it moves from request to request.
pub(crate) struct UpstreamConnection {
    stream: Stream,
    writer: RequestWriter,
    /// Why the request could not be sent to its end. The worker may have answered before that.
    send_error: Option<UpstreamError>,
    /// Bytes that have arrived and have not been read.
    received: BytesMut,
    read_bytes: usize,
    body: BodyDecoder,
    /// Whether the worker said that it keeps the connection open.
    keeps_open: bool,
}

/// A worker's response body, and the connection it arrives on.
pub(crate) struct UpstreamResponse {
    connection: Box<UpstreamConnection>,
}

impl UpstreamConnection {
    pub(crate) async fn open(
        dialer: &Dialer,
        target: &Target,
    ) -> Result<Box<UpstreamConnection>, UpstreamError> {
        let stream = dialer.dial(target).await.map_err(UpstreamError::of_connect)?;
        Ok(Box::new(UpstreamConnection {
            stream,
            writer: RequestWriter::default(),
            send_error: None,
            received: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            body: BodyDecoder::Over,
            keeps_open: false,
        }))
    }

    /// Whether an idle connection is still open, as far as can be seen without waiting. One with unrequested bytes cannot be
    /// used.
    pub(crate) fn is_alive(&mut self) -> bool {
        let mut byte = [0];
        let mut unread = ReadBuf::new(&mut byte);
        let reading = poll_fn(|cx| Pin::new(&mut self.stream).poll_read(cx, &mut unread));
        // A task that has done much is told to wait, also by a socket that has bytes. Such a wait would look like silence.
        pin!(unconstrained(reading)).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Sends a request and waits for the response head.
    pub(crate) async fn send(
        mut self: Box<Self>,
        request: UpstreamRequest<'_>,
    ) -> Result<(Response<()>, UpstreamResponse), UpstreamError> {
        let method = request.method.clone();
        self.writer.begin(request);
        (self.read_bytes, self.keeps_open, self.send_error) = (READ_BYTES_MIN, false, None);
        let mut reader = HeadReader::default();
        let ResponseHead { head, body, keeps_open } =
            poll_fn(|cx| self.poll_head(cx, &mut reader, &method)).await?;
        (self.body, self.keeps_open) = (body, keeps_open);
        Ok((head, UpstreamResponse { connection: self }))
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut HeadReader,
        method: &Method,
    ) -> Poll<Result<ResponseHead, UpstreamError>> {
        self.poll_send(cx)?;
        loop {
            let failure = match ready!(self.poll_receive(cx)) {
                Ok(0) => Some(UpstreamError::Closed),
                Ok(_) => None,
                Err(error) => Some(error.into()),
            };
            if let Some(failure) = failure {
                // Without a byte of a response, the worker may have closed an idle connection before the request came.
                let has_begun = reader.has_begun() || !self.received.is_empty();
                return Poll::Ready(Err(match self.send_error.take() {
                    _ if has_begun => BadResponse::HeadTruncated.into(),
                    send_error => send_error.unwrap_or(failure),
                }));
            }
            if let Some(head) = reader.read(&mut self.received, method)? {
                return Poll::Ready(Ok(head));
            }
        }
    }

    /// Sends what can be sent now. Fails only if the client's upload did.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), UpstreamError> {
        if self.writer.is_done() || self.send_error.is_some() {
            return Ok(());
        }
        match self.writer.poll_send(&mut self.stream, cx) {
            Poll::Ready(Err(error @ UpstreamError::Upload(_))) => Err(error),
            Poll::Ready(Err(error)) => {
                // A worker that refuses a request may close its side before it has read all.
                self.send_error = Some(error);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Receives more bytes; 0 at the end of the connection.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.received.capacity() - self.received.len() < ROOM_BYTES_MIN {
            self.received.reserve(self.read_bytes);
        }
        let room = (self.received.capacity() - self.received.len()).min(self.read_bytes);
        let mut limited = (&mut self.received).limit(room);
        let count = ready!(pin!(self.stream.read_buf(&mut limited)).poll(cx))?;
        // What is left of a buffer is filled also by little.
        if count == self.read_bytes {
            self.read_bytes = (2 * self.read_bytes).min(READ_BYTES_MAX);
        } else if count < room && count < self.read_bytes / 8 {
            self.read_bytes = (self.read_bytes / 2).max(READ_BYTES_MIN);
        }
        Poll::Ready(Ok(count))
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, UpstreamError>>> {
        loop {
            match self.body.decode(&mut self.received) {
                Ok(Some(chunk)) => return Poll::Ready(Some(Ok(chunk))),
                Ok(None) if self.body.is_over() => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
            if let Err(error) = self.poll_send(cx) {
                return Poll::Ready(Some(Err(error)));
            }
            match ready!(self.poll_receive(cx)) {
                Ok(0) if self.body.end() => return Poll::Ready(None),
                Ok(0) => return Poll::Ready(Some(Err(UpstreamError::Closed))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    /// Whether another request may follow: both sides have ended this one, at the same byte.
    fn can_be_reused(&mut self) -> bool {
        let is_done = self.body.is_over() && self.writer.is_done() && self.received.is_empty();
        is_done && self.keeps_open && self.is_alive()
    }

    /// Frees what only a long request or response needed.
    fn shrink(&mut self) {
        self.writer.shrink();
        // What is left of a large buffer keeps all of it. Its other parts may still be on their way to the client.
        if self.read_bytes > READ_BYTES_MIN || self.received.try_reclaim(READ_BYTES_MIN + 1) {
            self.received = BytesMut::new();
        }
    }
}

impl UpstreamResponse {
    /// The next chunk; `None` at the end.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, UpstreamError>>> {
        self.connection.poll_chunk(cx)
    }

    /// Waits for the next chunk.
    pub(crate) async fn next_chunk(&mut self) -> Option<Result<Bytes, UpstreamError>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Whether the response has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.connection.body.is_over()
    }

    /// The connection, if the response was read to its end and the worker keeps the connection open.
    pub(crate) fn reclaim_connection(mut self) -> Option<Box<UpstreamConnection>> {
        self.connection.can_be_reused().then(|| {
            self.connection.shrink();
            self.connection
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream_body::{BufferedBody, UpstreamBody};
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
    use std::sync::LazyLock;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    /// A connection and its other end.
    async fn pair() -> (Box<UpstreamConnection>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let dialer = Dialer::default();
        let (connection, accepted) =
            tokio::join!(UpstreamConnection::open(&dialer, &target), listener.accept());
        (connection.unwrap(), accepted.unwrap().0)
    }

    static HOST: HeaderValue = HeaderValue::from_static("engine");

    /// A request with headers that the writer sets itself.
    fn post(body: BufferedBody) -> UpstreamRequest<'static> {
        static HEADERS: LazyLock<HeaderMap> = LazyLock::new(|| {
            let fields = [("transfer-encoding", "chunked"), ("x-key", "1"), ("content-length", "7")];
            let field = |(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
            fields.map(field).into_iter().collect()
        });
        UpstreamRequest {
            method: &Method::POST,
            uri: "/v1/chat?x=1".parse().unwrap(),
            host: &HOST,
            id: HeaderValue::from_static("id-1"),
            rank: None,
            headers: &HEADERS,
            body: UpstreamBody::Buffered(body),
        }
    }

    fn of(body: impl Into<Bytes>) -> BufferedBody {
        BufferedBody::spliced(&body.into(), [None, None, None])
    }

    async fn read_exactly(stream: &mut TcpStream, length: usize) -> String {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    const HEAD: &str =
        "POST /v1/chat?x=1 HTTP/1.1\r\nhost: engine\r\nx-key: 1\r\nx-request-id: id-1\r\ncontent-length: ";

    #[tokio::test]
    async fn requests_follow_each_other_on_one_connection() {
        let (mut connection, mut worker) = pair().await;
        for answer in
            ["content-length: 4\r\n\r\nwarm", "transfer-encoding: chunked\r\n\r\n4\r\nwarm\r\n0\r\n\r\n"]
        {
            let served = async {
                let expected = format!("{HEAD}2\r\n\r\n{{}}");
                assert_eq!(read_exactly(&mut worker, expected.len()).await, expected);
                worker.write_all(format!("HTTP/1.1 200 OK\r\n{answer}").as_bytes()).await.unwrap();
            };
            let (sent, ()) = tokio::join!(connection.send(post(of("{}"))), served);
            let (head, mut response) = sent.unwrap();
            assert_eq!(head.status(), StatusCode::OK);
            assert_eq!(response.next_chunk().await.unwrap().unwrap(), "warm");
            assert!(response.is_over(), "the end came with the last chunk");
            assert!(response.next_chunk().await.is_none());
            connection = response.reclaim_connection().expect("both sides are done");
        }
        let expected = format!("{HEAD}0\r\n\r\n");
        let (_, read) = tokio::join!(
            tokio::time::timeout(std::time::Duration::from_millis(1), connection.send(post(of("")))),
            read_exactly(&mut worker, expected.len())
        );
        assert_eq!(read, expected, "an empty body has a length");
    }

    #[tokio::test]
    async fn a_long_body_is_sent_while_the_worker_reads_it() {
        let (connection, mut worker) = pair().await;
        let body = "abcdefgh".repeat(1 << 19);
        let pieces = Bytes::from(body.clone());
        let spliced = BufferedBody::spliced(&pieces, [Some((1..1, Bytes::from("!"))), None, None]);
        let served = async {
            let expected = format!("{HEAD}{}\r\n\r\na!{}", body.len() + 1, &body[1..]);
            assert!(read_exactly(&mut worker, expected.len()).await == expected);
            worker.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        };
        let (sent, ()) = tokio::join!(connection.send(post(spliced)), served);
        let (head, response) = sent.unwrap();
        assert!(head.status() == StatusCode::NO_CONTENT && response.is_over());
    }

    #[tokio::test]
    async fn an_answer_that_comes_before_the_end_of_the_request_is_read() {
        let (connection, mut worker) = pair().await;
        let served = async {
            read_exactly(&mut worker, HEAD.len()).await;
            let answer = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 8\r\n\r\ntoo long";
            worker.write_all(answer).await.unwrap();
            worker.shutdown().await.unwrap();
            // Open, and not read any more.
            worker
        };
        let (sent, _worker) = tokio::join!(connection.send(post(of("x".repeat(64 << 20)))), served);
        let (head, mut response) = sent.unwrap();
        assert_eq!(head.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(response.next_chunk().await.unwrap().unwrap(), "too long");
        assert!(response.is_over() && response.reclaim_connection().is_none(), "the request is not all sent");
    }

    #[tokio::test]
    async fn a_connection_with_unread_or_unexpected_bytes_is_not_reused() {
        for (answer, is_reusable) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na", true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 200 OK\r\n", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\na", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na", false),
        ] {
            let (connection, mut worker) = pair().await;
            worker.write_all(answer.as_bytes()).await.unwrap();
            let (_, mut response) = connection.send(post(of("{}"))).await.unwrap();
            assert_eq!(response.next_chunk().await.unwrap().unwrap(), "a");
            assert_eq!(response.reclaim_connection().is_some(), is_reusable, "{answer}");
        }
    }

    #[tokio::test]
    async fn an_idle_connection_that_the_worker_closed_is_seen() {
        let (mut connection, worker) = pair().await;
        assert!(connection.is_alive());
        drop(worker);
        // Until the close has arrived.
        while connection.is_alive() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn bytes_that_no_request_asked_for_are_seen_on_any_number_of_connections() {
        let mut pairs = Vec::new();
        for _ in 0..200 {
            pairs.push(pair().await);
        }
        for (connection, worker) in &mut pairs {
            worker.write_all(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            while connection.is_alive() {
                tokio::task::yield_now().await;
            }
        }
        tokio::task::yield_now().await;
        // One task looks at more of them than tokio lets it read at a time.
        let alive =
            pairs.iter_mut().filter_map(|(connection, _)| connection.is_alive().then_some(())).count();
        assert_eq!(alive, 0);
    }

    #[tokio::test]
    async fn a_reset_after_the_first_bytes_of_a_response_is_a_truncated_head() {
        for answer in ["HTTP/1.1 200 OK\r\nx", "HTTP/1.1 100 Continue\r\n\r\n", "\r\n"] {
            let (connection, mut worker) = pair().await;
            let served = async {
                read_exactly(&mut worker, HEAD.len()).await;
                worker.write_all(answer.as_bytes()).await.unwrap();
                // What it has not read makes the close a reset.
                drop(worker);
            };
            let (sent, ()) = tokio::join!(connection.send(post(of("x".repeat(8 << 20)))), served);
            let error = sent.map(|_| ()).unwrap_err();
            let is_truncated = matches!(error, UpstreamError::Http(BadResponse::HeadTruncated));
            assert!(is_truncated, "{answer:?}: {error}");
        }
    }

    #[tokio::test]
    async fn a_response_that_breaks_off_is_an_error() {
        const TRUNCATED: [&str; 3] = ["HTTP/1.1 200", "\r\n", "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"];
        for answer in [
            "",
            TRUNCATED[0],
            TRUNCATED[1],
            TRUNCATED[2],
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\na",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n",
        ] {
            let (connection, mut worker) = pair().await;
            worker.write_all(answer.as_bytes()).await.unwrap();
            worker.shutdown().await.unwrap();
            let error = match connection.send(post(of("{}"))).await {
                Err(error) => error,
                Ok((_, mut response)) => {
                    assert_eq!(response.next_chunk().await.unwrap().unwrap(), "a");
                    response.next_chunk().await.expect("it is not over").unwrap_err()
                }
            };
            let is_expected = match error {
                UpstreamError::Http(error) => {
                    error == BadResponse::HeadTruncated && TRUNCATED.contains(&answer)
                }
                error => matches!(error, UpstreamError::Closed),
            };
            assert!(is_expected, "{answer:?}");
        }
    }

    #[tokio::test]
    async fn reads_grow_with_what_arrives_and_idle_connections_keep_little() {
        let (connection, mut worker) = pair().await;
        let body = vec![b'x'; 8 << 20];
        let served = async {
            worker
                .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes())
                .await
                .unwrap();
            worker.write_all(&body).await.unwrap();
        };
        let read = async {
            let (_, mut response) = connection.send(post(of("{}"))).await.unwrap();
            let (mut length, mut longest) = (0, 0);
            while let Some(chunk) = response.next_chunk().await {
                let chunk = chunk.unwrap();
                (length, longest) = (length + chunk.len(), longest.max(chunk.len()));
            }
            (length, longest, response.reclaim_connection().unwrap())
        };
        let ((length, longest, idle), ()) = tokio::join!(read, served);
        assert_eq!(length, body.len());
        assert!(longest > READ_BYTES_MIN && longest <= READ_BYTES_MAX, "{longest}");
        assert!(idle.received.capacity() <= READ_BYTES_MIN, "{}", idle.received.capacity());
    }

    #[tokio::test]
    async fn reads_of_short_chunks_stay_short() {
        let (connection, mut worker) = pair().await;
        let (of_stream, of_worker) =
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "x".repeat(2_900));
        worker.write_all(of_stream).await.unwrap();
        let (_, mut response) = connection.send(post(of("{}"))).await.unwrap();
        // Each fills what some buffer has left.
        for _ in 0..500 {
            worker.write_all(format!("{:x}\r\n{of_worker}\r\n", of_worker.len()).as_bytes()).await.unwrap();
            let mut left = of_worker.len();
            while left > 0 {
                left -= response.next_chunk().await.unwrap().unwrap().len();
            }
            assert_eq!(response.connection.read_bytes, READ_BYTES_MIN);
        }
    }
}
