//! Workers that die, and requests that cannot be served.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::harness::client::{Call, chat, chat_stream, get, post};
use crate::harness::gate::Gate;
use crate::harness::process::{Gateway, engine, engine_on};
use crate::harness::script::{ReceivedRequest, Scripted};
use crate::harness::temp_folder::TempFolder;
use crate::harness::{TIMEOUT, eventually};
use serde_json::json;

/// An engine that answers every request.
fn good() -> Scripted {
    Scripted::new(|mut asked| asked.answer("{\"from\":\"good\"}"))
}

/// Sends requests until the bad engine has been tried, and returns the response to that request.
fn until_tried(bad: &Scripted, gateway: &Gateway, body: &str) -> crate::harness::client::Response {
    let before = bad.asked();
    loop {
        let response = post(gateway.url(), "/v1/chat/completions", body);
        if bad.asked() > before {
            return response;
        }
    }
}

#[test]
fn a_worker_that_dies_before_the_first_byte_costs_the_client_nothing() {
    // The connection breaks after the request, and after the response head: the client has received nothing in either
    // case.
    for sends_head in [false, true] {
        let bad = Scripted::new(move |mut asked| {
            if sends_head {
                asked.begin_events();
            }
            asked.reset();
        });
        let good = good();
        let gateway = Gateway::over(&[&bad.url, &good.url], &["--policy", "round_robin"]);
        let response = until_tried(&bad, &gateway, &chat("m"));
        assert_eq!(
            (response.status, response.json()),
            (200, json!({"from": "good"})),
            "head sent: {sends_head}"
        );
        assert_eq!(response.header("x-warmroute-worker"), Some(good.url.as_str()));
        assert!(gateway.metric("warmroute_retries_total") >= 1.0);
        gateway.wait_for_idle();
    }
}

#[test]
fn after_the_first_byte_there_is_no_retry_and_the_stream_ends_with_an_error() {
    let bad = Scripted::new(|mut asked| {
        asked.begin_events();
        asked.chunk("data: {\"n\":1}\n\n");
        asked.reset();
    });
    let good = Scripted::new(|mut asked| {
        asked.begin_events();
        asked.chunk("data: [DONE]\n\n");
        asked.end_chunks();
    });
    let gateway = Gateway::over(&[&bad.url, &good.url], &["--policy", "round_robin"]);
    let response = until_tried(&bad, &gateway, &chat_stream("m", 9));
    assert!(response.complete, "a clean end");
    let text = response.text();
    let (first, error) = text.split_once("\n\n").unwrap();
    assert_eq!(first, "data: {\"n\":1}");
    let error: serde_json::Value =
        serde_json::from_str(error.trim().strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "worker_failed");
    assert_eq!(response.header("x-warmroute-worker"), Some(bad.url.as_str()), "the good one was not asked");
}

/// A response without a length or chunks ends with its connection, whether or not the worker died.
#[test]
fn a_stream_that_ends_with_its_connection_is_whole_only_if_it_says_so() {
    for (goodbye, is_whole) in [("data: [DONE]\n\n", true), ("", false)] {
        let engine = Scripted::new(move |mut asked| {
            asked.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
            asked.write(&format!("data: {{\"n\":1}}\n\n{goodbye}"));
        });
        let gateway = Gateway::over(&[&engine.url], &[]);
        let text = post(gateway.url(), "/v1/chat/completions", &chat_stream("m", 9)).text();
        assert_eq!(text.contains("[DONE]"), is_whole, "{text}");
        assert_eq!(text.contains("worker_failed"), !is_whole, "{text}");
    }
}

/// An engine that ends its stream as HTTP wants it, with these events.
fn ending_with(events: &'static str) -> Scripted {
    Scripted::new(move |mut asked| {
        asked.begin_events();
        asked.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n");
        if !events.is_empty() {
            asked.chunk(events);
        }
        asked.end_chunks();
    })
}

