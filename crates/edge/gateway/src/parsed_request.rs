//! What a request requests for, as far as routing and feedback need to know.

use std::cell::RefCell;

use bytes::Bytes;
use http::HeaderMap;
use warmroute_index::{Digester, Namespace, RootKey, Source};
use warmroute_policy::Standard;
use warmroute_prompt::{Api, Body, CHUNK_BYTES, Chunks};
use warmroute_record::Sketch;
use warmroute_router::{Content, PromptChunks, PromptText, Request, Silence, Unit};
use warmroute_types::{Delivery, WorkerId};
use xxhash_rust::xxh3::xxh3_64;

use crate::alignments::FamilyMatching;
use crate::gateway::Gateway;
use crate::matching::{RenderError, RenderedPrompt};
use crate::upstream_body::BufferedBody;
use crate::{Config, SessionKey, UsageInjection};

/// What the router adds to a stream's request, so that its last event says what was used.
const INJECTED_FIELD: &[u8] = b"\"stream_options\":{\"include_usage\":true},";

/// The same where the client wrote `null`.
const INJECTED_VALUE: &[u8] = b"{\"include_usage\":true}";

/// A thread's memory for cutting prompts is given back after a prompt larger than this.
const CHUNKS_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static CHUNKS: RefCell<Chunks> = RefCell::default();
}

/// What is asked for.
pub(crate) struct ParsedRequest {
    pub model: Option<String>,
    pub prompt_tokens: u32,
    /// How many answers it wants, and how long each may be, if it says so.
    pub answers: u32,
    pub answer_tokens_max: Option<u32>,
    pub session_key: Option<u64>,
    pub prefix_key: Option<u64>,
    /// The prompt in chunks, where the policy looks at caches.
    pub prompt: Option<PromptKeys>,
    /// One prompt with one answer: only of these can it be said how much was cached.
    pub is_single: bool,
    /// What it means when the answer says nothing about cached tokens.
    pub silence: Silence,
    /// How its answer will come.
    pub delivery: Delivery,
    /// The stream's usage was asked for by us, not by the client, who must not see it.
    pub usage_injected: bool,
    /// What is to be recorded of it, where anything is.
    pub trace_fields: Option<TraceFields>,
}

/// What a record holds of a request that routing may not need.
pub(crate) struct TraceFields {
    pub session: Option<u64>,
    pub sketch: Sketch,
}

impl Default for ParsedRequest {
    /// Nothing is known.
    fn default() -> ParsedRequest {
        ParsedRequest {
            model: None,
            prompt_tokens: 0,
            answers: 0,
            answer_tokens_max: None,
            session_key: None,
            prefix_key: None,
            prompt: None,
            is_single: false,
            silence: Silence::MeansNothing,
            delivery: Delivery::Whole,
            usage_injected: false,
            trace_fields: None,
        }
    }
}

/// A prompt as the router takes it.
pub(crate) struct PromptKeys {
    root: RootKey,
    digests: Box<[u64]>,
    bytes: u32,
    pub content: Content,
    /// One for each family of workers that serves the model.
    texts: Vec<EngineText>,
}

/// A prompt as engines write it, as far as it can be compared with what they report.
struct EngineText {
    root: RootKey,
    bytes: Box<[u8]>,
    unit: Unit,
}

impl EngineText {
    fn as_prompt(&self) -> PromptText<'_> {
        PromptText { root: self.root, bytes: &self.bytes, unit: self.unit }
    }
}

