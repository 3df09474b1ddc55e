//! Request fields that steer engines.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::{ask_as, key_file};
use crate::harness::client::{Call, post};
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;

/// An engine that keeps the bodies it receives.
pub fn keeper() -> (Scripted, Arc<Mutex<Vec<Value>>>) {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&bodies);
    let engine = Scripted::new(move |mut asked| {
        kept.lock().unwrap().push(serde_json::from_slice(&asked.body).unwrap_or(Value::Null));
        asked.answer("{}");
    });
    (engine, bodies)
}

fn chat_with(field: &str, value: &Value) -> String {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hello"}]});
    body[field] = value.clone();
    body.to_string()
}

const DROPPED: [&str; 9] = [
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_room",
    "disaggregated_params",
    "data_parallel_rank",
    "data_parallel_rank_decode",
    "priority",
    "rid",
    "request_id",
];
const REFUSED: [&str; 5] =
    ["lora_path", "custom_logit_processor", "vllm_xargs", "session_params", "return_hidden_states"];

#[test]
fn an_ordinary_key_steers_no_engine() {
    let (_folder, keys) = key_file(
        "fields",
        "sk-plain name=plain\nsk-batch name=batch engine-fields=priority:pass,rid:refuse\n",
    );
    let (engine, bodies) = keeper();
    let gateway = Gateway::over(&[&engine.url], &["--api-keys-file", &keys]);
    for field in DROPPED {
        let body = chat_with(field, &json!({"remote_host": "10.0.0.9", "list": [1, "}"]}));
        assert_eq!(ask_as(gateway.url(), "sk-plain", &body).status, 200, "{field}");
        let sent = bodies.lock().unwrap().pop().unwrap();
        assert_eq!((sent.get(field), &sent["messages"][0]["content"]), (None, &json!("Hello")), "{sent}");
    }
    for field in REFUSED {
        let refused = ask_as(gateway.url(), "sk-plain", &chat_with(field, &json!(1)));
        assert_eq!(refused.status, 400, "{field}");
        assert_eq!(refused.json()["error"]["code"], "field_not_allowed");
    }
    // Other spellings, and the same name twice.
    let spelled =
        r#"{"model":"m","kv\u005ftransfer_params":{"a":1},"messages":[],"\u0070riority":1,"rid":1,"rid":2}"#;
    assert_eq!(ask_as(gateway.url(), "sk-plain", spelled).status, 200);
    assert_eq!(bodies.lock().unwrap().pop().unwrap(), json!({"model": "m", "messages": []}));
    // A key's own rules.
    assert_eq!(ask_as(gateway.url(), "sk-batch", &chat_with("priority", &json!(-5))).status, 200);
    assert_eq!(bodies.lock().unwrap().pop().unwrap()["priority"], -5);
    assert_eq!(ask_as(gateway.url(), "sk-batch", &chat_with("rid", &json!("x"))).status, 400);
    assert_eq!(ask_as(gateway.url(), "sk-batch", &chat_with("kv_transfer_params", &json!({}))).status, 200);
    assert_eq!(bodies.lock().unwrap().pop().unwrap().get("kv_transfer_params"), None);
}

#[test]
fn endpoints_that_the_gateway_does_not_parse_are_no_way_around() {
    let (engine, bodies) = keeper();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let body = json!({"model": "m", "input": "a", "kv_transfer_params": {"a": 1}}).to_string();
    assert_eq!(post(gateway.url(), "/v1/embeddings", &body).status, 200);
    assert_eq!(bodies.lock().unwrap().pop().unwrap(), json!({"model": "m", "input": "a"}));
    // What we cannot read and Python can: a constant that is not JSON, and another encoding.
    let constant = body.replace("{\"a\":1}", "NaN{");
    let utf16: Vec<u8> = body.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let marked = [b"\xef\xbb\xbf", body.as_bytes()].concat();
    let kinds =
        ["application/json", "text/plain", "application/x-www-form-urlencoded", "application/octet-stream"];
    for kind in kinds.into_iter().chain(["multipart/form-data; boundary=b", "audio/wav"]) {
        let kind = format!("content-type: {kind}");
        let send = |method, bytes: &[u8]| {
            Call::send(gateway.url(), method, "/v1/embeddings", &[&kind], bytes).finish().status
        };
        for bytes in [constant.as_bytes(), &utf16, &marked, &[body.as_bytes(), b" garbage"].concat()] {
            assert_eq!((send("POST", bytes), send("PUT", bytes)), (400, 400), "{kind}");
        }
        // Space that JSON does not have, and some programs strip; and more than one object.
        for space in ["\u{b}", "\u{c}", "\u{a0}"] {
            assert_eq!(send("POST", format!("{space}{body}").as_bytes()), 400, "{kind} {space:?}");
        }
        assert_eq!(send("POST", format!("{body}\n{body}").as_bytes()), 400, "{kind}");
        assert!(bodies.lock().unwrap().is_empty());
        assert_eq!(send("POST", format!(" \n{body}").as_bytes()), 200, "{kind}");
        assert_eq!(bodies.lock().unwrap().pop().unwrap(), json!({"model": "m", "input": "a"}), "{kind}");
    }
}

#[test]
fn uploads_that_are_no_json_pass_unread() {
    let received = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&received);
    let engine = Scripted::new(move |mut asked| {
        kept.lock().unwrap().push(asked.body.clone());
        asked.answer("{}");
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    let form = b"--b\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\n{\"rid\": 1}\r\n--b--\r\n";
    let uploads: [(&str, &[u8]); 5] = [
        ("multipart/form-data; boundary=b", form),
        ("audio/mpeg", b"\xff\xfb\x90\x64{\"rid\": 1}"),
        ("application/octet-stream", &[0; 200_000]),
        ("text/plain", b"Hello {\"rid\": 1}"),
        ("application/x-ndjson", b"{\"rid\": 1}\n{\"rid\": 2}\n"),
    ];
    for (kind, bytes) in uploads {
        let kind = format!("content-type: {kind}");
        let answer = Call::send(gateway.url(), "POST", "/v1/audio/transcriptions", &[&kind], bytes).finish();
        assert_eq!(answer.status, 200, "{kind}");
        assert!(received.lock().unwrap().pop().unwrap() == bytes, "{kind}");
    }
}

#[test]
fn a_switch_passes_all_fields() {
    let (engine, bodies) = keeper();
    let gateway = Gateway::over(&[&engine.url], &["--engine-fields", "all:pass"]);
    for field in DROPPED.into_iter().chain(REFUSED) {
        assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat_with(field, &json!(7))).status, 200);
        assert_eq!(bodies.lock().unwrap().pop().unwrap()[field], 7);
    }
}
