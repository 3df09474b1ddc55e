//! The first phase: read the body within its limit, and find out what is asked for.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use warmroute_policy::Standard;
use warmroute_prompt::{Api, Body};
use xxhash_rust::xxh3::xxh3_64;

use crate::outgoing::{Buffered, Outgoing};
use crate::refusal::Refusal;
use crate::{Config, SessionKey};

/// A body that is too large is read on this far and thrown away, so that the client, still sending, gets to see the 413
/// instead of a reset connection.
const DISCARD_BYTES_MAX: usize = 16 << 20;

/// What a request asks for, and its body.
pub(crate) struct Intake {
    pub model: Option<String>,
    pub prompt_tokens: u32,
    pub session_key: Option<u64>,
    pub prefix_key: Option<u64>,
    pub body: Load,
}

/// A request's body, ready to go on.
pub(crate) enum Load {
    Buffered(Buffered),
    /// Not JSON: streamed through. `None` once it is gone.
    Streamed(Option<Incoming>),
}

impl Load {
    /// The body for one try; `None` when it can only be sent once and was.
    pub(crate) fn take(&mut self) -> Option<Outgoing> {
        match self {
            Load::Buffered(body) => Some(Outgoing::Buffered(body.clone())),
            Load::Streamed(incoming) => incoming.take().map(Outgoing::Streamed),
        }
    }

    pub(crate) fn can_be_sent_again(&self) -> bool {
        matches!(self, Load::Buffered(_) | Load::Streamed(Some(_)))
    }
}

/// Reads a request.
pub(crate) async fn receive(
    method: &Method,
    api: Api,
    headers: &HeaderMap,
    body: Incoming,
    config: &Config,
    policy: &Standard,
) -> Result<Intake, Refusal> {
    if !is_json(method, api, headers) {
        let session_key = session_key(config, headers, &Body::default());
        let body = Load::Streamed(Some(body));
        return Ok(Intake { model: None, prompt_tokens: 0, session_key, prefix_key: None, body });
    }
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|value| *value != "identity") {
        return Err(Refusal::Encoded(String::from_utf8_lossy(encoding.as_bytes()).into_owned()));
    }
    let bytes = buffer(body, config.body_bytes_max).await?;
    understand(bytes, headers, config, policy)
}

/// The known APIs are JSON whatever their content type says; others are JSON if they say so.
fn is_json(method: &Method, api: Api, headers: &HeaderMap) -> bool {
    let says_json = |value: &http::HeaderValue| value.as_bytes().windows(4).any(|word| word == b"json");
    method == Method::POST && (api != Api::Other || headers.get(header::CONTENT_TYPE).is_some_and(says_json))
}

async fn buffer(mut body: Incoming, limit: usize) -> Result<Bytes, Refusal> {
    let announced = body.size_hint().lower() as usize;
    if announced > limit {
        discard(body, DISCARD_BYTES_MAX).await;
        return Err(Refusal::TooLarge { limit });
    }
    let first = next_chunk(&mut body).await?.unwrap_or_default();
    if first.len() > limit {
        return Err(Refusal::TooLarge { limit });
    }
    if body.is_end_stream() {
        return Ok(first);
    }
    // The announced length is only a claim, so memory is taken for a large one as it fills.
    let mut whole = BytesMut::with_capacity(announced.min(1 << 20).max(first.len()));
    whole.extend_from_slice(&first);
    while let Some(chunk) = next_chunk(&mut body).await? {
        if whole.len() + chunk.len() > limit {
            discard(body, DISCARD_BYTES_MAX).await;
            return Err(Refusal::TooLarge { limit });
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

async fn next_chunk(body: &mut Incoming) -> Result<Option<Bytes>, Refusal> {
    while let Some(frame) = body.frame().await {
        if let Ok(chunk) = frame.map_err(|_| Refusal::BrokenBody)?.into_data() {
            return Ok(Some(chunk));
        }
    }
    Ok(None)
}

async fn discard(mut body: Incoming, bytes_max: usize) {
    let mut seen = 0;
    while seen < bytes_max {
        match next_chunk(&mut body).await {
            Ok(Some(chunk)) => seen += chunk.len(),
            Ok(None) | Err(_) => return,
        }
    }
}

fn understand(
    bytes: Bytes,
    headers: &HeaderMap,
    config: &Config,
    policy: &Standard,
) -> Result<Intake, Refusal> {
    let body = Body::read(&bytes).map_err(|bad| Refusal::bad_json(bad, &bytes))?;
    let asked = body.model();
    let alias_of = asked.as_deref().and_then(|name| config.aliases.get(name));
    let load = match (alias_of, body.model_range()) {
        (Some(model), Some(range)) => {
            let name = serde_json::Value::from(model.as_str()).to_string();
            Buffered::spliced(&bytes, range, Bytes::from(name))
        }
        _ => Buffered::as_it_came(bytes.clone()),
    };
    let needs_session = matches!(policy, Standard::SessionAffinity(_));
    let needs_prefix = matches!(policy, Standard::PrefixAffinity(_));
    Ok(Intake {
        model: alias_of.cloned().or_else(|| asked.as_deref().map(str::to_owned)),
        prompt_tokens: body.prompt_tokens(),
        session_key: if needs_session { session_key(config, headers, &body) } else { None },
        prefix_key: if needs_prefix { config.prefix.key(&body, &mut Vec::new()) } else { None },
        body: Load::Buffered(load),
    })
}

fn session_key(config: &Config, headers: &HeaderMap, body: &Body<'_>) -> Option<u64> {
    config.session_keys.iter().find_map(|key| match key {
        SessionKey::Header(name) => {
            headers.get(name).filter(|value| !value.is_empty()).map(|value| xxh3_64(value.as_bytes()))
        }
        SessionKey::Body(field) => body.session(*field).map(|value| xxh3_64(&value)),
    })
}
