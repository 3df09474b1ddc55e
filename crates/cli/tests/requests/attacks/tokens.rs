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
