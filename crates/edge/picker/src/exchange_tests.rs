//! The protocol against a scripted proxy, over real sockets.

use crate::request::tests::metadata;
use crate::test_client::{Call, Fixture, Reply};
use crate::{Config, ConformanceHeaders, Feedback};
use warmroute_fleet::ModelCard;
use warmroute_protobuf::MessageWriter;
use warmroute_router::Change;
use warmroute_types::{LoadReport, Micros};

const NONE: u64 = 0;
const STREAMED: u64 = 1;
const BUFFERED: u64 = 2;
const PARTIAL: u64 = 3;
const DUPLEX: u64 = 4;

/// The fields of replies.
const REQUEST_HEADERS: u64 = 1;
const RESPONSE_HEADERS: u64 = 2;
const REQUEST_BODY: u64 = 3;
const RESPONSE_BODY: u64 = 4;
const REQUEST_TRAILERS: u64 = 5;
const RESPONSE_TRAILERS: u64 = 6;

/// A status of gRPC.
const OK: u16 = 0;

const WORKER: &str = "http://10.0.0.1:8000";
const POST: [(&str, &str); 3] =
    [(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")];

fn chat(prompt: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{prompt}"}}]}}"#)
}

/// Reads a body that is sent back: its bytes, and whether its last part says so.
async fn read_back(call: &mut Call, phase: u64, length: usize) -> (Vec<u8>, bool) {
    let (mut bytes, mut is_end) = (Vec::new(), false);
    while bytes.len() < length {
        assert!(!is_end, "a part follows the end");
        let (part, last) = call.reply().await.body(phase);
        assert!(part.len() <= 64 << 10, "{} bytes in a message", part.len());
        bytes.extend(part);
        is_end = last;
    }
    (bytes, is_end)
}

#[tokio::test]
async fn every_body_mode_gets_its_choice_in_its_own_reply() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let body = chat("hello");
    for mode in [Some(DUPLEX), None] {
        let mut call = fixture.ask(mode, &POST).await;
        call.request_body(body.as_bytes(), false);
        call.request_body(b"", true);
        let reply = call.reply().await;
        assert_eq!((reply.phase(), reply.destination().as_str()), (REQUEST_HEADERS, "10.0.0.1:8000"));
        assert_eq!(read_back(&mut call, REQUEST_BODY, body.len()).await, (body.clone().into(), true));
        assert_eq!(call.status().await, OK, "the picker leaves");
    }
    for mode in [BUFFERED, PARTIAL] {
        let mut call = fixture.ask(Some(mode), &POST).await;
        let reply = call.reply().await;
        assert_eq!((reply.phase(), reply.set_headers(&[1, 1, 2])), (REQUEST_HEADERS, vec![]));
        call.request_body(body.as_bytes(), true);
        let reply = call.reply().await;
        assert_eq!((reply.phase(), reply.destination().as_str()), (REQUEST_BODY, "10.0.0.1:8000"));
        assert!(reply.all(&[REQUEST_BODY, 1, 3]).is_empty(), "the filter keeps the body");
        assert_eq!(call.status().await, OK);
    }
    for mode in [STREAMED, NONE] {
        let mut call = fixture.ask(Some(mode), &POST).await;
        let reply = call.reply().await;
        assert_eq!((reply.phase(), reply.destination().as_str()), (REQUEST_HEADERS, "10.0.0.1:8000"));
        if mode == STREAMED {
            call.request_body(body.as_bytes(), false);
            assert_eq!(call.reply().await.phase(), REQUEST_BODY);
            call.request_body(b"", true);
            assert_eq!(
                call.reply().await.phase(),
                REQUEST_BODY,
                "the picker stays until the body has passed"
            );
        }
        assert_eq!(call.status().await, OK);
    }
}

#[tokio::test]
async fn a_request_without_a_body_is_answered_at_its_headers() {
    let fixture = Fixture::start(&["http://[::1]:8000"], Config::default()).await;
    for mode in [NONE, STREAMED, BUFFERED, DUPLEX] {
        let mut call = fixture.proxy().await.call().await;
        call.request_headers(Some((mode, 0)), &[(":method", "GET"), (":path", "/v1/models")], true);
        let reply = call.reply().await;
        assert_eq!((reply.phase(), reply.destination().as_str()), (REQUEST_HEADERS, "[::1]:8000"));
        assert_eq!(call.status().await, OK);
    }
}

#[tokio::test]
async fn a_long_body_comes_back_byte_for_byte_with_its_end_or_its_trailers() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let body = chat(&"a long prompt ".repeat(80_000));
    for has_trailers in [false, true] {
        let mut call = fixture.ask(Some(DUPLEX), &POST).await;
        let parts: Vec<&[u8]> = body.as_bytes().chunks(16_384).collect();
        for (at, part) in parts.iter().enumerate() {
            call.request_body(part, at + 1 == parts.len() && !has_trailers);
        }
        if has_trailers {
            call.trailers(6);
        } else {
            // Some versions of Envoy send a second end.
            call.request_body(b"", true);
        }
        assert_eq!(call.reply().await.destination(), "10.0.0.1:8000");
        let (bytes, is_end) = read_back(&mut call, REQUEST_BODY, body.len()).await;
        assert!(bytes == body.as_bytes(), "the same bytes");
        assert_eq!(is_end, !has_trailers);
        if has_trailers {
            assert_eq!(call.reply().await.phase(), REQUEST_TRAILERS);
        }
        assert_eq!(call.status().await, OK);
    }
}

