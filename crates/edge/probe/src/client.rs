//! The least HTTP client that asking a worker needs: GET and POST over one connection that is kept.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use warmroute_wire::{Dialer, Target};

/// Metrics pages of a few hundred KB are normal; more than this is not read.
const BODY_BYTES_MAX: usize = 8 << 20;
/// What is asked for by POST may be all that an engine has stored since the last time: events, as much as a post may bring.
const TOLD_BYTES_MAX: usize = 32 << 20;

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// The URL cannot be asked.
    #[error("not a usable URL")]
    Url,
    /// It cannot be reached, or the connection broke.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It speaks no HTTP, or broke off.
    #[error("{}", told(.0))]
    Http(#[from] hyper::Error),
    /// The body broke off, or is too long.
    #[error("the body cannot be read: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// Too late.
    #[error("no answer in time")]
    Late,
}

/// hyper says that something went wrong, and only its source what: a certificate that was not shown, a reset connection.
fn told(error: &hyper::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// Asks one worker.
pub struct Client {
    base: String,
    timeout: Duration,
    dialer: Dialer,
    open: Option<SendRequest<Full<Bytes>>>,
}

/// What is asked.
struct Question {
    method: Method,
    path: String,
    /// JSON, where there is any.
    body: Bytes,
}

impl Client {
    /// For the worker at this URL. An answer that takes longer than `timeout` is none.
    pub fn new(base: &str, timeout: Duration, dialer: Dialer) -> Client {
        Client { base: base.to_owned(), timeout, dialer, open: None }
    }

    /// Status and body of `path`.
    pub async fn get(&mut self, path: &str) -> Result<(StatusCode, Bytes), NoAnswer> {
        self.ask(Question { method: Method::GET, path: path.to_owned(), body: Bytes::new() }).await
    }

    /// Status and body of the answer to a JSON body.
    pub async fn post(&mut self, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), NoAnswer> {
        self.ask(Question { method: Method::POST, path: path.to_owned(), body }).await
    }

    /// A connection that was kept and has died meanwhile is replaced once.
    async fn ask(&mut self, question: Question) -> Result<(StatusCode, Bytes), NoAnswer> {
        let timeout = self.timeout;
        let answer = tokio::time::timeout(timeout, self.ask_slowly(&question)).await;
        let answer = answer.unwrap_or(Err(NoAnswer::Late));
        if answer.is_err() {
            self.open = None;
        }
        answer
    }

    async fn ask_slowly(&mut self, question: &Question) -> Result<(StatusCode, Bytes), NoAnswer> {
        let target: Target = self.base.parse().map_err(|_| NoAnswer::Url)?;
        if let Some(mut sender) = self.open.take().filter(|sender| sender.is_ready())
            && let Ok(answer) = ask(&mut sender, self.request(question, &target)?).await
        {
            self.open = Some(sender);
            return Ok(answer);
        }
        let mut sender = self.connect(&target).await?;
        let answer = ask(&mut sender, self.request(question, &target)?).await?;
        self.open = Some(sender);
        Ok(answer)
    }

    async fn connect(&self, target: &Target) -> Result<SendRequest<Full<Bytes>>, NoAnswer> {
        let stream = self.dialer.dial(target).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // It ends when the sender is dropped or the worker closes it; whoever asks next learns of an error.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn request(&self, question: &Question, target: &Target) -> Result<Request<Full<Bytes>>, NoAnswer> {
        let asked: Uri = question.path.parse().map_err(|_| NoAnswer::Url)?;
        let mut request = Request::new(Full::new(question.body.clone()));
        *request.method_mut() = question.method.clone();
        *request.uri_mut() = target.uri_for(&asked);
        let headers = request.headers_mut();
        headers.insert(header::HOST, target.host_header.clone());
        self.dialer
            .authorization()
            .into_iter()
            .for_each(|ours| _ = headers.insert(header::AUTHORIZATION, ours));
        if question.method == Method::POST {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        Ok(request)
    }
}

async fn ask(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), NoAnswer> {
    let bytes_max = if request.method() == Method::POST { TOLD_BYTES_MAX } else { BODY_BYTES_MAX };
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), bytes_max).collect().await.map_err(NoAnswer::Body)?;
    Ok((status, body.to_bytes()))
}
