//! Limits of a key across routers: clients that spread their requests over all routers get no more than at one, and
//! clients of one router no less.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::{ask_as, key_file};
use crate::harness::client::{Call, Response, get};
use crate::harness::eventually;
use crate::harness::gate::Gate;
use crate::harness::process::Gateway;
use crate::harness::redis::RedisServer;
use crate::harness::script::Scripted;
use crate::harness::temp_folder::TempFolder;

/// Several keys of each kind, because each may have another home.
const KEYS: &str = "sk-r0 name=r0 requests-per-minute=60\nsk-r1 name=r1 requests-per-minute=60\n\
    sk-r2 name=r2 requests-per-minute=60\nsk-r3 name=r3 requests-per-minute=60\n\
    sk-t0 name=t0 tokens-per-minute=6000\nsk-t1 name=t1 tokens-per-minute=6000\n\
    sk-c0 name=c0 concurrent-requests=10\nsk-c1 name=c1 concurrent-requests=10\nsk-c2 name=c2 concurrent-requests=10\n\
    sk-fast name=fast requests-per-minute=1200\nsk-q name=q queue-share=40%\nsk-free name=free\n";

const BODY: &str = r#"{"model":"m","max_tokens":90,"messages":[{"role":"user","content":"Hello"}]}"#;

/// Each answer takes a hundred tokens.
const ANSWER: &str = r#"{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":90}}"#;

struct Routers {
    all: Vec<Gateway>,
    _folders: [TempFolder; 2],
}

/// Three routers over this engine, which share by mesh or by this server.
fn routers(engine: &Scripted, redis: Option<&str>, more: &[&str]) -> Routers {
    let (folder, keys) = key_file("shared-limits", KEYS);
    let secrets = TempFolder::new("shared-limits-secret");
    let secret = secrets.file("secret");
    std::fs::write(&secret, "a secret that only these routers know\n").unwrap();
    let flags = ["--api-keys-file", &keys, "--share-secret-file", &secret];
    let flags = [&flags[..], more].concat();
    let start = |share: &[&str]| Gateway::over(&[&engine.url], &[&flags[..], share].concat());
    let all = match redis {
        Some(url) => (0..3).map(|_| start(&["--share", url])).collect(),
        None => {
            let mesh = ["--share", "mesh", "--mesh-listen", "127.0.0.1:0"];
            let first = start(&mesh);
            let page = get(first.admin(), "/peers").json();
            let seed = page["transport"]["listening"].as_str().unwrap().to_owned();
            let others = [&mesh[..], &["--mesh-peers", &seed]].concat();
            let others = [start(&others), start(&others)];
            std::iter::once(first).chain(others).collect()
        }
    };
    let routers = Routers { all, _folders: [folder, secrets] };
    routers.wait_for_peers(2);
    routers
}

impl Routers {
    fn wait_for_peers(&self, count: usize) {
        for router in &self.all {
            eventually("the routers hear each other", || {
                let page = get(router.admin(), "/peers").json();
                let peers = page["peers"].as_array()?;
                (peers.len() == count).then_some(())
            });
        }
    }

    /// Sends this many requests at once to these routers in turn.
    fn burst(&self, key: &str, requests: usize, to: Range<usize>) -> Vec<Response> {
        let (responses, turn) = (Mutex::new(Vec::new()), AtomicU64::new(0));
        let routers = &self.all[to];
        thread::scope(|scope| {
            for _ in 0..30 {
                scope.spawn(|| {
                    loop {
                        let turn = turn.fetch_add(1, Relaxed) as usize;
                        if turn >= requests {
                            return;
                        }
                        let response = ask_as(routers[turn % routers.len()].url(), key, BODY);
                        responses.lock().unwrap().push(response);
                    }
                });
            }
        });
        responses.into_inner().unwrap()
    }
}

fn served(responses: &[Response], refusal: &str) -> f64 {
    for response in responses.iter().filter(|response| response.status != 200) {
        assert_eq!(response.status, 429, "{}", response.text());
        assert_eq!(response.json()["error"]["code"], refusal);
        assert!(response.header("retry-after").is_some());
    }
    responses.iter().filter(|response| response.status == 200).count() as f64
}

/// Whether this many of a limit of 60 a minute were served since then.
fn assert_is_limit(what: &str, served: f64, since: Instant) {
    let refilled = since.elapsed().as_secs_f64();
    assert!((57.0..=63.0 + 1.05 * refilled).contains(&served), "{what}: {served} in {refilled} s");
}

fn rates_hold(routers: &Routers) {
    for (key, to) in [("sk-r0", 0..3), ("sk-r1", 0..3), ("sk-r2", 0..1), ("sk-r3", 1..2)] {
        let since = Instant::now();
        let responses = routers.burst(key, 150, to.clone());
        assert_is_limit(&format!("{key} at {to:?}"), served(&responses, "rate_limit_requests"), since);
    }
    for (key, to) in [("sk-t0", 0..3), ("sk-t1", 2..3)] {
        let since = Instant::now();
        let responses = routers.burst(key, 150, to.clone());
        // Requests in flight may have reserved what they do not use: a few of them are refused too early.
        let more = routers.burst(key, 60, to.clone());
        let served = served(&responses, "rate_limit_tokens") + served(&more, "rate_limit_tokens");
        assert_is_limit(&format!("{key} at {to:?}"), served, since);
    }
}

