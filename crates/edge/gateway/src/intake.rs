//! The first phase: read the body within its limit, and find out what is asked for.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};
use warmroute_prompt::{Api, Body};

use crate::Config;
use crate::asked::{Asked, session_key};
use crate::gateway::Gateway;
use crate::held::Held;
use crate::outgoing::{Buffered, Outgoing, Sender, Upload};
use crate::refusal::Refusal;

/// A body that is too large is read on this far and thrown away, so that the client, still sending, gets to see the 413
/// instead of a reset connection.
const DISCARD_BYTES_MAX: usize = 16 << 20;

/// And for no longer than this, however fast it comes: who is refused, with or without a key, keeps no place.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(5);

/// A client whose body comes more slowly than this, over and above its time to begin with, keeps a place for nothing.
const BYTES_PER_S_MIN: usize = 1 << 10;

/// How long a body is waited for: the longer, the more of it has come.
pub(crate) struct Patience {
    deadline: Instant,
}

impl Patience {
    pub(crate) fn new(timeout: Duration) -> Patience {
        Patience { deadline: Instant::now() + timeout }
    }

    fn saw(&mut self, bytes: usize) {
        self.deadline += Duration::from_secs_f64(bytes as f64 / BYTES_PER_S_MIN as f64);
    }
}

/// What a request asks for, and its body.
pub(crate) struct Intake {
    pub asked: Arc<Asked>,
    pub body: Load,
    /// What the body takes, for as long as it may be sent again.
    _held: Held,
}

/// A request's body, ready to go on.
pub(crate) enum Load {
    Buffered(Buffered),
    /// Streamed through. The upload is `None` once it is on its way.
    Upload {
        upload: Option<Upload>,
        sender: Arc<Sender>,
    },
}

impl Load {
    /// A number that is the same for the same body; `None` of one that is not at hand.
    pub(crate) fn fingerprint(&self) -> Option<u64> {
        match self {
            Load::Buffered(body) => Some(body.fingerprint()),
            Load::Upload { .. } => None,
        }
    }

    /// The body for one try; `None` when it can only be sent once and was.
    pub(crate) fn take(&mut self) -> Option<Outgoing> {
        match self {
            Load::Buffered(body) => Some(Outgoing::Buffered(body.clone())),
            Load::Upload { upload, .. } => upload.take().map(Outgoing::Upload),
        }
    }

    /// Whether another try is possible.
    pub(crate) fn is_left(&self) -> bool {
        matches!(self, Load::Buffered(_) | Load::Upload { upload: Some(_), .. })
    }

    pub(crate) fn is_upload(&self) -> bool {
        matches!(self, Load::Upload { .. })
    }

    /// Whether the client's own side broke off while its body was sent on.
    pub(crate) fn client_broke_off(&self) -> bool {
        matches!(self, Load::Upload { sender, .. } if sender.broke())
    }
}

/// Reads a request.
pub(crate) async fn receive(
    method: &Method,
    api: Api,
    headers: &HeaderMap,
    body: Incoming,
    gateway: &Gateway,
    config: &Config,
) -> Result<Intake, Refusal> {
    let mut held = Held::new(&gateway.metrics.body_bytes, config.bodies_bytes_max);
    if !is_json(method, api, headers) {
        return pass_through(headers, body, config, held).await;
    }
    let patience = Patience::new(config.timeouts.body);
    let bytes = buffer(body, headers, config.body_bytes_max, patience, &mut held).await?;
    if api == Api::Other {
        // An API that we do not know may send what we cannot read: it goes on all the same.
        let body = Body::read(&bytes).unwrap_or_default();
        return Ok(take_in(&bytes, held, &body, api, headers, gateway, config).await);
    }
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|value| *value != "identity") {
        return Err(Refusal::Encoded(String::from_utf8_lossy(encoding.as_bytes()).into_owned()));
    }
    let body = Body::read(&bytes).map_err(|bad| Refusal::bad_json(bad, &bytes))?;
    Ok(take_in(&bytes, held, &body, api, headers, gateway, config).await)
}

async fn take_in(
    bytes: &Bytes,
    held: Held,
    body: &Body<'_>,
    api: Api,
    headers: &HeaderMap,
    gateway: &Gateway,
    config: &Config,
) -> Intake {
    let asked = Asked::of(body, api, headers, gateway, config).await;
    let body = Load::Buffered(asked.outgoing(bytes, body, config));
    Intake { asked: Arc::new(asked), body, _held: held }
}

