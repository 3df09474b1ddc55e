//! The first phase: reads the body within its limits and parses the request.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};
use warmroute_prompt::{Api, Body};

use crate::Config;
use crate::body_budget::BodyBudget;
use crate::body_deadline::{BodyDeadline, DISCARD_BYTES_MAX, FIRST_PART_BYTES, discard, discard_refused};
use crate::engine_fields::{self, FieldPolicy};
use crate::form_fields::{self, FormScan};
use crate::gateway_error::GatewayError;
use crate::json_start::{ENCODING_BYTES, begins_object, is_lines};
use crate::keys::Tenant;
use crate::parsed_request::{ParseContext, ParsedRequest, UsageDemand, cached_tokens_for};
use crate::request_reader::RequestReader;
use crate::upstream_body::{BufferedBody, Upload, UploadFailure, UploadStatus, UpstreamBody};

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
        self.upload_status().is_some()
    }

    pub(crate) fn upload_status(&self) -> Option<&Arc<UploadStatus>> {
        match self {
            RequestBody::Upload { status, .. } => Some(status),
            RequestBody::Buffered(_) => None,
        }
    }

    /// Why an attempt failed, if not by the worker's fault: the client did not send its body to the end, or its form has a
    /// field that is refused.
    pub(crate) fn client_failure(&self) -> Option<GatewayError> {
        match self {
            RequestBody::Upload { status, .. } => status.failure().map(|failure| match failure {
                UploadFailure::BrokenOff => GatewayError::BrokenBody,
                UploadFailure::Field(field) => GatewayError::FieldRefused(field),
            }),
            RequestBody::Buffered(_) => None,
        }
    }
}

/// Reads and parses a request.
pub(crate) async fn receive(
    method: &Method,
    api: Api,
    headers: &HeaderMap,
    body: Incoming,
    reader: &RequestReader,
    config: &Config,
    tenant: Option<&Tenant>,
) -> Result<Intake, GatewayError> {
    let mut budget = reader.body_memory.share(config, tenant);
    let (mut body, mut deadline) = (body, BodyDeadline::new(config.timeouts.body));
    let mut start = None;
    if !is_json(method, api, headers) {
        start = read_start(&mut body, &mut deadline).await?;
        if !is_disguised_json(start.as_deref().unwrap_or_default()) {
            return pass_through(start, headers, body, config, tenant, budget);
        }
    }
    let bytes = buffer(start, body, headers, config.body_bytes_max, deadline, &mut budget).await?;
    let usage = UsageDemand::of(config, tenant);
    let context = ParseContext { api, headers, reader, config, tenant, usage };
    let (request, body) = parse(&bytes, context).await?;
    Ok(Intake { request: Arc::new(request), body: RequestBody::Buffered(body), budget })
}

/// Refuses fields that steer engines. Returns the body without those that are dropped, if there are any.
fn enforce_fields(
    bytes: &Bytes,
    body: &Body<'_>,
    config: &Config,
    tenant: Option<&Tenant>,
) -> Result<Option<Bytes>, GatewayError> {
    if body.marked().is_empty() {
        return Ok(None);
    }
    field_policy(config, tenant).apply(bytes, body).map_err(GatewayError::FieldRefused)
}

/// What happens to fields that steer engines in the requests of a tenant.
fn field_policy(config: &Config, tenant: Option<&Tenant>) -> FieldPolicy {
    let rules = tenant.map(|tenant| &tenant.rights.engine_fields);
    rules.map_or(config.engine_fields, |rules| rules.over(config.engine_fields))
}

/// Whether an engine may read this body of an API that the gateway does not know as a JSON object, whatever its content
/// type says. Such a body is refused if it cannot be read here: Python's parser reads more than JSON, in any encoding.
fn is_read_as_json(headers: &HeaderMap, bytes: &[u8]) -> bool {
    let is_object = || begins_object(bytes) == Some(true);
    Body::read(bytes).is_ok() || (is_object() && !(declares_lines(headers) && is_lines(bytes)))
}

