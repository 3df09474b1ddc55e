//! Workers that accept requests and stall: every wait has a limit, and the client gets an error.

use std::time::{Duration, Instant};

use crate::harness::client::{Call, Response, chat, chat_stream, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, engine};
use crate::harness::script::Scripted;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

/// An engine that accepts requests, never answers, and notices when the gateway gives up.
fn hanging() -> Scripted {
    Scripted::new(|mut asked| asked.wait_for_hang_up())
}

/// The text after the first event.
fn last_event(response: &Response) -> Value {
    let text = response.text();
    let last = text.trim_end().rsplit("\n\n").next().unwrap().trim();
    serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap()
}

#[test]
fn a_worker_that_hangs_before_the_first_byte_is_given_up_for_another() {
    let hanging = hanging();
    let good = Scripted::new(|mut asked| asked.answer("{}"));
    let gateway = Gateway::over(
        &[&hanging.url, &good.url],
        &["--policy", "round_robin", "--first-byte-timeout-secs", "1"],
    );
    while hanging.asked() == 0 {
        let response = post(gateway.url(), PATH, &chat("m"));
        assert_eq!(response.header("x-warmroute-worker"), Some(good.url.as_str()));
    }
    gateway.wait_for_idle();
    hanging.check();
}

#[test]
fn when_the_only_worker_hangs_the_client_gets_a_504() {
    let hanging = hanging();
    let gateway = Gateway::over(&[&hanging.url], &["--first-byte-timeout-secs", "1"]);
    let response = post(gateway.url(), PATH, &chat("m"));
    assert_eq!((response.status, response.json()["error"]["code"].as_str()), (504, Some("worker_timeout")));
    gateway.wait_for_idle();
    hanging.check();
}

#[test]
fn a_stream_that_falls_silent_ends_with_an_error_event() {
    let silent = Scripted::new(|mut asked| {
        asked.begin_events();
        asked.chunk("data: {\"n\":1}\n\n");
        asked.wait_for_hang_up();
    });
    let gateway = Gateway::over(&[&silent.url], &["--idle-timeout-secs", "1"]);
    let response = post(gateway.url(), PATH, &chat_stream("m", 9));
    assert!(response.complete, "a clean end");
    assert!(response.text().starts_with("data: {\"n\":1}\n\n"));
    assert_eq!(last_event(&response)["error"]["code"], "worker_timeout");
    let anthropic = post(gateway.url(), "/v1/messages", &chat_stream("m", 9)).text();
    assert!(anthropic.contains("event: error\ndata: {\"error\":"), "{anthropic}");
    gateway.wait_for_idle();
    silent.check();
}

#[test]
fn a_stream_that_pauses_within_the_timeout_continues() {
    let slow = Scripted::new(|mut asked| {
        asked.begin_events();
        for _ in 0..4 {
            asked.chunk("data: {\"n\":1}\n\n");
            // The pauses together exceed the timeout, but none alone.
            std::thread::sleep(Duration::from_millis(600));
        }
        asked.chunk("data: [DONE]\n\n");
        asked.end_chunks();
    });
    let gateway = Gateway::over(&[&slow.url], &["--idle-timeout-secs", "2"]);
    let response = post(gateway.url(), PATH, &chat_stream("m", 9));
    assert!(response.complete && response.text().ends_with("data: [DONE]\n\n"), "{}", response.text());
}