#[tokio::test]
async fn an_empty_body_ends_as_it_came() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let mut call = fixture.ask(Some(DUPLEX), &[(":method", "POST"), (":path", "/v1/other")]).await;
    call.request_body(b"", true);
    assert_eq!(call.reply().await.destination(), "10.0.0.1:8000");
    assert_eq!(call.reply().await.body(REQUEST_BODY), (vec![], true));
    assert_eq!(call.status().await, OK);
}

#[tokio::test]
async fn an_alias_is_replaced_in_the_body_wherever_it_was_cut() {
    let aliases = [("alias".to_owned(), "model".to_owned())].into();
    let settings = warmroute_gateway::Config { aliases, ..Default::default() };
    let fixture = Fixture::with(&[WORKER], Config::default(), settings).await;
    let (sent, expected) = (br#"{"model":"alias","prompt":"x"}"#, br#"{"model":"model","prompt":"x"}"#);
    let head = [(":method", "POST"), (":path", "/v1/completions")];
    let mut call = fixture.ask(Some(DUPLEX), &head).await;
    call.request_body(&sent[..12], false);
    call.request_body(&sent[12..], true);
    call.reply().await;
    assert_eq!(read_back(&mut call, REQUEST_BODY, expected.len()).await, (expected.to_vec(), true));
    let mut call = fixture.ask(Some(BUFFERED), &head).await;
    call.reply().await;
    call.request_body(sent, true);
    assert_eq!(call.reply().await.all(&[REQUEST_BODY, 1, 3, 1]), [expected.to_vec()]);
}

#[tokio::test]
async fn an_upload_passes_while_it_arrives() {
    let settings = warmroute_gateway::Config { body_bytes_max: 100_000, ..Default::default() };
    let fixture = Fixture::with(&[WORKER], Config::default(), settings).await;
    let head = [
        (":method", "POST"),
        (":path", "/v1/audio/transcriptions"),
        ("content-type", "multipart/form-data; boundary=x"),
    ];
    let mut call = fixture.ask(Some(DUPLEX), &head).await;
    for turn in 0..5 {
        let part = vec![turn; 60_000];
        call.request_body(&part, turn == 4);
        if turn == 0 {
            assert_eq!(call.reply().await.destination(), "10.0.0.1:8000", "before the rest arrives");
        }
        assert_eq!(read_back(&mut call, REQUEST_BODY, part.len()).await, (part, turn == 4));
    }
    assert_eq!(call.status().await, OK, "the limit is for bodies that are kept");
}

#[tokio::test]
async fn an_upload_that_waits_for_its_turn_loses_nothing() {
    let admission = warmroute_gateway::AdmissionConfig { running_max: 1, ..Default::default() };
    let settings = warmroute_gateway::Config { admission, ..Default::default() };
    let fixture = Fixture::with(&[WORKER], stream_feedback(), settings).await;
    let mut first = fixture.proxy().await.call().await;
    first.request_headers(Some((NONE, STREAMED)), &POST, false);
    assert_eq!(first.reply().await.destination(), "10.0.0.1:8000");
    let head = [(":method", "POST"), (":path", "/v1/files"), ("content-type", "application/octet-stream")];
    let mut upload = fixture.proxy().await.call().await;
    upload.request_headers(Some((DUPLEX, NONE)), &head, false);
    for turn in 0..4 {
        upload.request_body(&[turn; 1_000], turn == 3);
    }
    assert!(upload.has_no_reply().await, "the first request runs");
    first.reset();
    assert_eq!(upload.reply().await.destination(), "10.0.0.1:8000");
    let expected: Vec<u8> = (0..4).flat_map(|turn| [turn; 1_000]).collect();
    assert_eq!(read_back(&mut upload, REQUEST_BODY, 4_000).await, (expected, true));
}

/// The proxy has more of the upload to send, which is not read while the request waits.
#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_waiting_upload_frees_its_place() {
    let admission = warmroute_gateway::AdmissionConfig { running_max: 1, ..Default::default() };
    let settings = warmroute_gateway::Config { admission, ..Default::default() };
    let fixture = Fixture::with(&[WORKER], stream_feedback(), settings).await;
    let mut first = fixture.proxy().await.call().await;
    first.request_headers(Some((NONE, STREAMED)), &POST, false);
    assert_eq!(first.reply().await.destination(), "10.0.0.1:8000");
    let head = [(":method", "POST"), (":path", "/v1/files"), ("content-type", "application/octet-stream")];
    for ends in [Call::close as fn(&mut Call), |call| call.abandon()] {
        let mut upload = fixture.proxy().await.call().await;
        upload.request_headers(Some((DUPLEX, NONE)), &head, false);
        (0..4).for_each(|turn| upload.request_body(&[turn; 1_000], false));
        let waiting =
            || fixture.gateway.metrics_text().contains("warmroute_queue_waiting{priority=\"normal\"} 1");
        fixture.wait_until(waiting, "the upload waits").await;
        ends(&mut upload);
        fixture.wait_until(|| !waiting(), "the upload has left the queue").await;
    }
}

