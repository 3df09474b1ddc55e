//! Budgets for the time to first token: in time or not at all.

use crate::harness::client::{Call, Response};
use crate::harness::eventually;
use crate::harness::gated::{Gated, wait_for_waiting};
use crate::harness::process::{Gateway, Process};
use crate::harness::temp_folder::TempFolder;
use serde_json::json;

const PATH: &str = "/v1/chat/completions";

/// An engine whose answers begin once the gate is open.
fn gated() -> Gated {
    Gated::serving("m", |mut asked| {
        asked.begin_events();
        asked.chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n");
        asked.end_chunks();
    })
}

fn send(gateway: &Gateway, headers: &[&str], text: &str) -> Call {
    let body = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": text}]});
    Call::send(gateway.url(), "POST", PATH, headers, body.to_string().as_bytes())
}

fn budget(ms: u32) -> String {
    format!("x-warmroute-ttft-budget-ms: {ms}")
}

fn refused(response: &Response, code: &str) -> u32 {
    assert_eq!((response.status, response.json()["error"]["code"].as_str()), (429, Some(code)));
    response.header("retry-after").unwrap().parse().unwrap()
}

#[test]
fn a_budget_comes_from_the_key_or_the_settings_and_a_header_sets_a_shorter_one() {
    let gated = gated();
    gated.gate.open();
    let folder = TempFolder::new("ttft-budget-keys");
    let keys = folder.file("keys");
    std::fs::write(
        &keys,
        "sk-strict name=strict ttft-budget-ms=1\nsk-free name=free ttft-budget-ms=0\nsk-plain name=plain\n",
    )
    .unwrap();
    let gateway = Gateway::over(&[&gated.engine.url], &["--api-keys-file", &keys, "--ttft-budget-ms", "1"]);
    let (strict, free, plain) = (
        "authorization: Bearer sk-strict",
        "authorization: Bearer sk-free",
        "authorization: Bearer sk-plain",
    );
    let long = "long ".repeat(20_000);
    for (headers, status) in [
        (vec![strict], 429),
        (vec![plain], 429),
        (vec![free, &budget(1)], 429),
        (vec![free, &budget(600_000), &budget(1)], 429),
        (vec![free, "x-warmroute-ttft-budget-ms: soon"], 400),
        (vec![free, "x-warmroute-ttft-budget-ms: 0.0001"], 400),
        // The first answers: from now on the prompt counts as cached, and the engine as fast.
        (vec![free], 200),
        (vec![free, &budget(600_000)], 200),
    ] {
        let response = send(&gateway, &headers, &long).finish();
        assert_eq!(response.status, status, "{headers:?}: {}", response.text());
        if status == 429 {
            assert!((1..=60).contains(&refused(&response, "ttft_budget")));
        }
    }
    assert_eq!(gated.engine.asked(), 2, "what is refused reaches no worker");
    assert_eq!(gateway.metric("warmroute_refusals_total{reason=\"ttft_budget\"}"), 4.0);
    assert_eq!(gateway.metric("warmroute_ttft_budgets_total{outcome=\"met\"}"), 1.0);
    gateway.wait_for_idle();
}

/// What an idle engine can do in time is refused to no class: there is no work ahead that a lower class should leave to others.
#[test]
fn an_idle_engine_accepts_every_class_that_it_can_serve_in_time() {
    let engine = Process::start(&["engine", "--port", "0", "--model", "m", "--speed", "1"]);
    let gateway = Gateway::over(&[engine.url()], &["--allow-high-priority"]);
    let ask = |number: usize, headers: &[&str]| {
        let response = send(&gateway, headers, &format!("{number} {}", "word ".repeat(8_000))).finish();
        gateway.wait_for_idle();
        response
    };
    let expected_ms = |response: &Response| -> f64 {
        response.header("x-warmroute-expected-ttft-ms").unwrap().parse().unwrap()
    };
    // The prediction settles.
    let expected = (0..12).fold(0.0, |_, number| expected_ms(&ask(number, &[])));
    for (number, class) in ["low", "normal", "high"].into_iter().enumerate() {
        let priority = format!("x-warmroute-priority: {class}");
        let within = |share: f64| budget((expected / share) as u32);
        let accepted = ask(100 + number, &[&priority, &within(0.7)]);
        assert_eq!(accepted.status, 200, "{class}, {expected} ms expected: {}", accepted.text());
        assert_eq!(ask(200 + number, &[&priority, &within(1.5)]).status, 429, "{class}");
    }
}

