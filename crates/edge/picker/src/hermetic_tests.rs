//! The hermetic cases of llm-d's endpoint picker, as far as they are not tests elsewhere in this crate.
//!
//! | its case | here |
//! |---|---|
//! | least loaded pod; adapter affinity; nothing shed by default when all are saturated; no model | this file |
//! | the best pod of a subset; the only one of a subset, under load; control headers | this file |
//! | response JSON in several chunks, invalid JSON, empty last chunk; usage of events across chunks, or with their end in one | this file |
//! | a stream by the request only, or by the response only | this file |
//! | invalid JSON; no pods; empty subsets; GET; body cut within the model's name; model rewritten; bodies that are not JSON | `exchange_tests` |
//! | health while draining, unknown service | `health`, `server_tests` |
//!
//! Two cases differ on purpose: a request without a model goes to a worker, whose engine answers (there: 400), and an alias
//! is replaced in the request only (there: also in the response, by a custom resource). Its custom resources, objectives and
//! rewrites of models, are not read, so a model is never missing among objectives.

use std::sync::Arc;

use warmroute_fleet::{ModelCard, Models};
use warmroute_router::Change;
use warmroute_types::LoadReport;

use crate::request::tests::metadata;
use crate::test_client::{Call, Fixture};
use crate::{Config, Feedback};

const DUPLEX: u64 = 4;
const REQUEST_BODY: u64 = 3;
const RESPONSE_BODY: u64 = 4;
const POST: [(&str, &str); 2] = [(":method", "POST"), (":path", "/v1/chat/completions")];
const WORKERS: [&str; 3] = ["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"];

fn report(fixture: &Fixture, worker: usize, waiting: u32, kv_use: f32) {
    let at = fixture.gateway.now();
    let report =
        LoadReport { waiting, running: 4, kv_use: Some(kv_use), prefix_cache: None, places: None, at };
    let worker = Arc::clone(&fixture.workers()[worker].worker);
    fixture.gateway.router().apply(Change::Load { worker, report });
}

async fn ask(fixture: &Fixture, body: &str) -> Call {
    let mut call = fixture.ask(Some(DUPLEX), &POST).await;
    call.request_body(body.as_bytes(), true);
    call
}

async fn chosen(fixture: &Fixture, model: &str) -> String {
    let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hello"}}]}}"#);
    ask(fixture, &body).await.reply().await.destination()
}

#[tokio::test]
async fn the_least_loaded_worker_is_chosen() {
    let fixture = Fixture::start(&WORKERS, Config::default()).await;
    for (worker, waiting) in [(0, 30), (1, 0), (2, 10)] {
        report(&fixture, worker, waiting, 0.2);
    }
    assert_eq!(chosen(&fixture, "m").await, "10.0.0.2:8000");
}

#[tokio::test]
async fn the_least_loaded_worker_of_a_subset_is_chosen() {
    let fixture = Fixture::start(&WORKERS, Config::default()).await;
    for (worker, waiting) in [(0, 30), (1, 0), (2, 10)] {
        report(&fixture, worker, waiting, 0.2);
    }
    for (allowed, expected) in [
        ("10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000", "10.0.0.2:8000"),
        ("10.0.0.1:8000,10.0.0.3:8000", "10.0.0.3:8000"),
        ("10.0.0.1:8000", "10.0.0.1:8000"),
    ] {
        let (namespace, key) = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset");
        let subset = metadata(namespace, key, |value| value.bytes(3, allowed.as_bytes()));
        let mut call = fixture.proxy().await.call().await;
        call.request_headers_with(Some((DUPLEX, 0)), &POST, false, &subset);
        call.request_body(REQUEST, true);
        assert_eq!(call.reply().await.destination(), expected, "{allowed}");
    }
}

/// They choose among custom resources that are not read.
#[tokio::test]
async fn control_headers_of_the_other_picker_change_nothing() {
    let fixture = Fixture::start(&WORKERS[..1], Config::default()).await;
    let mut head = POST.to_vec();
    for name in ["x-llm-d-inference-objective", "x-gateway-inference-objective", "x-llm-d-model-name-rewrite"]
    {
        head.push((name, "sheddable"));
    }
    let mut call = fixture.ask(Some(DUPLEX), &head).await;
    call.request_body(REQUEST, true);
    assert_eq!(call.reply().await.destination(), "10.0.0.1:8000");
    assert_eq!(call.reply().await.body(REQUEST_BODY), (REQUEST.to_vec(), true), "the model is the same");
}

#[tokio::test]
async fn a_saturated_fleet_still_gets_its_requests_unless_limits_are_set() {
    let fixture = Fixture::start(&WORKERS, Config::default()).await;
    for worker in 0..3 {
        report(&fixture, worker, 200, 1.0);
    }
    for _ in 0..8 {
        assert!(chosen(&fixture, "m").await.ends_with(":8000"));
    }
}

