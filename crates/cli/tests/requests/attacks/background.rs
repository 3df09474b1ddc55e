//! Responses that engines compute in the background, and all the ways to make their places and tokens look free.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::key_file;
use crate::harness::client::{Call, Response, post};
use crate::harness::eventually;
use crate::harness::gate::Gate;
use crate::harness::process::Gateway;
use crate::harness::script::{ReceivedRequest, Scripted};
use crate::harness::temp_folder::TempFolder;

const KEYS: &str = "sk-one name=one concurrent-requests=1\nsk-two name=two concurrent-requests=2\n\
    sk-rate name=rate concurrent-requests=2 requests-per-minute=5\n\
    sk-few name=few tokens-per-minute=2000 concurrent-requests=9\n";

/// An engine that computes responses in the background until the test says otherwise.
struct Engine {
    engine: Scripted,
    /// Statuses of responses, by identifier; 404 for others.
    statuses: Arc<Mutex<HashMap<String, &'static str>>>,
    /// Requests that say `wait` wait here.
    gate: Gate,
}

/// Whether a request has this word.
fn says(asked: &ReceivedRequest, word: &str) -> bool {
    asked.head.contains(word) || String::from_utf8_lossy(&asked.body).contains(word)
}

fn not_found(asked: &mut ReceivedRequest) {
    asked.write("HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}");
}

fn answer(asked: &mut ReceivedRequest, id: &str, status: &str) {
    let usage = match status {
        "completed" => json!({"input_tokens": 10, "output_tokens": 600}),
        _ => Value::Null,
    };
    // What a client wrote comes back, and looks like an end.
    let text = "\",\"status\":\"completed\",\"usage\":{\"input_tokens\":1,\"output_tokens\":1}".repeat(200);
    let tools = json!([{"status": "completed", "usage": {"input_tokens": 1, "output_tokens": 1}}]);
    let body = json!({"id": id, "status": status, "usage": usage, "tools": tools, "user": text});
    if !says(asked, "gzip") {
        return asked.answer(&body.to_string());
    }
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 2";
    asked.write(&format!("{head}\r\n\r\n\x1f?"));
}

impl Engine {
    fn start() -> Engine {
        let (statuses, gate) = (Arc::new(Mutex::new(HashMap::new())), Gate::default());
        let (known, waited_at) = (Arc::clone(&statuses), gate.clone());
        let engine = Scripted::new(move |mut asked| {
            let mut words = asked.head.split(' ');
            let method = words.next().unwrap().to_owned();
            let path = words.next().unwrap().split('?').next().unwrap().to_owned();
            let Some(name) = path.strip_prefix("/v1/responses/") else {
                let id = format!("resp_{}", asked.turn);
                known.lock().unwrap().insert(id.clone(), "queued");
                if says(&asked, "wait") {
                    waited_at.pass();
                }
                return answer(&mut asked, &id, "queued");
            };
            if says(&asked, "wait") {
                waited_at.pass();
            }
            let (id, rest) = name.split_once('/').unwrap_or((name, ""));
            let status = known.lock().unwrap().get(id).copied();
            match (&*method, rest, status) {
                (_, _, None) => not_found(&mut asked),
                ("GET", "", Some(status)) => answer(&mut asked, id, status),
                ("POST", "cancel", _) => {
                    known.lock().unwrap().insert(id.to_owned(), "cancelled");
                    answer(&mut asked, id, "cancelled");
                }
                ("DELETE", "", _) => {
                    known.lock().unwrap().remove(id);
                    asked.answer(&json!({"id": id, "deleted": true}).to_string());
                }
                ("GET", "input_items", _) => {
                    let item = json!({"id": "msg_1", "status": "completed", "role": "user"});
                    asked.answer(&json!({"object": "list", "data": [item]}).to_string());
                }
                _ => not_found(&mut asked),
            }
        });
        Engine { engine, statuses, gate }
    }

    fn set_all(&self, status: &'static str) {
        self.statuses.lock().unwrap().values_mut().for_each(|one| *one = status);
    }
}

fn limited(engines: &[&Engine]) -> (TempFolder, Gateway) {
    let (folder, keys) = key_file("background-places", KEYS);
    let urls: Vec<&str> = engines.iter().map(|engine| engine.engine.url.as_str()).collect();
    (folder, Gateway::over(&urls, &["--api-keys-file", &keys]))
}

fn send(gateway: &Gateway, key: &str, method: &str, path: &str, body: &str) -> Call {
    let key = format!("authorization: Bearer {key}");
    Call::send(gateway.url(), method, path, &[&key, "accept-encoding: gzip"], body.as_bytes())
}