impl PromptKeys {
    pub(crate) fn chunks(&self) -> PromptChunks<'_> {
        let chunk_bytes = CHUNK_BYTES as u32;
        PromptChunks { root: self.root, digests: &self.digests, chunk_bytes, bytes: self.bytes }
    }

    pub(crate) fn texts(&self) -> Vec<PromptText<'_>> {
        self.texts.iter().map(EngineText::as_prompt).collect()
    }

    /// One string for one request: as the engine writes it where that is known, canonical otherwise.
    async fn compute(body: &Body<'_>, api: Api, model: &str, gateway: &Gateway) -> PromptKeys {
        let salt = body.salt();
        let salt = salt.as_deref().map(String::from_utf8_lossy);
        let root = RootKey::of(&Namespace {
            model,
            // An adapter is served under a model name of its own.
            lora: None,
            salt: salt.as_deref(),
            cut: CHUNK_BYTES as u32,
            source: Source::Presumed,
        });
        let digester = gateway.router.digester();
        let formats = gateway.alignments.for_model(model);
        let mut keys: Option<PromptKeys> = None;
        for FamilyMatching { family, matching } in formats.iter().flat_map(|formats| formats.iter()) {
            match matching.render(body, api).await {
                Ok(rendered) => {
                    let keys =
                        keys.get_or_insert_with(|| PromptKeys::from_rendered(&rendered, root, digester));
                    let root = gateway.router.text_root(family, Some(model), salt.as_deref(), rendered.unit);
                    keys.texts.push(EngineText {
                        root,
                        bytes: rendered.reported.into(),
                        unit: rendered.unit,
                    });
                }
                Err(RenderError(why)) => gateway.metrics.count_unrendered(why),
            }
        }
        keys.unwrap_or_else(|| PromptKeys::from_canonical(body, root, digester))
    }

    fn from_rendered(rendered: &RenderedPrompt, root: RootKey, digester: &Digester) -> PromptKeys {
        let text = rendered.text.as_deref().unwrap_or(&rendered.reported);
        PromptKeys {
            root,
            digests: Chunks::cut_text(text, |bytes| digester.digest(bytes)).into(),
            bytes: u32::try_from(text.len()).unwrap_or(u32::MAX),
            content: if rendered.has_media { Content::Media } else { Content::Text },
            texts: Vec::new(),
        }
    }

    fn from_canonical(body: &Body<'_>, root: RootKey, digester: &Digester) -> PromptKeys {
        CHUNKS.with_borrow_mut(|chunks| {
            chunks.cut(body, |bytes| digester.digest(bytes));
            let bytes = u32::try_from(chunks.bytes()).unwrap_or(u32::MAX);
            let content = if chunks.has_media() { Content::Media } else { Content::Text };
            let keys =
                PromptKeys { root, digests: chunks.digests().into(), bytes, content, texts: Vec::new() };
            if chunks.bytes() > CHUNKS_BYTES_MAX {
                *chunks = Chunks::default();
            }
            keys
        })
    }
}

impl ParsedRequest {
    /// Reads it from a body.
    pub(crate) async fn parse(
        body: &Body<'_>,
        api: Api,
        headers: &HeaderMap,
        gateway: &Gateway,
        config: &Config,
    ) -> ParsedRequest {
        let needs = |what: fn(&Standard) -> bool| gateway.router.needs(what);
        let named = body.model();
        let model = named.as_deref().map(|name| config.aliases.get(name).map_or(name, String::as_str));
        // A prompt that stands elsewhere in part, or several of them, cannot be looked up.
        let is_one_prompt = body.has_one_prompt() && !body.continues_another();
        let needs_overlap = needs(Standard::needs_overlap) && api != Api::Other;
        let is_looked_up = needs_overlap && is_one_prompt;
        if needs_overlap && !is_one_prompt {
            count_unrendered_prompt(body, model, gateway);
        }
        let injects = should_inject_usage(body, api, config.usage_injection);
        let prompt = match is_looked_up {
            true => Some(PromptKeys::compute(body, api, model.unwrap_or_default(), gateway).await),
            false => None,
        };
        let is_single = is_one_prompt && body.has_one_answer() && api != Api::Other;
        let is_recorded = is_single && gateway.recorder.is_some();
        let answer_tokens_max = body.answer_tokens_max(api);
        ParsedRequest {
            prompt_tokens: body.prompt_tokens(),
            // Of other endpoints most answer with no text: embeddings, scores.
            answers: match api {
                Api::Other => answer_tokens_max.map_or(0, |_| body.answers()),
                _ => body.answers(),
            },
            answer_tokens_max,
            session_key: if needs(Standard::needs_session_key) {
                session_key(config, headers, body)
            } else {
                None
            },
            prefix_key: if needs(Standard::needs_prefix_key) {
                config.prefix.key(body, &mut Vec::new())
            } else {
                None
            },
            prompt,
            is_single,
            silence: match api {
                // Usage that comes with every event, unasked for at the end, leaves details out whatever they are.
                Api::Chat | Api::Completions
                    if !body.is_stream() || injects || client_requests_usage(body) =>
                {
                    Silence::MeansZero
                }
                _ => Silence::MeansNothing,
            },
            delivery: if body.is_stream() { Delivery::Streamed } else { Delivery::Whole },
            usage_injected: injects,
            trace_fields: is_recorded.then(|| TraceFields {
                session: session_key(config, headers, body),
                sketch: sketch(body, gateway),
            }),
            model: model.map(str::to_owned),
        }
    }

