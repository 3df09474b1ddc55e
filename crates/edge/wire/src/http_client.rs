//! An HTTP/1.1 client for one server, over one connection that is reused.
//!
//! Probes, queries to engines and to the admin listener, and generated load use it. The gateway has a client of its own for
//! requests (`gateway/src/upstream`): it polls the connection in the request's task, which saves two wake-ups per chunk.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;

use crate::{Dialer, Target, is_own_shortage};

/// Largest response to a GET. Metrics pages of a few hundred KB are normal.
const GET_BYTES_MAX: usize = 8 << 20;
/// Largest response to a POST, which may contain all KV events since the last one.
const POST_BYTES_MAX: usize = 32 << 20;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum HttpClientError {
    /// The URL is invalid.
    #[error("invalid URL")]
    Url,
    /// The server cannot be reached, or the connection failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The server does not speak HTTP, or closed the connection early.
    #[error("{}", with_source(.0))]
    Http(#[from] hyper::Error),
    /// The body ended early or is too long.
    #[error("the body cannot be read: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// No response within the timeout.
    #[error("no response within {0:?}")]
    Timeout(Duration),
}

impl HttpClientError {
    /// Whether this machine lacks a resource. It says nothing about the server.
    pub fn is_own_shortage(&self) -> bool {
        matches!(self, HttpClientError::Io(error) if is_own_shortage(error))
    }
}

/// Adds the source to a hyper error. Only the source tells the cause, such as a reset connection or a missing
/// certificate.
fn with_source(error: &hyper::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// A client for one server.
pub struct HttpClient {
    base: String,
    timeout: Duration,
    dialer: Dialer,
    open: Option<SendRequest<Full<Bytes>>>,
}

impl HttpClient {
    /// A client for the server at this URL. [`get`](Self::get) and [`post`](Self::post) have `timeout` to complete.
    pub fn new(base: &str, timeout: Duration, dialer: Dialer) -> HttpClient {
        HttpClient { base: base.to_owned(), timeout, dialer, open: None }
    }

    /// Gets `path`: status and body.
    pub async fn get(&mut self, path: &str) -> Result<(StatusCode, Bytes), HttpClientError> {
        let response = self.exchange(Method::GET, path, HeaderMap::new(), Bytes::new()).await?;
        Ok((response.status(), response.into_body()))
    }

    /// Posts a JSON body: status and body of the response.
    pub async fn post(&mut self, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), HttpClientError> {
        let response = self.exchange(Method::POST, path, HeaderMap::new(), body).await?;
        Ok((response.status(), response.into_body()))
    }

    /// Opens the connection for the next request.
    pub async fn connect(&mut self) -> Result<(), HttpClientError> {
        self.open = Some(self.dial(&self.target()?).await?);
        Ok(())
    }

    /// Posts a JSON body with further headers, and returns the response as soon as its head has arrived. Without a
    /// timeout, and without a second try.
    pub async fn post_streaming(
        &mut self,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, HttpClientError> {
        let target = self.target()?;
        let mut request = self.request(&target, Method::POST, path, body)?;
        request.headers_mut().extend(headers);
        let mut sender = match self.open.take() {
            Some(sender) => sender,
            None => self.dial(&target).await?,
        };
        Ok(sender.send_request(request).await?)
    }

    /// Gets `path`, and returns the response as soon as its head has arrived. The timeout covers the head only.
    /// Without a second try.
    pub async fn get_streaming(&mut self, path: &str) -> Result<Response<Incoming>, HttpClientError> {
        let timeout = self.timeout;
        let response = tokio::time::timeout(timeout, self.begin_get(path)).await;
        response.unwrap_or(Err(HttpClientError::Timeout(timeout)))
    }

    async fn begin_get(&mut self, path: &str) -> Result<Response<Incoming>, HttpClientError> {
        let target = self.target()?;
        let request = self.request(&target, Method::GET, path, Bytes::new())?;
        let mut sender = match self.open.take().filter(SendRequest::is_ready) {
            Some(sender) => sender,
            None => self.dial(&target).await?,
        };
        let response = sender.send_request(request).await?;
        // Usable again once the body has been read.
        self.open = Some(sender);
        Ok(response)
    }

    /// Sends a request within the timeout, with further headers. If the reused connection has died, it is replaced once.
    pub async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Bytes>, HttpClientError> {
        let timeout = self.timeout;
        let response = tokio::time::timeout(timeout, self.send(method, path, headers, body)).await;
        let response = response.unwrap_or(Err(HttpClientError::Timeout(timeout)));
        if response.is_err() {
            self.open = None;
        }
        response
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Bytes>, HttpClientError> {
        let target = self.target()?;
        let mut request = self.request(&target, method, path, body)?;
        request.headers_mut().extend(headers);
        if let Some(mut sender) = self.open.take().filter(|sender| sender.is_ready())
            && let Ok(response) = send_on(&mut sender, request.clone()).await
        {
            self.open = Some(sender);
            return Ok(response);
        }
        let mut sender = self.dial(&target).await?;
        let response = send_on(&mut sender, request).await?;
        self.open = Some(sender);
        Ok(response)
    }

    fn target(&self) -> Result<Target, HttpClientError> {
        self.base.parse().map_err(|_| HttpClientError::Url)
    }

    async fn dial(&self, target: &Target) -> Result<SendRequest<Full<Bytes>>, HttpClientError> {
        let stream = self.dialer.dial(target).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // The task ends when the sender is dropped or the server closes the connection. The next request sees any
        // error.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn request(
        &self,
        target: &Target,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, HttpClientError> {
        let path: Uri = path.parse().map_err(|_| HttpClientError::Url)?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = target.uri_for(&path);
        let is_post = request.method() == Method::POST;
        let headers = request.headers_mut();
        headers.insert(header::HOST, target.host_header.clone());
        if let Some(authorization) = self.dialer.authorization() {
            headers.insert(header::AUTHORIZATION, authorization);
        }
        if is_post {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Ok(request)
    }
}

async fn send_on(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, HttpClientError> {
    let bytes_max = if request.method() == Method::POST { POST_BYTES_MAX } else { GET_BYTES_MAX };
    let response = sender.send_request(request).await?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, bytes_max).collect().await.map_err(HttpClientError::Body)?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// Reads one request, and returns its head and body.
    async fn read_request(stream: &mut TcpStream) -> String {
        let mut request = String::new();
        loop {
            let mut bytes = [0; 4_096];
            let count = stream.read(&mut bytes).await.unwrap();
            request.push_str(&String::from_utf8_lossy(&bytes[..count]));
            let Some((head, body)) = request.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return request;
            }
        }
    }

    async fn answer(stream: &mut TcpStream, body: &str) {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    }

    async fn server() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/base", listener.local_addr().unwrap());
        (listener, url)
    }

    #[tokio::test]
    async fn a_connection_is_reused_and_a_closed_one_replaced() {
        let (listener, url) = server().await;
        let served = tokio::spawn(async move {
            let (mut first, _) = listener.accept().await.unwrap();
            let requests = [read_request(&mut first).await, {
                answer(&mut first, "one").await;
                read_request(&mut first).await
            }];
            drop(first);
            let (mut second, _) = listener.accept().await.unwrap();
            let again = read_request(&mut second).await;
            answer(&mut second, "two").await;
            (requests, again)
        });
        let key = HeaderValue::from_static("Bearer key");
        let dialer = Dialer::new(Some(key), Default::default()).unwrap();
        let mut client = HttpClient::new(&url, Duration::from_secs(60), dialer);
        assert_eq!(client.get("/a?b=1").await.unwrap(), (StatusCode::OK, Bytes::from("one")));
        assert_eq!(client.post("/c", Bytes::from("{}")).await.unwrap().1, "two");
        let ([first, unanswered], again) = served.await.unwrap();
        assert!(
            first.starts_with("GET /base/a?b=1 HTTP/1.1\r\n") && first.contains("authorization: Bearer key")
        );
        assert!(again.starts_with("POST /base/c HTTP/1.1\r\n") && again.ends_with("\r\n\r\n{}"));
        assert_eq!(unanswered, again, "the request is repeated on a new connection");
    }

    #[tokio::test]
    async fn a_silent_server_times_out() {
        let (_listener, url) = server().await;
        let timeout = Duration::from_millis(1);
        let mut client = HttpClient::new(&url, timeout, Dialer::default());
        assert!(matches!(client.get("/").await, Err(HttpClientError::Timeout(after)) if after == timeout));
    }

    #[tokio::test]
    async fn an_overlong_response_is_refused() {
        let (listener, url) = server().await;
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", GET_BYTES_MAX + 1);
            stream.write_all(head.as_bytes()).await.unwrap();
            // The client closes the connection when the body exceeds the limit.
            while stream.write_all(&[b'x'; 1 << 16]).await.is_ok() {}
        });
        let mut client = HttpClient::new(&url, Duration::from_secs(60), Dialer::default());
        assert!(matches!(client.get("/").await, Err(HttpClientError::Body(_))));
        served.await.unwrap();
    }

    #[tokio::test]
    async fn a_response_can_be_read_while_it_arrives() {
        let (listener, url) = server().await;
        let (proceed, go) = tokio::sync::oneshot::channel::<()>();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read_request(&mut stream).await;
            assert!(request.contains("x-session-id: 7"), "{request}");
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nwa").await.unwrap();
            go.await.unwrap();
            stream.write_all(b"rm").await.unwrap();
        });
        let mut client = HttpClient::new(&url, Duration::ZERO, Dialer::default());
        client.connect().await.unwrap();
        let headers = HeaderMap::from_iter([(
            header::HeaderName::from_static("x-session-id"),
            HeaderValue::from_static("7"),
        )]);
        let mut response = client.post_streaming("/", headers, Bytes::from("{}")).await.unwrap();
        let first = response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "wa");
        proceed.send(()).unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "rm");
    }
}