/// Whether the content type says that the body is lines of JSON.
fn declares_lines(headers: &HeaderMap) -> bool {
    const KINDS: [&[u8]; 3] = [b"application/x-ndjson", b"application/jsonl", b"application/x-jsonlines"];
    let kind = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes().to_ascii_lowercase());
    kind.is_some_and(|kind| {
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        KINDS.contains(&kind)
    })
}

/// Whether a body with this start is an upload by its content type, and may be a JSON object. Engines ignore a content encoding
/// that they do not know, so only the bytes count.
pub(crate) fn is_disguised_json(start: &[u8]) -> bool {
    !start.is_empty() && is_object_start(start) != Some(false)
}

/// Whether a body with this start begins like a JSON object; `None` if too little has come.
pub(crate) fn is_object_start(start: &[u8]) -> Option<bool> {
    begins_object(start).filter(|_| start.len() >= ENCODING_BYTES)
}

/// Reads as much of an upload as tells whether it begins like a JSON object: nearly always its first chunk.
async fn read_start(body: &mut Incoming, deadline: &mut BodyDeadline) -> Result<Option<Bytes>, GatewayError> {
    let mut start: Option<Bytes> = None;
    while !body.is_end_stream()
        && let Some(chunk) = next_chunk(body, deadline).await?
    {
        let so_far = start.take().filter(|start| !start.is_empty());
        let so_far = so_far.map_or(chunk.clone(), |so_far| Bytes::from([so_far, chunk].concat()));
        let is_enough = is_object_start(&so_far).is_some() || so_far.len() >= FIRST_PART_BYTES;
        start = Some(so_far);
        if is_enough {
            break;
        }
    }
    Ok(start)
}

/// Parses a JSON body. Returns the request, and the body as workers get it.
pub(crate) async fn parse(
    bytes: &Bytes,
    context: ParseContext<'_>,
) -> Result<(ParsedRequest, BufferedBody), GatewayError> {
    let ParseContext { api, headers, config, tenant, .. } = context;
    if api == Api::Other && !is_read_as_json(headers, bytes) {
        // Requests of unknown APIs are forwarded even if they are not JSON.
        let policy = field_policy(config, tenant);
        form_fields::check(bytes, headers, policy).map_err(GatewayError::FieldRefused)?;
        return Ok(build(bytes, &Body::default(), context).await);
    }
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|value| *value != "identity") {
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
        return Err(GatewayError::UnsupportedEncoding(encoding));
    }
    let paths = config.session_keys.paths();
    let marked = Body::read_with(bytes, paths, engine_fields::position);
    let marked = marked.map_err(|bad| GatewayError::bad_json(bad, bytes))?.of_api(api);
    if let Some(field) = marked.repeated() {
        return Err(GatewayError::RepeatedField(field));
    }
    let Some(cleaned) = enforce_fields(bytes, &marked, config, tenant)? else {
        return Ok(build(bytes, &marked, context).await);
    };
    let body = Body::read_with(&cleaned, paths, |_| None);
    let body = body.map_err(|bad| GatewayError::bad_json(bad, &cleaned))?.of_api(api);
    let (request, outgoing) = build(&cleaned, &body, context).await;
    Ok((request, outgoing.changed()))
}

async fn build(bytes: &Bytes, body: &Body<'_>, context: ParseContext<'_>) -> (ParsedRequest, BufferedBody) {
    let request = ParsedRequest::parse(body, context).await;
    let outgoing = request.outgoing_body(bytes, body, context.api, context.config);
    (request, outgoing)
}

