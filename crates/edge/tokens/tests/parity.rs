//! Engines that agree, that read their files differently, that render differently, and that cannot be asked.
//!
//! `tokenize_answers.json` was captured from real vLLM servers with the tiny model. The other engines are simulated
//! by a tokenizer and a template of their own.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use warmroute_prompt::{Api, Body, ChatConversion, InlineSystem, Reading, Rendered, Renderer};
use warmroute_tokens::parity::{
    Answer, ConversionEndpoint, ConversionVerdict, Reason, Sample, TokenizeEndpoint, Verdict, check,
    check_conversion, judge, samples,
};
use warmroute_tokens::{Encoder, HubCache, Model, ModelText};

const CHAT: &str = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}</s>{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}[assistant]{% endif %}";

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn tiny() -> Model {
    Model::find(here("tiny").to_str().unwrap(), &HubCache::at("/nowhere")).unwrap()
}

/// A small tokenizer of the prompt crate with a chat template, and a test's changes to it.
fn text(tokenizer: &str, template: &str, change: impl Fn(&mut Value)) -> ModelText {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../core/prompt/tests/data/tokenizers").join(tokenizer);
    let mut tree: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    change(&mut tree);
    ModelText {
        tokenizer: tree.to_string().into_bytes(),
        tokenizer_config: Some(br#"{"bos_token":"<s>","eos_token":"</s>"}"#.to_vec()),
        special_tokens_map: None,
        chat_template: Some(template.to_owned()),
        config: None,
    }
}

/// An engine that tokenizes with these files.
struct Engine {
    renderer: Renderer,
    encoder: Encoder,
}

impl Engine {
    fn new(text: &ModelText, reading: Reading) -> Engine {
        Engine {
            renderer: Renderer::new(&text.files(reading)).unwrap(),
            encoder: Encoder::new(text, reading).unwrap(),
        }
    }
}

impl TokenizeEndpoint for Engine {
    async fn tokenize(&self, body: String) -> Answer {
        let api = if body.contains("\"messages\"") { Api::Chat } else { Api::Completions };
        let mut text = String::new();
        match self.renderer.render(&Body::read(body.as_bytes()).unwrap(), api, 0, &mut text) {
            Ok(Rendered::Text { around, .. }) => {
                let tokens = self.encoder.encode(&text, around).unwrap();
                Answer::Json(json!({"count": tokens.len(), "tokens": tokens}).to_string().into_bytes())
            }
            Ok(Rendered::Ids(_)) => Answer::Refused("no ids here".to_owned()),
            Err(problem) => Answer::Refused(problem.to_string()),
        }
    }
}

async fn verdict(engine: &Engine, model: ModelText) -> Verdict {
    check(engine, "m", &Model::new(model).unwrap(), 0).await
}

#[test]
fn real_engines_spell_our_bytes() {
    let captures: Vec<Value> =
        serde_json::from_slice(&std::fs::read(here("tokenize_answers.json")).unwrap()).unwrap();
    let answers: Vec<(Sample, Vec<u32>)> = captures
        .iter()
        .map(|capture| {
            let api = if capture["request"]["messages"].is_null() { Api::Completions } else { Api::Chat };
            let tokens = serde_json::from_value(capture["answer"]["tokens"].clone()).unwrap();
            (Sample { name: "a captured prompt", api, body: capture["request"].clone() }, tokens)
        })
        .collect();
    assert_eq!(answers.len(), 6, "chat, prompt and bare prompt of vLLM 0.32.0 and 0.15.1");
    assert!(matches!(judge(&tiny(), &answers, 0), Verdict::Bytes(_, Reading::AsFiled)));
    let mut other = answers;
    other[3].1[40] += 1;
    assert!(
        matches!(judge(&tiny(), &other, 0), Verdict::Presumed(Reason::Rendering(_))),
        "one token is enough"
    );
}

#[tokio::test]
async fn an_engine_that_agrees_is_matched_in_bytes() {
    for tokenizer in
        ["bytes.json", "bytes_nfkc.json", "pieces.json", "pieces_first.json", "pieces_always.json"]
    {
        let model = text(tokenizer, CHAT, |_| {});
        let verdict = verdict(&Engine::new(&model, Reading::AsFiled), model).await;
        assert!(matches!(verdict, Verdict::Bytes(_, Reading::AsFiled)), "{tokenizer}: {verdict:?}");
    }
}

#[tokio::test]
async fn an_engine_that_reads_its_files_by_newer_rules_is_followed() {
    for reading in [Reading::LeadsFirst, Reading::LeadsEvery] {
        let model = text("pieces.json", CHAT, |_| {});
        let verdict = verdict(&Engine::new(&model, reading), model).await;
        assert!(matches!(verdict, Verdict::Bytes(_, found) if found == reading), "{reading:?}: {verdict:?}");
    }
}

#[tokio::test]
async fn another_template_is_detected_and_named() {
    let engine =
        Engine::new(&text("bytes.json", &CHAT.replace("[assistant]", "[model]"), |_| {}), Reading::AsFiled);
    let Verdict::Presumed(reason) = verdict(&engine, text("bytes.json", CHAT, |_| {})).await else {
        panic!("the templates differ")
    };
    let words = reason.to_string();
    assert!(words.contains(r#"in a chat, after "o! </s>[user] Why? </s>[""#), "{words}");
    assert!(words.contains(r#"goes on with "model]", ours with "assistant]""#), "{words}");
    assert!(words.contains("--chat-template"), "{words}");
}

#[tokio::test]
async fn a_tokenizer_whose_bytes_cannot_be_followed_is_matched_in_tokens() {
    let squeezed = |tree: &mut Value| {
        tree["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
    };
    let model = text("bytes.json", CHAT, squeezed);
    let verdict = verdict(&Engine::new(&model, Reading::AsFiled), model).await;
    let Verdict::Tokens { because, .. } = verdict else { panic!("{verdict:?}") };
    assert!(because.to_string().contains("regular expression"), "{because}");
}

#[tokio::test]
async fn an_engine_without_the_endpoint_stays_unknown() {
    struct Silent;
    impl TokenizeEndpoint for Silent {
        async fn tokenize(&self, _: String) -> Answer {
            Answer::Unavailable("POST /tokenize: 404".to_owned())
        }
    }
    let verdict = check(&Silent, "m", &tiny(), 0).await;
    assert!(matches!(&verdict, Verdict::Unknown(problem) if problem.contains("404")), "{verdict:?}");
}

#[test]
fn samples_cover_known_differences() {
    let samples = samples(tiny().text());
    let all: String = samples.iter().map(|sample| sample.question("m")).collect();
    for needed in [
        "<|eot_id|>",
        "\"tools\"",
        "\"type\":\"text\"",
        "<a> & 'b'",
        "e\u{301}",
        "😀",
        "tool_calls",
        "\"model\":\"m\"",
    ] {
        assert!(all.contains(needed), "{needed}");
    }
}

/// An engine that converts requests of other APIs by some version's rules.
struct Converter {
    engine: Engine,
    version: Option<&'static str>,
    conversion: ChatConversion,
    /// Tokens that it adds to every prompt.
    more: usize,
}

impl Converter {
    fn new(version: Option<&'static str>, change: impl Fn(&mut ChatConversion)) -> Converter {
        let engine = Engine::new(&text("bytes.json", CHAT, |_| {}), Reading::AsFiled);
        let mut conversion = ChatConversion::of_vllm(version.unwrap_or("0.32.0"));
        change(&mut conversion);
        let Engine { renderer, encoder } = engine;
        let engine = Engine { renderer: renderer.with_conversion(conversion), encoder };
        Converter { engine, version, conversion, more: 0 }
    }

    fn ids(&self, body: &str, api: Api) -> Option<Vec<u32>> {
        let mut text = String::new();
        match self.engine.renderer.render(&Body::read(body.as_bytes()).unwrap(), api, 0, &mut text).ok()? {
            Rendered::Text { around, .. } => {
                let mut ids = self.engine.encoder.encode(&text, around).unwrap();
                ids.extend(vec![0; self.more]);
                Some(ids)
            }
            Rendered::Ids(_) => None,
        }
    }

    async fn check(&self) -> ConversionVerdict {
        let model = Model::new(text("bytes.json", CHAT, |_| {})).unwrap();
        check_conversion(self, "m", &model, Reading::AsFiled, 0).await
    }
}

fn json_answer(value: Option<Value>) -> Answer {
    value.map_or(Answer::Refused("refused".to_owned()), |value| Answer::Json(value.to_string().into_bytes()))
}

impl ConversionEndpoint for Converter {
    async fn version(&self) -> Option<String> {
        self.version.map(str::to_owned)
    }

    async fn count_tokens(&self, body: String) -> Answer {
        json_answer(self.ids(&body, Api::Messages).map(|ids| json!({"input_tokens": ids.len()})))
    }

    async fn render_response(&self, body: String) -> Answer {
        json_answer(self.ids(&body, Api::Responses).map(|ids| json!({"token_ids": ids})))
    }
}

fn presumed(verdict: &ConversionVerdict) -> Vec<Api> {
    verdict.presumed.iter().map(|one| one.api).collect()
}

#[tokio::test]
async fn an_engine_that_converts_as_its_version_says_is_precise() {
    for version in ["0.27.1", "0.31.0", "0.32.0"] {
        let engine = Converter::new(Some(version), |_| {});
        let verdict = engine.check().await;
        assert_eq!((verdict.conversion, presumed(&verdict)), (engine.conversion, vec![]), "{version}");
    }
}

#[tokio::test]
async fn the_place_of_inline_system_messages_is_found_by_counting() {
    // vLLM before 0.31 keeps them in place if it was started with --chat-template.
    let engine = Converter::new(Some("0.30.0"), |conversion| {
        conversion.messages.as_mut().unwrap().inline_system = InlineSystem::InPlace;
    });
    let verdict = engine.check().await;
    assert_eq!((verdict.conversion, presumed(&verdict)), (engine.conversion, vec![]));
}

#[tokio::test]
async fn an_engine_that_converts_in_another_way_is_presumed_for_a_reason() {
    let engine = Converter { more: 1, ..Converter::new(Some("0.32.0"), |_| {}) };
    let verdict = engine.check().await;
    assert_eq!(verdict.conversion, ChatConversion::default());
    assert_eq!(presumed(&verdict), [Api::Messages, Api::Responses]);
    let why = &verdict.presumed[0].why;
    assert!(why.contains("tokens in a Messages request, the router"), "{why}");
}

#[tokio::test]
async fn versions_whose_rules_are_not_known_are_named() {
    let verdict = Converter::new(Some("0.26.0"), |_| {}).check().await;
    assert_eq!(presumed(&verdict), [Api::Responses]);
    assert!(verdict.presumed[0].why.contains("0.26.0") && verdict.presumed[0].why.contains("0.27"));
    assert!(verdict.conversion.messages.is_some());
    let silent = Converter::new(None, |_| {}).check().await;
    assert_eq!(presumed(&silent), [Api::Messages, Api::Responses]);
    assert!(silent.presumed[0].why.contains("GET /version"));
}

#[tokio::test]
async fn chats_of_a_harmony_model_are_presumed_though_tokenize_agrees() {
    let config = Some(br#"{"model_type":"gpt_oss"}"#.to_vec());
    let files = ModelText { config, ..text("bytes.json", CHAT, |_| {}) };
    let engine = Converter::new(Some("0.32.0"), |_| {});
    // The engine's /tokenize renders the template, which it does not use for chats.
    let verdict = check(&engine.engine, "m", &Model::new(files.clone()).unwrap(), 0).await;
    assert!(matches!(verdict, Verdict::Bytes(..)), "completions are compared: {verdict:?}");
    let verdict = check_conversion(&engine, "m", &Model::new(files).unwrap(), Reading::AsFiled, 0).await;
    assert_eq!(presumed(&verdict), [Api::Chat, Api::Messages, Api::Responses]);
    assert!(verdict.presumed[0].why.contains("harmony"));
}

/// DeepSeek V3.2 has no template: vLLM writes its chats with code of its own, and `/tokenize` shows them.
#[tokio::test]
async fn completions_of_a_model_without_a_template_are_compared_though_its_chats_are_not() {
    let files = ModelText { chat_template: None, ..text("bytes.json", CHAT, |_| {}) };
    let engine = Converter::new(Some("0.32.0"), |_| {});
    let verdict = check(&engine.engine, "m", &Model::new(files.clone()).unwrap(), 0).await;
    assert!(matches!(verdict, Verdict::Bytes(..)), "{verdict:?}");
    let verdict = check_conversion(&engine, "m", &Model::new(files).unwrap(), Reading::AsFiled, 0).await;
    assert_eq!(presumed(&verdict), [Api::Chat, Api::Messages, Api::Responses]);
    assert!(verdict.presumed[0].why.contains("--chat-template"), "{:?}", verdict.presumed);
}
