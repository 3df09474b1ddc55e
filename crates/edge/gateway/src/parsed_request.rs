//! A parsed request: the facts that routing, admission and feedback need.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use warmroute_index::Digester;
use warmroute_policy::Standard;
use warmroute_prompt::{Api, Body};
use warmroute_record::Sketch;
use warmroute_router::{Content, PromptText, Request, Silence, Usable, WorkerGroup};
use warmroute_types::{Delivery, WorkerId};

use crate::alignments::Alignments;
use crate::cache_salt::takes_salt;
use crate::cached_tokens::CachedTokens;
use crate::keys::Tenant;
use crate::prefix_observer::PromptSource;
use crate::prompt_keys::PromptKeys;
use crate::request_reader::RequestReader;
use crate::stored_use::StoredUse;
use crate::tenant_tokens::TenantTokens;
use crate::upstream_body::BufferedBody;
use crate::{Config, UsageInjection};

/// Spliced into streaming requests, so that the last event reports usage.
const INJECTED_FIELD: &[u8] = b"\"stream_options\":{\"include_usage\":true},";

/// The same, if the client sent `"stream_options": null`.
const INJECTED_VALUE: &[u8] = b"{\"include_usage\":true}";

/// What the gateway knows about a request.
pub(crate) struct ParsedRequest {
    pub model: Option<String>,
    pub prompt_tokens: u32,
    /// Number of answers (`n`), and the longest each may be, if limited.
    pub answers: u32,
    pub answer_tokens_max: Option<u32>,
    pub session_key: Option<u64>,
    /// The session, whatever the policy needs.
    pub session: Option<u64>,
    pub prefix_key: Option<u64>,
    /// The prompt's keys, if the policy looks at caches.
    pub prompt: Option<PromptKeys>,
    /// One prompt, all of which is in the request.
    pub is_one_prompt: bool,
    /// One prompt with one answer. Only then do the reported cached tokens belong to the prompt.
    pub is_single: bool,
    /// Meaning of a response without cached tokens.
    pub silence: Silence,
    /// Streamed, or as one document.
    pub delivery: Delivery,
    /// The engine counts tokens in `meta_info` and not in a usage.
    pub returns_meta_info: bool,
    /// The gateway requested the stream's usage. The client did not and must not see it.
    pub usage_injected: bool,
    /// The tenant's cache salt, which replaces the client's.
    pub cache_salt: Option<String>,
    /// Whether the client sees how much was cached.
    pub cached_tokens: CachedTokens,
    /// Stored responses that the request continues, reads or makes.
    pub stored: StoredUse,
    /// The group of workers that may take the request; `None`: all workers.
    pub within: Option<Arc<WorkerGroup>>,
    /// Counters of the tenant's tokens.
    pub tenant_tokens: Option<Arc<TenantTokens>>,
    /// Fields for the trace, if one is recorded.
    pub trace_fields: Option<TraceFields>,
}

/// What is known about a request beside its body.
#[derive(Clone, Copy)]
pub(crate) struct ParseContext<'a> {
    pub api: Api,
    pub headers: &'a HeaderMap,
    pub reader: &'a RequestReader,
    pub config: &'a Config,
    pub tenant: Option<&'a Tenant>,
    pub usage: UsageDemand,
}

/// What a trace contains beyond the routing fields.
pub(crate) struct TraceFields {
    pub session: Option<u64>,
    pub sketch: Sketch,
}

impl Default for ParsedRequest {
    /// A request about which nothing is known.
    fn default() -> ParsedRequest {
        ParsedRequest {
            model: None,
            prompt_tokens: 0,
            answers: 0,
            answer_tokens_max: None,
            session_key: None,
            session: None,
            prefix_key: None,
            prompt: None,
            is_one_prompt: false,
            is_single: false,
            silence: Silence::MeansNothing,
            delivery: Delivery::Whole,
            returns_meta_info: false,
            usage_injected: false,
            cache_salt: None,
            cached_tokens: CachedTokens::Shown,
            stored: StoredUse::default(),
            within: None,
            tenant_tokens: None,
            trace_fields: None,
        }
    }
}