/// Uses up the limit of a key; returns when. Requests go on until all routers have heard of it, which takes a tenth of a
/// second.
fn use_up(routers: &Routers, key: &str) -> Instant {
    let is_refused = |response: &Response| response.status == 429;
    let first = eventually("the limit is used up", || {
        routers.burst(key, 300, 0..3).iter().any(is_refused).then(Instant::now)
    });
    while first.elapsed() < Duration::from_secs(1) {
        routers.burst(key, 30, 0..3);
    }
    Instant::now()
}

/// Each router has the limit alone since then: 20 requests a second.
fn cut_off_routers_have_the_limit_alone(routers: &Routers, used_up: Instant) {
    let before = Instant::now();
    let counts: Vec<f64> = thread::scope(|scope| {
        let flood = |number: usize| {
            move || {
                let mut count = 0;
                while before.elapsed() < Duration::from_secs(3) {
                    count += usize::from(ask_as(routers.all[number].url(), "sk-fast", BODY).status == 200);
                }
                count as f64
            }
        };
        let floods: Vec<_> = (0..3).map(|number| scope.spawn(flood(number))).collect();
        floods.into_iter().map(|flood| flood.join().unwrap()).collect()
    });
    let allowed = 20.0 * used_up.elapsed().as_secs_f64();
    let all: f64 = counts.iter().sum();
    // A router may have heard of the last requests before the cut a tenth of a second late.
    assert!(counts.iter().all(|count| *count <= 1.05 * allowed + 10.0), "{counts:?} of {allowed}");
    assert!(all > 1.5 * allowed, "{counts:?} of {allowed} each");
}

#[test]
fn rates_of_a_key_hold_across_the_routers_of_a_mesh() {
    let engine = Scripted::new(|mut asked| asked.answer(ANSWER));
    let routers = routers(&engine, None, &[]);
    rates_hold(&routers);
}

#[test]
fn rates_of_a_key_hold_across_routers_that_share_by_redis_and_per_router_without_it() {
    let Some(server) = RedisServer::start() else { return };
    let engine = Scripted::new(|mut asked| asked.answer(ANSWER));
    let routers = routers(&engine, Some(&server.url()), &[]);
    rates_hold(&routers);
    let used_up = use_up(&routers, "sk-fast");
    drop(server);
    routers.wait_for_peers(0);
    cut_off_routers_have_the_limit_alone(&routers, used_up);
}

#[test]
fn concurrent_requests_of_a_key_are_counted_over_all_routers() {
    let gate = Arc::new(Mutex::new(Gate::default()));
    let at = Arc::clone(&gate);
    let engine = Scripted::new(move |mut asked| {
        let gate = at.lock().unwrap().clone();
        gate.pass();
        asked.answer(ANSWER);
    });
    let routers = routers(&engine, None, &[]);
    for (key, to) in [("sk-c0", 0..3), ("sk-c1", 0..1), ("sk-c2", 0..3)] {
        let closed = Gate::default();
        *gate.lock().unwrap() = closed.clone();
        let (before, authorization) = (engine.asked(), format!("authorization: Bearer {key}"));
        let headers = [authorization.as_str(), "content-type: application/json"];
        let send = |router: usize| {
            let url = routers.all[to.clone()][router % to.len()].url();
            Call::send(url, "POST", "/v1/chat/completions", &headers, BODY.as_bytes())
        };
        let mut calls: Vec<Call> = (0..30).map(send).collect();
        let mut refused = 0;
        eventually("20 of 30 are refused", || {
            calls.retain_mut(|call| {
                let is_refused = call.has_come("concurrency_limit");
                refused += usize::from(is_refused);
                !is_refused
            });
            (refused >= 20).then_some(())
        });
        engine.wait_for_asked(before + 10);
        assert_eq!((refused, calls.len()), (20, 10), "{key} at {to:?}");
        closed.open();
        calls.into_iter().for_each(|call| assert_eq!(call.finish().status, 200));
        // The home hears of the ends a moment later.
        eventually("the places are free again", || (send(1).finish().status == 200).then_some(()));
    }
}

#[test]
fn a_key_has_no_more_than_its_share_of_the_queue() {
    let gate = Gate::default();
    let at = gate.clone();
    let engine = Scripted::new(move |mut asked| {
        at.pass();
        asked.answer(ANSWER);
    });
    let (_folder, keys) = key_file("queue-share", KEYS);
    let flags = ["--api-keys-file", &keys, "--max-concurrent-requests", "1", "--queue-size", "10"];
    let gateway = Gateway::over(&[&engine.url], &flags);
    let send = |key: &str| {
        let authorization = format!("authorization: Bearer {key}");
        let headers = [authorization.as_str(), "content-type: application/json"];
        Call::send(gateway.url(), "POST", "/v1/chat/completions", &headers, BODY.as_bytes())
    };
    let first = send("sk-free");
    engine.wait_for_asked(1);
    let waiting: Vec<Call> = (0..4).map(|_| send("sk-q")).collect();
    crate::harness::gated::wait_for_waiting(&gateway, 4);
    let refused = send("sk-q").finish();
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (429, Some("queue_share_full")));
    let other = send("sk-free");
    crate::harness::gated::wait_for_waiting(&gateway, 5);
    gate.open();
    for call in waiting.into_iter().chain([first, other]) {
        assert_eq!(call.finish().status, 200);
    }
}
