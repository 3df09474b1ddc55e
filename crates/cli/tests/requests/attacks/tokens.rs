//! Evaded token limits.

use super::{ask_as, key_file};
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