/// Anything that is not JSON is streamed on. Of a form the beginning is read, because it may name the model.
async fn pass_through(
    headers: &HeaderMap,
    mut body: Incoming,
    config: &Config,
    held: Held,
) -> Result<Intake, Refusal> {
    let head = match is_form(headers) {
        true => next_chunk(&mut body, &mut Patience::new(config.timeouts.body)).await?,
        false => None,
    };
    let asked = head.as_ref().and_then(|head| model_in_form(head));
    let load = if head.is_none() && body.is_end_stream() {
        // Nothing to send can be sent again.
        Load::Buffered(Buffered::default())
    } else {
        let sender = Arc::new(Sender::default());
        Load::Upload { upload: Some(Upload::new(head, body, Arc::clone(&sender))), sender }
    };
    let model = asked.map(|name| config.aliases.get(&name).cloned().unwrap_or(name));
    let session_key = session_key(config, headers, &Body::default());
    Ok(Intake { asked: Arc::new(Asked { model, session_key, ..Asked::default() }), body: load, _held: held })
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], http::HeaderValue::as_bytes);
    kind.to_ascii_lowercase().starts_with(b"multipart/form-data")
}

/// The field `model` of a form, if it is in this first part of it, as clients write it: before the file.
fn model_in_form(head: &[u8]) -> Option<String> {
    let field = memchr::memmem::find(head, b"name=\"model\"")?;
    let value = field + memchr::memmem::find(&head[field..], b"\r\n\r\n")? + 4;
    let end = value + memchr::memmem::find(&head[value..], b"\r\n")?;
    std::str::from_utf8(&head[value..end]).ok().map(str::to_owned)
}

/// The known APIs are JSON whatever their content type says; so is every other POST that does not claim to be a file or a
/// form with files. (curl calls everything a form.)
fn is_json(method: &Method, api: Api, headers: &HeaderMap) -> bool {
    const UPLOADS: [&str; 5] = ["multipart/", "application/octet-stream", "audio/", "image/", "video/"];
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.to_ascii_lowercase();
    method == Method::POST && (api != Api::Other || !UPLOADS.iter().any(|upload| kind.starts_with(upload)))
}

/// A body of at most so many bytes, while there is memory for it.
pub(crate) async fn buffer(
    mut body: Incoming,
    headers: &HeaderMap,
    limit: usize,
    mut patience: Patience,
    held: &mut Held,
) -> Result<Bytes, Refusal> {
    let announced = body.size_hint().lower() as usize;
    if announced > limit {
        // A client that waits for our go-ahead has sent nothing, and need not; one that sends far too much will not be
        // listened to either.
        if !headers.contains_key(header::EXPECT) && announced <= limit + DISCARD_BYTES_MAX {
            discard(body, patience).await;
        }
        return Err(Refusal::TooLarge { limit });
    }
    match gather(&mut body, announced, limit, &mut patience, held).await {
        Err(refusal @ (Refusal::TooLarge { .. } | Refusal::MemoryFull)) => {
            discard(body, patience).await;
            Err(refusal)
        }
        gathered => gathered,
    }
}

async fn gather(
    body: &mut Incoming,
    announced: usize,
    limit: usize,
    patience: &mut Patience,
    held: &mut Held,
) -> Result<Bytes, Refusal> {
    let first = next_chunk(body, patience).await?.unwrap_or_default();
    if first.len() > limit {
        return Err(Refusal::TooLarge { limit });
    }
    held.grow(first.len())?;
    if body.is_end_stream() {
        return Ok(first);
    }
    // The announced length is only a claim, so memory is taken for a large one as it fills.
    let mut whole = BytesMut::with_capacity(announced.min(1 << 20).max(first.len()));
    whole.extend_from_slice(&first);
    while let Some(chunk) = next_chunk(body, patience).await? {
        if whole.len() + chunk.len() > limit {
            return Err(Refusal::TooLarge { limit });
        }
        held.grow(chunk.len())?;
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

async fn next_chunk(body: &mut Incoming, patience: &mut Patience) -> Result<Option<Bytes>, Refusal> {
    while let Some(frame) =
        timeout_at(patience.deadline, body.frame()).await.map_err(|_| Refusal::SlowBody)?
    {
        if let Ok(chunk) = frame.map_err(|_| Refusal::BrokenBody)?.into_data() {
            patience.saw(chunk.len());
            return Ok(Some(chunk));
        }
    }
    Ok(None)
}

/// Lets a client that is refused finish what it is sending, or it would see a reset connection instead of the reason. One that waits
/// for our go-ahead sends nothing.
pub(crate) async fn disregard(request: http::Request<Incoming>, timeout: Duration) {
    let is_asking = request.headers().contains_key(header::EXPECT);
    if !is_asking && !request.body().is_end_stream() {
        discard(request.into_body(), Patience::new(timeout)).await;
    }
}

async fn discard(mut body: Incoming, patience: Patience) {
    let deadline = patience.deadline.min(Instant::now() + DISCARD_TIME_MAX);
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
    fn a_forms_model_is_found_where_clients_write_it() {
        let form =
            b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n--x\r\nContent-";
        assert_eq!(model_in_form(form).as_deref(), Some("whisper-1"));
        assert_eq!(model_in_form(b"--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\xff"), None);
        assert_eq!(model_in_form(b"name=\"model\"\r\n\r\ncut of"), None);
    }
}
