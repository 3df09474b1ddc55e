//! Evaded token limits.

use serde_json::{Value, json};

use super::{ask_as, key_file};
use crate::harness::client::{Call, Response};
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;

const KEYS: &str = "sk-few name=few tokens-per-minute=2000\n";

fn limited(engine: &Scripted) -> (crate::harness::temp_folder::TempFolder, Gateway) {
    let (folder, keys) = key_file("tokens", KEYS);
    let gateway = Gateway::over(&[&engine.url], &["--api-keys-file", &keys]);
    (folder, gateway)
}

/// How many of twenty requests are served.
fn served(gateway: &Gateway, body: &str) -> usize {
    (0..20).filter(|_| ask_as(gateway.url(), "sk-few", body).status == 200).count()
}

const DOCUMENT: &str = r#"{"model":"m","max_tokens":900,"messages":[{"role":"user","content":"Hello"}]}"#;

#[test]
fn usage_before_long_fields_counts() {
    let engine = Scripted::new(|mut asked| {
        let usage = r#""usage":{"prompt_tokens":10,"completion_tokens":900}"#;
        let (before, after) = ("1,".repeat(20_000), "2,".repeat(20_000));
        asked.answer(&format!("{{\"prompt_logprobs\":[{before}0],{usage},\"prompt_token_ids\":[{after}0]}}"));
    });
    let (_folder, gateway) = limited(&engine);
    let served = served(&gateway, DOCUMENT);
    assert!((1..=3).contains(&served), "{served} answers of 900 tokens within 2,000 a minute");
}

