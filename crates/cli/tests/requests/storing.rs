//! Responses and conversations that engines store: each is found on its worker, and only with its key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::attacks::{ask_as, key_file};
use crate::harness::client::{Call, Response, chat, get};
use crate::harness::eventually;
use crate::harness::process::Gateway;
use crate::harness::script::{ReceivedRequest, Scripted};
use crate::harness::temp_folder::TempFolder;

/// An engine that stores responses and conversations in its memory, as vLLM does.
struct StoringEngine {
    engine: Scripted,
}

impl StoringEngine {
    fn new(name: &'static str) -> StoringEngine {
        let stored: Arc<Mutex<HashMap<String, String>>> = Arc::default();
        let engine = Scripted::new(move |asked| answer(asked, name, &stored));
        engine.set_sleeping(false);
        StoringEngine { engine }
    }

    fn url(&self) -> &str {
        &self.engine.url
    }
}

fn answer(mut asked: ReceivedRequest, name: &str, stored: &Mutex<HashMap<String, String>>) {
    let line: Vec<&str> = asked.head.split(' ').take(2).collect();
    let (method, path) = (line[0].to_owned(), line[1].split('?').next().unwrap().to_owned());
    let body: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
    let named = |field: &str| body[field].as_str().map(str::to_owned);
    let wanted = named("previous_response_id").or_else(|| named("conversation")).or_else(|| {
        let rest = path.strip_prefix("/v1/responses/").or_else(|| path.strip_prefix("/v1/conversations/"));
        rest.map(|rest| rest.split('/').next().unwrap().to_owned())
    });
    if let Some(wanted) = wanted
        && !stored.lock().unwrap().contains_key(&wanted)
    {
        let error = json!({"error": {"message": "not on this engine", "code": 404}}).to_string();
        let length = error.len();
        return asked.write(&format!("HTTP/1.1 404 Not Found\r\ncontent-length: {length}\r\n\r\n{error}"));
    }
    if method != "POST" || path.matches('/').count() > 2 {
        return asked.answer(&json!({"engine": name, "method": method, "path": path}).to_string());
    }
    let kind = if path == "/v1/conversations" { "conv" } else { "resp" };
    let id = format!("{kind}_{name}_{}", asked.turn);
    stored.lock().unwrap().insert(id.clone(), name.to_owned());
    // Tools of any length may stand before the identifier.
    let response = json!({"engine": name, "a_tool": {"id": "no", "text": "x".repeat(5_000)}, "id": id});
    if body["stream"] != true {
        return asked.answer(&response.to_string());
    }
    asked.begin_events();
    let event = format!("event: response.created\ndata: {}\n\n", json!({"response": response}));
    let (start, end) = event.split_at(event.len() - 12);
    asked.chunk(start);
    asked.chunk(end);
    asked.chunk("event: response.completed\ndata: {\"type\":\"response.completed\"}\n\n");
    asked.end_chunks();
}

fn send(gateway: &Gateway, key: &str, method: &str, path: &str, body: &Value) -> Response {
    let authorization = format!("authorization: Bearer {key}");
    let headers = ["content-type: application/json", &authorization];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    Call::send(gateway.url(), method, path, &headers, body.as_bytes()).finish()
}

/// Makes a response. Returns its identifier, and the engine that has it.
fn make(gateway: &Gateway, key: &str, more: &Value) -> (String, String) {
    let mut body = json!({"model": "m", "input": "Hello"});
    more.as_object().into_iter().flatten().for_each(|(field, value)| body[field] = value.clone());
    let response = send(gateway, key, "POST", "/v1/responses", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let text = response.text();
    let json = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&text);
    let json: Value = serde_json::from_str(json).unwrap();
    let made = if json["response"].is_object() { &json["response"] } else { &json };
    (made["id"].as_str().unwrap().to_owned(), made["engine"].as_str().unwrap().to_owned())
}

