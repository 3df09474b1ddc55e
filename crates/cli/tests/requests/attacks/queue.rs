//! A tenant that takes places in the fair queue without tokens.

use std::sync::{Arc, Mutex};

use super::key_file;
use crate::harness::client::Call;
use crate::harness::gate::Gate;
use crate::harness::gated::wait_for_waiting;
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;

/// A request that costs no tokens.
fn free(gateway: &Gateway, kind: &str, number: usize) -> Call {
    let key = "authorization: Bearer sk-free";
    match kind {
        "upload" => {
            let form =
                format!("--b\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\nfree {number}\r\n--b--");
            let headers = [key, "content-type: multipart/form-data; boundary=b"];
            Call::send(gateway.url(), "POST", "/v1/audio/transcriptions", &headers, form.as_bytes())
        }
        "read" => Call::send(gateway.url(), "GET", &format!("/v1/files/free-{number}"), &[key], b""),
        _ => {
            let chat = format!(r#"{{"model":"m","max_tokens":1,"messages":[],"user":"free {number}"}}"#);
            let headers = [key, "content-type: application/json"];
            Call::send(gateway.url(), "POST", "/v1/chat/completions", &headers, chat.as_bytes())
        }
    }
}

#[test]
fn requests_without_tokens_do_not_starve_other_tenants() {
    for kind in ["upload", "read", "empty chat"] {
        let (gate, order) = (Gate::default(), Arc::new(Mutex::new(Vec::new())));
        let (waited_at, asked_in) = (gate.clone(), Arc::clone(&order));
        let engine = Scripted::new(move |mut asked| {
            let text = format!("{} {}", asked.head, String::from_utf8_lossy(&asked.body));
            asked_in.lock().unwrap().push(if text.contains("free") { "free" } else { "paying" });
            waited_at.pass();
            asked.answer("{}");
        });
        let (_folder, keys) = key_file("queue-free", "sk-free name=free\nsk-pay name=pay\n");
        let flags = ["--api-keys-file", &keys, "--max-concurrent-requests", "1"];
        let gateway = Gateway::over(&[&engine.url], &flags);
        let mut calls = vec![free(&gateway, kind, 0)];
        engine.wait_for_asked(1);
        for number in 1..=30 {
            calls.push(free(&gateway, kind, number));
            wait_for_waiting(&gateway, number);
        }
        let text = "word ".repeat(300);
        for number in 1..=3 {
            let chat = format!(
                r#"{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":"{text}"}}]}}"#
            );
            let headers = ["authorization: Bearer sk-pay", "content-type: application/json"];
            calls.push(Call::send(gateway.url(), "POST", "/v1/chat/completions", &headers, chat.as_bytes()));
            wait_for_waiting(&gateway, 30 + number);
        }
        gate.open();
        calls.into_iter().for_each(|call| assert_eq!(call.finish().status, 200));
        let order = order.lock().unwrap();
        let last = order.iter().rposition(|who| *who == "paying").unwrap();
        assert!(last <= 10, "{kind}: the last of three is the {last}th: {order:?}");
    }
}

/// Names of models that no worker has cost no place, so that a client cannot fill the queue with routes.
#[test]
fn requests_for_invented_models_do_not_wait() {
    let gate = Gate::default();
    let waited_at = gate.clone();
    let engine = Scripted::new(move |mut asked| {
        waited_at.pass();
        asked.answer("{}");
    });
    let gateway = Gateway::over(&[&engine.url], &["--max-concurrent-requests", "1"]);
    let ask = |model: &str| {
        let body = format!(r#"{{"model":"{model}","messages":[]}}"#);
        Call::send(gateway.url(), "POST", "/v1/chat/completions", &[], body.as_bytes())
    };
    let first = ask("m");
    engine.wait_for_asked(1);
    let second = ask("m");
    wait_for_waiting(&gateway, 1);
    for number in 0..20 {
        let refused = ask(&format!("invented-{number}")).finish();
        assert_eq!(
            (refused.status, refused.json()["error"]["code"].as_str()),
            (404, Some("model_not_found"))
        );
    }
    gate.open();
    assert_eq!((first.finish().status, second.finish().status), (200, 200));
}
