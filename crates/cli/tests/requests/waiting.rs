//! Admission limits: which requests are admitted, wait, or are refused.

use crate::harness::client::{Call, Response, post};
use crate::harness::eventually;
use crate::harness::gate::Gate;
use crate::harness::gated::{Gated, wait_for_waiting};
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;
use crate::harness::temp_folder::TempFolder;
use serde_json::json;

const PATH: &str = "/v1/chat/completions";

/// An engine that answers once the gate is open.
fn gated_serving(model: &'static str) -> Gated {
    Gated::serving(model, |mut asked| {
        asked.answer(r#"{"usage":{"prompt_tokens":400,"completion_tokens":200}}"#)
    })
}

fn gated() -> Gated {
    gated_serving("m")
}

fn body(model: &str, text: &str) -> String {
    json!({"model": model, "messages": [{"role": "user", "content": text}]}).to_string()
}

fn send(gateway: &Gateway, headers: &[&str], text: &str) -> Call {
    Call::send(gateway.url(), "POST", PATH, headers, body("m", text).as_bytes())
}

/// Sends requests one after another, each once the previous one waits; the first is admitted.
fn line_up(gateway: &Gateway, engine: &Gated, requests: &[(&str, &str)]) -> Vec<Call> {
    let mut calls = Vec::new();
    for (header, text) in requests {
        calls.push(send(gateway, &[header], text));
        engine.engine.wait_for_asked(1);
        wait_for_waiting(gateway, calls.len() - 1);
    }
    calls
}

fn all_answered(calls: Vec<Call>) {
    for call in calls {
        let response = call.finish();
        assert_eq!(response.status, 200, "{}", response.text());
    }
}

fn refused(response: &Response, code: &str) -> u32 {
    assert_eq!((response.status, response.json()["error"]["code"].as_str()), (429, Some(code)));
    assert_eq!(response.json()["error"]["type"], "rate_limit_error");
    response.header("retry-after").unwrap().parse().unwrap()
}

#[test]
fn above_the_limit_requests_wait_until_others_end() {
    let gated = gated();
    let gateway = Gateway::over(&[&gated.engine.url], &["--max-concurrent-requests", "2"]);
    let calls: Vec<Call> = (0..6).map(|_| send(&gateway, &[], "x")).collect();
    gated.engine.wait_for_asked(2);
    wait_for_waiting(&gateway, 4);
    assert_eq!((gated.engine.asked(), gateway.metric("warmroute_requests_running")), (2, 2.0));
    gated.gate.open();
    all_answered(calls);
    assert_eq!(gateway.metric("warmroute_queue_wait_seconds_count"), 4.0);
    eventually("no request runs", || (gateway.metric("warmroute_requests_running") == 0.0).then_some(()));
}

#[test]
fn when_the_queue_is_full_the_client_gets_a_retry_after() {
    let gated = gated();
    let gateway = Gateway::over(
        &[&gated.engine.url],
        &["--max-concurrent-requests", "1", "--queue-size", "1", "--queue-timeout-secs", "1"],
    );
    let first = send(&gateway, &[], "first");
    gated.engine.wait_for_asked(1);
    let second = send(&gateway, &[], "second");
    wait_for_waiting(&gateway, 1);
    assert!(refused(&post(gateway.url(), PATH, &body("m", "third")), "queue_full") >= 1);
    assert!(refused(&second.finish(), "queue_timeout") >= 1);
    gated.gate.open();
    all_answered(vec![first]);
    assert_eq!(gateway.metric(r#"warmroute_refusals_total{reason="queue_full"}"#), 1.0);
    assert_eq!(gateway.metric(r#"warmroute_refusals_total{reason="queue_timeout"}"#), 1.0);
    assert_eq!(gated.order(), ["first"], "who was refused was never sent");
}

/// The request's worker broke off and the other one is full: the request waits for the other, although its own is
/// free.
#[test]
fn a_request_whose_worker_fails_waits_for_room_at_another() {
    let gated = gated();
    let failing = Gate::default();
    let broken_at = failing.clone();
    let bad = Scripted::new(move |asked| {
        broken_at.pass();
        asked.reset();
    });
    let flags = ["--policy", "round_robin", "--max-concurrent-per-worker", "1"];
    let gateway = Gateway::over(&[&gated.engine.url, &bad.url], &flags);
    let calls: Vec<Call> = (0..2).map(|_| send(&gateway, &[], "x")).collect();
    gated.engine.wait_for_asked(1);
    bad.wait_for_asked(1);
    failing.open();
    wait_for_waiting(&gateway, 1);
    assert_eq!((gated.engine.asked(), bad.asked()), (1, 1));
    gated.gate.open();
    all_answered(calls);
    assert_eq!((gated.engine.asked(), bad.asked()), (2, 1));
}

/// Bodies are read before admission, so their memory has a limit of its own.
#[test]
fn bodies_share_a_memory_limit() {
    let gated = gated();
    let flags = ["--max-payload-size", "100000", "--max-buffered-bytes", "150000"];
    let gateway = Gateway::over(&[&gated.engine.url], &flags);
    let large = "x".repeat(90_000);
    let first = send(&gateway, &[], &large);
    gated.engine.wait_for_asked(1);
    assert!(gateway.metric("warmroute_body_bytes") > 90_000.0);
    let refused = send(&gateway, &[], &large).finish();
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (503, Some("memory_full")));
    assert_eq!(refused.header("retry-after"), Some("2"));
    let small = send(&gateway, &[], "small");
    gated.engine.wait_for_asked(2);
    gated.gate.open();
    all_answered(vec![first, small]);
    eventually("nothing is held", || (gateway.metric("warmroute_body_bytes") == 0.0).then_some(()));
    all_answered(vec![send(&gateway, &[], &large)]);
}

#[test]
fn a_client_that_leaves_is_removed_from_the_queue() {
    let gated = gated();
    let gateway = Gateway::over(&[&gated.engine.url], &["--max-concurrent-requests", "1"]);
    let mut calls =
        line_up(&gateway, &gated, &[("x-a: 1", "first"), ("x-a: 1", "leaves"), ("x-a: 1", "last")]);
    calls.remove(1).hang_up();
    wait_for_waiting(&gateway, 1);
    gated.gate.open();
    all_answered(calls);
    assert_eq!(gated.order(), ["first", "last"]);
}

#[test]
fn urgent_requests_go_first_if_priorities_are_on() {
    let requests = [
        ("x-warmroute-priority: normal", "first"),
        ("x-warmroute-priority: low", "low"),
        ("x-other: 1", "normal"),
        ("x-warmroute-priority: high", "high"),
    ];
    for (flags, order) in [
        (&["--allow-high-priority"][..], ["first", "high", "normal", "low"]),
        (&[], ["first", "normal", "high", "low"]),
        (&["--priority-header", "off"], ["first", "low", "normal", "high"]),
    ] {
        let gated = gated();
        let flags = [&["--max-concurrent-requests", "1"], flags].concat();
        let gateway = Gateway::over(&[&gated.engine.url], &flags);
        let calls = line_up(&gateway, &gated, &requests);
        gated.gate.open();
        all_answered(calls);
        assert_eq!(gated.order(), order, "{flags:?}");
    }
}

#[test]
fn only_a_key_with_permission_sets_priorities() {
    let folder = TempFolder::new("priorities");
    let keys = folder.file("keys");
    std::fs::write(&keys, "sk-plain name=a\nsk-urgent name=b priority=high\nsk-batch name=c priority=low\n")
        .unwrap();
    let gated = gated();
    let flags = ["--max-concurrent-requests", "1", "--api-keys-file", &keys];
    let gateway = Gateway::over(&[&gated.engine.url], &flags);
    let high = |key: &str| format!("authorization: Bearer {key}\r\nx-warmroute-priority: high");
    let (plain, urgent, batch) = (high("sk-plain"), high("sk-urgent"), high("sk-batch"));
    let requests = [(&*plain, "first"), (&batch, "batch"), (&plain, "plain"), (&urgent, "urgent")];
    let calls = line_up(&gateway, &gated, &requests);
    let waiting = |class: &str| gateway.metric(&format!("warmroute_queue_waiting{{priority=\"{class}\"}}"));
    assert_eq!(["high", "normal", "low"].map(waiting), [1.0, 1.0, 1.0]);
    gated.gate.open();
    all_answered(calls);
    assert_eq!(gated.order(), ["first", "urgent", "plain", "batch"]);
}

#[test]
fn a_busy_client_waits_behind_its_own_requests() {
    let gated = gated();
    let gateway = Gateway::over(&[&gated.engine.url], &["--max-concurrent-requests", "1"]);
    let (much, little) = ("authorization: Bearer much", "authorization: Bearer little");
    let calls = line_up(
        &gateway,
        &gated,
        &[(much, "m0"), (much, "m1"), (much, "m2"), (much, "m3"), (little, "l0"), (little, "l1")],
    );
    gated.gate.open();
    all_answered(calls);
    let order = gated.order();
    let place = |name: &str| order.iter().position(|text| text == name).unwrap();
    assert!(place("l0") < place("m2") && place("l1") < place("m3"), "{order:?}");
}

#[test]
fn worker_limits_hold_and_one_models_queue_blocks_no_other() {
    let (one, two, other) = (gated(), gated(), gated_serving("other"));
    let urls = [&*one.engine.url, &two.engine.url, &other.engine.url];
    let gateway = Gateway::over(&urls, &["--max-concurrent-per-worker", "1"]);
    let calls: Vec<Call> = (0..5).map(|_| send(&gateway, &[], "x")).collect();
    one.engine.wait_for_asked(1);
    two.engine.wait_for_asked(1);
    wait_for_waiting(&gateway, 3);
    other.gate.open();
    assert_eq!(post(gateway.url(), PATH, &body("other", "passes")).status, 200);
    assert_eq!((one.engine.asked(), two.engine.asked()), (1, 1));
    one.gate.open();
    two.gate.open();
    all_answered(calls);
}

#[test]
fn a_new_worker_serves_waiting_requests() {
    let (full, newcomer) = (gated(), gated());
    let gateway = Gateway::over(&[&full.engine.url], &["--max-concurrent-per-worker", "2"]);
    let calls: Vec<Call> = (0..4).map(|_| send(&gateway, &[], "x")).collect();
    wait_for_waiting(&gateway, 2);
    assert_eq!(
        post(gateway.admin(), "/workers", &json!({"url": newcomer.engine.url}).to_string()).status,
        202
    );
    newcomer.engine.wait_for_asked(2);
    full.gate.open();
    newcomer.gate.open();
    all_answered(calls);
}

#[test]
fn a_key_has_a_request_rate_limit() {
    let gated = gated();
    gated.gate.open();
    let gateway = Gateway::over(&[&gated.engine.url], &["--rate-limit-requests-per-minute", "2"]);
    let ask = |key: &str| send(&gateway, &[&format!("authorization: Bearer {key}")], "x").finish();
    assert_eq!((ask("a").status, ask("a").status, ask("b").status), (200, 200, 200));
    assert!((1..=30).contains(&refused(&ask("a"), "rate_limit_requests")));
    assert_eq!(ask("b").status, 200);
}

#[test]
fn a_key_has_a_token_rate_limit_in_engine_tokens() {
    let gated = gated();
    gated.gate.open();
    let gateway = Gateway::over(&[&gated.engine.url], &["--rate-limit-tokens-per-minute", "600"]);
    let ask = || send(&gateway, &["x-api-key: a"], "a few words").finish();
    assert_eq!(ask().status, 200, "its prompt is short, but its answer says 600 tokens");
    assert!((1..=60).contains(&refused(&ask(), "rate_limit_tokens")));
    assert_eq!(send(&gateway, &["x-api-key: b"], "a few words").finish().status, 200);
}

fn bounded(stream: bool, max_tokens: u32) -> String {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    json!({"model": "m", "stream": stream, "max_tokens": max_tokens, "messages": messages}).to_string()
}

/// No request has reported its usage yet, so the tokens that each may use must count.
#[test]
fn concurrent_requests_of_a_key_stay_within_its_tokens() {
    let gate = Gate::default();
    let waited_at = gate.clone();
    let engine = Scripted::new(move |mut asked| {
        waited_at.pass();
        asked.answer(r#"{"usage":{"prompt_tokens":10,"completion_tokens":190}}"#);
    });
    let gateway = Gateway::over(&[&engine.url], &["--rate-limit-tokens-per-minute", "1000"]);
    let ask = |key: &str| {
        let key = format!("x-api-key: {key}");
        Call::send(gateway.url(), "POST", PATH, &[&key], bounded(false, 190).as_bytes())
    };
    let calls: Vec<Call> = (0..40).map(|_| ask("a")).collect();
    let other = ask("b");
    let refusals = r#"warmroute_refusals_total{reason="rate_limit_tokens"}"#;
    eventually("all but five are sent away", || (gateway.metric(refusals) == 35.0).then_some(()));
    engine.wait_for_asked(6);
    gate.open();
    let answers: Vec<Response> = calls.into_iter().map(Call::finish).collect();
    let served = answers.iter().filter(|answer| answer.status == 200).count();
    answers.iter().filter(|answer| answer.status != 200).for_each(|answer| {
        assert!((1..=60).contains(&refused(answer, "rate_limit_tokens")));
    });
    println!("of 40 requests at once with 200 tokens each, {served} were let in at 1,000 tokens a minute");
    assert_eq!((served, other.finish().status, engine.asked()), (5, 200, 6));
}

#[test]
fn reserved_tokens_are_returned_when_the_client_leaves() {
    let engine = Scripted::new(|mut asked| {
        if asked.turn > 0 {
            return asked.answer("{}");
        }
        asked.begin_events();
        asked.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n");
        asked.wait_for_hang_up();
    });
    let gateway = Gateway::over(&[&engine.url], &["--rate-limit-tokens-per-minute", "1000"]);
    let ask = |body: String| Call::send(gateway.url(), "POST", PATH, &["x-api-key: a"], body.as_bytes());
    let mut stream = ask(bounded(true, 900));
    stream.read_until("choices");
    assert!(refused(&ask(bounded(false, 900)).finish(), "rate_limit_tokens") >= 1);
    stream.hang_up();
    gateway.wait_for_idle();
    assert_eq!(ask(bounded(false, 900)).finish().status, 200);
    engine.check();
}

#[test]
fn streamed_tokens_count_when_the_client_leaves_before_the_usage() {
    let engine = Scripted::new(|mut asked| {
        asked.begin_events();
        (0..300).for_each(|_| asked.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"));
        asked.chunk("data: {\"last\":1}\n\n");
        asked.wait_for_hang_up();
    });
    let gateway = Gateway::over(&[&engine.url], &["--rate-limit-tokens-per-minute", "200"]);
    let body =
        json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hi"}]}).to_string();
    let mut call = Call::send(gateway.url(), "POST", PATH, &["x-api-key: a"], body.as_bytes());
    call.read_until("last");
    call.hang_up();
    gateway.wait_for_idle();
    assert!(refused(&send(&gateway, &["x-api-key: a"], "a").finish(), "rate_limit_tokens") >= 1);
    engine.check();
}

#[test]
fn a_refused_request_uses_no_tokens() {
    let flags =
        ["--rate-limit-tokens-per-minute", "600", "--max-concurrent-requests", "1", "--queue-size", "1"];
    let long = "x".repeat(1_600);
    let broken = Scripted::new(|asked| asked.reset());
    let gateway = Gateway::over(&[&broken.url], &flags);
    for _ in 0..4 {
        assert_eq!(send(&gateway, &["x-api-key: a"], &long).finish().status, 502);
    }
    let gated = gated();
    let gateway = Gateway::over(&[&gated.engine.url], &flags);
    let calls = line_up(&gateway, &gated, &[("x-api-key: b", "first"), ("x-api-key: c", "second")]);
    for _ in 0..4 {
        assert!(refused(&send(&gateway, &["x-api-key: a"], &long).finish(), "queue_full") >= 1);
    }
    gated.gate.open();
    all_answered(calls);
}