#[test]
fn a_stream_that_ends_well_framed_in_the_middle_of_its_answer_is_broken_off() {
    const STOP: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\": \"stop\"}]}\n\n";
    for (path, events, is_whole) in [
        ("/v1/chat/completions", "", false),
        ("/v1/completions", "data: {\"choices\":[{\"text\":\"b\",\"finish_reason\":null}]}\n\n", false),
        ("/v1/chat/completions", STOP, true),
        ("/v1/chat/completions", "data: [DONE]\n\n", true),
        ("/v1/messages", "", false),
        ("/v1/messages", "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", true),
        ("/v1/responses", "", false),
        ("/v1/responses", "data: {\"type\":\"response.completed\"}\n\n", true),
    ] {
        for flags in [&[][..], &["--continue-streams"]] {
            let folder = TempFolder::new("broken-off");
            let log = folder.file("access.log");
            let engine = ending_with(events);
            let log_flags = ["--access-log", &log, "--access-log-format", "json"];
            let gateway = Gateway::over(&[&engine.url], &[flags, &log_flags].concat());
            let response = post(gateway.url(), path, &chat_stream("m", 9));
            let (text, what) = (response.text(), format!("{path} {events} {flags:?}"));
            assert_eq!(text.contains("The worker failed in the middle"), !is_whole, "{what}: {text}");
            assert!(text.contains("\"a\"") && text.contains(events), "{what}: {text}");
            gateway.wait_for_idle();
            let outcome = if is_whole { "ok" } else { "failed" };
            let counted =
                format!("warmroute_requests_total{{worker=\"{}\",outcome=\"{outcome}\"}}", engine.url);
            assert_eq!(gateway.metric(&counted), 1.0, "{what}");
            let line = eventually("the access log's line", || {
                let line = std::fs::read_to_string(&log).ok()?;
                line.ends_with('\n').then_some(line)
            });
            assert!(line.contains(&format!("\"outcome\":\"{outcome}\"")), "{what}: {line}");
        }
    }
}

#[test]
fn a_document_that_breaks_off_is_never_taken_for_whole() {
    let gate = Gate::default();
    let seen = gate.clone();
    let bad = Scripted::new(move |mut asked| {
        asked.write("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"half\":");
        seen.pass();
        asked.reset();
    });
    let gateway = Gateway::over(&[&bad.url], &[]);
    let mut call = Call::send(gateway.url(), "POST", "/v1/chat/completions", &[], chat("m").as_bytes());
    call.read_until("{\"half\":");
    gate.open();
    assert!(!call.finish().complete);
    gateway.wait_for_idle();
}

#[test]
fn a_killed_worker_is_left_out_and_used_again_when_it_returns() {
    let (staying, dying) = (engine(&[]), engine(&[]));
    let port = dying.url().rsplit(':').next().unwrap().to_owned();
    let gateway = Gateway::over(&[staying.url(), dying.url()], &["--policy", "round_robin"]);
    dying.signal("-KILL");
    dying.wait();
    for _ in 0..20 {
        assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b")).status, 200);
    }
    eventually("the dead worker is unhealthy", || {
        gateway.workers().iter().any(|worker| worker["state"] == "unhealthy").then_some(())
    });
    let back = engine_on(&port, &[]);
    gateway.wait_for_ready(2);
    let used = (0..4).any(|_| {
        let response = post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b"));
        response.header("x-warmroute-worker") == Some(back.url())
    });
    assert!(used, "it gets requests again");
}

#[test]
fn a_request_finds_the_only_engine_that_is_left() {
    let (staying, dying) = (engine(&[]), [0; 4].map(|_| engine(&[])));
    let urls: Vec<&str> = dying.iter().chain([&staying]).map(|engine| engine.url()).collect();
    // The dead engines count as ready throughout, and without retries nothing is sent twice.
    let flags = ["--policy", "round_robin", "--health-failure-threshold", "1000", "--retry-max-retries", "0"];
    let gateway = Gateway::over(&urls, &flags);
    for engine in dying {
        engine.signal("-KILL");
        engine.wait();
    }
    for _ in 0..20 {
        let response = post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b"));
        assert_eq!((response.status, response.header("x-warmroute-worker")), (200, Some(staying.url())));
    }
    assert!(gateway.workers().iter().all(|worker| worker["state"] == "ready"), "{:?}", gateway.workers());
    assert_eq!(gateway.metric("warmroute_retries_denied_total"), 0.0);
}