/// Every way to use a response.
fn uses(id: &str) -> [(&'static str, String, Value); 6] {
    let more = json!({"model": "m", "input": "More", "previous_response_id": id, "store": false});
    [
        ("GET", format!("/v1/responses/{id}"), Value::Null),
        ("GET", format!("/v1/responses/{id}?stream=true&starting_after=2"), Value::Null),
        ("GET", format!("/v1/responses/{id}/input_items"), Value::Null),
        ("POST", format!("/v1/responses/{id}/cancel"), Value::Null),
        ("POST", "/v1/responses".to_owned(), more),
        ("DELETE", format!("/v1/responses/{id}"), Value::Null),
    ]
}

fn engines() -> [StoringEngine; 3] {
    ["a", "b", "c"].map(StoringEngine::new)
}

#[test]
fn what_is_stored_is_found_on_the_worker_that_has_it() {
    let engines = engines();
    let urls = engines.each_ref().map(StoringEngine::url);
    let gateway = Gateway::over(&urls, &["--policy", "round_robin"]);
    let shapes = [json!({}), json!({"stream": true}), json!({"background": true})];
    let made: Vec<_> = (0..9).map(|turn| make(&gateway, "none", &shapes[turn % 3])).collect();
    let used: std::collections::BTreeSet<&String> = made.iter().map(|(_, engine)| engine).collect();
    assert_eq!(used.len(), 3, "every engine has some");
    for (id, engine) in &made {
        for (method, path, body) in uses(id) {
            let response = send(&gateway, "none", method, &path, &body);
            assert_eq!(response.status, 200, "{method} {path}: {}", response.text());
            assert_eq!(response.json()["engine"], *engine, "{method} {path}");
        }
    }
    assert_eq!(gateway.metric("warmroute_stored_responses"), 9.0, "store: false stores nothing");
    let (id, engine) = make(&gateway, "none", &json!({"previous_response_id": made[4].0}));
    assert_eq!(engine, made[4].1);
    assert_eq!(make(&gateway, "none", &json!({"previous_response_id": id})).1, engine, "the chain goes on");
    let unknown = send(&gateway, "none", "GET", "/v1/responses/resp_unknown", &Value::Null);
    assert_eq!(
        (unknown.status, unknown.json()["error"]["message"].as_str()),
        (404, Some("not on this engine"))
    );
    for _ in 0..4 {
        let made = send(&gateway, "none", "POST", "/v1/conversations", &json!({})).json();
        let id = made["id"].as_str().unwrap();
        let items = format!("/v1/conversations/{id}/items");
        for (method, path, body) in [
            ("GET", items.clone(), Value::Null),
            ("POST", items, json!({"items": []})),
            ("POST", "/v1/responses".to_owned(), json!({"model": "m", "input": "x", "conversation": id})),
        ] {
            let response = send(&gateway, "none", method, &path, &body);
            assert_eq!((response.status, &response.json()["engine"]), (200, &made["engine"]), "{path}");
        }
    }
    engines.iter().for_each(|engine| engine.engine.check());
}

#[test]
fn another_key_gets_what_an_unknown_id_gets() {
    let engines = engines();
    let urls = engines.each_ref().map(StoringEngine::url);
    let (_folder, keys) = key_file("storing", "sk-a name=a\nsk-a2 name=a\nsk-b name=b\n");
    let gateway = Gateway::over(&urls, &["--api-keys-file", &keys]);
    let (id, engine) = make(&gateway, "sk-a", &json!({"stream": true}));
    let asked = || engines.iter().map(|engine| engine.engine.asked()).sum::<usize>();
    let before = asked();
    for ((method, path, body), (_, other_path, other_body)) in uses(&id).into_iter().zip(uses("resp_none")) {
        let foreign = send(&gateway, "sk-b", method, &path, &body);
        let unknown = send(&gateway, "sk-b", method, &other_path, &other_body);
        assert_eq!((foreign.status, unknown.status), (404, 404), "{method} {path}");
        assert_eq!(foreign.text().replace(&id, "resp_none"), unknown.text());
        let error = &foreign.json()["error"];
        assert_eq!(error["message"], format!("Response with id '{id}' not found."));
        assert_eq!(
            (&error["type"], &error["param"]),
            (&json!("invalid_request_error"), &json!("response_id"))
        );
    }
    let escaped: String = id.bytes().map(|byte| format!("%{byte:02X}")).collect();
    for path in [
        format!("/v1/responses/{escaped}"),
        format!("/v1/%72esponses/{id}"),
        format!("/v1/responses%2F{id}"),
        format!("/v1/responses/{id}/"),
        format!("/v1/responses/x/../{id}"),
        format!("/v1//responses/{id}"),
        "/v1/conversations".to_owned(),
    ] {
        assert_eq!(send(&gateway, "sk-b", "GET", &path, &Value::Null).status, 404, "{path}");
    }
    // One object of its own does not open the other one.
    let (own, _) = make(&gateway, "sk-b", &json!({}));
    let before = before + 1;
    let both = json!({"model": "m", "input": "x", "previous_response_id": own, "conversation": id});
    assert_eq!(send(&gateway, "sk-b", "POST", "/v1/responses", &both).status, 404);
    assert_eq!(asked(), before, "no engine is asked");
    for key in ["sk-a", "sk-a2"] {
        for (method, path, body) in uses(&id) {
            let response = send(&gateway, key, method, &path, &body);
            assert_eq!(
                (response.status, response.json()["engine"].as_str()),
                (200, Some(&*engine)),
                "{path}"
            );
        }
    }
}

/// A chat that its engine stores. Returns its identifier.
fn store_chat(gateway: &Gateway, key: &str) -> String {
    let chat = json!({"model": "m", "store": true, "messages": [{"role": "user", "content": "Hello"}]});
    let stored = send(gateway, key, "POST", "/v1/chat/completions", &chat);
    assert_eq!(stored.status, 200, "{}", stored.text());
    stored.json()["id"].as_str().unwrap().to_owned()
}

#[test]
fn stored_chats_and_other_ways_to_name_an_object_belong_to_their_key() {
    let engine = Scripted::new(|mut asked| {
        let id = format!("chatcmpl-{}", asked.turn);
        asked.answer(&json!({"id": id, "object": "chat.completion", "choices": []}).to_string());
    });
    let (_folder, keys) = key_file("storing-chats", "sk-a name=a\nsk-b name=b\n");
    let gateway = Gateway::over(&[&engine.url], &["--api-keys-file", &keys]);
    let (id, (response, _)) = (store_chat(&gateway, "sk-a"), make_plain(&gateway, "sk-a"));
    let asked = engine.asked();
    let item = |item: Value| json!({"model": "m", "input": [{"role": "user", "content": "x"}, item]});
    let uses = |id: &str, response: &str| {
        let chat = format!("/v1/chat/completions/{id}");
        [
            ("GET", chat.clone(), Value::Null),
            ("DELETE", chat.clone(), Value::Null),
            ("POST", chat.clone(), json!({"metadata": {}})),
            ("GET", format!("{chat}/messages"), Value::Null),
            ("POST", format!("/v1/responses/{response}"), json!({"model": "m"})),
            ("POST", "/v1/responses".to_owned(), item(json!({"type": "item_reference", "id": response}))),
            ("POST", "/v1/responses".to_owned(), item(json!({"id": response}))),
            (
                "POST",
                "/v1/responses/compact".to_owned(),
                item(json!({"type": "item_reference", "id": response})),
            ),
            ("POST", "/v1/responses/compact".to_owned(), json!({"previous_response_id": response})),
        ]
    };
    for ((method, path, body), (_, other_path, other_body)) in
        uses(&id, &response).into_iter().zip(uses("none_1", "none_2"))
    {
        let foreign = send(&gateway, "sk-b", method, &path, &body);
        let unknown = send(&gateway, "sk-b", method, &other_path, &other_body);
        assert_eq!((foreign.status, unknown.status), (404, 404), "{method} {path}: {}", foreign.text());
        assert_eq!(foreign.text().replace(&id, "none_1").replace(&response, "none_2"), unknown.text());
    }
    assert_eq!(engine.asked(), asked, "no engine is asked");
    for (method, path, body) in uses(&id, &response).into_iter().take(5) {
        assert_eq!(send(&gateway, "sk-a", method, &path, &body).status, 200, "{method} {path}");
    }
    // Inputs of other APIs are no stored items.
    for item in [json!({"text": "a"}), json!({"id": "1", "image": "b"})] {
        let inputs = json!({"model": "m", "input": [item]});
        assert_eq!(send(&gateway, "sk-a", "POST", "/v1/embeddings", &inputs).status, 200);
    }
    // A chat that was not to be stored is no object.
    let plain = ask_as(gateway.url(), "sk-a", &chat("m")).json()["id"].as_str().unwrap().to_owned();
    assert_eq!(
        send(&gateway, "sk-a", "GET", &format!("/v1/chat/completions/{plain}"), &Value::Null).status,
        404
    );
}

#[test]
fn a_field_that_decides_may_not_stand_twice() {
    let engine = Scripted::new(|mut asked| asked.answer(r#"{"id":"resp_1"}"#));
    let (_folder, keys) = key_file("storing-twice", "sk-a name=a\nsk-b name=b\n");
    let gateway = Gateway::over(&[&engine.url], &["--api-keys-file", &keys]);
    let (own, foreign) = (make_plain(&gateway, "sk-b").0, "resp_foreign");
    let asked = engine.asked();
    for (path, body) in [
        (
            "/v1/responses",
            format!(
                r#"{{"model":"m","input":"x","previous_response_id":"{own}","previous_response_id":"{foreign}"}}"#
            ),
        ),
        (
            "/v1/responses",
            format!(
                r#"{{"model":"m","input":"x","previous_response_id":"{foreign}","previous\u005fresponse_id":"{own}"}}"#
            ),
        ),
        ("/v1/responses", r#"{"model":"m","input":"x","conversation":null,"conversation":"c"}"#.to_owned()),
        (
            "/v1/chat/completions",
            r#"{"model":"m","cache_salt":"a","cache_salt":"b","messages":[]}"#.to_owned(),
        ),
        ("/v1/chat/completions", r#"{"model":"m","messages":[],"n":1,"n":100}"#.to_owned()),
        ("/v1/completions", r#"{"model":"m","model":"other","prompt":"x"}"#.to_owned()),
        ("/v1/messages", r#"{"model":"m","stream":true,"messages":[],"stream":false}"#.to_owned()),
        ("/v1/embeddings", r#"{"model":"m","input":"x","input":"y"}"#.to_owned()),
    ] {
        let headers = ["content-type: application/json", "authorization: Bearer sk-b"];
        let refused = Call::send(gateway.url(), "POST", path, &headers, body.as_bytes()).finish();
        assert_eq!(refused.status, 400, "{body}: {}", refused.text());
        assert!(refused.text().contains("stands twice"), "{}", refused.text());
    }
    assert_eq!(engine.asked(), asked, "no engine is asked");
    let other = r#"{"model":"m","temperature":1,"temperature":0,"messages":[{"role":"user","role":"user","content":"x"}]}"#;
    assert_eq!(ask_as(gateway.url(), "sk-b", other).status, 200, "other fields are the engine's");
}

/// Makes a response at an engine that only answers with an identifier.
fn make_plain(gateway: &Gateway, key: &str) -> (String, u16) {
    let made = send(gateway, key, "POST", "/v1/responses", &json!({"model": "m", "input": "Hello"}));
    (made.json()["id"].as_str().unwrap().to_owned(), made.status)
}

#[test]
fn a_worker_that_is_away_or_gone_is_reported_as_such() {
    let engines = engines();
    let urls = engines.each_ref().map(StoringEngine::url);
    let gateway = Gateway::over(&urls, &["--health-check-interval-secs", "1"]);
    let (id, engine) = make(&gateway, "none", &json!({}));
    let place = ["a", "b", "c"].iter().position(|name| *name == engine).unwrap();
    engines[place].engine.set_sleeping(true);
    eventually("it sleeps", || {
        gateway.workers().iter().any(|worker| worker["state"] == "sleeping").then_some(())
    });
    let away = send(&gateway, "none", "GET", &format!("/v1/responses/{id}"), &Value::Null);
    assert_eq!((away.status, away.header("retry-after")), (503, Some("2")), "{}", away.text());
    let message =
        format!("The worker that stores the response with id '{id}' is not ready; try again in 2 s");
    assert_eq!(away.json()["error"]["message"], message);
    let removed =
        Call::send(gateway.admin(), "POST", &format!("/remove_worker?url={}", urls[place]), &[], b"");
    assert_eq!(removed.finish().status, 200);
    for (method, path, body) in uses(&id) {
        let lost = send(&gateway, "none", method, &path, &body);
        assert_eq!(
            (lost.status, lost.json()["error"]["code"].as_str()),
            (404, Some("response_lost")),
            "{path}"
        );
    }
}

#[test]
fn places_and_owners_survive_a_restart() {
    let engines = engines();
    let urls = engines.each_ref().map(StoringEngine::url);
    let (folder, keys) = key_file("storing-state", "sk-a name=a\nsk-b name=b\n");
    let state = folder.file("state");
    let flags = ["--api-keys-file", &keys, "--state", &state];
    let gateway = Gateway::over(&urls, &flags);
    let made: Vec<_> = (0..6).map(|_| make(&gateway, "sk-a", &json!({}))).collect();
    gateway.process.signal("-TERM");
    assert!(gateway.process.wait().success());
    let saved = std::fs::read(&state).unwrap();
    assert!(!saved.windows(5).any(|window| window == b"resp_"), "identifiers are hashes");
    let gateway = Gateway::over(&urls, &flags);
    for (id, engine) in &made {
        let path = format!("/v1/responses/{id}");
        assert_eq!(send(&gateway, "sk-a", "GET", &path, &Value::Null).json()["engine"], *engine);
        assert_eq!(send(&gateway, "sk-b", "GET", &path, &Value::Null).status, 404);
    }
}

#[test]
fn every_router_of_a_mesh_knows_what_is_stored_where() {
    let engines = engines();
    let urls = engines.each_ref().map(StoringEngine::url);
    let folder = TempFolder::new("storing-mesh");
    let secret = folder.file("secret");
    std::fs::write(&secret, "a secret that only these routers know\n").unwrap();
    let (_keys_folder, keys) = key_file("storing-mesh-keys", "sk-a name=a\nsk-b name=b\n");
    let shared = ["--share", "mesh", "--share-secret-file", &secret, "--mesh-listen", "127.0.0.1:0"];
    let shared = [&shared[..], &["--api-keys-file", &keys]].concat();
    let first = Gateway::over(&urls, &shared);
    let seed = get(first.admin(), "/peers").json()["transport"]["listening"].as_str().unwrap().to_owned();
    let flags = [&shared[..], &["--mesh-peers", &seed]].concat();
    let second = Gateway::over(&urls, &flags);
    let meet = |router: &Gateway, count: usize| {
        eventually("they meet", || {
            let page = get(router.admin(), "/peers").json();
            (page["peers"].as_array()?.len() == count).then_some(())
        });
    };
    [&first, &second].into_iter().for_each(|router| meet(router, 1));
    let mut made = Vec::new();
    for turn in 0..10 {
        let (here, there) = if turn % 2 == 0 { (&first, &second) } else { (&second, &first) };
        let (id, engine) = make(here, "sk-a", &json!({"stream": turn % 3 == 0}));
        let path = format!("/v1/responses/{id}");
        // At once: the other router waits for the news. On a busy machine the news may take longer.
        let found = eventually("the other router knows it", || {
            let response = send(there, "sk-a", "GET", &path, &Value::Null);
            (response.status == 200).then_some(response)
        });
        assert_eq!(found.json()["engine"], engine);
        assert_eq!(send(there, "sk-b", "GET", &path, &Value::Null).status, 404);
        made.push((path, engine));
    }
    // A router that comes later learns of all.
    let third = Gateway::over(&urls, &flags);
    for (path, engine) in made {
        let found = eventually("the third router knows it", || {
            let response = send(&third, "sk-a", "GET", &path, &Value::Null);
            (response.status == 200).then_some(response)
        });
        assert_eq!(found.json()["engine"], engine);
    }
}
