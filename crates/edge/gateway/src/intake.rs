//! The first phase: reads the body within its limits and parses the request.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};
use warmroute_prompt::{Api, Body};

use crate::body_budget::BodyBudget;
use crate::gateway::Gateway;
use crate::gateway_error::GatewayError;
use crate::parsed_request::{ParsedRequest, session_key};
use crate::upstream_body::{BufferedBody, Upload, UploadStatus, UpstreamBody};
use crate::{Config, UsageInjection};

/// How much of an oversized body is read and discarded. A client that is still sending would otherwise see a reset
/// connection instead of the 413.
const DISCARD_BYTES_MAX: usize = 16 << 20;

/// How long a refused body is read at most, so that refused clients do not occupy connections.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(5);

/// Slowest accepted upload rate, beyond the initial body timeout.
const BYTES_PER_S_MIN: usize = 1 << 10;

/// The deadline for reading a body. It moves on as bytes arrive.
pub(crate) struct BodyDeadline {
    at: Instant,
}

impl BodyDeadline {
    pub(crate) fn new(timeout: Duration) -> BodyDeadline {
        BodyDeadline { at: Instant::now() + timeout }
    }

    fn extend(&mut self, bytes: usize) {
        self.at += Duration::from_secs_f64(bytes as f64 / BYTES_PER_S_MIN as f64);
    }
}

/// A parsed request and its body.
pub(crate) struct Intake {
    pub request: Arc<ParsedRequest>,
    pub body: RequestBody,
    /// The body's share of the memory budget, held while the body may be sent again.
    budget: BodyBudget,
}

impl Intake {
    /// Frees the body and its share of the memory budget.
    pub(crate) fn release_body(&mut self) {
        self.body = RequestBody::Buffered(BufferedBody::default());
        self.budget.release();
    }
}

/// A request body, ready to be forwarded.
pub(crate) enum RequestBody {
    Buffered(BufferedBody),
    /// A body that is streamed through. `upload` is `None` once it was sent.
    Upload {
        upload: Option<Upload>,
        status: Arc<UploadStatus>,
    },
}

impl RequestBody {
    /// Equal for equal bodies; `None` for a streamed body.
    pub(crate) fn fingerprint(&self) -> Option<u64> {
        match self {
            RequestBody::Buffered(body) => Some(body.fingerprint()),
            RequestBody::Upload { .. } => None,
        }
    }

    /// The body for one attempt; `None` if a streamed body was sent already.
    pub(crate) fn take(&mut self) -> Option<UpstreamBody> {
        match self {
            RequestBody::Buffered(body) => Some(UpstreamBody::Buffered(body.clone())),
            RequestBody::Upload { upload, .. } => upload.take().map(UpstreamBody::Upload),
        }
    }

    /// Whether the body can be sent (again).
    pub(crate) fn can_resend(&self) -> bool {
        matches!(self, RequestBody::Buffered(_) | RequestBody::Upload { upload: Some(_), .. })
    }

    pub(crate) fn is_upload(&self) -> bool {
        matches!(self, RequestBody::Upload { .. })
    }

    /// Whether the client failed to send its body to the end.
    pub(crate) fn client_failed(&self) -> bool {
        matches!(self, RequestBody::Upload { status, .. } if status.client_failed())
    }
}

/// Reads and parses a request.
pub(crate) async fn receive(
    method: &Method,
    api: Api,
    headers: &HeaderMap,
    body: Incoming,
    gateway: &Gateway,
    config: &Config,
) -> Result<Intake, GatewayError> {
    let mut budget = BodyBudget::new(&gateway.metrics.body_bytes, config.bodies_bytes_max);
    if !is_json(method, api, headers) {
        return pass_through(headers, body, config, budget).await;
    }
    let deadline = BodyDeadline::new(config.timeouts.body);
    let bytes = buffer(body, headers, config.body_bytes_max, deadline, &mut budget).await?;
    let (request, body) = parse(&bytes, api, headers, gateway, config, config.usage_injection).await?;
    Ok(Intake { request: Arc::new(request), body: RequestBody::Buffered(body), budget })
}

/// Parses a JSON body. Returns the request, and the body as workers get it.
pub(crate) async fn parse(
    bytes: &Bytes,
    api: Api,
    headers: &HeaderMap,
    gateway: &Gateway,
    config: &Config,
    usage_injection: UsageInjection,
) -> Result<(ParsedRequest, BufferedBody), GatewayError> {
    let encoding = headers.get(header::CONTENT_ENCODING).filter(|value| *value != "identity");
    if let Some(encoding) = encoding.filter(|_| api != Api::Other) {
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
        return Err(GatewayError::UnsupportedEncoding(encoding));
    }
    let body = match Body::read(bytes) {
        Ok(body) => body,
        // Requests of unknown APIs are forwarded even if they are not valid JSON.
        Err(_) if api == Api::Other => Body::default(),
        Err(bad) => return Err(GatewayError::bad_json(bad, bytes)),
    };
    let request = ParsedRequest::parse(&body, api, headers, gateway, config, usage_injection).await;
    let outgoing = request.outgoing_body(bytes, &body, config);
    Ok((request, outgoing))
}

/// Streams a body that is not JSON. The beginning of a form is read, because it may name the model.
async fn pass_through(
    headers: &HeaderMap,
    mut body: Incoming,
    config: &Config,
    budget: BodyBudget,
) -> Result<Intake, GatewayError> {
    let head = match is_form(headers) {
        true => next_chunk(&mut body, &mut BodyDeadline::new(config.timeouts.body)).await?,
        false => None,
    };
    let form = head.as_deref().unwrap_or_default();
    let request = unparsed(form, headers, config);
    let body = if head.is_none() && body.is_end_stream() {
        // An empty body can always be sent again.
        RequestBody::Buffered(BufferedBody::default())
    } else {
        let status = Arc::new(UploadStatus::default());
        RequestBody::Upload { upload: Some(Upload::new(head, body, Arc::clone(&status))), status }
    };
    Ok(Intake { request: Arc::new(request), body, budget })
}