impl ParsedRequest {
    /// Where its prompt comes from. A prompt that continues a stored one, or several prompts, cannot be compared.
    pub(crate) fn prompt_source(&self, api: Api, formats: &Alignments) -> Option<PromptSource<'_>> {
        let (model, cache_salt) = (self.model.as_deref(), self.cache_salt.as_deref());
        let attribution = model.map(|model| formats.attribution(model)).unwrap_or_default();
        let source = PromptSource { api, model, session: self.session, cache_salt, attribution };
        (api != Api::Other && self.is_one_prompt).then_some(source)
    }

    /// Parses a request from its body and headers.
    pub(crate) async fn parse(body: &Body<'_>, context: ParseContext<'_>) -> ParsedRequest {
        let ParseContext { api, headers, reader, config, tenant, usage } = context;
        let needs = |what: fn(&Standard) -> bool| reader.router.inspect().needs(what);
        let named = body.model();
        // Clients of `/generate` name no model.
        let only = if api == Api::Generate { reader.router.inspect().only_model() } else { None };
        let model = named.as_deref().map(|name| config.aliases.get(name).map_or(name, String::as_str));
        let model = model.or(only.as_deref());
        // A prompt that continues a stored one, or several prompts, cannot be looked up.
        let is_one_prompt = body.has_one_prompt() && !body.continues_another();
        let needs_overlap = needs(Standard::needs_overlap) && api != Api::Other;
        let is_looked_up = needs_overlap && is_one_prompt;
        if needs_overlap && !is_one_prompt {
            count_unrendered_prompt(body, model, reader);
        }
        let injects = should_inject_usage(body, api, usage);
        let digester = reader.router.inspect().digester();
        let cache_salt =
            tenant.and_then(|tenant| tenant.cache_salt(config.cache_salt, body.salt().as_deref(), digester));
        let prompt = match is_looked_up {
            true => Some(
                PromptKeys::compute(body, api, model.unwrap_or_default(), cache_salt.as_deref(), reader)
                    .await,
            ),
            false => None,
        };
        let is_single = is_one_prompt && body.has_one_answer() && api != Api::Other;
        let is_recorded = is_single && reader.records_trace;
        let answer_tokens_max = body.answer_tokens_max(api);
        let session = config.session_keys.find(headers, body);
        ParsedRequest {
            prompt_tokens: body.prompt_tokens(),
            // Most other endpoints (embeddings, scores) generate no text.
            answers: match api {
                Api::Other => answer_tokens_max.map_or(0, |_| body.answers()),
                _ => body.answers(),
            },
            answer_tokens_max,
            session_key: session.filter(|_| needs(Standard::needs_session_key)),
            session,
            prefix_key: if needs(Standard::needs_prefix_key) {
                config.prefix.key(body, &mut Vec::new())
            } else {
                None
            },
            prompt,
            is_one_prompt,
            is_single,
            silence: match api {
                // Usage that engines add to every event unasked omits the details, so their absence says nothing.
                Api::Chat | Api::Completions
                    if !body.is_stream() || injects || client_requests_usage(body) =>
                {
                    Silence::MeansZero
                }
                _ => Silence::MeansNothing,
            },
            delivery: if body.is_stream() { Delivery::Streamed } else { Delivery::Whole },
            returns_meta_info: api == Api::Generate,
            usage_injected: injects,
            cache_salt,
            cached_tokens: cached_tokens_for(tenant, config),
            stored: StoredUse { item: item_reference(body, context), ..StoredUse::of_body(body) },
            within: None,
            tenant_tokens: tenant.map(|tenant| Arc::clone(&tenant.tokens)),
            trace_fields: is_recorded.then(|| TraceFields { session, sketch: sketch(body, digester) }),
            model: model.map(str::to_owned),
        }
    }

    /// The prompt as each engine family formats it.
    pub(crate) fn texts(&self) -> Vec<PromptText<'_>> {
        self.prompt.as_ref().map(PromptKeys::texts).unwrap_or_default()
    }

    /// The workers that the request may use, without some.
    pub(crate) fn usable<'a>(&'a self, avoid: &'a [WorkerId]) -> Usable<'a> {
        Usable { stored_at: self.stored.worker, avoid, within: self.within.as_deref() }
    }

    /// The request as the router takes it.
    pub(crate) fn routing_request<'a>(
        &'a self,
        texts: &'a [PromptText<'a>],
        avoid: &'a [WorkerId],
    ) -> Request<'a> {
        Request {
            model: self.model.as_deref(),
            prompt_tokens: self.prompt_tokens,
            prompt: self.prompt.as_ref().map(PromptKeys::chunks),
            texts,
            session_key: self.session_key,
            prefix_key: self.prefix_key,
            avoid,
            within: self.within.as_deref(),
            stored_at: self.stored.worker,
            known_tokens: None,
            delivery: self.delivery,
            content: self.prompt.as_ref().map_or_else(Content::default, |keys| keys.content),
            unknown_media: self.prompt.as_ref().and_then(PromptKeys::unknown_media),
            silence: self.silence,
        }
    }

    /// The body to forward: unchanged, except for an aliased model name, injected usage options and the tenant's salt.
    pub(crate) fn outgoing_body(
        &self,
        bytes: &Bytes,
        body: &Body<'_>,
        api: Api,
        config: &Config,
    ) -> BufferedBody {
        let alias_of = body.model().and_then(|name| config.aliases.get(&*name));
        let rename = alias_of.zip(body.model_range()).map(|(model, range)| {
            let name = serde_json::Value::from(model.as_str()).to_string();
            (range, Bytes::from(name))
        });
        let ask = self.usage_injected.then(|| match body.stream_options_range() {
            Some(range) => (range, with_usage(body.stream_options())),
            // The object contains `stream`, so it is not empty.
            None => (after_brace(bytes), Bytes::from_static(INJECTED_FIELD)),
        });
        let salt = self.cache_salt.as_ref();
        let salt = salt.filter(|_| takes_salt(api) || body.salt_range().is_some());
        let salt = salt.map(|salt| match body.salt_range() {
            // Also where engines are not known to read it: a client's own salt may not stay.
            Some(range) => (range, Bytes::from(format!("\"{salt}\""))),
            None => {
                let at = after_brace(bytes);
                let is_empty = bytes[at.end..].trim_ascii_start().starts_with(b"}");
                let comma = if is_empty { "" } else { "," };
                (at, Bytes::from(format!("\"cache_salt\":\"{salt}\"{comma}")))
            }
        });
        let start =
            |splice: &Option<(std::ops::Range<usize>, Bytes)>| splice.as_ref().map(|(at, _)| at.start);
        let mut splices = [ask, rename, salt];
        splices.sort_by_key(start);
        BufferedBody::spliced(bytes, splices)
    }
}