#[test]
fn an_answer_without_usage_costs_what_was_reserved() {
    let engine = Scripted::new(|mut asked| asked.answer(r#"{"choices":[]}"#));
    let (_folder, gateway) = limited(&engine);
    let served = served(&gateway, DOCUMENT);
    assert!((1..=3).contains(&served), "{served} answers of up to 900 tokens within 2,000 a minute");
}

#[test]
fn usage_is_requested_whatever_the_client_says_and_the_client_does_not_see_it() {
    let engine = Scripted::new(|mut asked| {
        let body: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
        assert_eq!(body["stream_options"]["include_usage"], true, "{body}");
        asked.begin_events();
        asked.chunk(&format!("data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n\n", "word ".repeat(900)));
        asked.chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":900}}\n\n");
        asked.chunk("data: [DONE]\n\n");
        asked.end_chunks();
    });
    let (_folder, gateway) = limited(&engine);
    let body =
        |options: &str| format!(r#"{{"model":"m","stream":true,"max_tokens":1,"messages":[]{options}}}"#);
    let first = ask_as(gateway.url(), "sk-few", &body(r#","stream_options":{"include_usage":false}"#));
    assert!(first.status == 200 && !first.text().contains("usage"), "{}", first.text());
    let rest = served(&gateway, &body(r#","stream_options":{"continuous_usage_stats":false}"#));
    assert!(rest <= 2, "{rest} more answers of 900 tokens within 2,000 a minute");
    engine.check();
}

/// A usage in other words than usual is read: nine hundred tokens of two thousand each time.
#[test]
fn a_usage_in_any_words_counts() {
    for usage in [
        r#"{"prompt_tokens":10,"completion_tokens":900,"input_tokens":10,"output_tokens":900}"#,
        r#"{"prompt_tokens":10.0,"completion_tokens":900.0}"#,
        r#"{"total_tokens":910}"#,
        r#"{"completion_tokens":900}"#,
    ] {
        let answer = format!(r#"{{"choices":[],"usage":{usage}}}"#);
        let engine = Scripted::new(move |mut asked| asked.answer(&answer));
        let (_folder, gateway) = limited(&engine);
        let served = served(&gateway, r#"{"model":"m","max_tokens":1,"messages":[]}"#);
        assert!((1..=3).contains(&served), "{usage}: {served} answers of 900 tokens within 2,000 a minute");
    }
}

/// A client that leaves before the end never lets the engine report its usage. The text that it got counts, however many
/// tokens an event has, and counts as its tenant's.
#[test]
fn leaving_before_the_end_is_no_way_around() {
    let words = "word ".repeat(50);
    let completion = format!("data: {{\"id\":\"c\",\"choices\":[{{\"index\":0,\"text\":\"{words}\"}}]}}\n\n");
    let chat = completion.replace("\"text\":", "\"delta\":{\"content\":").replace("\"}]", "\"}}]");
    let call = r#""tool_calls":[{"index":0,"function":{"arguments":"#;
    let called = chat.replace("\"content\":", call).replace("\"}}]", "\"}}]}}]");
    let delta = format!("data: {{\"type\":\"response.output_text.delta\",\"delta\":\"{words}\"}}\n\n");
    let text = format!("data: {{\"type\":\"content_block_delta\",\"delta\":{{\"text\":\"{words}\"}}}}\n\n");
    for (path, event, body) in [
        ("/v1/completions", completion, r#"{"model":"m","stream":true,"prompt":"x","max_tokens":950}"#),
        ("/v1/chat/completions", chat, r#"{"model":"m","stream":true,"messages":[],"max_tokens":950}"#),
        ("/v1/chat/completions", called, r#"{"model":"m","stream":true,"messages":[],"max_tokens":950}"#),
        ("/v1/responses", delta, r#"{"model":"m","stream":true,"input":"x","max_output_tokens":950}"#),
        ("/v1/messages", text, r#"{"model":"m","stream":true,"messages":[],"max_tokens":950}"#),
    ] {
        let engine = Scripted::new(move |mut asked| {
            asked.begin_events();
            (0..18).for_each(|_| asked.chunk(&event));
            asked.chunk("data: {\"last\":1}\n\n");
            asked.wait_for_hang_up_or_close();
        });
        let (_folder, gateway) = limited(&engine);
        let served = left_early(&gateway, path, body);
        assert!((1..=3).contains(&served), "{path}: {served} answers of 900 tokens within 2,000 a minute");
        let output = gateway.metric("warmroute_tenant_output_tokens_total{tenant=\"few\"}");
        let expected = f64::from(served) * 900.0;
        assert!((0.9 * expected..1.1 * expected).contains(&output), "{path}: {output} of {expected}");
        assert!(gateway.metric("warmroute_tenant_prompt_tokens_total{tenant=\"few\"}") >= f64::from(served));
    }
}

/// How many responses a client gets that leaves each of them before its usage, until it is refused; at most 20.
fn left_early(gateway: &Gateway, path: &str, body: &str) -> u32 {
    let headers = ["authorization: Bearer sk-few", "content-type: application/json"];
    let mut served = 0;
    while served < 20 {
        let mut call = Call::send(gateway.url(), "POST", path, &headers, body.as_bytes());
        if !call.read_until("\r\n\r\n").starts_with("HTTP/1.1 200") {
            break;
        }
        call.read_until("last");
        call.hang_up();
        gateway.wait_for_idle();
        served += 1;
    }
    served
}

/// A document without streaming that is left before its usage.
#[test]
fn leaving_a_document_before_its_usage_is_no_way_around() {
    let engine = Scripted::new(move |mut asked| {
        let text =
            format!("{{\"choices\":[{{\"message\":{{\"content\":\"{}\"}}}}],\"last", "word ".repeat(900));
        asked.write("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9000\r\n\r\n");
        asked.write(&text);
        asked.wait_for_hang_up_or_close();
    });
    let (_folder, gateway) = limited(&engine);
    let served = left_early(&gateway, "/v1/chat/completions", DOCUMENT);
    assert!((1..=3).contains(&served), "{served} answers of 900 tokens within 2,000 a minute");
}

/// An engine that computes responses in the background: the first request for one finds it queued.
fn background_engine() -> Scripted {
    let asked_for = std::sync::Mutex::new(std::collections::HashMap::<String, u32>::new());
    Scripted::new(move |mut asked| {
        let path = asked.head.split(' ').nth(1).unwrap().to_owned();
        let usage = json!({"input_tokens": 10, "output_tokens": 600});
        let (id, status, usage) = match path.strip_prefix("/v1/responses/") {
            None => (format!("resp_{}", asked.turn), "queued", Value::Null),
            Some(id) => {
                let mut asked_for = asked_for.lock().unwrap();
                let times = asked_for.entry(id.to_owned()).or_default();
                *times += 1;
                match times {
                    1 => (id.to_owned(), "in_progress", Value::Null),
                    _ => (id.to_owned(), "completed", usage),
                }
            }
        };
        asked.answer(&json!({"id": id, "status": status, "usage": usage}).to_string());
    })
}

#[test]
fn background_responses_count_until_they_have_ended_and_their_tokens_once() {
    let engine = background_engine();
    let (_folder, keys) = key_file(
        "background",
        "sk-one name=one concurrent-requests=1\nsk-few name=few tokens-per-minute=2000\n",
    );
    let gateway = Gateway::over(&[&engine.url], &["--api-keys-file", &keys]);
    let send = |key: &str, method, path: &str, body: &str| {
        let key = format!("authorization: Bearer {key}");
        Call::send(gateway.url(), method, path, &[&key], body.as_bytes()).finish()
    };
    let make = |key: &str| {
        let body = r#"{"model":"m","input":"Hello","background":true,"max_output_tokens":700}"#;
        send(key, "POST", "/v1/responses", body)
    };
    let id_of = |made: &Response| format!("/v1/responses/{}", made.json()["id"].as_str().unwrap());
    // Its place is taken until it is known to have ended. To ask for it takes none.
    let first = make("sk-one");
    assert_eq!((first.status, make("sk-one").status), (200, 429));
    let first = id_of(&first);
    assert_eq!(send("sk-few", "GET", &first, "").status, 404, "another key's");
    let polled = send("sk-one", "GET", &first, "");
    assert_eq!((polled.status, polled.json()["status"].as_str()), (200, Some("in_progress")));
    assert_eq!(make("sk-one").status, 429);
    assert_eq!(send("sk-one", "GET", &first, "").json()["status"], "completed");
    assert_eq!(make("sk-one").status, 200);
    // 610 tokens each of 2,000: as often as they are read, they count once.
    let made = [make("sk-few"), make("sk-few")];
    for _ in 0..10 {
        made.iter().for_each(|made| assert_eq!(send("sk-few", "GET", &id_of(made), "").status, 200));
    }
    assert_eq!(make("sk-few").status, 200, "1,220 of 2,000 are used");
    assert_eq!(make("sk-few").status, 429);
}
