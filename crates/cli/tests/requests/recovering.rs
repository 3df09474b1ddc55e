//! Retries, breakers and backpressure over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::client::{Response, chat, chat_stream, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, engine, engine_on};
use crate::harness::script::{ReceivedRequest, Scripted};
use serde_json::{Value, json};

/// An engine that answers every request.
fn good() -> Scripted {
    Scripted::new(|mut asked| asked.answer("{\"from\":\"good\"}"))
}

/// An engine that always gives this response.
fn saying(status: &'static str, retry_after: Option<u32>) -> Scripted {
    Scripted::new(move |mut asked| {
        let retry_after = retry_after.map(|s| format!("retry-after: {s}\r\n")).unwrap_or_default();
        asked.write(&format!("HTTP/1.1 {status}\r\n{retry_after}content-length: 2\r\n\r\nno"));
    })
}

fn ask(gateway: &Gateway) -> Response {
    post(gateway.url(), "/v1/chat/completions", &chat("m"))
}

fn worker(gateway: &Gateway, url: &str) -> Value {
    gateway.workers().into_iter().find(|worker| worker["url"] == url).unwrap()
}

#[test]
fn a_retryable_answer_is_retried_on_another_worker() {
    for (status, retry_after) in [
        ("502 Bad Gateway", None),
        ("503 Service Unavailable", None),
        ("503 Service Unavailable", Some(1)),
        ("504 Gateway Timeout", None),
        ("429 Too Many Requests", Some(1)),
    ] {
        let (bad, good) = (saying(status, retry_after), good());
        let gateway = Gateway::over(&[&bad.url, &good.url], &["--policy", "round_robin"]);
        while bad.asked() == 0 {
            let response = ask(&gateway);
            assert_eq!((response.status, response.json()), (200, json!({"from": "good"})), "{status}");
        }
        assert_eq!(gateway.metric("warmroute_retries_total"), 1.0, "{status}");
        gateway.wait_for_idle();
    }
}

#[test]
fn client_errors_are_not_retried() {
    for status in
        ["400 Bad Request", "401 Unauthorized", "429 Too Many Requests", "500 Internal Server Error"]
    {
        let engines = [saying(status, None), saying(status, None)];
        let gateway =
            Gateway::over(&[&engines[0].url, &engines[1].url], &["--health-failure-threshold", "1"]);
        for _ in 0..6 {
            let response = ask(&gateway);
            assert!(status.starts_with(&response.status.to_string()));
            assert_eq!(response.text(), "no");
        }
        assert_eq!(engines.iter().map(Scripted::asked).sum::<usize>(), 6, "{status}");
        assert!(gateway.workers().iter().all(|worker| worker["breaker"] == "closed"), "{status}");
    }
}

#[test]
fn when_no_worker_is_left_the_last_answer_passes_unchanged() {
    let busy = [saying("429 Too Many Requests", Some(7)), saying("429 Too Many Requests", Some(7))];
    let gateway = Gateway::over(&[&busy[0].url, &busy[1].url], &[]);
    let response = ask(&gateway);
    assert_eq!((response.status, response.text().as_str(), response.complete), (429, "no", true));
    assert_eq!(response.header("retry-after"), Some("7"));
    assert_eq!(busy.each_ref().map(Scripted::asked), [1, 1]);
}

#[test]
fn a_busy_worker_is_avoided_for_its_retry_after_without_a_failure() {
    let (busy, good) = (saying("429 Too Many Requests", Some(600)), good());
    let gateway = Gateway::over(
        &[&busy.url, &good.url],
        &["--policy", "round_robin", "--health-failure-threshold", "1"],
    );
    for _ in 0..30 {
        assert_eq!(ask(&gateway).status, 200);
    }
    assert_eq!(busy.asked(), 1, "asked once, and not again");
    let view = worker(&gateway, &busy.url);
    assert_eq!((&view["state"], &view["breaker"]), (&json!("ready"), &json!("closed")));
    let rests_ms = view["rests_ms"].as_f64().unwrap();
    assert!(
        (1.0..=10_100.0).contains(&rests_ms),
        "it asked for ten minutes and gets ten seconds: {rests_ms}"
    );
    assert_eq!(gateway.metric_sum("warmroute_worker_backpressure_total"), 1.0);
}

#[test]
fn an_outage_is_not_amplified_by_retries() {
    const REQUESTS: usize = 200;
    let bad = [0; 4].map(|_| saying("503 Service Unavailable", None));
    let urls: Vec<&str> = bad.iter().map(|engine| engine.url.as_str()).collect();
    let gateway = Gateway::over(&urls, &["--retry-max-retries", "3"]);
    let begun = Instant::now();
    for _ in 0..REQUESTS {
        assert_eq!((ask(&gateway).status, ask(&gateway).text().as_str()), (503, "no"));
    }
    let sent: usize = bad.iter().map(Scripted::asked).sum();
    // The free retries are granted once in thirty seconds.
    let free = 10 * (1 + begun.elapsed().as_secs() as usize / 30);
    let most = 2 * REQUESTS + 2 * REQUESTS / 5 + free;
    println!("{} requests, {sent} sent upstream, at most {most}", 2 * REQUESTS);
    assert!(sent <= most && sent > 2 * REQUESTS, "{sent}");
    assert!(gateway.metric("warmroute_retries_denied_total") > 0.0);
}

