//! What breaks prefixes, found in live traffic.

use crate::harness::client::{Call, get, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process, engine, run};
use serde_json::{Value, json};

const MODEL: &str = "llama-3.1-8b";
const REQUESTS: u64 = 8;

fn rules() -> String {
    "Answer briefly. Cite the confidential page that you used for the answer.\n".repeat(30)
}

fn tool(name: &str) -> Value {
    let description = format!("Looks things up under {name}. ").repeat(8);
    json!({"type": "function", "function": {"name": name, "description": description, "parameters": {}}})
}

fn chat(system: &str, tools: &[Value], user: &str) -> Value {
    json!({"model": MODEL, "max_tokens": 1, "tools": tools, "messages": [
        {"role": "system", "content": system}, {"role": "user", "content": user}]})
}

fn serve() -> (Process, Gateway) {
    let engine = engine(&[]);
    let gateway = Gateway::over(&[engine.url()], &[]);
    (engine, gateway)
}

/// The page, once this many prompts were compared.
fn page(gateway: &Gateway, compared: u64) -> Value {
    eventually("prompts are compared", || {
        let page = get(gateway.admin(), "/prefixes").json();
        (page["models"][0]["compared"] == compared).then_some(page)
    })
}

/// Sends the requests and returns the only break that they cause.
fn only_break(path: &str, request: impl Fn(u64) -> Value) -> Value {
    let (_engine, gateway) = serve();
    for n in 0..REQUESTS {
        let sent = post(gateway.url(), path, &request(n).to_string());
        assert_eq!(sent.status, 200, "{}", sent.text());
    }
    let page = page(&gateway, REQUESTS - 1);
    let model = &page["models"][0];
    assert_eq!((&model["model"], &model["broken"]), (&json!(MODEL), &json!(REQUESTS - 1)), "{page}");
    assert_eq!(model["breaks"].as_array().unwrap().len(), 1, "{page}");
    assert!(!page.to_string().contains("confidential"), "{page}");
    model["breaks"][0].clone()
}

fn place(found: &Value) -> (&str, &str, Option<u64>) {
    (found["cause"].as_str().unwrap(), found["field"].as_str().unwrap(), found["byte"].as_u64())
}

#[test]
fn a_date_in_the_system_prompt_is_found() {
    let found = only_break("/v1/messages", |n| {
        let now = format!("You help in a shop.\nIt is 2026-11-17 08:15:0{n}.\n{}", rules());
        json!({"model": MODEL, "max_tokens": 1, "system": [{"type": "text", "text": now}],
            "messages": [{"role": "user", "content": "What is new?"}]})
    });
    assert_eq!(place(&found), ("timestamp", "system[0]", Some(37)), "{found}");
    assert!(found["lost_tokens_per_day"].is_null(), "a minute says nothing about a day: {found}");
    let lost = found["lost_tokens"].as_u64().unwrap();
    let expected = (REQUESTS - 1) * rules().len() as u64 / 4;
    assert!(lost.abs_diff(expected) < expected / 10, "{lost} of {expected}");
}

#[test]
fn a_random_id_is_found() {
    let found = only_break("/v1/chat/completions", |n| {
        let id = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(n + 1);
        chat(&format!("Request {id:016x}.\n{}", rules()), &[], "What is new?")
    });
    assert_eq!(place(&found), ("random_id", "messages[0].content", Some(8)), "{found}");
}

#[test]
fn tools_in_another_order_are_found() {
    let found = only_break("/v1/chat/completions", |n| {
        let mut tools = ["alpha", "beta", "gamma"].map(tool);
        tools.rotate_left(n as usize % 3);
        chat(&rules(), &tools, "What is new?")
    });
    assert_eq!(place(&found), ("tools_reordered", "tools", None), "{found}");
}

#[test]
fn a_growing_list_of_tools_is_found() {
    let found = only_break("/v1/chat/completions", |n| {
        let tools: Vec<Value> = (0..=n).map(|n| tool(&format!("tool{n}"))).collect();
        chat(&rules(), &tools, "What is new?")
    });
    assert_eq!(place(&found), ("tools_added", "tools", None), "{found}");
}

#[test]
fn what_breaks_prefixes_is_printed_and_counted_and_healthy_traffic_breaks_nothing() {
    let (_engine, gateway) = serve();
    let explain = |more: &[&str]| {
        let args = [&["explain", "--prefixes", "--admin", gateway.admin()], more].concat();
        let output = run(&args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(explain(&[]).starts_with("0 prompts observed"), "{}", explain(&[]));
    let mut messages = vec![json!({"role": "system", "content": rules()})];
    for turn in 0..4 {
        messages.push(json!({"role": "user", "content": format!("Question {turn}: {}", "why ".repeat(99))}));
        let body = json!({"model": MODEL, "max_tokens": 1, "messages": messages}).to_string();
        assert_eq!(post(gateway.url(), "/v1/chat/completions", &body).status, 200);
        messages.push(json!({"role": "assistant", "content": "because ".repeat(99)}));
    }
    let healthy = page(&gateway, 3);
    assert_eq!(healthy["models"][0]["broken"], 0, "{healthy}");
    let told = explain(&[]);
    assert!(told.contains("3 prompts compared") && told.contains("none broken"), "{told}");
    // Another application: its prompt ends with other words.
    for minute in 0..3 {
        let body =
            chat(&format!("At 08:1{minute} you help.\n{}", rules().to_uppercase()), &[], "Hi").to_string();
        let call =
            Call::send(gateway.url(), "POST", "/v1/chat/completions", &["x-session-id: s"], body.as_bytes());
        assert_eq!(call.finish().status, 200);
    }
    page(&gateway, 5);
    let told = explain(&[]);
    assert!(told.contains("part at byte 3 of messages[0].content"), "{told}");
    assert!(told.contains("typical of a timestamp\n    Move the date"), "{told}");
    let json: Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    assert_eq!(json["models"][0]["breaks"][0]["requests"], 2);
    let metrics = get(gateway.admin(), "/metrics").text();
    for line in [
        "warmroute_prefix_compared_total 5",
        "warmroute_prefix_breaks_total{cause=\"timestamp\"} 2",
        "warmroute_prefix_breaks_total{cause=\"tools_added\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    assert!(metrics.contains("warmroute_prefix_lost_tokens_total{cause=\"timestamp\"}"));
    // A preview is not traffic.
    post(gateway.admin(), "/explain", &chat(&rules(), &[], "Hi").to_string());
    assert_eq!(get(gateway.admin(), "/prefixes").json()["observed"], json["observed"]);
    assert_eq!(post(gateway.admin(), "/prefixes", "{}").status, 405);
}