#[test]
fn a_request_that_breaks_every_worker_does_not_take_the_fleet_out() {
    let engines = [0; 3].map(|_| {
        Scripted::new(|mut asked| {
            let is_poison = String::from_utf8_lossy(&asked.body).contains("poison");
            if is_poison { asked.reset() } else { asked.answer("{}") }
        })
    });
    let urls: Vec<&str> = engines.iter().map(|engine| engine.url.as_str()).collect();
    let gateway = Gateway::over(&urls, &["--health-failure-threshold", "1"]);
    for _ in 0..10 {
        assert_eq!(
            post(gateway.url(), "/v1/chat/completions", &chat("m").replace("Hello", "poison")).status,
            502
        );
    }
    assert!(gateway.workers().iter().all(|worker| worker["state"] == "ready"), "{:?}", gateway.workers());
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("m")).status, 200);
}

#[test]
fn without_retries_a_worker_that_breaks_every_request_is_found_all_the_same() {
    let bad = Scripted::new(|asked| asked.reset());
    let fine = [0; 3].map(|_| Scripted::new(|mut asked| asked.answer("{}")));
    let urls: Vec<&str> = fine.iter().chain([&bad]).map(|engine| engine.url.as_str()).collect();
    let gateway = Gateway::over(&urls, &["--policy", "round_robin", "--retry-max-retries", "0"]);
    let mut lost = 0;
    for number in 0..40 {
        let body = chat("m").replace("Hello", &format!("Hello {number}"));
        lost += usize::from(post(gateway.url(), "/v1/chat/completions", &body).status != 200);
    }
    // Trial requests fail as well, at most one per second.
    assert!((3..=8).contains(&lost), "{lost} of 40 were lost");
    eventually("it is out", || {
        let out = |worker: &serde_json::Value| worker["url"] == bad.url && worker["state"] != "ready";
        gateway.workers().iter().any(out).then_some(())
    });
    assert!(bad.asked() <= 8, "{}", bad.asked());
}

#[test]
fn different_requests_that_break_every_worker_do_not_take_the_fleet_out_without_retries() {
    let engines = [0; 3].map(|_| {
        Scripted::new(|mut asked| {
            let is_poison = String::from_utf8_lossy(&asked.body).contains("poison");
            if is_poison { asked.reset() } else { asked.answer("{}") }
        })
    });
    let urls: Vec<&str> = engines.iter().map(|engine| engine.url.as_str()).collect();
    let flags = ["--policy", "round_robin", "--retry-max-retries", "0", "--health-failure-threshold", "1"];
    let gateway = Gateway::over(&urls, &flags);
    for number in 0..60 {
        let (what, status) = if number % 2 == 0 { ("poison", 502) } else { ("Hello", 200) };
        let body = chat("m").replace("Hello", &format!("{what} {number}"));
        assert_eq!(post(gateway.url(), "/v1/chat/completions", &body).status, status, "{number}");
    }
    assert!(gateway.workers().iter().all(|worker| worker["state"] == "ready"), "{:?}", gateway.workers());
}

/// An engine that streams, and breaks off the streams selected by `breaks`.
fn streaming(breaks: impl Fn(&str) -> bool + Send + Sync + 'static) -> Scripted {
    Scripted::new(move |mut asked| {
        asked.begin_events();
        asked.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n");
        if breaks(&String::from_utf8_lossy(&asked.body)) {
            return asked.reset();
        }
        asked.chunk("data: [DONE]\n\n");
        asked.end_chunks();
    })
}

#[test]
fn a_request_that_breaks_every_worker_within_its_stream_does_not_take_the_fleet_out() {
    let engines = [0; 3].map(|_| streaming(|body| body.contains("poison")));
    let urls: Vec<&str> = engines.iter().map(|engine| engine.url.as_str()).collect();
    let flags = ["--policy", "round_robin", "--health-failure-threshold", "1"];
    let gateway = Gateway::over(&urls, &flags);
    for _ in 0..12 {
        let body = chat_stream("m", 9).replace("Hello", "poison");
        assert!(post(gateway.url(), "/v1/chat/completions", &body).text().contains("worker_failed"));
    }
    assert!(gateway.workers().iter().all(|worker| worker["state"] == "ready"), "{:?}", gateway.workers());
}

