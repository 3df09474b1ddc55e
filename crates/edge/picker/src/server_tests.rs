//! Connections, calls that are not offered, health and drains.

use std::time::Duration;

use warmroute_gateway::{DrainMode, Drained};

use crate::Config;
use crate::test_client::Fixture;

const WORKER: &str = "http://10.0.0.1:8000";
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const CHECK: &str = "/grpc.health.v1.Health/Check";
const SERVING: [u8; 2] = [8, 1];
const NOT_SERVING: [u8; 2] = [8, 2];

#[tokio::test]
async fn bad_messages_and_unknown_calls_get_a_status() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let mut proxy = fixture.proxy().await;
    for (is_compressed, message, status) in [(0, &[0x0b][..], 3), (1, &[], 12), (0, &[0x12, 9], 3)] {
        let mut call = proxy.call().await;
        call.send_raw(is_compressed, message);
        assert_eq!(call.status().await, status, "{message:?}");
    }
    let mut call = proxy.call_to("/grpc.health.v1.Health/Watch").await;
    assert_eq!(call.status().await, 12);
    let mut call = proxy.call().await;
    call.close();
    assert_eq!(call.status().await, 0, "a stream without a message");
}

/// The body's limit is not the limit of messages that have no body.
#[tokio::test]
async fn first_messages_have_a_limit_of_their_own() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let mut proxy = fixture.proxy().await;
    for (path, bytes) in [(PROCESS, 2_000_000), (CHECK, 5_000)] {
        let mut call = proxy.call_to(path).await;
        call.send_start(bytes, &[0; 16]);
        assert_eq!(call.status().await, 8, "{path}: RESOURCE_EXHAUSTED");
    }
}

#[tokio::test]
async fn a_first_message_that_does_not_come_ends_its_stream() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let mut proxy = fixture.proxy().await;
    for (path, is_begun) in [(PROCESS, false), (PROCESS, true), (CHECK, false)] {
        let mut call = proxy.call_to(path).await;
        if is_begun {
            call.send_start(100, &[0; 16]);
        }
        call.answer_begins().await;
        // Timers run ahead from here on while nothing else happens.
        tokio::time::pause();
        assert_eq!(call.status().await, 4, "{path}: DEADLINE_EXCEEDED");
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_message_that_stops_in_its_middle_ends_its_stream() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let mut call = fixture.proxy().await.call().await;
    let head = [(":method", "POST"), (":path", "/v1/completions")];
    call.request_headers(Some((1, 0)), &head, false);
    assert_eq!(call.reply().await.destination(), "10.0.0.1:8000");
    call.send_start(100, &[0; 16]);
    tokio::time::pause();
    assert_eq!(call.status().await, 4, "DEADLINE_EXCEEDED");
}

/// An API server may be away for longer than clients are made to wait at the start.
#[tokio::test]
async fn a_picker_is_not_ready_until_its_workers_are_known() {
    let fixture = Fixture::start(&[], Config::default()).await;
    let mut proxy = fixture.proxy().await;
    let mut status = async |service: &'static str| {
        let mut check = proxy.call_to(CHECK).await;
        check.send(|request| request.bytes(1, service.as_bytes()));
        check.message().await.unwrap()
    };
    assert_eq!(status("readiness").await, NOT_SERVING[..]);
    assert_eq!(status("liveness").await, SERVING[..]);
    fixture.gateway.note_workers_known();
    assert_eq!(status("readiness").await, SERVING[..]);
}

#[tokio::test]
async fn a_draining_picker_says_so_and_finishes_its_streams() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let mut proxy = fixture.proxy().await;
    let mut check = proxy.call_to(CHECK).await;
    check.send(|request| request.bytes(1, b"inference-extension"));
    assert_eq!(check.message().await.unwrap(), SERVING[..]);
    assert_eq!(check.status().await, 0);
    let mut call = proxy.call().await;
    let head = [(":method", "POST"), (":path", "/v1/completions")];
    call.request_headers(Some((4, 0)), &head, false);
    let mut late = proxy.call_to(CHECK).await;
    fixture.drain.begin(DrainMode::KeepIdle);
    late.send(|_| {});
    assert_eq!(late.message().await.unwrap(), NOT_SERVING[..]);
    assert_eq!(late.status().await, 0);
    assert!(!fixture.serving.is_finished());
    call.request_body(br#"{"prompt":"x"}"#, true);
    assert_eq!(call.reply().await.destination(), "10.0.0.1:8000");
    assert_eq!(call.reply().await.body(3).0, br#"{"prompt":"x"}"#);
    assert_eq!(call.status().await, 0);
    drop((call, check, late, proxy));
    let drained = tokio::time::timeout(Duration::from_secs(20), fixture.serving).await;
    assert_eq!(drained.unwrap().unwrap(), Drained);
}

#[tokio::test]
async fn clients_that_leave_together_end_no_other_stream() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let mut proxy = fixture.proxy().await;
    let head = [(":method", "POST"), (":path", "/v1/completions")];
    let mut call = proxy.call().await;
    call.request_headers(Some((4, 0)), &head, false);
    for _ in 0..200 {
        proxy.call().await.leave();
    }
    call.request_body(br#"{"prompt":"x"}"#, true);
    assert_eq!(call.reply().await.destination(), "10.0.0.1:8000");
}

#[tokio::test]
async fn many_streams_share_a_connection() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let mut proxy = fixture.proxy().await;
    let mut calls = Vec::new();
    for _ in 0..2_000 {
        let mut call = proxy.call().await;
        let head = [(":method", "POST"), (":path", "/v1/completions")];
        call.request_headers(Some((4, 0)), &head, false);
        calls.push(call);
    }
    for mut call in calls {
        call.request_body(br#"{"prompt":"x"}"#, true);
        assert_eq!(call.reply().await.destination(), "10.0.0.1:8000");
        assert_eq!(call.reply().await.body(3), (br#"{"prompt":"x"}"#.to_vec(), true));
        assert_eq!(call.status().await, 0);
    }
}