/// Streams a body that is not JSON. The start of a form may name the model. Fields of a form that steer engines are refused:
/// at once if the start has them, and otherwise when they come.
fn pass_through(
    start: Option<Bytes>,
    headers: &HeaderMap,
    body: Incoming,
    config: &Config,
    tenant: Option<&Tenant>,
    budget: BodyBudget,
) -> Result<Intake, GatewayError> {
    let head = start.as_deref().unwrap_or_default();
    let scan = match scan_start(head, headers, config, tenant) {
        Ok(scan) => scan,
        Err(refusal) => {
            discard_refused(body);
            return Err(refusal);
        }
    };
    let request = unparsed(head, headers, config, tenant);
    let body = if start.is_none() && body.is_end_stream() {
        // An empty body can always be sent again.
        RequestBody::Buffered(BufferedBody::default())
    } else {
        let status = Arc::new(UploadStatus::default());
        RequestBody::Upload {
            upload: Some(Upload::new(start, headers, body, scan, Arc::clone(&status))),
            status,
        }
    };
    Ok(Intake { request: Arc::new(request), body, budget })
}

/// Refuses fields in the start of a form. Returns what reads the rest of it.
pub(crate) fn scan_start(
    start: &[u8],
    headers: &HeaderMap,
    config: &Config,
    tenant: Option<&Tenant>,
) -> Result<Option<FormScan>, GatewayError> {
    let mut scan = FormScan::new(headers, field_policy(config, tenant));
    scan.iter_mut().try_for_each(|scan| scan.push(start)).map_err(GatewayError::FieldRefused)?;
    Ok(scan)
}

