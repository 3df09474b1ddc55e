//! Management of workers by RL frameworks and other routers' clients, on both listeners.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::client::{Call, Response, chat, get, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, engine, engine_on};
use crate::harness::script::Scripted;

fn call(url: &str, method: &str, path: &str, headers: &[&str]) -> Response {
    Call::send(url, method, path, headers, b"").finish()
}

fn encoded(url: &str) -> String {
    url.replace(':', "%3A").replace('/', "%2F")
}

fn urls(base: &str) -> Vec<String> {
    let listed = get(base, "/list_workers").json();
    listed["urls"].as_array().unwrap().iter().map(|url| url.as_str().unwrap().to_owned()).collect()
}

#[test]
fn adding_a_worker_can_wait_until_it_is_routable() {
    let gateway = Gateway::start(&[], &[]);
    let first = engine(&[]);
    let added = post(gateway.admin(), "/workers?wait=true", &json!({"url": first.url()}).to_string());
    assert_eq!(
        (added.status, &added.json()["workers"][0]["state"]),
        (200, &json!("ready")),
        "{}",
        added.text()
    );
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b")).status, 200);

    // An engine that is not there yet: the answer waits for it.
    let late = engine(&[]);
    let (url, port) = (late.url().to_owned(), late.url().rsplit(':').next().unwrap().to_owned());
    drop(late);
    let body = json!({"url": url, "wait": true, "worker_type": "regular"}).to_string();
    let mut waiting = Call::send(gateway.admin(), "POST", "/workers", &[], body.as_bytes());
    eventually("it has joined", || (urls(gateway.admin()).len() == 2).then_some(()));
    assert!(!waiting.has_come("HTTP/1.1"), "it is not routable yet");
    let _late = engine_on(&port, &[]);
    assert_eq!(waiting.finish().status, 200);

    let prefill = json!({"url": "http://127.0.0.1:1", "worker_type": "prefill"}).to_string();
    assert_eq!(post(gateway.admin(), "/workers", &prefill).status, 400);
    let removed = json!({"url": "http://127.0.0.1:1", "wait": true}).to_string();
    let waiting = Call::send(gateway.admin(), "POST", "/workers", &[], removed.as_bytes());
    eventually("it has joined", || (urls(gateway.admin()).len() == 3).then_some(()));
    assert_eq!(call(gateway.admin(), "DELETE", "/workers/http%3A%2F%2F127.0.0.1%3A1", &[]).status, 200);
    assert_eq!(waiting.finish().status, 409, "it will never be ready");
}

#[test]
fn the_names_of_other_routers_work_on_the_client_listener_where_allowed() {
    let worker = engine(&[]);
    let open = Gateway::start(&[], &["--client-worker-api", "open"]);
    let base = open.url();
    let path = format!("/add_worker?url={}", worker.url());
    assert_eq!(call(base, "POST", &path, &["origin: http://page"]).status, 403, "a web page");
    assert_eq!(call(base, "POST", &path, &[]).status, 200);
    assert_eq!(urls(base), [worker.url()]);
    assert_eq!(
        post(base, "/v1/chat/completions", &chat("llama-3.1-8b")).status,
        200,
        "it is routable at once"
    );
    assert_eq!(call(base, "POST", "/add_worker", &[]).status, 400);
    assert_eq!(call(base, "GET", "/add_worker?url=http://a", &[]).status, 405);
    assert_eq!(call(base, "POST", &format!("/remove_worker?url={}", encoded(worker.url())), &[]).status, 200);
    eventually("it has left", || urls(base).is_empty().then_some(()));
    assert_eq!(call(base, "POST", &format!("/remove_worker?url={}", worker.url()), &[]).status, 404);

    let closed = Gateway::start(&[], &[]);
    for path in ["/workers", "/list_workers"] {
        assert_eq!(call(closed.url(), "GET", path, &[]).status, 404, "{path}");
    }
    assert_eq!(call(closed.url(), "POST", &path, &[]).status, 404);
    assert_eq!(call(closed.url(), "POST", "/flush_cache", &[]).status, 404);
    assert_eq!(
        call(closed.url(), "POST", "/finish_session?session_id=1", &[]).status,
        200,
        "it changes nothing"
    );
    assert_eq!(call(closed.admin(), "POST", &path, &[]).status, 200);

    let guarded = Gateway::start(&[], &["--client-worker-api", "token", "--admin-token", "secret"]);
    assert_eq!(call(guarded.url(), "GET", "/list_workers", &[]).status, 401);
    let token = ["authorization: Bearer secret"];
    assert_eq!(call(guarded.url(), "POST", &path, &token).status, 200);
    assert_eq!(call(guarded.url(), "GET", "/list_workers", &token).json(), json!({"urls": [worker.url()]}));
}

