//! Bodies: a body that serde_json reads is forwarded with the same meaning, except for intended changes.

use bytes::Bytes;
use serde_json::{Value, json};
use warmroute_prompt::{Api, Body, Chunks, JsonPath, write_prompt};
use xxhash_rust::xxh3::xxh3_64;

use crate::Config;
use crate::parsed_request::{ParsedRequest, UsageDemand, should_inject_usage};

/// Places of session names.
const PATHS: [&str; 2] = ["user", "metadata.user_id"];

/// A name that must be escaped when it is spliced in.
const MODEL: &str = "the \"real\"\\\n\u{1}mödel";

/// A request body.
pub fn body(input: &[u8]) {
    // serde_json refuses large numbers and lone surrogates that other parsers accept. Such bodies are only read.
    let meant = serde_json::from_slice::<Value>(input).ok().filter(Value::is_object);
    let paths = PATHS.map(|path| path.parse::<JsonPath>().expect("it is a path"));
    let Ok(read) = Body::read_with(input, &paths, |_| None) else {
        assert!(meant.is_none(), "serde_json and engines read this body");
        return;
    };
    prompts_are_extracted_alike(&read);
    let config = Config { aliases: [("m".to_owned(), MODEL.to_owned())].into(), ..Config::default() };
    for api in [Api::Chat, Api::Messages] {
        let parsed = ParsedRequest {
            usage_injected: should_inject_usage(&read, api, UsageDemand::IfUnset),
            ..ParsedRequest::default()
        };
        let bytes = Bytes::copy_from_slice(input);
        let sent = parsed.outgoing_body(&bytes, &read, api, &config).concat();
        match &meant {
            Some(meant) => meaning_is_preserved(meant, api, &read, input, &sent),
            None => _ = Body::read(&sent).expect("what we could read we can still read"),
        }
    }
}

/// All ways to extract the prompt give the same bytes, and the counted number.
fn prompts_are_extracted_alike(body: &Body<'_>) {
    let (mut written, mut chunks) = (Vec::new(), Chunks::default());
    write_prompt(body, &mut written);
    chunks.cut(body, xxh3_64);
    assert_eq!(chunks.bytes(), written.len());
    assert_eq!(chunks.digests(), Chunks::cut_text(&written, xxh3_64));
    let _ = (body.prompt_tokens(), body.has_one_prompt(), body.has_one_answer(), body.continues_another());
    assert!(!body.has_one_answer() || !body.has_one_prompt() || body.answers() == 1);
    let _ = Config::default().prefix.key(body, &mut Vec::new());
}

fn meaning_is_preserved(meant: &Value, api: Api, read: &Body<'_>, input: &[u8], sent: &[u8]) {
    fields_match_serde_json(meant, read);
    let mut expected = meant.clone();
    if meant["model"] == "m" {
        expected["model"] = json!(MODEL);
    }
    if api == Api::Chat && meant["stream"] == true && meant["stream_options"].is_null() {
        expected["stream_options"] = json!({"include_usage": true});
    }
    let after: Value = serde_json::from_slice(sent).expect("what is sent is JSON");
    assert_eq!(after, expected);
    if expected == *meant {
        assert_eq!(sent, input, "a body without intended changes must be identical");
    }
}

fn fields_match_serde_json(meant: &Value, read: &Body<'_>) {
    assert_eq!(read.model().as_deref(), meant["model"].as_str());
    assert_eq!(read.is_stream(), meant["stream"] == true);
    assert_eq!(read.salt().as_deref(), meant["cache_salt"].as_str().map(str::as_bytes));
    let named = [&meant["user"], &meant["metadata"]["user_id"]];
    for (place, named) in named.into_iter().enumerate().filter(|(_, named)| !named.is_number()) {
        let named = named.as_str().filter(|name| !name.is_empty());
        assert_eq!(read.found(place).as_deref(), named.map(str::as_bytes));
    }
}
