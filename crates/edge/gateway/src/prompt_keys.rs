//! A prompt as the router looks it up: digests of its chunks, and its text as each engine family formats it.

use std::borrow::Cow;
use std::cell::RefCell;

use warmroute_index::{Digester, Namespace, RootKey, Source};
use warmroute_prompt::{Api, Body, CHUNK_BYTES, ChunkSizes, Chunks};
use warmroute_router::{Content, PromptChunks, PromptText, Unit, UnknownMedia};

use crate::alignments::FamilyMatching;
use crate::matching::{RenderError, RenderedPrompt, WrittenMedia};
use crate::request_reader::RequestReader;

/// Part of the root of rendered prompts. Presumptions of other prompts last beside a worker's events, so a rendered
/// prompt, whose events tell more, must not find them.
const RENDERED: u32 = 1 << 31;

/// A thread's chunk buffer is freed after a prompt larger than this.
const CHUNKS_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static CHUNKS: RefCell<Chunks> = RefCell::default();
}

/// The lookup keys of a prompt.
pub(crate) struct PromptKeys {
    root: RootKey,
    digests: Box<[u64]>,
    bytes: u32,
    pub content: Content,
    /// One for each engine family that serves the model.
    texts: Vec<EngineText>,
}

/// A prompt as one engine family formats it, up to where it can be compared with KV events.
struct EngineText {
    root: RootKey,
    bytes: Box<[u8]>,
    unit: Unit,
    /// The family as a number, for what it makes of media.
    family: u64,
    /// Bytes before the first medium that is unknown, which ends the text, or unchecked.
    explained: usize,
    /// The rendered prompt from that medium on.
    rest: Box<[u8]>,
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

    /// The prompt from its first medium on that events have not explained yet, or not since an engine started.
    pub(crate) fn unknown_media(&self) -> Option<UnknownMedia<'_>> {
        let mut texts = self.texts.iter().enumerate();
        let (text, EngineText { family, explained, rest, .. }) =
            texts.find(|(_, text)| !text.rest.is_empty())?;
        Some(UnknownMedia { text, family: *family, at: *explained, rest })
    }

    /// Computes the keys. Chunks are cut from the engine's format of the prompt if known, else from a canonical one.
    /// The tenant's salt, if any, takes the place of the client's.
    pub(crate) async fn compute(
        body: &Body<'_>,
        api: Api,
        model: &str,
        tenant_salt: Option<&str>,
        reader: &RequestReader,
    ) -> PromptKeys {
        let salt = body.salt();
        let salt = salt.as_deref().map(String::from_utf8_lossy);
        let salt = tenant_salt.map(Cow::Borrowed).or(salt);
        let cut = ChunkSizes::of_unit(CHUNK_BYTES as u32).identity();
        // Adapters are served under model names of their own.
        let of_text = Namespace { model, lora: None, salt: salt.as_deref(), cut, source: Source::Presumed };
        let digester = reader.router.inspect().digester();
        let formats = reader.alignments.for_model(model);
        let mut keys: Option<PromptKeys> = None;
        for FamilyMatching { family, matching } in formats.iter().flat_map(|formats| formats.iter()) {
            match matching.render(body, api).await {
                Ok(rendered) => {
                    let keys = keys.get_or_insert_with(|| {
                        let root = RootKey::of(&Namespace { cut: cut | RENDERED, ..of_text });
                        PromptKeys::from_rendered(&rendered, root, digester)
                    });
                    let root = reader.router.inspect().text_root(
                        family,
                        Some(model),
                        salt.as_deref().filter(|_| matching.honours_salt(api)),
                        rendered.unit,
                    );
                    let unit = rendered.unit;
                    let known = |medium| reader.router.inspect().medium(family, medium);
                    let WrittenMedia { bytes, explained, rest } = rendered.with_media(body, known);
                    let (family, bytes, rest) = (family.key(), bytes.into(), rest.into());
                    keys.texts.push(EngineText { root, bytes, unit, family, explained, rest });
                }
                Err(RenderError(why)) => reader.unrendered.count(why),
            }
        }
        keys.unwrap_or_else(|| PromptKeys::from_canonical(body, RootKey::of(&of_text), digester))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alignments::PromptFormat;
    use crate::matching::ModelMatching;
    use crate::matching::tests::{byte_level, byte_level_chats};
    use crate::request_reader::tests::reader;
    use warmroute_prompt::ChatConversion;

    const CHAT: &[u8] = br#"{"model":"m","cache_salt":"a","messages":[{"role":"user","content":"hello"}]}"#;

    async fn keys(json: &[u8], tenant_salt: Option<&str>, reader: &RequestReader) -> PromptKeys {
        let body = Body::read(json).unwrap().of_api(Api::Chat);
        PromptKeys::compute(&body, Api::Chat, "m", tenant_salt, reader).await
    }

    fn align(reader: &RequestReader, matching: ModelMatching) {
        let names = vec!["m".to_owned()];
        let format = PromptFormat { names, fingerprint: 1, matching, presumed_apis: Vec::new() };
        reader.alignments.join("engine", format).unwrap();
    }

    #[tokio::test]
    async fn a_tenants_salt_takes_the_place_of_the_clients() {
        let reader = reader("expected_ttft");
        let other = String::from_utf8_lossy(CHAT).replace(r#""a""#, r#""b""#).into_bytes();
        let root = async |json: &[u8], salt| keys(json, salt, &reader).await.chunks().root;
        assert_ne!(root(CHAT, None).await, root(&other, None).await, "the clients' salts differ");
        assert_eq!(root(CHAT, Some("t")).await, root(&other, Some("t")).await, "their tenant's is one");
        assert_ne!(root(CHAT, Some("t")).await, root(CHAT, Some("u")).await, "tenants stay apart");
    }

    #[tokio::test]
    async fn a_prompt_is_compared_as_its_engine_formats_it() {
        let reader = reader("expected_ttft");
        let canonical = keys(CHAT, None, &reader).await;
        assert!(canonical.texts().is_empty(), "no engine is aligned");
        align(&reader, byte_level_chats(ChatConversion::of_vllm("0.32.0")));
        let rendered = keys(CHAT, None, &reader).await;
        let texts: Vec<&[u8]> = rendered.texts().iter().map(|text| text.bytes).collect();
        assert_eq!(texts, [b"hello"]);
        assert_eq!(rendered.chunks().bytes, 5);
        assert_ne!(rendered.chunks().root, canonical.chunks().root, "what was presumed before is not found");
    }

    #[tokio::test]
    async fn a_prompt_that_its_engines_format_cannot_render_is_cut_canonically_and_counted() {
        let reader = reader("expected_ttft");
        let canonical = keys(CHAT, None, &reader).await;
        align(&reader, byte_level());
        let keys = keys(CHAT, None, &reader).await;
        assert_eq!(keys.chunks().root, canonical.chunks().root);
        assert!(keys.texts().is_empty());
        assert_eq!(reader.unrendered.of("no_template"), 1);
    }
}