/// The calls of slime and miles with sglang_router 0.3 and later: add by POST, list, delete by the listed `id`.
#[test]
fn rl_trainers_add_list_and_remove_their_engines() {
    let (first, second) = (engine(&[]), engine(&[]));
    let router = Gateway::start(&[], &["--client-worker-api", "open"]);
    let add = |url: &str| {
        let spec = json!({"url": url, "worker_type": "regular", "bootstrap_port": null, "priority": 50});
        post(router.url(), "/workers", &spec.to_string())
    };
    let added = add(first.url());
    assert_eq!((added.status, &added.json()["ignored"]), (202, &json!(["bootstrap_port", "priority"])));
    assert_eq!(add(second.url()).status, 202);
    router.wait_for_ready(2);
    let listed = call(router.url(), "GET", "/workers", &[]).json()["workers"].clone();
    let row = listed.as_array().unwrap().iter().find(|worker| worker["url"] == first.url()).unwrap().clone();
    assert_eq!(row["id"], added.json()["worker_id"]);
    let path = format!("/workers/{}", row["id"].as_str().unwrap());
    assert_eq!(call(router.url(), "DELETE", &path, &[]).status, 200);
    eventually("it has left", || (urls(router.url()) == [second.url()]).then_some(()));
    assert_eq!(call(router.url(), "DELETE", &path, &[]).status, 404);
}

#[test]
fn a_flush_empties_every_engine_and_what_is_presumed_about_it() {
    let vllm = engine(&["--model", "m"]);
    let flushed = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&flushed);
    let sglang = Scripted::new(move |mut asked| {
        kept.lock().unwrap().push(asked.head.lines().next().unwrap().to_owned());
        asked.answer("Cache flushed.");
    });
    let gateway = Gateway::over(&[vllm.url()], &[]);
    let words = "a prompt that is long enough to be cached in whole blocks ".repeat(20);
    let body =
        json!({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": words}]}).to_string();
    let predicted = || {
        let response = post(gateway.url(), "/v1/chat/completions", &body);
        gateway.wait_for_idle();
        let cached = response.header("x-warmroute-cached-tokens").unwrap().parse::<u32>().unwrap();
        let details = &response.json()["usage"]["prompt_tokens_details"];
        (cached, details["cached_tokens"].as_u64().unwrap_or(0))
    };
    assert_eq!(predicted(), (0, 0));
    let (expected, found) = predicted();
    assert!(expected > 0 && found > 0);
    let answer = call(gateway.admin(), "POST", "/flush_cache", &[]);
    assert_eq!((answer.status, &answer.json()["flushed"]), (200, &json!(true)), "{}", answer.text());
    assert_eq!(predicted(), (0, 0), "neither expected nor found");

    let added = post(gateway.admin(), "/workers?wait=true", &json!({"url": sglang.url}).to_string());
    assert_eq!(added.status, 200);
    assert_eq!(call(gateway.admin(), "POST", "/flush_cache", &[]).status, 200);
    assert_eq!(*flushed.lock().unwrap(), ["POST /flush_cache HTTP/1.1"]);
    assert_eq!(
        post(gateway.admin(), "/workers", &json!({"url": "http://127.0.0.1:1"}).to_string()).status,
        202
    );
    let partly = call(gateway.admin(), "POST", "/flush_cache", &[]);
    assert_eq!(partly.status, 502);
    let failed: Vec<Value> = partly.json()["engines"].as_array().unwrap().clone();
    let failed: Vec<&Value> = failed.iter().filter(|row| row["flushed"] == false).collect();
    assert_eq!((failed.len(), &failed[0]["url"]), (1, &json!("http://127.0.0.1:1")));
    assert!(failed[0]["error"].as_str().unwrap().contains("refused"), "{}", failed[0]);
}