/// Whether the stream's usage is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageDemand {
    /// Requests are not changed.
    None,
    /// Requested where the client did not set stream options.
    IfUnset,
    /// Requested whatever the client set, because its tokens are limited.
    Always,
}

impl UsageDemand {
    /// What the gateway needs to know about a response that it relays.
    pub(crate) fn of(config: &Config, tenant: Option<&Tenant>) -> UsageDemand {
        let limits = config.admission.limits;
        let limits = tenant.map_or(limits, |tenant| tenant.limits.over(limits));
        match config.usage_injection {
            _ if limits.tokens_per_minute > 0 => UsageDemand::Always,
            UsageInjection::On => UsageDemand::IfUnset,
            UsageInjection::Off => UsageDemand::None,
        }
    }
}

/// Whether to request usage for this stream.
pub(crate) fn should_inject_usage(body: &Body<'_>, api: Api, demand: UsageDemand) -> bool {
    let is_stream = body.is_stream() && matches!(api, Api::Chat | Api::Completions);
    is_stream
        && match demand {
            UsageDemand::None => false,
            UsageDemand::IfUnset => body.stream_options().is_none(),
            UsageDemand::Always => !client_requests_usage(body),
        }
}

/// Whether a tenant sees cached tokens: by its key, or else by the configuration.
pub(crate) fn cached_tokens_for(tenant: Option<&Tenant>, config: &Config) -> CachedTokens {
    tenant.and_then(|tenant| tenant.rights.cached_tokens).unwrap_or(config.cached_tokens)
}

/// The place after the opening brace, where a field fits.
fn after_brace(bytes: &Bytes) -> std::ops::Range<usize> {
    let brace = bytes.iter().position(|&byte| byte == b'{').map_or(0, |at| at + 1);
    brace..brace
}

/// The client's stream options with usage requested. Options that are no object are left for the engine to refuse.
fn with_usage(options: Option<&[u8]>) -> Bytes {
    let Some(options) = options else { return Bytes::from_static(INJECTED_VALUE) };
    match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(options) {
        Ok(mut options) => {
            options.insert("include_usage".to_owned(), true.into());
            Bytes::from(serde_json::Value::Object(options).to_string())
        }
        Err(_) => Bytes::copy_from_slice(options),
    }
}

/// The first stored item in the input that is named by its identifier only, where one tenant must not name another's.
fn item_reference(body: &Body<'_>, context: ParseContext<'_>) -> Option<String> {
    let is_looked_for = context.tenant.is_some() && matches!(context.api, Api::Responses | Api::Other);
    let first = || body.item_references().first().map(|id| String::from_utf8_lossy(id).into_owned());
    is_looked_for.then(first).flatten()
}

fn sketch(body: &Body<'_>, digester: &Digester) -> Sketch {
    Sketch::of(body, |bytes| digester.digest(bytes))
}

/// Counts a prompt that cannot be looked up, if its model has a known prompt format.
fn count_unrendered_prompt(body: &Body<'_>, model: Option<&str>, reader: &RequestReader) {
    let why = if body.has_one_prompt() { "api" } else { "several_prompts" };
    if model.and_then(|model| reader.alignments.for_model(model)).is_some() {
        reader.unrendered.count(why);
    }
}

/// Whether the client requested usage at the end of its stream.
fn client_requests_usage(body: &Body<'_>) -> bool {
    #[derive(serde::Deserialize)]
    struct StreamOptions {
        #[serde(default)]
        include_usage: bool,
    }
    let options =
        body.stream_options().and_then(|options| serde_json::from_slice::<StreamOptions>(options).ok());
    options.is_some_and(|options| options.include_usage)
}
