//! A minimal HTTP client for probes: GET and POST over one reused connection.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use warmroute_wire::{Dialer, Target};

/// Largest response to a GET. Metrics pages of a few hundred KB are normal.
const GET_BYTES_MAX: usize = 8 << 20;
/// Largest response to a POST, which may contain all KV events since the last one.
const POST_BYTES_MAX: usize = 32 << 20;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The URL is invalid.
    #[error("invalid URL")]
    Url,
    /// The worker cannot be reached, or the connection failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The server does not speak HTTP, or closed the connection early.
    #[error("{}", with_source(.0))]
    Http(#[from] hyper::Error),
    /// The body ended early or is too long.
    #[error("the body cannot be read: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// No response within the timeout.
    #[error("no response within the timeout")]
    Timeout,
}

/// Adds the source to a hyper error. Only the source tells the cause, such as a reset connection or a missing
/// certificate.
fn with_source(error: &hyper::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// A client for one worker.
pub struct Client {
    base: String,
    timeout: Duration,
    dialer: Dialer,
    open: Option<SendRequest<Full<Bytes>>>,
}

/// A request to a worker.
struct ProbeRequest {
    method: Method,
    path: String,
    /// JSON; empty for a GET.
    body: Bytes,
}

impl Client {
    /// A client for the worker at this URL. Each request has `timeout` to complete.
    pub fn new(base: &str, timeout: Duration, dialer: Dialer) -> Client {
        Client { base: base.to_owned(), timeout, dialer, open: None }
    }

    /// Gets `path`: status and body.
    pub async fn get(&mut self, path: &str) -> Result<(StatusCode, Bytes), ProbeError> {
        self.send_in_time(ProbeRequest { method: Method::GET, path: path.to_owned(), body: Bytes::new() })
            .await
    }

    /// Posts a JSON body: status and body of the response.
    pub async fn post(&mut self, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), ProbeError> {
        self.send_in_time(ProbeRequest { method: Method::POST, path: path.to_owned(), body }).await
    }

    /// Sends a request within the timeout. If the reused connection has died, it is replaced once.
    async fn send_in_time(&mut self, request: ProbeRequest) -> Result<(StatusCode, Bytes), ProbeError> {
        let timeout = self.timeout;
        let response = tokio::time::timeout(timeout, self.send(&request)).await;
        let response = response.unwrap_or(Err(ProbeError::Timeout));
        if response.is_err() {
            self.open = None;
        }
        response
    }

    async fn send(&mut self, request: &ProbeRequest) -> Result<(StatusCode, Bytes), ProbeError> {
        let target: Target = self.base.parse().map_err(|_| ProbeError::Url)?;
        if let Some(mut sender) = self.open.take().filter(|sender| sender.is_ready())
            && let Ok(response) = send_on(&mut sender, self.http_request(request, &target)?).await
        {
            self.open = Some(sender);
            return Ok(response);
        }
        let mut sender = self.connect(&target).await?;
        let response = send_on(&mut sender, self.http_request(request, &target)?).await?;
        self.open = Some(sender);
        Ok(response)
    }

    async fn connect(&self, target: &Target) -> Result<SendRequest<Full<Bytes>>, ProbeError> {
        let stream = self.dialer.dial(target).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // The task ends when the sender is dropped or the worker closes the connection. The next request sees any
        // error.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn http_request(
        &self,
        request: &ProbeRequest,
        target: &Target,
    ) -> Result<Request<Full<Bytes>>, ProbeError> {
        let path: Uri = request.path.parse().map_err(|_| ProbeError::Url)?;
        let mut http = Request::new(Full::new(request.body.clone()));
        *http.method_mut() = request.method.clone();
        *http.uri_mut() = target.uri_for(&path);
        let headers = http.headers_mut();
        headers.insert(header::HOST, target.host_header.clone());
        self.dialer
            .authorization()
            .into_iter()
            .for_each(|value| _ = headers.insert(header::AUTHORIZATION, value));
        if request.method == Method::POST {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Ok(http)
    }
}

async fn send_on(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), ProbeError> {
    let bytes_max = if request.method() == Method::POST { POST_BYTES_MAX } else { GET_BYTES_MAX };
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), bytes_max).collect().await.map_err(ProbeError::Body)?;
    Ok((status, body.to_bytes()))
}