/// What is known about a request whose body is not JSON: the model, if the start of a form names it, and the session.
pub(crate) fn unparsed(start: &[u8], headers: &HeaderMap, config: &Config) -> ParsedRequest {
    let model = if is_form(headers) { model_in_form(start) } else { None };
    let model = model.map(|name| config.aliases.get(&name).cloned().unwrap_or(name));
    let session_key = session_key(config, headers, &Body::default());
    ParsedRequest { model, session_key, ..ParsedRequest::default() }
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], http::HeaderValue::as_bytes);
    kind.to_ascii_lowercase().starts_with(b"multipart/form-data")
}

/// The `model` field of a form, if it is in this first part. Clients send it before the file.
fn model_in_form(head: &[u8]) -> Option<String> {
    let field = memchr::memmem::find(head, b"name=\"model\"")?;
    let value = field + memchr::memmem::find(&head[field..], b"\r\n\r\n")? + 4;
    let end = value + memchr::memmem::find(&head[value..], b"\r\n")?;
    std::str::from_utf8(&head[value..end]).ok().map(str::to_owned)
}

/// Whether the body is parsed as JSON. Known APIs always send JSON; other POSTs do unless they declare an upload. (curl
/// declares every body to be a form.)
pub(crate) fn is_json(method: &Method, api: Api, headers: &HeaderMap) -> bool {
    const UPLOADS: [&str; 5] = ["multipart/", "application/octet-stream", "audio/", "image/", "video/"];
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.to_ascii_lowercase();
    method == Method::POST && (api != Api::Other || !UPLOADS.iter().any(|upload| kind.starts_with(upload)))
}

/// Reads a body of at most `limit` bytes within the memory budget.
pub(crate) async fn buffer(
    mut body: Incoming,
    headers: &HeaderMap,
    limit: usize,
    mut deadline: BodyDeadline,
    budget: &mut BodyBudget,
) -> Result<Bytes, GatewayError> {
    let announced = body.size_hint().lower() as usize;
    if announced > limit {
        // A client that waits for `100 Continue` has sent nothing. A far larger body is not worth reading.
        if !headers.contains_key(header::EXPECT) && announced <= limit + DISCARD_BYTES_MAX {
            discard(body, deadline).await;
        }
        return Err(GatewayError::TooLarge { limit });
    }
    match read_within(&mut body, announced, limit, &mut deadline, budget).await {
        Err(refusal @ (GatewayError::TooLarge { .. } | GatewayError::MemoryFull)) => {
            discard(body, deadline).await;
            Err(refusal)
        }
        read => read,
    }
}

async fn read_within(
    body: &mut Incoming,
    announced: usize,
    limit: usize,
    deadline: &mut BodyDeadline,
    budget: &mut BodyBudget,
) -> Result<Bytes, GatewayError> {
    let first = next_chunk(body, deadline).await?.unwrap_or_default();
    if first.len() > limit {
        return Err(GatewayError::TooLarge { limit });
    }
    budget.reserve(first.len())?;
    if body.is_end_stream() {
        return Ok(first);
    }
    // The declared length may be false, so memory grows with the bytes that arrive.
    let mut whole = BytesMut::with_capacity(announced.min(1 << 20).max(first.len()));
    whole.extend_from_slice(&first);
    while let Some(chunk) = next_chunk(body, deadline).await? {
        if whole.len() + chunk.len() > limit {
            return Err(GatewayError::TooLarge { limit });
        }
        budget.reserve(chunk.len())?;
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

async fn next_chunk(body: &mut Incoming, deadline: &mut BodyDeadline) -> Result<Option<Bytes>, GatewayError> {
    while let Some(frame) = timeout_at(deadline.at, body.frame()).await.map_err(|_| GatewayError::SlowBody)? {
        if let Ok(chunk) = frame.map_err(|_| GatewayError::BrokenBody)?.into_data() {
            deadline.extend(chunk.len());
            return Ok(Some(chunk));
        }
    }
    Ok(None)
}

/// Reads the rest of a refused request, so that its client sees the refusal instead of a reset connection. A client
/// that waits for `100 Continue` sends nothing.
pub(crate) async fn drain_refused_body(request: http::Request<Incoming>, timeout: Duration) {
    let waits_for_continue = request.headers().contains_key(header::EXPECT);
    if !waits_for_continue && !request.body().is_end_stream() {
        discard(request.into_body(), BodyDeadline::new(timeout)).await;
    }
}

async fn discard(mut body: Incoming, deadline: BodyDeadline) {
    let deadline = deadline.at.min(Instant::now() + DISCARD_TIME_MAX);
    let mut seen = 0;
    while seen < DISCARD_BYTES_MAX {
        match timeout_at(deadline, body.frame()).await {
            Ok(Some(Ok(frame))) => seen += frame.data_ref().map_or(0, Bytes::len),
            Ok(Some(Err(_)) | None) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::model_in_form;

    #[test]
    fn the_model_is_read_from_the_start_of_a_form() {
        let form =
            b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n--x\r\nContent-";
        assert_eq!(model_in_form(form).as_deref(), Some("whisper-1"));
        assert_eq!(model_in_form(b"--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\xff"), None);
        assert_eq!(model_in_form(b"name=\"model\"\r\n\r\ncut of"), None);
    }
}
