//! Every request with every template, compared with vLLM and transformers.
//!
//! `data/make_golden.py` wrote the expected texts with vLLM 0.32.0's own code. Null means that it refuses the
//! request.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;
use serde_json::{Value, json};
use warmroute_prompt::{
    Alignment, Api, Around, Body, ChatConversion, Media, ModelFiles, Rendered, Renderer, Unrendered,
};

/// 2025-07-07 14:02 UTC, the generator's clock.
const NOW_UNIX_S: u64 = 1_751_896_920;

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn json_of(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data(path)).unwrap()).unwrap()
}

fn alignment(template: &str) -> Alignment {
    let tokenizer = std::fs::read(data("tokenizers/bytes.json")).unwrap();
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null}).to_string();
    let files = ModelFiles {
        tokenizer: &tokenizer,
        tokenizer_config: Some(config.as_bytes()),
        chat_template: Some(template),
        ..ModelFiles::default()
    };
    Alignment::new(&files).unwrap()
}

#[test]
fn every_template_renders_every_request_as_the_engine() {
    let golden = json_of("golden.json");
    // Raw, because the order of keys matters.
    let requests = std::fs::read(data("requests.json")).unwrap();
    let requests: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&requests).unwrap();
    let mut compared = 0;
    for (name, expected) in golden.as_object().unwrap() {
        let source = std::fs::read_to_string(data(&format!("templates/{name}.jinja"))).unwrap();
        let alignment = alignment(&source);
        for (request, body) in &requests {
            let mut text = String::new();
            let body = Body::read(body.get().as_bytes()).unwrap();
            let rendered = alignment.renderer().render(&body, Api::Chat, NOW_UNIX_S, &mut text);
            let truth = expected[request].as_str();
            match rendered {
                Ok(_) => assert_eq!(Some(&*text), truth, "{name} / {request}"),
                Err(problem) => assert_eq!(truth, None, "{name} / {request}: {problem}"),
            }
            compared += 1;
        }
    }
    assert!(compared >= 9 * 19, "{compared}");
}

/// `data/make_conversions.py` wrote the expected texts: each version converted the requests, 0.32.0 rendered them.
#[test]
fn other_apis_are_rendered_as_each_version_of_the_engine_renders_them() {
    let requests = |path: &str| -> BTreeMap<String, Box<RawValue>> {
        serde_json::from_slice(&std::fs::read(data(path)).unwrap()).unwrap()
    };
    let apis = [
        ("messages", Api::Messages, requests("messages.json")),
        ("responses", Api::Responses, requests("responses.json")),
    ];
    let mut compared = 0;
    for (version, templates) in json_of("conversions.json").as_object().unwrap() {
        let conversion = ChatConversion::of_vllm(version);
        for (name, expected) in templates.as_object().unwrap() {
            let source = std::fs::read_to_string(data(&format!("templates/{name}.jinja"))).unwrap();
            let alignment = alignment(&source).with_conversion(conversion);
            for (api_name, api, requests) in &apis {
                for (request, body) in requests {
                    let mut text = String::new();
                    let body = Body::read(body.get().as_bytes()).unwrap();
                    let rendered = alignment.renderer().render(&body, *api, NOW_UNIX_S, &mut text);
                    let truth = expected[api_name][request].as_str();
                    let case = format!("{version} / {name} / {api_name} / {request}");
                    match rendered {
                        // Of a request that an older version refuses nothing is cached, whatever we render.
                        Ok(_) if truth.is_none() && version != "0.32.0" => {}
                        Ok(_) => assert_eq!(Some(&*text), truth, "{case}"),
                        Err(Unrendered::Api) => assert_eq!((&version[..4], *api), ("0.24", Api::Responses)),
                        Err(problem) => assert_eq!(truth, None, "{case}: {problem}"),
                    }
                    compared += usize::from(truth.is_some());
                }
            }
        }
    }
    assert!(compared >= 350, "{compared}");
}

fn write(template: &str, api: Api, body: &Value) -> Result<(String, usize), Unrendered> {
    let body = body.to_string();
    let mut out = Vec::new();
    let written =
        alignment(template).write_prompt(&Body::read(body.as_bytes()).unwrap(), api, 0, &mut out)?;
    Ok((String::from_utf8(out).unwrap(), written.reported_bytes))
}

const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

#[test]
fn reported_matching_ends_at_the_first_image() {
    let image = |url: &str| {
        json!({"messages": [
            {"role": "user", "content": "before"},
            {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]},
        ]})
    };
    let (cat, reach) = write(PLAIN, Api::Chat, &image("cat")).unwrap();
    assert_eq!(&cat[..reach], "<user>before<user>", "the placeholder stands before the text");
    let (dog, _) = write(PLAIN, Api::Chat, &image("dog")).unwrap();
    assert_eq!((cat.len(), &cat[..reach]), (dog.len(), &dog[..reach]));
    assert_ne!(cat, dog, "another image is another prompt");
    let parts = std::fs::read_to_string(data("templates/parts.jinja")).unwrap();
    let (text, reach) = write(&parts, Api::Chat, &image("cat")).unwrap();
    assert!(text[..reach].ends_with("<|im_start|>user\nlook"), "{text}");
    let (_, reach) = write("{{ messages[0].content }}", Api::Chat, &image("cat")).unwrap();
    assert_eq!(reach, 0, "an image that the template does not show may stand anywhere");
}