fn make_with(gateway: &Gateway, key: &str, more: &str) -> Call {
    let body = format!(r#"{{"model":"m","input":"Hello","max_output_tokens":700{more}}}"#);
    send(gateway, key, "POST", "/v1/responses", &body)
}

fn make(gateway: &Gateway, key: &str) -> Response {
    make_with(gateway, key, r#","background":true"#).finish()
}

fn path_of(made: &Response) -> String {
    assert_eq!(made.status, 200, "{}", made.text());
    format!("/v1/responses/{}", made.json()["id"].as_str().unwrap())
}

fn code(response: &Response) -> (u16, String) {
    (response.status, response.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

fn refused() -> (u16, String) {
    (429, "concurrency_limit".to_owned())
}

#[test]
fn only_its_own_status_shows_that_a_response_has_ended() {
    let engine = Engine::start();
    let (_folder, gateway) = limited(&[&engine]);
    let path = path_of(&make(&gateway, "sk-one"));
    for status in ["queued", "in_progress"] {
        engine.set_all(status);
        for (method, path) in [
            ("GET", path.clone()),
            ("GET", format!("{path}?include=x&stream=false")),
            ("GET", format!("{path}?encoding=gzip")),
            ("GET", format!("{path}/input_items")),
            ("GET", format!("{path}/cancel")),
            ("GET", format!("{path}/nothing")),
            ("POST", format!("{path}/nothing")),
            ("HEAD", path.clone()),
        ] {
            send(&gateway, "sk-one", method, &path, "").finish_if_begun();
            assert_eq!(code(&make(&gateway, "sk-one")), refused(), "{status}: {method} {path}");
        }
    }
    engine.set_all("completed");
    assert_eq!(send(&gateway, "sk-one", "GET", &format!("{path}?x=gzip"), "").finish().status, 200);
    assert_eq!(code(&make(&gateway, "sk-one")), refused(), "what cannot be read shows nothing");
    assert_eq!(send(&gateway, "sk-one", "GET", &path, "").finish().json()["status"], "completed");
    assert_eq!(make(&gateway, "sk-one").status, 200);
}

#[test]
fn a_response_counts_however_it_was_asked_for() {
    for more in [
        r#","background":true,"store":false"#,
        r#","background":1"#,
        r#","background":1e0"#,
        r#","background":"yes""#,
        r#","background":true,"user":"gzip""#,
    ] {
        let engine = Engine::start();
        let (_folder, gateway) = limited(&[&engine]);
        assert_eq!(make_with(&gateway, "sk-one", more).finish().status, 200, "{more}");
        assert_eq!(code(&make(&gateway, "sk-one")), refused(), "{more}");
        assert_eq!(make(&gateway, "sk-two").status, 200);
    }
    let engine = Engine::start();
    let (_folder, gateway) = limited(&[&engine]);
    for _ in 0..4 {
        let chat =
            send(&gateway, "sk-one", "POST", "/v1/chat/completions", r#"{"model":"m","background":true}"#);
        assert_ne!(chat.finish().status, 429, "another API has no background");
    }
}

#[test]
fn a_client_that_leaves_before_the_answer_frees_nothing() {
    let engine = Engine::start();
    let (_folder, gateway) = limited(&[&engine]);
    let call = make_with(&gateway, "sk-one", r#","background":true,"user":"wait""#);
    engine.engine.wait_for_asked(1);
    call.hang_up();
    gateway.wait_for_idle();
    assert_eq!(code(&make(&gateway, "sk-one")), refused());
    // The same by tokens: two of 700 are left open, and a third does not fit.
    for _ in 0..2 {
        let before = engine.engine.asked();
        let call = make_with(&gateway, "sk-few", r#","background":true,"user":"wait""#);
        engine.engine.wait_for_asked(before + 1);
        call.hang_up();
    }
    gateway.wait_for_idle();
    assert_eq!(code(&make(&gateway, "sk-few")), (429, "rate_limit_tokens".to_owned()));
    engine.gate.open();
}

#[test]
fn a_response_that_its_worker_does_not_know_any_more_is_let_go_at_once() {
    let engines = [Engine::start(), Engine::start()];
    let (_folder, gateway) = limited(&[&engines[0], &engines[1]]);
    let path = path_of(&make(&gateway, "sk-one"));
    assert_eq!(code(&make(&gateway, "sk-one")), refused());
    engines.iter().for_each(|engine| engine.statuses.lock().unwrap().clear());
    assert_eq!(send(&gateway, "sk-one", "GET", &path, "").finish().status, 404);
    let made = make(&gateway, "sk-one");
    let path = path_of(&made);
    let worker = made.header("x-warmroute-worker").unwrap().to_owned();
    let listed = |gateway: &Gateway| gateway.workers().iter().any(|one| one["url"] == worker);
    let removed = Call::send(gateway.admin(), "DELETE", &format!("/workers?url={worker}"), &[], b"").finish();
    assert!(removed.status < 300, "{}", removed.text());
    eventually("the worker has left", || (!listed(&gateway)).then_some(()));
    assert_eq!(send(&gateway, "sk-one", "GET", &path, "").finish().status, 404);
    assert_eq!(make(&gateway, "sk-one").status, 200);
}

#[test]
fn requests_for_a_running_response_count() {
    let engine = Engine::start();
    let (_folder, gateway) = limited(&[&engine]);
    // One place, one response: one request for it at a time.
    let path = path_of(&make(&gateway, "sk-one"));
    let before = engine.engine.asked();
    let poll = send(&gateway, "sk-one", "GET", &format!("{path}?wait"), "");
    engine.engine.wait_for_asked(before + 1);
    for body in ["", "{}"] {
        assert_eq!(code(&send(&gateway, "sk-one", "GET", &path, body).finish()), refused());
    }
    // Two places: a response and two requests for it, or one and another request.
    let two = path_of(&make(&gateway, "sk-two"));
    let polls: Vec<Call> =
        (0..2).map(|_| send(&gateway, "sk-two", "GET", &format!("{two}?wait"), "")).collect();
    engine.engine.wait_for_asked(before + 4);
    assert_eq!(code(&send(&gateway, "sk-two", "GET", &two, "").finish()), refused());
    assert_eq!(code(&make(&gateway, "sk-two")), refused());
    engine.gate.open();
    for call in polls.into_iter().chain([poll]) {
        assert_eq!(call.finish().status, 200);
    }
    // Rates count too, and tokens do not.
    let path = path_of(&make(&gateway, "sk-rate"));
    for _ in 0..4 {
        assert_eq!(send(&gateway, "sk-rate", "GET", &path, "").finish().status, 200);
    }
    let refusal = code(&send(&gateway, "sk-rate", "GET", &path, "").finish());
    assert_eq!(refusal, (429, "rate_limit_requests".to_owned()));
    let made = [make(&gateway, "sk-few"), make(&gateway, "sk-few")];
    assert_eq!(code(&make(&gateway, "sk-few")), (429, "rate_limit_tokens".to_owned()));
    for _ in 0..20 {
        assert_eq!(send(&gateway, "sk-few", "GET", &path_of(&made[0]), "").finish().status, 200);
    }
}

#[test]
fn what_frees_a_place_is_not_refused_for_want_of_one() {
    for body in ["", "{}", r#"{"reason":"x","max_tokens":100000}"#] {
        let engine = Engine::start();
        let (_folder, gateway) = limited(&[&engine]);
        let path = path_of(&make(&gateway, "sk-one"));
        let before = engine.engine.asked();
        let poll = send(&gateway, "sk-one", "GET", &format!("{path}?wait"), "");
        engine.engine.wait_for_asked(before + 1);
        let cancelled = send(&gateway, "sk-one", "POST", &format!("{path}/cancel"), body).finish();
        assert_eq!((cancelled.status, &cancelled.json()["status"]), (200, &json!("cancelled")), "{body}");
        engine.gate.open();
        assert_eq!(poll.finish().status, 200);
        let path = path_of(&make(&gateway, "sk-one"));
        assert_eq!(send(&gateway, "sk-one", "DELETE", &path, body).finish().status, 200, "{body}");
        assert_eq!(make(&gateway, "sk-one").status, 200);
    }
}

/// A stream shows that its response has ended; a part of it, or the client's text in it, does not.
#[test]
fn a_streamed_response_counts_until_its_final_event() {
    let engine = Scripted::new(|mut asked| {
        let body = String::from_utf8_lossy(&asked.body).into_owned();
        asked.begin_events();
        let created =
            json!({"type": "response.created", "response": {"id": "resp_1", "status": "completed"}});
        asked.chunk(&format!("event: response.created\ndata: {created}\n\n"));
        let text = "event: response.completed\ndata: {\"type\":\"response.completed\"}\n\n";
        let delta = json!({"type": "response.output_text.delta", "delta": text});
        asked.chunk(&format!("event: response.output_text.delta\ndata: {delta}\n\n"));
        if body.contains("whole") {
            let usage = json!({"input_tokens": 1, "output_tokens": 2});
            let ended = json!({"type": "response.completed", "response": {"id": "resp_1", "usage": usage}});
            asked.chunk(&format!("event: response.completed\ndata: {ended}\n\n"));
            return asked.end_chunks();
        }
        asked.wait_for_hang_up_or_close();
    });
    let (_folder, keys) = key_file("background-stream", KEYS);
    let gateway = Gateway::over(&[&engine.url], &["--api-keys-file", &keys]);
    let stream = |text: &str| {
        make_with(&gateway, "sk-one", &format!(r#","background":true,"stream":true,"user":"{text}""#))
    };
    assert_eq!((stream("whole").finish().status, stream("whole").finish().status), (200, 200));
    let mut part = stream("part");
    part.read_until("output_text.delta");
    part.hang_up();
    gateway.wait_for_idle();
    assert_eq!(code(&stream("whole").finish()), refused());
    assert_eq!(post(gateway.url(), "/v1/responses", "{}").status, 401);
}
