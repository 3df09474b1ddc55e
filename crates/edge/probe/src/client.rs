//! The least HTTP client that a probe needs: GET over one connection that is kept.

use std::time::Duration;

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Metrics pages of a few hundred KB are normal; more than this is not read.
const BODY_BYTES_MAX: usize = 8 << 20;

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error("not a usable URL")]
    Url,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("the body cannot be read: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("no answer in time")]
    Late,
}

pub(crate) struct Client {
    base: String,
    timeout: Duration,
    open: Option<SendRequest<Empty<Bytes>>>,
}

impl Client {
    pub(crate) fn new(base: &str, timeout: Duration) -> Client {
        Client { base: base.to_owned(), timeout, open: None }
    }

    /// Status and body of `path`. A connection that was kept and has died meanwhile is replaced once.
    pub(crate) async fn get(&mut self, path: &str) -> Result<(StatusCode, Bytes), NoAnswer> {
        let timeout = self.timeout;
        let answer = tokio::time::timeout(timeout, self.get_slowly(path)).await;
        let answer = answer.unwrap_or(Err(NoAnswer::Late));
        if answer.is_err() {
            self.open = None;
        }
        answer
    }

    async fn get_slowly(&mut self, path: &str) -> Result<(StatusCode, Bytes), NoAnswer> {
        let uri: Uri = format!("{}{path}", self.base).parse().map_err(|_| NoAnswer::Url)?;
        let authority = uri.authority().cloned().ok_or(NoAnswer::Url)?;
        if let Some(mut sender) = self.open.take().filter(|sender| sender.is_ready())
            && let Ok(answer) = ask(&mut sender, &uri, &authority).await
        {
            self.open = Some(sender);
            return Ok(answer);
        }
        let mut sender = connect(&authority).await?;
        let answer = ask(&mut sender, &uri, &authority).await?;
        self.open = Some(sender);
        Ok(answer)
    }
}

async fn connect(authority: &Authority) -> Result<SendRequest<Empty<Bytes>>, NoAnswer> {
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // It ends when the sender is dropped or the worker closes it; whoever asks next learns of an error.
    tokio::spawn(connection);
    Ok(sender)
}

async fn ask(
    sender: &mut SendRequest<Empty<Bytes>>,
    uri: &Uri,
    authority: &Authority,
) -> Result<(StatusCode, Bytes), NoAnswer> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = uri.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()));
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| NoAnswer::Url)?;
    request.headers_mut().insert(header::HOST, host);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await.map_err(NoAnswer::Body)?;
    Ok((status, body.to_bytes()))
}