#[test]
fn unsupported_requests_are_refused_with_a_reason() {
    let chat = json!([{"role": "user", "content": "Hi"}]);
    for (api, body, reason) in [
        (Api::Responses, json!({"input": "Hi"}), Unrendered::Api),
        (Api::Messages, json!({"messages": chat}), Unrendered::Api),
        (Api::Messages, json!({"input": "Hi"}), Unrendered::Shape),
        (Api::Chat, json!({"prompt": "Hi"}), Unrendered::Shape),
        (Api::Chat, json!({}), Unrendered::Shape),
        (Api::Chat, json!({"messages": chat, "chat_template": "x"}), Unrendered::OwnTemplate),
        (
            Api::Chat,
            json!({"messages": chat, "truncate_prompt_tokens": 5}),
            Unrendered::Setting("truncate_prompt_tokens"),
        ),
        (Api::Chat, json!({"messages": chat, "continue_final_message": true}), Unrendered::Shape),
        (Api::Completions, json!({"prompt": ["a", "b"]}), Unrendered::SeveralPrompts),
        (Api::Completions, json!({"prompt": [[1], [2]]}), Unrendered::SeveralPrompts),
        (Api::Completions, json!({"prompt": []}), Unrendered::Shape),
        (Api::Completions, json!({"prompt": "Hi", "add_special_tokens": 0}), Unrendered::Shape),
        (Api::Chat, json!({"messages": chat, "add_generation_prompt": "no"}), Unrendered::Shape),
        (Api::Completions, json!({"prompt": [999_999]}), Unrendered::UnknownToken(999_999)),
        (Api::Completions, json!({"prompt": [1.5]}), Unrendered::Shape),
    ] {
        assert_eq!(write(PLAIN, api, &body), Err(reason), "{body}");
    }
    let kwargs = json!({"messages": chat, "chat_template_kwargs": {"truncation": true}});
    assert!(matches!(write(PLAIN, Api::Chat, &kwargs), Err(Unrendered::Setting(_))));
}

#[test]
fn a_list_with_one_prompt_is_that_prompt() {
    let written = |prompt: Value| write(PLAIN, Api::Completions, &json!({ "prompt": prompt })).unwrap();
    assert_eq!(written(json!(["Hi there"])), written(json!("Hi there")));
    assert_eq!(written(json!([[40, 41]])), written(json!([40, 41])));
}

#[test]
fn a_template_may_be_in_the_configuration_alone_or_in_a_list() {
    let tokenizer = std::fs::read(data("tokenizers/bytes.json")).unwrap();
    let render = |template: Value, body: Value| {
        let config = json!({ "chat_template": template }).to_string();
        let files = ModelFiles {
            tokenizer: &tokenizer,
            tokenizer_config: Some(config.as_bytes()),
            ..ModelFiles::default()
        };
        let body = body.to_string();
        let mut text = String::new();
        let body = Body::read(body.as_bytes()).unwrap();
        Renderer::new(&files).unwrap().render(&body, Api::Chat, 0, &mut text).map(|_| text)
    };
    let plain = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let mut tools = plain.clone();
    tools["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    let list = json!([{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]);
    assert_eq!(render(json!("S"), plain.clone()).unwrap(), "S");
    assert_eq!(
        (render(list.clone(), plain.clone()).unwrap(), render(list, tools).unwrap()),
        ("D".to_owned(), "T".to_owned())
    );
    assert_eq!(render(Value::Null, plain), Err(Unrendered::NoTemplate));
}

#[test]
fn images_of_other_apis_end_reported_matching_too() {
    let conversion = ChatConversion::of_vllm("0.32.0");
    let reach = |api: Api, body: &Value| {
        let (body, mut out) = (body.to_string(), Vec::new());
        let body = Body::read(body.as_bytes()).unwrap();
        let written =
            alignment(PLAIN).with_conversion(conversion).write_prompt(&body, api, 0, &mut out).unwrap();
        String::from_utf8_lossy(&out[..written.reported_bytes]).into_owned()
    };
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let seen =
        json!({"messages": [{"role": "user", "content": "before"}, {"role": "user", "content": [image]}]});
    assert_eq!(reach(Api::Messages, &seen), "<user>before<user>");
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "shot"}, image]});
    let shot =
        json!({"messages": [{"role": "user", "content": [result, {"type": "text", "text": "after"}]}]});
    assert_eq!(reach(Api::Messages, &shot), "<tool>shot<user>", "images follow their result");
    let input = json!({"input": [{"role": "user", "content": [
        {"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]});
    assert!(reach(Api::Responses, &input).ends_with("<user>"), "after the token that the tokenizer adds");
}

/// Seen on a real vLLM 0.32.0: the prompt of a Responses request has two first tokens.
#[test]
fn only_the_responses_api_adds_special_tokens_to_a_template() {
    let alignment = alignment(PLAIN).with_conversion(ChatConversion::of_vllm("0.32.0"));
    for (api, body, around) in [
        (Api::Responses, r#"{"input":"Hi"}"#, Around::SpecialTokens),
        (Api::Messages, r#"{"messages":[{"role":"user","content":"Hi"}]}"#, Around::Nothing),
        (Api::Chat, r#"{"messages":[{"role":"user","content":"Hi"}]}"#, Around::Nothing),
    ] {
        let body = Body::read(body.as_bytes()).unwrap();
        let rendered = alignment.renderer().render(&body, api, 0, &mut String::new());
        assert_eq!(rendered, Ok(Rendered::Text { around, media: Media::None }), "{api:?}");
    }
}