/// What is known about a request whose body is not JSON: the model, if the start of a form names it, and the session.
pub(crate) fn unparsed(
    start: &[u8],
    headers: &HeaderMap,
    config: &Config,
    tenant: Option<&Tenant>,
) -> ParsedRequest {
    let model = if is_form(headers) { model_in_form(start) } else { None };
    let model = model.map(|name| config.aliases.get(&name).cloned().unwrap_or(name));
    let session_key = config.session_keys.find(headers, &Body::default());
    let cached_tokens = cached_tokens_for(tenant, config);
    ParsedRequest { model, session_key, cached_tokens, ..ParsedRequest::default() }
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

/// Whether the body is read as a whole. Known APIs always send JSON; other POSTs do unless they declare an upload. (curl
/// declares every body to be a form of one line. Such a form is read as well, with any method.)
pub(crate) fn is_json(method: &Method, api: Api, headers: &HeaderMap) -> bool {
    match api {
        Api::Other => {
            method == Method::POST && !declares_upload(headers) || form_fields::is_urlencoded(headers)
        }
        _ => method == Method::POST,
    }
}

/// Whether the content type says that the body is an upload.
fn declares_upload(headers: &HeaderMap) -> bool {
    const UPLOADS: [&str; 5] = ["multipart/", "application/octet-stream", "audio/", "image/", "video/"];
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.to_ascii_lowercase();
    UPLOADS.iter().any(|upload| kind.starts_with(upload))
}

/// Reads a body of at most `limit` bytes within the memory budget. `start` has been read already.
pub(crate) async fn buffer(
    start: Option<Bytes>,
    mut body: Incoming,
    headers: &HeaderMap,
    limit: usize,
    mut deadline: BodyDeadline,
    budget: &mut BodyBudget,
) -> Result<Bytes, GatewayError> {
    let announced = body.size_hint().lower() as usize + start.as_ref().map_or(0, Bytes::len);
    if announced > limit {
        // A client that waits for `100 Continue` has sent nothing. A far larger body is not worth reading.
        if !headers.contains_key(header::EXPECT) && announced <= limit + DISCARD_BYTES_MAX {
            discard(body, &deadline);
        }
        return Err(GatewayError::TooLarge { limit });
    }
    let leave = budget.begin_arrival();
    let read = tokio::select! {
        read = read_within(start, &mut body, announced, limit, &mut deadline, budget) => read,
        () = leave.wait() => Err(GatewayError::SlowBody),
    };
    match read.and_then(|bytes| budget.end_arrival().map(|()| bytes)) {
        Err(
            refusal @ (GatewayError::TooLarge { .. }
            | GatewayError::MemoryFull
            | GatewayError::MemoryShareFull),
        ) => {
            discard(body, &deadline);
            Err(refusal)
        }
        read => read,
    }
}

async fn read_within(
    start: Option<Bytes>,
    body: &mut Incoming,
    announced: usize,
    limit: usize,
    deadline: &mut BodyDeadline,
    budget: &mut BodyBudget,
) -> Result<Bytes, GatewayError> {
    let first = match start {
        Some(start) => start,
        None => next_chunk(body, deadline).await?.unwrap_or_default(),
    };
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
    while let Some(frame) =
        timeout_at(deadline.at(), body.frame()).await.map_err(|_| GatewayError::SlowBody)?
    {
        if let Ok(chunk) = frame.map_err(|_| GatewayError::BrokenBody)?.into_data() {
            deadline.extend(chunk.len(), Instant::now());
            return Ok(Some(chunk));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::alignments::PromptFormat;
    use crate::matching::tests::byte_level;
    use crate::request_reader::tests::reader;

    async fn parsed(
        api: Api,
        json: &'static str,
        reader: &RequestReader,
        config: &Config,
    ) -> Result<(ParsedRequest, BufferedBody), GatewayError> {
        let (headers, usage) = (&HeaderMap::new(), UsageDemand::None);
        let context = ParseContext { api, headers, reader, config, tenant: None, usage };
        parse(&Bytes::from_static(json.as_bytes()), context).await
    }

    #[tokio::test]
    async fn a_prompt_has_keys_only_where_a_policy_looks_at_caches() {
        let json = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
        for (policy, has_keys) in [("expected_ttft", true), ("random", false)] {
            let (request, _) = parsed(Api::Chat, json, &reader(policy), &Config::default()).await.unwrap();
            assert_eq!(request.prompt.is_some(), has_keys, "{policy}");
        }
    }

    #[tokio::test]
    async fn a_field_that_decides_may_not_be_repeated() {
        let json = r#"{"model":"a","model":"b","prompt":"hello"}"#;
        let refused = parsed(Api::Completions, json, &reader("random"), &Config::default()).await;
        assert!(matches!(refused, Err(GatewayError::RepeatedField("model"))));
    }

    #[tokio::test]
    async fn an_alias_stands_for_its_model_in_the_request_and_in_its_body() {
        let aliases = [("short".to_owned(), "long/name".to_owned())].into();
        let config = Config { aliases, ..Config::default() };
        let json = r#"{"model":"short","prompt":"hello"}"#;
        let (request, body) = parsed(Api::Completions, json, &reader("random"), &config).await.unwrap();
        assert_eq!(request.model.as_deref(), Some("long/name"));
        assert_eq!(body.concat(), br#"{"model":"long/name","prompt":"hello"}"#);
    }

    #[tokio::test]
    async fn several_prompts_are_counted_only_where_the_models_format_is_known() {
        let (reader, config) = (reader("expected_ttft"), Config::default());
        let json = r#"{"model":"m","prompt":["one","two"]}"#;
        parsed(Api::Completions, json, &reader, &config).await.unwrap();
        assert_eq!(reader.unrendered.of("several_prompts"), 0);
        let (names, presumed_apis) = (vec!["m".to_owned()], Vec::new());
        let format = PromptFormat { names, fingerprint: 1, matching: byte_level(), presumed_apis };
        reader.alignments.join("engine", format).unwrap();
        let (request, _) = parsed(Api::Completions, json, &reader, &config).await.unwrap();
        assert!(request.prompt.is_none());
        assert_eq!(reader.unrendered.of("several_prompts"), 1);
    }

    #[test]
    fn the_model_is_read_from_the_start_of_a_form() {
        let form =
            b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n--x\r\nContent-";
        assert_eq!(model_in_form(form).as_deref(), Some("whisper-1"));
        assert_eq!(model_in_form(b"--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\xff"), None);
        assert_eq!(model_in_form(b"name=\"model\"\r\n\r\ncut of"), None);
    }
}
