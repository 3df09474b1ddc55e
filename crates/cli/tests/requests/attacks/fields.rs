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

const DROPPED: [&str; 20] = [
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_room",
    "disaggregated_params",
    "data_parallel_rank",
    "data_parallel_rank_decode",
    "priority",
    "rid",
    "request_id",
    "kv_router_hint",
    "mm_hashes",
    "mm_content_hashes",
    "decode_tp_size",
    "num_items_assigned",
    "need_wait_for_mm_inputs",
    "external_trace_header",
    "received_time",
    "custom_labels",
    "no_logs",
    "log_metrics",
];
const REFUSED: [&str; 6] = [
    "positional_embed_overrides",
    "lora_path",
    "custom_logit_processor",
    "vllm_xargs",
    "session_params",
    "return_hidden_states",
];

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
fn sampling_parameters_of_generate_are_no_way_around() {
    let (engine, bodies) = keeper();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let generate = |body: &Value| post(gateway.url(), "/generate", &body.to_string());
    for field in DROPPED {
        let body =
            json!({"text": "a", field: [1], "sampling_params": {"max_new_tokens": 1, field: {"a": 1}}});
        assert_eq!(generate(&body).status, 200, "{field}");
        let sent = bodies.lock().unwrap().pop().unwrap();
        assert_eq!(sent, json!({"text": "a", "sampling_params": {"max_new_tokens": 1}}), "{field}");
    }
    for field in REFUSED.into_iter().chain(["custom_params"]) {
        let sampling = json!({field: {"a": 1}});
        for sampling in [sampling.clone(), json!([{"n": 1}, sampling])] {
            let refused = generate(&json!({"text": ["a", "b"], "sampling_params": sampling}));
            assert_eq!(
                (refused.status, refused.json()["error"]["code"].as_str()),
                (400, Some("field_not_allowed"))
            );
        }
    }
    assert!(bodies.lock().unwrap().is_empty());
}

/// An engine that keeps the raw bodies it receives.
fn raw_keeper() -> (Scripted, Arc<Mutex<Vec<Vec<u8>>>>) {
    let received = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&received);
    let engine = Scripted::new(move |mut asked| {
        kept.lock().unwrap().push(asked.body.clone());
        asked.answer("{}");
    });
    (engine, received)
}

fn part(disposition: &str, content: &str) -> String {
    format!("--b\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{content}\r\n")
}

/// Fields before and behind a file, at once and in pieces, with and without a declared length.
#[test]
fn forms_are_no_way_around() {
    let (engine, received) = raw_keeper();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let file = part("name=\"file\"; filename=\"a.wav\"", &"sound\n".repeat(100_000));
    let model = part("name=\"model\"", "m");
    let send = |kind: &str, method: &str, body: &str| {
        let kind = format!("content-type: {kind}");
        let path = "/v1/audio/transcriptions";
        Call::send(gateway.url(), method, path, &[&kind], body.as_bytes()).finish()
    };
    let multipart = "multipart/form-data; boundary=b";
    for name in ["kv_transfer_params", "vllm_xargs", "priority", "lora_path"] {
        let field = part(&format!("name=\"{name}\""), "-9");
        for form in [format!("{model}{field}{file}--b--\r\n"), format!("{model}{file}{field}--b--\r\n")] {
            let refused = send(multipart, "POST", &form);
            assert_eq!(refused.status, 400, "{name}: {}", refused.text());
            assert_eq!(refused.json()["error"]["code"], "field_not_allowed");
        }
        for (method, fields) in [("POST", format!("{name}=1")), ("PUT", format!("a=1&{name}=1"))] {
            let refused = send("application/x-www-form-urlencoded", method, &fields);
            assert_eq!(refused.status, 400, "{name}: {}", refused.text());
        }
    }
    assert!(received.lock().unwrap().is_empty(), "no engine got a whole form");
    let honest = format!("{model}{file}--b--\r\n");
    assert_eq!(send(multipart, "POST", &honest).status, 200);
    assert!(received.lock().unwrap().pop().unwrap() == honest.as_bytes());
    assert_eq!(send("application/x-www-form-urlencoded", "POST", "model=m&a=priority").status, 200);
    let worker = &gateway.workers()[0];
    assert_eq!((&worker["breaker"], &worker["state"]), (&json!("closed"), &json!("ready")), "none is blamed");
}

#[test]
fn uploads_that_are_no_json_pass_unread() {
    let (engine, received) = raw_keeper();
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