#[test]
fn a_worker_that_breaks_every_stream_after_its_first_token_is_found() {
    let bad = streaming(|_| true);
    let fine = [0; 3].map(|_| streaming(|_| false));
    let urls: Vec<&str> = fine.iter().chain([&bad]).map(|engine| engine.url.as_str()).collect();
    let gateway = Gateway::over(&urls, &["--policy", "round_robin"]);
    for number in 0..40 {
        let body = chat_stream("m", 9).replace("Hello", &format!("Hello {number}"));
        post(gateway.url(), "/v1/chat/completions", &body);
    }
    // Trial requests fail as well, at most one per second.
    assert!((3..=8).contains(&bad.asked()), "{} of 40 were lost", bad.asked());
}

const ERROR: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\nno";

#[test]
fn a_worker_that_answers_500_to_everything_is_found_and_its_answers_are_the_clients() {
    let bad = Scripted::new(|mut asked| asked.write(ERROR));
    let fine = [0; 3].map(|_| good());
    let urls: Vec<&str> = fine.iter().chain([&bad]).map(|engine| engine.url.as_str()).collect();
    let gateway = Gateway::over(&urls, &["--policy", "round_robin"]);
    for number in 0..40 {
        let body = chat("m").replace("Hello", &format!("Hello {number}"));
        let asked = bad.asked();
        let status = post(gateway.url(), "/v1/chat/completions", &body).status;
        assert_eq!(status, if bad.asked() > asked { 500 } else { 200 });
    }
    // Trial requests fail as well, at most one per second.
    assert!((3..=8).contains(&bad.asked()), "{} of 40 were lost", bad.asked());
}

#[test]
fn requests_that_make_every_worker_say_500_take_none_out() {
    let engines = [0; 3].map(|_| {
        Scripted::new(|mut asked| {
            let is_poison = String::from_utf8_lossy(&asked.body).contains("poison");
            if is_poison { asked.write(ERROR) } else { asked.answer("{}") }
        })
    });
    let urls: Vec<&str> = engines.iter().map(|engine| engine.url.as_str()).collect();
    let flags = ["--policy", "round_robin", "--health-failure-threshold", "1"];
    let gateway = Gateway::over(&urls, &flags);
    for number in 0..60 {
        let (what, status) = if number % 2 == 0 { ("poison", 500) } else { ("Hello", 200) };
        let body = chat("m").replace("Hello", &format!("{what} {number}"));
        assert_eq!(post(gateway.url(), "/v1/chat/completions", &body).status, status, "{number}");
    }
    assert!(gateway.workers().iter().all(|worker| worker["state"] == "ready"), "{:?}", gateway.workers());
}

#[test]
fn an_upload_that_the_client_breaks_off_is_not_the_workers_fault() {
    let engine = good();
    let gateway = Gateway::over(&[&engine.url], &["--health-failure-threshold", "1"]);
    for start in ["zz\r\n", "8\r\nRIFFWAVE\r\nzz\r\n"] {
        for _ in 0..5 {
            let broken = format!("{CHUNKED_UPLOAD}{start}");
            let answer = Call::raw(gateway.url(), broken.as_bytes()).finish_if_begun();
            assert!(answer.is_none_or(|answer| answer.status == 400));
        }
    }
    assert_eq!(gateway.workers()[0]["state"], "ready");
}

const CHUNKED_UPLOAD: &str = "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-type: audio/wav\r\n\
                              transfer-encoding: chunked\r\n\r\n";