fn little_memory() -> warmroute_gateway::Config {
    warmroute_gateway::Config { body_bytes_max: 100_000, bodies_bytes_max: 100_000, ..Default::default() }
}

/// Bytes of bodies and of messages that are not whole.
fn counted_bytes(fixture: &Fixture) -> u64 {
    let text = fixture.gateway.metrics_text();
    let line = text.lines().find_map(|line| line.strip_prefix("warmroute_body_bytes ")).unwrap();
    line.parse().unwrap()
}

#[tokio::test]
async fn a_message_counts_as_memory_before_it_is_whole() {
    let fixture = Fixture::with(&[WORKER], Config::default(), little_memory()).await;
    for mode in [BUFFERED, DUPLEX] {
        let mut first = fixture.ask(Some(mode), &POST).await;
        first.send_start(90_000, &[0; 60_000]);
        fixture.wait_until(|| counted_bytes(&fixture) >= 60_000, "the first body counts").await;
        let mut second = fixture.ask(Some(mode), &POST).await;
        second.send_start(90_000, &[0; 60_000]);
        if mode == BUFFERED {
            assert_eq!(second.reply().await.phase(), REQUEST_HEADERS);
        }
        let (status, _, body) = second.reply().await.immediate();
        assert_eq!(status, 503, "{body}");
        first.reset();
        fixture.wait_until(|| counted_bytes(&fixture) == 0, "the memory is free again").await;
    }
}

/// First messages, parts of a body that passes, and parts of a response.
#[tokio::test]
async fn messages_without_a_kept_body_count_as_memory_too() {
    let fixture = Fixture::with(&[WORKER], stream_feedback(), little_memory()).await;
    for sent_before in 0..3 {
        let open = async || {
            let mut call = fixture.proxy().await.call().await;
            if sent_before > 0 {
                let request_mode = if sent_before == 1 { STREAMED } else { NONE };
                call.request_headers(Some((request_mode, STREAMED)), &POST, false);
                assert_eq!(call.reply().await.destination(), "10.0.0.1:8000");
            }
            if sent_before == 2 {
                call.response_headers(&EVENTS, None);
                assert_eq!(call.reply().await.phase(), RESPONSE_HEADERS);
            }
            call
        };
        let mut first = open().await;
        first.send_start(90_000, &[0; 60_000]);
        fixture.wait_until(|| counted_bytes(&fixture) >= 50_000, "the first message counts").await;
        let mut second = open().await;
        second.send_start(90_000, &[0; 60_000]);
        let (status, _, body) = second.reply().await.immediate();
        assert_eq!(status, 503, "{body}");
        assert_eq!(second.status().await, OK);
        first.reset();
        fixture.wait_until(|| counted_bytes(&fixture) == 0, "the memory is free again").await;
    }
}