#[test]
fn a_request_ends_at_its_time_limit() {
    let endless = Scripted::new(|mut asked| {
        asked.begin_events();
        // Writes until the gateway closes the connection.
        while std::io::Write::write_all(&mut asked.stream, b"a\r\ndata: {}\n\n\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let gateway =
        Gateway::over(&[&endless.url], &["--request-timeout-secs", "1", "--health-failure-threshold", "1"]);
    let response = post(gateway.url(), PATH, &chat_stream("m", 9));
    assert!(response.complete, "a clean end");
    let told = last_event(&response)["error"].clone();
    assert_eq!(told["code"], "request_timeout");
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("request-timeout-secs") && !message.contains("worker"), "{message}");
    gateway.wait_for_idle();
    assert_eq!(gateway.workers()[0]["breaker"], "closed", "it was not the worker's fault");
    let ended = |gateway: &Gateway, outcome: &str| {
        let worker = gateway.workers()[0]["url"].as_str().unwrap().to_owned();
        gateway.metric(&format!("warmroute_requests_total{{worker=\"{worker}\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!((ended(&gateway, "cut"), ended(&gateway, "failed")), (1.0, 0.0));

    let silent = hanging();
    let gateway = Gateway::over(&[&silent.url], &["--request-timeout-secs", "1"]);
    let response = post(gateway.url(), PATH, &chat("m"));
    let told = &response.json()["error"];
    assert_eq!((response.status, told["code"].as_str()), (504, Some("request_timeout")));
    assert_eq!(told["message"].as_str(), Some(message), "before the first byte, too");
    assert_eq!((ended(&gateway, "cut"), ended(&gateway, "failed")), (1.0, 0.0));
}

/// An engine that streams until the connection closes.
fn endless() -> Scripted {
    Scripted::new(|mut asked| {
        asked.begin_events();
        let event = format!("data: {}\n\n", "x".repeat(60_000));
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        while std::io::Write::write_all(&mut asked.stream, chunk.as_bytes()).is_ok() {}
    })
}

#[test]
fn a_client_that_stops_reading_frees_its_slot_and_its_worker() {
    // Either the client reads nothing for too long, or the whole request takes too long.
    for timeout in ["--idle-timeout-secs", "--request-timeout-secs"] {
        let endless = endless();
        let gateway = Gateway::over(&[&endless.url], &[timeout, "2", "--max-concurrent-requests", "1"]);
        let body = chat_stream("m", 9);
        let mut unread = Call::send(gateway.url(), "POST", PATH, &[], body.as_bytes());
        unread.read_until("data: ");
        eventually("it is over", || (gateway.metric("warmroute_requests_running") == 0.0).then_some(()));
        let mut next = Call::send(gateway.url(), "POST", PATH, &[], body.as_bytes());
        next.read_until("data: ");
        next.hang_up();
        gateway.wait_for_idle();
        eventually("its connection is cut", || {
            (gateway.metric("warmroute_client_connections") == 0.0).then_some(())
        });
        drop(unread);
    }
}

#[test]
fn a_stopped_engine_keeps_no_request_waiting() {
    let (staying, stopping) = (engine(&[]), engine(&[]));
    let gateway = Gateway::over(
        &[staying.url(), stopping.url()],
        &["--policy", "round_robin", "--health-check-timeout-secs", "1", "--idle-timeout-secs", "1"],
    );
    let body = chat("llama-3.1-8b");
    let long = chat_stream("llama-3.1-8b", 100_000);
    // Two streams in flight, one on each engine.
    let mut streams = [0; 2].map(|_| Call::send(gateway.url(), "POST", PATH, &[], long.as_bytes()));
    streams.iter_mut().for_each(|stream| _ = stream.read_until("data: "));
    stopping.signal("-STOP");
    let since = Instant::now();
    // Some of these requests wait at the stopped engine.
    let calls: Vec<Call> =
        (0..6).map(|_| Call::send(gateway.url(), "POST", PATH, &[], body.as_bytes())).collect();
    for call in calls {
        let response = call.finish();
        assert_eq!((response.status, response.header("x-warmroute-worker")), (200, Some(staying.url())));
    }
    println!("everybody was served {:?} after the stop", since.elapsed());
    assert!(gateway.metric("warmroute_retries_total") >= 1.0);
    let state = |url: &str| {
        let view = gateway.workers().into_iter().find(|view| view["url"] == url);
        view.unwrap()["state"].clone()
    };
    assert_eq!((state(staying.url()), state(stopping.url())), (json!("ready"), json!("unhealthy")));
    let told = streams.map(|mut stream| stream.has_come("worker_timeout"));
    assert!(told[0] != told[1], "the stopped engine's stream was told; the other goes on: {told:?}");
    stopping.signal("-CONT");
    eventually("it is used again", || {
        let response = post(gateway.url(), PATH, &body);
        (response.header("x-warmroute-worker") == Some(stopping.url())).then_some(())
    });
}

#[test]
fn requests_that_wait_for_an_engine_that_is_killed_are_all_served_by_another() {
    let (staying, dying) = (engine(&[]), engine(&[]));
    let gateway = Gateway::over(&[staying.url(), dying.url()], &["--policy", "round_robin"]);
    assert_eq!(post(dying.url(), "/fault", r#"{"kind":"hang"}"#).status, 200);
    let body = chat("llama-3.1-8b");
    let calls: Vec<Call> =
        (0..20).map(|_| Call::send(gateway.url(), "POST", PATH, &[], body.as_bytes())).collect();
    eventually("half of them wait", || {
        let waiting = |view: &Value| view["url"] == dying.url() && view["in_flight"] == 10;
        gateway.workers().iter().any(waiting).then_some(())
    });
    dying.signal("-KILL");
    for call in calls {
        let response = call.finish();
        assert_eq!((response.status, response.header("x-warmroute-worker")), (200, Some(staying.url())));
    }
    println!("20 of 20 requests were served, 10 of which waited at the killed engine");
    assert_eq!(gateway.metric("warmroute_retries_total"), 10.0);
}