#[test]
fn a_worker_with_failing_requests_and_healthy_probes_is_ejected_and_tried_one_request_at_a_time() {
    let is_well = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_well);
    let bad = Scripted::new(move |mut asked| match seen.load(Ordering::SeqCst) {
        true => asked.answer("{\"from\":\"recovered\"}"),
        false => asked.reset(),
    });
    let good = good();
    let gateway = Gateway::over(&[&bad.url, &good.url], &["--policy", "round_robin"]);
    eventually("its breaker opens", || {
        assert_eq!(ask(&gateway).status, 200, "clients see nothing of it");
        (worker(&gateway, &bad.url)["breaker"] == "open").then_some(())
    });
    assert_eq!(bad.asked(), 3, "three failures in a row");
    eventually("it is to be tried", || (worker(&gateway, &bad.url)["state"] == "recovering").then_some(()));
    assert_eq!(worker(&gateway, &bad.url)["breaker"], "half_open");
    while bad.asked() == 3 {
        assert_eq!(ask(&gateway).status, 200);
    }
    // The trial failed, so the worker is out again; now it recovers.
    is_well.store(true, Ordering::SeqCst);
    let since = Instant::now();
    eventually("it serves again", || (ask(&gateway).json() == json!({"from": "recovered"})).then_some(()));
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    eventually("it is ready", || (worker(&gateway, &bad.url)["state"] == "ready").then_some(()));
    assert!(gateway.metric_sum("warmroute_worker_breaker_openings_total") >= 2.0);
}

#[test]
fn a_worker_that_waits_for_its_trial_is_still_observed() {
    let (failing, serving) = (engine(&[]), engine(&[]));
    let gateway = Gateway::over(&[failing.url(), serving.url()], &["--policy", "round_robin"]);
    let fault = r#"{"kind":"reset"}"#;
    assert_eq!(post(failing.url(), "/fault", fault).status, 200);
    let state = || worker(&gateway, failing.url())["state"].clone();
    eventually("it fails", || {
        post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b"));
        (state() == "unhealthy").then_some(())
    });
    eventually("it is to be tried", || (state() == "recovering").then_some(()));
    let since = Instant::now();
    eventually("its load is reported again", || {
        let age_ms = worker(&gateway, failing.url())["report"]["age_ms"].as_f64()?;
        (age_ms < since.elapsed().as_secs_f64() * 1e3).then_some(())
    });
    assert_eq!(state(), "recovering", "no request has come");
}

#[test]
fn a_restarted_worker_is_used_within_two_seconds() {
    let (staying, dying) = (engine(&[]), engine(&[]));
    let port = dying.url().rsplit(':').next().unwrap().to_owned();
    let gateway = Gateway::over(&[staying.url(), dying.url()], &["--policy", "round_robin"]);
    dying.signal("-KILL");
    dying.wait();
    let ask = || post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b"));
    for _ in 0..20 {
        assert_eq!(ask().status, 200);
    }
    eventually("it is out", || {
        gateway.workers().iter().any(|worker| worker["breaker"] == "open").then_some(())
    });
    let back = engine_on(&port, &[]);
    let since = Instant::now();
    eventually("it is used again", || (ask().header("x-warmroute-worker") == Some(back.url())).then_some(()));
    println!("used again after {:?}", since.elapsed());
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
}

#[test]
fn a_worker_that_becomes_slow_is_avoided() {
    let is_slow = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_slow);
    let streams = |mut asked: ReceivedRequest| {
        asked.begin_events();
        asked.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n");
        asked.end_chunks();
    };
    let slow = Scripted::new(move |asked| {
        if seen.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(500));
        }
        streams(asked);
    });
    let others = [0; 3].map(|_| Scripted::new(streams));
    let urls = [&*slow.url, &others[0].url, &others[1].url, &others[2].url];
    let gateway = Gateway::over(&urls, &["--policy", "round_robin"]);
    let ask = || assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat_stream("m", 1)).status, 200);
    (0..80).for_each(|_| ask());
    is_slow.store(true, Ordering::SeqCst);
    let before = slow.asked();
    eventually("it is left alone", || {
        ask();
        (gateway.metric_sum("warmroute_worker_ejections_total") > 0.0).then_some(())
    });
    println!("after {} slow answers", slow.asked() - before);
    assert!(worker(&gateway, &slow.url)["rests_ms"].as_f64().unwrap() > 5_000.0);
    assert_eq!(worker(&gateway, &slow.url)["state"], "ready");
    let before = slow.asked();
    (0..20).for_each(|_| ask());
    assert_eq!(slow.asked(), before, "nothing is sent there");
}