#[tokio::test]
async fn parts_of_a_long_response_do_not_add_up() {
    let fixture = Fixture::with(&[WORKER], stream_feedback(), little_memory()).await;
    let mut call = followed(&fixture, STREAMED).await;
    call.response_headers(&EVENTS, None);
    call.reply().await;
    for turn in 0..5 {
        call.response_body(&[b' '; 60_000], turn == 4);
        assert_eq!(call.reply().await.phase(), RESPONSE_BODY, "300,000 bytes pass in memory for 100,000");
    }
    assert_eq!(call.status().await, OK);
    assert_eq!(counted_bytes(&fixture), 0);
}

fn subset(value: impl FnOnce(&mut MessageWriter)) -> Vec<u8> {
    metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", value)
}

async fn reply_for_subset(fixture: &Fixture, subset: &[u8]) -> Reply {
    let mut call = fixture.proxy().await.call().await;
    call.request_headers_with(
        Some((DUPLEX, 0)),
        &[(":method", "GET"), (":path", "/v1/models")],
        true,
        subset,
    );
    call.reply().await
}

#[tokio::test]
async fn only_workers_of_the_subset_are_chosen() {
    let workers = ["http://10.0.0.1:8000", "http://10.0.0.1:8001", "http://10.0.0.2:8000"];
    let fixture = Fixture::start(&workers, Config::default()).await;
    for address in ["10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000"] {
        let as_list = subset(|value| {
            value.message(6, |list| list.message(1, |value| value.bytes(3, address.as_bytes())));
        });
        assert_eq!(reply_for_subset(&fixture, &as_list).await.destination(), address);
        let as_string = subset(|value| value.bytes(3, format!("10.9.9.9:1, {address}").as_bytes()));
        assert_eq!(reply_for_subset(&fixture, &as_string).await.destination(), address);
    }
    let empty_list = subset(|value| value.message(6, |_| {}));
    let other = subset(|value| value.bytes(3, b"10.0.0.1:9000"));
    for none in [empty_list, other] {
        let (status, headers, body) = reply_for_subset(&fixture, &none).await.immediate();
        assert_eq!(status, 503);
        assert!(headers.contains(&("retry-after".to_owned(), "2".to_owned())), "{headers:?}");
        assert!(
            body.contains("endpoints that the proxy allows (x-gateway-destination-endpoint-subset)"),
            "{body}"
        );
    }
}

#[tokio::test]
async fn a_client_cannot_choose_its_endpoint_or_rank() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let mut head = POST.to_vec();
    head.extend([("x-gateway-destination-endpoint", "10.6.6.6:666"), ("x-data-parallel-rank", "7")]);
    head.push(("x-request-id", "mine"));
    let mut call = fixture.ask(Some(DUPLEX), &head).await;
    call.request_body(chat("x").as_bytes(), true);
    let reply = call.reply().await;
    assert_eq!(reply.destination(), "10.0.0.1:8000");
    let actions = reply.all(&[REQUEST_HEADERS, 1, 2, 1, 3]);
    assert_eq!(actions, [2_u64.to_be_bytes(); 2], "headers are replaced, not added");
    let set = reply.set_headers(&[REQUEST_HEADERS, 1, 2]);
    assert!(set.iter().any(|(name, id)| name == "x-request-id" && id.starts_with("mine-")), "{set:?}");
    assert_eq!(reply.text(&[REQUEST_HEADERS, 1, 2, 2]), "x-data-parallel-rank", "removed");
}