/// The bytes of an upload as the worker gets them, until its end or the connection's.
fn upload(asked: &mut ReceivedRequest) -> String {
    assert_eq!((asked.header("transfer-encoding"), asked.header("content-length")), (Some("chunked"), None));
    let mut bytes = std::mem::take(&mut asked.body);
    while !bytes.ends_with(b"0\r\n\r\n") {
        let mut part = [0; 1 << 10];
        match asked.stream.read(&mut part).unwrap_or(0) {
            0 => break,
            count => bytes.extend_from_slice(&part[..count]),
        }
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn an_upload_of_unknown_length_arrives_in_chunks_and_ends_only_where_the_client_ended_it() {
    let (sender, received) = channel();
    let engine = Scripted::new(move |mut asked| {
        let bytes = upload(&mut asked);
        let is_whole = bytes.ends_with("0\r\n\r\n");
        sender.send(bytes).unwrap();
        if is_whole {
            asked.answer("{}");
        }
    });
    let gateway = Gateway::over(&[&engine.url], &["--health-failure-threshold", "1"]);
    let send = |body: &str| {
        let call = Call::raw(gateway.url(), format!("{CHUNKED_UPLOAD}{body}").as_bytes());
        (call.finish_if_begun().map(|answer| answer.status), received.recv_timeout(TIMEOUT).unwrap())
    };
    let whole = send("8;x=y\r\nRIFFWAVE\r\n4\r\nfmt \r\n0\r\nx-trailer: 1\r\n\r\n");
    assert_eq!(
        whole,
        (Some(200), "8\r\nRIFFWAVE\r\n4\r\nfmt \r\n0\r\n\r\n".to_owned()),
        "without the trailer"
    );
    let (status, bytes) = send("8\r\nRIFFWAVE\r\nzz\r\n");
    assert!(status.is_none_or(|status| status == 400), "{status:?}");
    assert_eq!(bytes, "8\r\nRIFFWAVE\r\n");
    assert_eq!(gateway.workers()[0]["state"], "ready");
    engine.check();
}

#[test]
fn a_client_whose_upload_is_answered_early_can_send_the_rest() {
    let engine = Scripted::new(|mut asked| asked.answer("{\"early\": true}"));
    let gateway = Gateway::over(&[&engine.url], &[]);
    let head = CHUNKED_UPLOAD.replace("connection: close\r\n", "");
    let mut call = Call::raw(gateway.url(), format!("{head}4\r\nRIFF\r\n").as_bytes());
    call.read_until("early");
    let rest = format!("{:x}\r\n{}\r\n0\r\n\r\n", 1 << 20, "x".repeat(1 << 20));
    call.write(rest.as_bytes());
    call.write(b"GET /health HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n");
    call.read_until("HTTP/1.1 200 OK");
    assert_eq!(gateway.workers()[0]["state"], "ready");
}

#[test]
fn a_worker_that_hangs_after_a_whole_upload_is_not_waited_for_any_longer() {
    let engine = Scripted::new(|mut asked| {
        upload(&mut asked);
        asked.wait_for_hang_up_or_close();
    });
    let gateway = Gateway::over(&[&engine.url], &["--first-byte-timeout-secs", "1"]);
    let call = |body: &str| Call::raw(gateway.url(), format!("{CHUNKED_UPLOAD}{body}").as_bytes());
    // The client of the first one takes its time: the limit is not its.
    let mut slow = call("8\r\nRIFFWAVE\r\n");
    assert_eq!(call("8\r\nRIFFWAVE\r\n0\r\n\r\n").finish().status, 504);
    slow.write(b"0\r\n\r\n");
    assert_eq!(slow.finish().status, 504);
}

#[test]
fn a_worker_that_stops_reading_an_upload_is_given_up() {
    // The second worker has even begun an answer.
    for begins_answer in [false, true] {
        let gate = Gate::default();
        let held = gate.clone();
        let engine = Scripted::new(move |mut asked| {
            if begins_answer {
                asked.begin_events();
            }
            held.pass();
        });
        let gateway = Gateway::over(&[&engine.url], &["--first-byte-timeout-secs", "1"]);
        let endless = || {
            let call = Call::raw(gateway.url(), CHUNKED_UPLOAD.as_bytes());
            call.keep_sending(format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16)).into_bytes());
            call
        };
        assert_eq!(endless().finish().status, 504);
        let call = endless();
        engine.wait_for_asked(2);
        call.hang_up();
        gateway.wait_for_idle();
        gate.open();
        engine.check();
    }
}

#[test]
fn an_upload_finds_the_only_engine_that_is_left() {
    let (staying, dying) = (good(), [0; 2].map(|_| engine(&[])));
    let urls: Vec<&str> = dying.iter().map(|engine| engine.url()).chain([&*staying.url]).collect();
    let flags = ["--policy", "round_robin", "--health-failure-threshold", "1000", "--retry-max-retries", "0"];
    let gateway = Gateway::over(&urls, &flags);
    for engine in dying {
        engine.signal("-KILL");
        engine.wait();
    }
    for _ in 0..6 {
        let answer = Call::raw(gateway.url(), format!("{CHUNKED_UPLOAD}4\r\nRIFF\r\n0\r\n\r\n").as_bytes());
        assert_eq!(answer.finish().status, 200);
    }
    assert_eq!(staying.asked(), 6);
}