    /// The prompt as each family of engines writes it.
    pub(crate) fn texts(&self) -> Vec<PromptText<'_>> {
        self.prompt.as_ref().map(PromptKeys::texts).unwrap_or_default()
    }

    /// What the router is asked.
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
            known_tokens: None,
            delivery: self.delivery,
        }
    }

    /// The body as it goes on: as it came, but for the name of an aliased model and for the usage that we ask for.
    pub(crate) fn outgoing_body(&self, bytes: &Bytes, body: &Body<'_>, config: &Config) -> BufferedBody {
        let alias_of = body.model().and_then(|name| config.aliases.get(&*name));
        let rename = alias_of.zip(body.model_range()).map(|(model, range)| {
            let name = serde_json::Value::from(model.as_str()).to_string();
            (range, Bytes::from(name))
        });
        let ask = self.usage_injected.then(|| match body.stream_options_range() {
            Some(null) => (null, Bytes::from_static(INJECTED_VALUE)),
            None => {
                // Right after the opening brace: the object is not empty, it says that it wants a stream.
                let brace = bytes.iter().position(|&byte| byte == b'{').map_or(0, |at| at + 1);
                (brace..brace, Bytes::from_static(INJECTED_FIELD))
            }
        });
        let start =
            |splice: &Option<(std::ops::Range<usize>, Bytes)>| splice.as_ref().map(|(at, _)| at.start);
        let mut splices = [ask, rename];
        splices.sort_by_key(start);
        BufferedBody::spliced(bytes, splices)
    }
}

/// Whether the usage of this answer's stream is ours to ask for: the client has said nothing about it.
pub(crate) fn should_inject_usage(body: &Body<'_>, api: Api, injection: UsageInjection) -> bool {
    let is_stream = body.is_stream() && matches!(api, Api::Chat | Api::Completions);
    injection == UsageInjection::On && is_stream && body.stream_options().is_none()
}

fn sketch(body: &Body<'_>, gateway: &Gateway) -> Sketch {
    let digester = gateway.router.digester();
    Sketch::of(body, |bytes| digester.digest(bytes))
}

/// Of a prompt that cannot be looked up, where it would have been rendered otherwise.
fn count_unrendered_prompt(body: &Body<'_>, model: Option<&str>, gateway: &Gateway) {
    let why = if body.has_one_prompt() { "api" } else { "several_prompts" };
    if model.and_then(|model| gateway.alignments.for_model(model)).is_some() {
        gateway.metrics.count_unrendered(why);
    }
}

/// Whether the client asked for usage at the end of its stream.
fn client_requests_usage(body: &Body<'_>) -> bool {
    #[derive(serde::Deserialize)]
    struct Options {
        #[serde(default)]
        include_usage: bool,
    }
    let options = body.stream_options().and_then(|options| serde_json::from_slice::<Options>(options).ok());
    options.is_some_and(|options| options.include_usage)
}

/// The first session that the request names.
pub(crate) fn session_key(config: &Config, headers: &HeaderMap, body: &Body<'_>) -> Option<u64> {
    config.session_keys.iter().find_map(|key| match key {
        SessionKey::Header(name) => {
            headers.get(name).filter(|value| !value.is_empty()).map(|value| xxh3_64(value.as_bytes()))
        }
        SessionKey::Body(field) => body.session(*field).map(|value| xxh3_64(&value)),
    })
}