#[tokio::test]
async fn headers_of_conformance_tests_are_obeyed_only_if_asked_for() {
    let workers = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"];
    for conformance_headers in [ConformanceHeaders::On, ConformanceHeaders::Off] {
        let fixture = Fixture::start(&workers, Config { conformance_headers, ..stream_feedback() }).await;
        let (mut chosen, mut named) = (Vec::new(), Vec::new());
        for selection in ["10.9.9.9, 10.0.0.2:8000", "10.0.0.2", "10.0.0.2:8000", "10.9.9.9,10.0.0.2"] {
            let mut head = POST.to_vec();
            head.push(("test-epp-endpoint-selection", selection));
            let mut call = fixture.proxy().await.call().await;
            call.request_headers(Some((NONE, STREAMED)), &head, false);
            chosen.push(call.reply().await.destination());
            call.response_headers(&EVENTS, chosen.last().map(String::as_str));
            named.extend(call.reply().await.set_headers(&[RESPONSE_HEADERS, 1, 2]));
        }
        match conformance_headers {
            ConformanceHeaders::On => {
                assert_eq!(chosen, ["10.0.0.2:8000"; 4]);
                let served = ("x-conformance-test-served-endpoint".to_owned(), "10.0.0.2:8000".to_owned());
                assert_eq!(named, vec![served; 4]);
            }
            ConformanceHeaders::Off => {
                assert!(chosen.contains(&"10.0.0.1:8000".to_owned()), "{chosen:?}");
                assert!(named.is_empty(), "{named:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_rank_is_named_by_its_header() {
    for (worker, rank) in [("http://10.0.0.1:8000", None), ("http://10.0.0.1:8000#rank", Some("0"))] {
        let fixture = Fixture::start(&[worker], Config::default()).await;
        let mut call = fixture.ask(Some(NONE), &POST).await;
        let headers = call.reply().await.set_headers(&[REQUEST_HEADERS, 1, 2]);
        let ranks = headers.iter().filter(|(name, _)| name == "x-data-parallel-rank");
        assert!(ranks.map(|(_, value)| value.as_str()).eq(rank), "{headers:?}");
    }
}

#[tokio::test]
async fn fallbacks_are_further_endpoints_and_there_are_none_unless_asked_for() {
    let workers = ["http://10.0.0.1:1", "http://10.0.0.2:1", "http://10.0.0.3:1", "http://named:1"];
    for (fallbacks, expected) in [(0, 1), (1, 2), (3, 3)] {
        let fixture = Fixture::start(&workers, Config { fallbacks, ..Config::default() }).await;
        let mut call = fixture.ask(Some(NONE), &POST).await;
        let list = call.reply().await.destination();
        let mut endpoints: Vec<&str> = list.split(',').collect();
        assert_eq!(endpoints.len(), expected, "{list}");
        endpoints.sort_unstable();
        endpoints.dedup();
        assert_eq!(endpoints.len(), expected, "{list}");
        assert!(!list.contains("named"), "an address, not a name: {list}");
    }
}

#[tokio::test]
async fn refusals_are_immediate_responses_in_the_format_of_the_client() {
    let settings = warmroute_gateway::Config { body_bytes_max: 1_000, ..Default::default() };
    let fixture = Fixture::with(&[WORKER], Config::default(), settings).await;
    let large = chat(&"x".repeat(2_000));
    for (path, body, status, text) in [
        ("/v1/chat/completions", "{\"model\":", 400, "not valid JSON"),
        ("/v1/messages", "[", 400, "\"type\":\"error\""),
        ("/v1/chat/completions", large.as_str(), 413, "larger than the limit of 1000"),
    ] {
        let mut call = fixture.ask(Some(DUPLEX), &[(":method", "POST"), (":path", path)]).await;
        call.request_body(body.as_bytes(), true);
        let (given, headers, answer) = call.reply().await.immediate();
        assert_eq!(given, status, "{answer}");
        assert!(headers.contains(&("content-type".to_owned(), "application/json".to_owned())));
        assert!(answer.contains(text), "{answer}");
        assert_eq!(call.status().await, OK);
    }
    let empty = Fixture::start(&["http://named:8000"], Config::default()).await;
    let mut call = empty.ask(Some(NONE), &POST).await;
    assert_eq!(call.reply().await.immediate().0, 503, "a worker without an address is none");
}

#[tokio::test]
async fn a_full_fleet_sheds_with_429_and_a_client_that_leaves_frees_its_place() {
    let admission =
        warmroute_gateway::AdmissionConfig { running_max: 1, waiting_max: 1, ..Default::default() };
    let settings = warmroute_gateway::Config { admission, ..Default::default() };
    let config = Config { feedback: Feedback::Stream, ..Config::default() };
    let fixture = Fixture::with(&[WORKER], config, settings).await;
    let mut proxy = fixture.proxy().await;
    let mut calls = Vec::new();
    for _ in 0..2 {
        let mut call = proxy.call().await;
        call.request_headers(Some((NONE, STREAMED)), &POST, false);
        calls.push(call);
        if calls.len() == 1 {
            assert_eq!(calls[0].reply().await.destination(), "10.0.0.1:8000");
        }
    }
    // The second one waits, so a third one does not fit. It may arrive first.
    let mut third = proxy.call().await;
    third.request_headers(Some((NONE, STREAMED)), &POST, false);
    let mut second = calls.remove(1);
    let mut waiting = tokio::select! {
        reply = third.reply() => {
            assert_eq!(reply.immediate().0, 429);
            second
        }
        reply = second.reply() => {
            assert_eq!(reply.immediate().0, 429);
            third
        }
    };
    calls.remove(0).reset();
    assert_eq!(waiting.reply().await.destination(), "10.0.0.1:8000");
    fixture.wait_in_flight(1).await;
}

/// Sends a prompt, and returns the endpoint after the picker has left.
async fn chosen_for(fixture: &Fixture, prompt: &str, max_tokens: u32) -> String {
    let mut call = fixture.ask(Some(DUPLEX), &POST).await;
    let body = format!(
        r#"{{"model":"m","max_tokens":{max_tokens},"messages":[{{"role":"user","content":"{prompt}"}}]}}"#
    );
    call.request_body(body.as_bytes(), true);
    let chosen = call.reply().await.destination();
    read_back(&mut call, REQUEST_BODY, body.len()).await;
    assert_eq!(call.status().await, OK);
    chosen
}

#[tokio::test]
async fn a_request_counts_as_load_after_the_picker_has_left() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    // It counts for about five seconds.
    chosen_for(&fixture, "hello", 256).await;
    assert_eq!(fixture.in_flight(), 1);
    fixture.wait_in_flight(0).await;
}

#[tokio::test]
async fn an_idle_engine_ends_the_load_of_requests_that_were_estimated_too_long() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    chosen_for(&fixture, &"a long prompt ".repeat(100_000), 256).await;
    assert_eq!(fixture.in_flight(), 1);
    let idle = LoadReport { at: fixture.gateway.now() + Micros::from_secs(2), ..LoadReport::default() };
    let worker = fixture.workers()[0].worker.clone();
    fixture.gateway.router().apply(Change::Load { worker, report: idle });
    let tokens = fixture.workers()[0].load.prefill_tokens;
    assert!(tokens > 100_000, "it would count for minutes: {tokens} tokens");
    fixture.wait_in_flight(0).await;
}

#[tokio::test]
async fn a_prompt_that_is_far_too_long_for_the_engine_is_no_load_and_not_presumed() {
    let workers = ["http://10.0.0.1:1", "http://10.0.0.2:1"];
    let fixture = Fixture::start(&workers, Config::default()).await;
    for view in fixture.workers() {
        let card = ModelCard { id: "m".into(), created: None, max_model_len: Some(32_768), parent: None };
        fixture.gateway.router().apply(Change::ModelCards { worker: view.worker, cards: vec![card] });
    }
    let prompt = "a long prompt ".repeat(80_000);
    let mut chosen = Vec::new();
    for turn in 0..2 {
        chosen.push(chosen_for(&fixture, &format!("{prompt}{turn}"), 256).await);
        fixture.wait_in_flight(0).await;
    }
    assert_ne!(chosen[0], chosen[1], "no worker holds it");
}

#[tokio::test]
async fn a_prompt_attracts_the_next_although_no_response_was_seen() {
    let workers = ["http://10.0.0.1:1", "http://10.0.0.2:1", "http://10.0.0.3:1", "http://10.0.0.4:1"];
    let fixture = Fixture::start(&workers, Config::default()).await;
    let prompt = "a shared system prompt ".repeat(2_000);
    let mut chosen = Vec::new();
    for turn in 0..3 {
        chosen.push(chosen_for(&fixture, &format!("{prompt}{turn}"), 1).await);
        fixture.wait_in_flight(0).await;
    }
    assert_eq!(chosen, vec![chosen[0].clone(); 3], "the prompt is presumed where it went");
}

/// A picked request with its response phases in the stream.
async fn followed(fixture: &Fixture, response_mode: u64) -> Call {
    let mut call = fixture.proxy().await.call().await;
    call.request_headers(Some((DUPLEX, response_mode)), &POST, false);
    let body = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
    call.request_body(body.as_bytes(), true);
    assert_eq!(call.reply().await.destination(), "10.0.0.1:8000");
    read_back(&mut call, REQUEST_BODY, body.len()).await;
    fixture.wait_in_flight(1).await;
    call
}

const EVENTS: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];

fn stream_feedback() -> Config {
    Config { feedback: Feedback::Stream, ..Config::default() }
}

#[tokio::test]
async fn a_response_in_the_stream_passes_and_is_learned_from() {
    let fixture = Fixture::start(&[WORKER], stream_feedback()).await;
    for (mode, has_trailers) in [(STREAMED, false), (DUPLEX, false), (DUPLEX, true)] {
        let mut call = followed(&fixture, mode).await;
        call.response_headers(&EVENTS, Some("10.0.0.1:8000"));
        assert_eq!(call.reply().await.phase(), RESPONSE_HEADERS);
        assert!(fixture.workers()[0].load.prefill_tokens > 0);
        let last = b"data: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        for chunk in [&b"data: {\"choices\":[]}\n\n"[..], last] {
            let is_end = chunk == last && !has_trailers;
            call.response_body(chunk, is_end);
            let reply = call.reply().await;
            match mode {
                DUPLEX => assert_eq!(reply.body(RESPONSE_BODY), (chunk.to_vec(), is_end)),
                _ => assert_eq!((reply.phase(), reply.all(&[RESPONSE_BODY, 1]).len()), (RESPONSE_BODY, 0)),
            }
            if chunk != last {
                // The chunk passes before it is read.
                fixture.wait_for("the first token ends the prefill", |load| load.prefill_tokens == 0).await;
                assert_eq!(fixture.in_flight(), 1);
            }
        }
        if has_trailers {
            call.trailers(7);
            assert_eq!(call.reply().await.phase(), RESPONSE_TRAILERS);
        }
        assert_eq!(call.status().await, OK);
        assert_eq!(fixture.in_flight(), 0);
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_worker() {
    let fixture = Fixture::start(&[WORKER], stream_feedback()).await;
    let call = followed(&fixture, DUPLEX).await;
    call.reset();
    fixture.wait_in_flight(0).await;
    let mut call = followed(&fixture, DUPLEX).await;
    call.response_headers(&EVENTS, None);
    call.reply().await;
    call.close();
    assert_eq!(call.status().await, OK);
    fixture.wait_in_flight(0).await;
}

#[tokio::test]
async fn a_response_of_another_worker_passes_whole_ends_the_booking_and_blames_nobody() {
    let fixture = Fixture::start(&[WORKER], stream_feedback()).await;
    for served in [Some("10.0.0.2:8000"), None] {
        // Once the proxy has said who answers, a response without a name is its own.
        let mut call = followed(&fixture, DUPLEX).await;
        call.response_headers(&[(":status", "503")], served);
        assert_eq!(call.reply().await.phase(), RESPONSE_HEADERS);
        fixture.wait_in_flight(0).await;
        // The proxy does not keep the body that it has sent.
        for (part, is_end) in [(&b"upstream connect "[..], false), (b"error", true)] {
            call.response_body(part, is_end);
            assert_eq!(call.reply().await.body(RESPONSE_BODY), (part.to_vec(), is_end));
        }
        assert_eq!(call.status().await, OK, "the picker leaves");
    }
    let view = &fixture.workers()[0];
    assert!(view.load.state.takes_requests() && view.breaker.openings() == 0);
}

/// Another proxy may be configured differently: its responses are the chosen worker's.
#[tokio::test]
async fn a_proxy_that_does_not_say_who_answered_is_not_taken_for_one_that_does() {
    let fixture = Fixture::start(&[WORKER], stream_feedback()).await;
    let mut call = followed(&fixture, DUPLEX).await;
    call.response_headers(&EVENTS, Some("10.0.0.1:8000"));
    call.reply().await;
    call.reset();
    fixture.wait_in_flight(0).await;
    let mut other = fixture.proxy_from([127, 0, 0, 2]).await.call().await;
    other.request_headers(Some((NONE, STREAMED)), &POST, false);
    assert_eq!(other.reply().await.destination(), "10.0.0.1:8000");
    other.response_headers(&EVENTS, None);
    assert_eq!(other.reply().await.phase(), RESPONSE_HEADERS);
    assert_eq!(fixture.in_flight(), 1, "the response is the chosen worker's");
    other.response_body(b"data: [DONE]\n\n", true);
    assert_eq!(other.reply().await.phase(), RESPONSE_BODY);
    assert_eq!(other.status().await, OK);
    assert!(fixture.outcomes().contains("outcome=\"ok\"} 1"), "{}", fixture.outcomes());
}

#[tokio::test]
async fn an_observer_reports_the_response_and_gets_no_reply() {
    let fixture =
        Fixture::start(&[WORKER], Config { feedback: Feedback::Observer, ..Config::default() }).await;
    let mut call = fixture.ask(Some(NONE), &POST).await;
    let reply = call.reply().await;
    assert_eq!(call.status().await, OK, "the choosing stream is over");
    let number = reply.all(&[8, 1, 2, 5, 1, 2, 3]).pop().unwrap();
    let named = metadata("envoy.lb", "x-warmroute-pick", |value| value.bytes(3, &number));
    let mut observer = fixture.proxy().await.call().await;
    observer.send(|message| {
        message.message(2, |_| {});
        message.bytes(8, &named);
        message.flag(10, true);
    });
    observer.response_headers(&EVENTS, Some("10.0.0.1:8000"));
    observer.response_body(b"data: {}\n\n", false);
    observer.response_body(b"data: [DONE]\n\n", true);
    assert_eq!(observer.status().await, OK, "without a reply");
    assert_eq!(fixture.in_flight(), 0);
    let mut unknown = fixture.proxy().await.call().await;
    unknown.send(|message| {
        message.message(3, |_| {});
        message.bytes(8, &named);
        message.flag(10, true);
    });
    assert_eq!(unknown.status().await, OK, "a pick ends once");
}

#[tokio::test]
async fn a_filter_that_sends_too_little_is_told_which_setting_to_change() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let mut call = fixture.proxy().await.call().await;
    call.request_body(b"{}", true);
    let (status, _, body) = call.reply().await.immediate();
    assert!(status == 500 && body.contains("request_header_mode"), "{body}");
    let mut call = fixture.ask(Some(PARTIAL), &POST).await;
    call.reply().await;
    call.request_body(&chat("x").as_bytes()[..20], false);
    let (status, _, body) = call.reply().await.immediate();
    assert!(status == 413 && body.contains("FULL_DUPLEX_STREAMED"), "{body}");
}

#[tokio::test]
async fn paths_that_control_engines_are_refused_before_their_bodies() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    for path in ["/v1/load_lora_adapter", "/sleep", "/v1/chat/complet%69ons", "/v1/../sleep"] {
        let mut call = fixture.ask(Some(DUPLEX), &[(":method", "POST"), (":path", path)]).await;
        assert_eq!(call.reply().await.immediate().0, 404, "{path}");
    }
}

#[tokio::test]
async fn methods_that_an_api_does_not_have_are_refused() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    for method in ["GET", "PUT", "DELETE"] {
        let mut call = fixture.proxy().await.call().await;
        let head = [(":method", method), (":path", "/v1/chat/completions")];
        call.request_headers(Some((DUPLEX, NONE)), &head, true);
        assert_eq!(call.reply().await.immediate().0, 405, "{method}");
    }
}