#[test]
fn a_request_that_a_worker_has_taken_is_not_sent_to_it_again() {
    // An answer leaves an idle connection; the second request on it is read and then dropped.
    let dropped = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&dropped);
    let engine = Scripted::new(move |mut asked| {
        asked.answer("{}");
        if asked.next_request() {
            counted.fetch_add(1, Relaxed);
            // Long enough for the worker to have started.
            std::thread::sleep(Duration::from_millis(100));
            asked.reset();
        }
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    let mut sent = 0;
    let failed = eventually("a request goes over a kept connection", || {
        sent += 1;
        let response = post(gateway.url(), "/v1/chat/completions", &chat("m"));
        (response.status != 200).then_some(response)
    });
    assert_eq!((failed.status, failed.json()["error"]["code"].as_str()), (502, Some("worker_failed")));
    assert_eq!(engine.asked(), sent - 1, "each of the others came once, on a connection of its own");
    assert_eq!(dropped.load(Relaxed), 1, "it was not sent again over another kept connection");
    assert_eq!(gateway.metric("warmroute_retries_total"), 0.0);
}

#[test]
fn an_engine_that_closes_its_connection_some_time_after_each_answer_fails_no_request() {
    let engine = Scripted::new(|mut asked| {
        asked.answer("{}");
        // A request that is sent meanwhile is not read. As on a busy machine, the close comes late.
        std::thread::sleep(Duration::from_millis(60));
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    for _ in 0..10 {
        assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("m")).status, 200);
    }
    assert_eq!(engine.asked(), 10);
}

#[test]
fn a_few_failures_among_many_answers_take_no_worker_out() {
    let engine =
        Scripted::new(|mut asked| if asked.turn % 4 == 3 { asked.reset() } else { asked.answer("{}") });
    let other = good();
    let gateway = Gateway::over(&[&engine.url, &other.url], &["--policy", "round_robin"]);
    for _ in 0..60 {
        assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("m")).status, 200);
    }
    assert!(engine.asked() >= 20);
    assert!(gateway.workers().iter().all(|worker| worker["state"] == "ready"));
}

#[test]
fn two_framings_of_one_answer_never_cut_it_short() {
    let engine = Scripted::new(|mut asked| {
        asked.write("HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nb\r\n{\"ok\":true}\r\n0\r\n\r\n");
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    let response = post(gateway.url(), "/v1/chat/completions", &chat("m"));
    assert_eq!((response.text().as_str(), response.complete), ("{\"ok\":true}", true));
}

#[test]
fn a_worker_that_hides_its_models_is_not_called_ready() {
    let engine = Scripted::with_models(None, |mut asked| asked.answer("{}"));
    let gateway = Gateway::start(&[&engine.url], &[]);
    eventually("it was probed", || (engine.probed() > 3).then_some(()));
    assert_eq!(gateway.workers()[0]["state"], "starting");
    assert_eq!(get(gateway.admin(), "/readyz").status, 503);
    let given = serde_json::json!({"url": engine.url, "models": ["m"]}).to_string();
    assert_eq!(post(gateway.admin(), "/workers", &given).status, 202);
    gateway.wait_for_ready(1);
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("m")).status, 200);
}

#[test]
fn when_every_attempt_fails_the_client_gets_an_error() {
    let bad = [0; 4].map(|_| Scripted::new(|asked| asked.reset()));
    let urls: Vec<&str> = bad.iter().map(|engine| engine.url.as_str()).collect();
    let gateway = Gateway::over(&urls, &["--retry-max-retries", "2"]);
    let response = post(gateway.url(), "/v1/chat/completions", &chat("m"));
    assert_eq!(response.status, 502);
    assert_eq!(response.json()["error"]["code"], "worker_failed");
    let mut tried: Vec<usize> = bad.iter().map(Scripted::asked).collect();
    tried.sort_unstable();
    assert_eq!(tried, [0, 1, 1, 1], "three workers, each once");
}