#[tokio::test]
async fn a_request_for_an_adapter_goes_where_it_is_loaded() {
    let fixture = Fixture::start(&WORKERS, Config::default()).await;
    for (worker, view) in fixture.workers().into_iter().enumerate() {
        let names = ["base", "sql"];
        let card = |name: &&str| ModelCard {
            id: Arc::from(*name),
            created: None,
            max_model_len: None,
            parent: (*name != "base").then(|| Arc::from("base")),
        };
        let (router, view) = (fixture.gateway.router(), view.worker);
        router.apply(Change::Serves { worker: Arc::clone(&view), models: Models::named(&names) });
        router
            .apply(Change::ModelCards { worker: Arc::clone(&view), cards: names.iter().map(card).collect() });
        let loaded = if worker == 2 { vec!["sql".into()] } else { Vec::new() };
        router.apply(Change::Adapters { worker: view, names: loaded, slots: Some(1) });
    }
    // The worker that has the adapter has more in its cache.
    for (worker, kv_use) in [(0, 0.1), (1, 0.1), (2, 0.6)] {
        report(&fixture, worker, 0, kv_use);
    }
    assert_eq!(chosen(&fixture, "sql").await, "10.0.0.3:8000");
}

#[tokio::test]
async fn a_request_without_a_model_goes_to_a_worker_whose_engine_answers() {
    let fixture = Fixture::start(&WORKERS, Config::default()).await;
    let reply = ask(&fixture, r#"{"messages":[{"role":"user","content":"hello"}]}"#).await.reply().await;
    assert!(reply.destination().ends_with(":8000"));
}

const REQUEST: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
const STREAMING: &[u8] = br#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;

/// A request, the content type of its response, and the response's chunks.
type Case<'a> = (&'a [u8], &'a str, &'a [&'a [u8]]);

/// The response of a picked request, in these chunks, with trailers or without, byte for byte.
async fn passes(fixture: &Fixture, request: &[u8], kind: &str, chunks: &[&[u8]], has_trailers: bool) {
    let mut call = fixture.proxy().await.call().await;
    call.request_headers(Some((DUPLEX, DUPLEX)), &POST, false);
    call.request_body(request, true);
    call.reply().await.destination();
    assert_eq!(call.reply().await.body(REQUEST_BODY), (request.to_vec(), true));
    call.response_headers(&[(":status", "200"), ("content-type", kind)], None);
    call.reply().await;
    for (i, chunk) in chunks.iter().enumerate() {
        let is_end = i + 1 == chunks.len() && !has_trailers;
        call.response_body(chunk, is_end);
        match (chunk.is_empty(), is_end) {
            (true, false) => {}
            _ => assert_eq!(call.reply().await.body(RESPONSE_BODY), (chunk.to_vec(), is_end)),
        }
    }
    if has_trailers {
        call.trailers(7);
        assert_eq!(call.reply().await.phase(), 6);
    }
    assert_eq!(call.status().await, 0);
    fixture.wait_in_flight(0).await;
}

#[tokio::test]
async fn responses_pass_unchanged_however_they_are_cut_and_their_usage_is_counted() {
    let fixture =
        Fixture::start(&WORKERS[..1], Config { feedback: Feedback::Stream, ..Config::default() }).await;
    let json = "application/json";
    let usage =
        br#""usage":{"prompt_tokens":7,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}"#;
    let (start, end) = usage.split_at(30);
    let events = "text/event-stream";
    let event = [b"data: {".as_slice(), start].concat();
    let last = [b"data: {".as_slice(), usage, b"\n\ndata: [DONE]\n\n"].concat();
    let cases: [Case<'_>; 7] = [
        (REQUEST, json, &[br#"{"choices":[],"#, start, end]),
        (REQUEST, json, &[br#"{"choices":[],"#, usage, b""]),
        (REQUEST, json, &[b"{ not JSON", b"at all"]),
        (STREAMING, events, &[b"data: {}\n\n", &event, end, b"\n\ndata: [DONE]\n\n"]),
        (STREAMING, events, &[b"data: {}\n\n", &last]),
        // A stream by the response only, and by the request only.
        (REQUEST, events, &[b"data: {}\n\n", &last]),
        (STREAMING, json, &[br#"{"choices":[],"#, usage]),
    ];
    for has_trailers in [false, true] {
        for (request, kind, chunks) in cases {
            passes(&fixture, request, kind, chunks, has_trailers).await;
        }
    }
    let metrics = fixture.gateway.metrics_text();
    let counted = metrics.lines().find(|line| line.starts_with("warmroute_prompt_tokens_total{"));
    assert!(counted.is_some_and(|line| line.ends_with(" 84")), "six of each seven, twice: {counted:?}");
}

#[tokio::test]
async fn a_second_end_of_a_body_is_ignored() {
    let fixture =
        Fixture::start(&WORKERS[..1], Config { feedback: Feedback::Stream, ..Config::default() }).await;
    let mut call = fixture.proxy().await.call().await;
    call.request_headers(Some((DUPLEX, DUPLEX)), &POST, false);
    call.request_body(br#"{"prompt":"x"}"#, true);
    call.request_body(b"", true);
    call.reply().await.destination();
    assert_eq!(call.reply().await.body(REQUEST_BODY), (br#"{"prompt":"x"}"#.to_vec(), true));
    call.response_headers(&[(":status", "200")], None);
    assert_eq!(call.reply().await.phase(), 2, "the next reply is about the response");
}