#[tokio::test]
async fn a_request_counts_as_concurrent_from_its_head_on() {
    let mut admission = warmroute_gateway::AdmissionConfig::default();
    admission.limits.concurrent = 1;
    let settings = warmroute_gateway::Config { admission, ..Default::default() };
    let fixture = Fixture::with(&[WORKER], stream_feedback(), settings).await;
    let mut calls = [fixture.ask(Some(DUPLEX), &POST).await, fixture.ask(Some(DUPLEX), &POST).await];
    let [first, second] = &mut calls;
    let (refused, counted) = tokio::select! {
        reply = first.reply() => (reply, second),
        reply = second.reply() => (reply, first),
    };
    assert_eq!(refused.immediate().0, 429, "neither has sent a body");
    counted.request_body(chat("hello").as_bytes(), true);
    assert_eq!(counted.reply().await.destination(), "10.0.0.1:8000");
}

#[tokio::test]
async fn json_that_is_declared_to_be_an_upload_is_read() {
    let fixture = Fixture::start(&[WORKER], Config::default()).await;
    let head = [(":method", "POST"), (":path", "/v1/embeddings"), ("content-type", "audio/wav")];
    let mut call = fixture.ask(Some(DUPLEX), &head).await;
    for part in ["", " ", "{\"input\":\"a\",", "\"rid\":\"b\",\"model\":\"m\"", "}"] {
        call.request_body(part.as_bytes(), part == "}");
    }
    assert_eq!(call.reply().await.destination(), "10.0.0.1:8000");
    let expected = " {\"input\":\"a\",\"model\":\"m\"}";
    assert_eq!(read_back(&mut call, REQUEST_BODY, expected.len()).await, (expected.into(), true));
    let mut call = fixture.ask(Some(DUPLEX), &head).await;
    call.request_body(b"\xff\xfe{\0", true);
    assert_eq!(call.reply().await.immediate().0, 400);
}