#[test]
fn errors_of_the_engine_pass_through_unchanged() {
    let engine = Scripted::new(|mut asked| {
        asked.write("HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy");
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    for _ in 0..9 {
        let response = post(gateway.url(), "/v1/chat/completions", &chat("m"));
        assert_eq!((response.status, response.text().as_str()), (429, "busy"));
        assert_eq!(response.header("retry-after"), Some("7"));
    }
    assert_eq!(gateway.workers()[0]["state"], "ready", "backpressure is no fault");
}

#[test]
fn bodies_that_cannot_be_read_are_refused_with_the_place() {
    let engine = good();
    let gateway = Gateway::over(&[&engine.url], &["--max-payload-size", "1000"]);
    let bad = post(gateway.url(), "/v1/chat/completions", "{\n  \"model\": oops}");
    assert_eq!(bad.status, 400);
    let error = bad.json()["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("line 2, column 12"), "{error}");
    assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!(null)));

    let large = chat("m").replace("Hello", &"x".repeat(100_000));
    let announced = post(gateway.url(), "/v1/chat/completions", &large);
    assert_eq!(
        (announced.status, announced.json()["error"]["code"].as_str()),
        (413, Some("request_too_large"))
    );
    let chunked = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    assert_eq!(Call::raw(gateway.url(), chunked.as_bytes()).finish().status, 413);

    // The announced length suffices: the body is neither sent nor awaited.
    let huge = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 99999999999\r\n\r\n";
    Call::raw(gateway.url(), huge.as_bytes()).read_until("413 Payload Too Large");
    let asking = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 5000\r\nexpect: 100-continue\r\n\r\n";
    let answer = Call::raw(gateway.url(), asking.as_bytes()).read_until("413 Payload Too Large");
    assert!(!answer.contains("100 Continue"), "{answer}");

    let encoded = ["content-encoding: gzip"];
    let encoded = Call::send(gateway.url(), "POST", "/v1/chat/completions", &encoded, b"\x1f\x8b").finish();
    assert_eq!(encoded.status, 415);
    assert_eq!(engine.asked(), 0, "no engine was bothered");
}

#[test]
fn every_refusal_has_the_shape_that_its_sdk_knows() {
    let engine = good();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let unknown = post(gateway.url(), "/v1/chat/completions", &chat("other"));
    assert_eq!((unknown.status, unknown.json()["error"]["code"].as_str()), (404, Some("model_not_found")));
    let anthropic = post(gateway.url(), "/v1/messages", &chat("other"));
    assert_eq!(anthropic.status, 404);
    assert_eq!(
        (&anthropic.json()["type"], &anthropic.json()["error"]["type"]),
        (&json!("error"), &json!("not_found_error"))
    );
    let count = post(gateway.url(), "/v1/messages/count_tokens", &chat("other"));
    assert_eq!(count.json()["error"]["type"], "not_found_error");
    let wrong_method = get(gateway.url(), "/v1/chat/completions");
    assert_eq!((wrong_method.status, wrong_method.header("allow")), (405, Some("POST")));
    let nowhere = get(gateway.url(), "/nowhere");
    assert_eq!((nowhere.status, nowhere.json()["error"]["code"].as_str()), (404, Some("unknown_url")));
}

#[test]
fn without_a_ready_worker_the_client_is_asked_to_retry() {
    let gateway = Gateway::start(&[], &[]);
    let response = post(gateway.url(), "/v1/chat/completions", &chat("m"));
    assert_eq!((response.status, response.json()["error"]["code"].as_str()), (503, Some("no_worker_ready")));
    assert!(response.header("retry-after").is_some());
    assert_eq!(get(gateway.admin(), "/readyz").status, 503);
    assert_eq!(get(gateway.admin(), "/healthz").status, 200);
    assert_eq!(get(gateway.url(), "/health").status, 503);
}

#[test]
fn garbage_is_refused() {
    let engine = good();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let deep = format!("{{\"model\":\"m\",\"messages\":{}", "[".repeat(100_000));
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &deep).status, 400);
    for garbage in [
        &b"\x00\xff\xfe\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}",
    ] {
        let mut answer = Vec::new();
        let mut stream =
            std::net::TcpStream::connect(crate::harness::client::authority(gateway.url())).unwrap();
        stream.set_read_timeout(Some(crate::harness::TIMEOUT)).unwrap();
        std::io::Write::write_all(&mut stream, garbage).unwrap();
        _ = std::io::Read::read_to_end(&mut stream, &mut answer);
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"),
            "{:?}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("m")).status, 200, "and it goes on serving");
}