/// Requests without a first token are work ahead of the next. The lowest class is refused first.
#[test]
fn work_ahead_uses_budgets_up_and_the_lowest_class_is_refused_first() {
    let gated = gated();
    let gateway = Gateway::over(&[&gated.engine.url], &["--allow-high-priority"]);
    let (low, high) = ("x-warmroute-priority: low", "x-warmroute-priority: high");
    let (budget, short) = (budget(4_000), "short");
    let mut calls = Vec::new();
    let refusal = loop {
        assert!(calls.len() < 400, "the prediction never grew");
        calls.push(send(&gateway, &[], &format!("{} {}", calls.len(), "word ".repeat(8_000))));
        gated.engine.wait_for_asked(calls.len());
        let low = send(&gateway, &[low, &budget], short);
        // An accepted request reaches the engine, a refused one is answered.
        let asked = calls.len() + 1;
        let mut low = low;
        let is_refused = eventually("the request is accepted or refused", || {
            if low.has_come("\r\n\r\n") {
                Some(true)
            } else {
                (gated.engine.asked() >= asked).then_some(false)
            }
        });
        if is_refused {
            break low.finish();
        }
        calls.push(low);
    };
    assert!(refused(&refusal, "ttft_budget") >= 1);
    calls.push(send(&gateway, &[high, &budget], short));
    gated.engine.wait_for_asked(calls.len());
    gated.gate.open();
    for call in calls {
        assert_eq!(call.finish().status, 200);
    }
    gateway.wait_for_idle();
}

#[test]
fn waiting_requests_go_in_the_order_of_their_deadlines() {
    let gated = gated();
    let gateway = Gateway::over(&[&gated.engine.url], &["--max-concurrent-requests", "1"]);
    let mut calls = vec![send(&gateway, &[], "first")];
    gated.engine.wait_for_asked(1);
    let one_tenant = "authorization: Bearer one";
    for (n, (text, ms)) in
        [("none", None), ("late", Some(900_000)), ("soon", Some(300_000)), ("next", Some(600_000))]
            .into_iter()
            .enumerate()
    {
        let header = ms.map(budget);
        let headers: Vec<&str> = [one_tenant].into_iter().chain(header.as_deref()).collect();
        calls.push(send(&gateway, &headers, text));
        wait_for_waiting(&gateway, n + 1);
    }
    gated.gate.open();
    for call in calls {
        assert_eq!(call.finish().status, 200);
    }
    assert_eq!(gated.order(), ["first", "soon", "next", "late", "none"]);
}

#[test]
fn a_full_queue_sheds_the_lowest_class() {
    let gated = gated();
    let gateway = Gateway::over(
        &[&gated.engine.url],
        &["--max-concurrent-requests", "1", "--queue-size", "2", "--allow-high-priority"],
    );
    let first = send(&gateway, &[], "first");
    gated.engine.wait_for_asked(1);
    let low = send(&gateway, &["x-warmroute-priority: low"], "low");
    wait_for_waiting(&gateway, 1);
    let normal = send(&gateway, &[], "normal");
    wait_for_waiting(&gateway, 2);
    let high = send(&gateway, &["x-warmroute-priority: high"], "high");
    assert!(refused(&low.finish(), "queue_shed") >= 1);
    assert!(refused(&send(&gateway, &[], "another").finish(), "queue_full") >= 1, "no lower class waits");
    gated.gate.open();
    for call in [first, high, normal] {
        assert_eq!(call.finish().status, 200);
    }
    assert_eq!(gated.order(), ["first", "high", "normal"]);
}

/// A burst on one simulated engine: with budgets some requests are refused and those served are counted, without
/// budgets all are served.
#[test]
fn a_burst_is_served_in_part_with_budgets_and_whole_without() {
    let engine = Process::start(&["engine", "--port", "0", "--model", "m", "--speed", "1"]);
    let gateway = Gateway::over(&[engine.url()], &[]);
    let burst = |header: &[&str], salt: &str| {
        let text = |n: usize| format!("{salt} {n} {}", "word ".repeat(4_000));
        let calls: Vec<Call> = (0..24).map(|n| send(&gateway, header, &text(n))).collect();
        calls.into_iter().map(Call::finish).collect::<Vec<Response>>()
    };
    let all = burst(&[], "a");
    assert!(all.iter().all(|response| response.status == 200));
    gateway.wait_for_idle();
    let some = burst(&[&budget(500)], "b");
    let served = some.iter().filter(|response| response.status == 200).count();
    assert!((1..24).contains(&served), "{served} of 24 were served");
    some.iter().filter(|response| response.status != 200).for_each(|response| {
        assert!(refused(response, "ttft_budget") >= 1);
    });
    let counted = ["met", "missed"]
        .map(|outcome| gateway.metric(&format!("warmroute_ttft_budgets_total{{outcome=\"{outcome}\"}}")));
    assert_eq!(counted.iter().sum::<f64>(), served as f64);
}
