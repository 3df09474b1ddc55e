//! Bytes pass through the gateway unchanged and at once, and stop when the client leaves.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use crate::harness::client::{Call, chat, chat_stream, get, post};
use crate::harness::process::{Gateway, engine};
use crate::harness::script::Scripted;

#[test]
fn every_chunk_is_forwarded_at_once() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let engine = Scripted::new(move |mut asked| {
        asked.begin_events();
        for n in 0..3 {
            asked.chunk(&format!("data: {{\"n\":{n}}}\n\n"));
            // The worker sends the next chunk only after the client has read this one.
            wait.lock().unwrap().recv().unwrap();
        }
        asked.chunk("data: [DONE]\n\n");
        asked.end_chunks();
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    let mut call =
        Call::send(gateway.url(), "POST", "/v1/chat/completions", &[], chat_stream("m", 3).as_bytes());
    for n in 0..3 {
        call.read_until(&format!("{{\"n\":{n}}}"));
        go.send(()).unwrap();
    }
    let response = call.finish();
    assert!(response.complete);
    assert_eq!(response.text(), "data: {\"n\":0}\n\ndata: {\"n\":1}\n\ndata: {\"n\":2}\n\ndata: [DONE]\n\n");
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    engine.check();
}

#[test]
fn the_body_is_forwarded_byte_for_byte() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let engine = Scripted::new(move |mut asked| {
        kept.lock().unwrap().push((asked.head.clone(), asked.body.clone()));
        asked.answer("{}");
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    let odd =
        " {\"model\" : \"m\",\t\"x\":1e2, \"messages\":[ {\"role\":\"user\",\"content\":\"\\u00e9\\n\"} ]}\n";
    // Large enough to arrive in many pieces.
    let large = chat("m").replace("Hello", &"0123456789".repeat(50_000));
    for body in [odd, &large] {
        assert_eq!(post(gateway.url(), "/v1/chat/completions?beta=1", body).status, 200);
        let (head, received) = seen.lock().unwrap().pop().unwrap();
        assert!(received == body.as_bytes(), "{} bytes became {}", body.len(), received.len());
        assert!(head.starts_with("POST /v1/chat/completions?beta=1 HTTP/1.1"));
    }
}

#[test]
fn an_alias_changes_the_models_name_and_nothing_else() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let engine = Scripted::new(move |mut asked| {
        *kept.lock().unwrap() = asked.body.clone();
        asked.answer("{}");
    });
    let config = std::env::temp_dir().join(format!("warmroute-alias-{}.toml", std::process::id()));
    std::fs::write(&config, "[aliases]\n\"gpt-4\" = \"m\"\n").unwrap();
    let gateway = Gateway::over(&[&engine.url], &["--config", config.to_str().unwrap()]);
    let body = r#"{"model": "gpt-4", "messages": [], "note": "gpt-4"}"#;
    assert_eq!(post(gateway.url(), "/v1/chat/completions", body).status, 200);
    let received = String::from_utf8(seen.lock().unwrap().clone()).unwrap();
    assert_eq!(received, r#"{"model": "m", "messages": [], "note": "gpt-4"}"#);

    let models = get(gateway.url(), "/v1/models").json();
    let ids: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["gpt-4", "m"]);
    assert_eq!(get(gateway.url(), "/v1/models/gpt-4").json()["root"], "m");
    assert_eq!(get(gateway.url(), "/v1/models/gpt-5").status, 404);
    std::fs::remove_file(config).unwrap();
}

#[test]
fn other_uploads_and_unknown_paths_pass_through() {
    let engine = Scripted::new(|mut asked| {
        let answer = format!(
            "{{\"path\":{:?},\"bytes\":{}}}",
            asked.head.split(' ').nth(1).unwrap(),
            asked.body.len()
        );
        asked.answer(&answer);
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    let upload = vec![0xff_u8; 300_000];
    let headers = ["content-type: multipart/form-data; boundary=x"];
    let answer = Call::send(gateway.url(), "POST", "/v1/audio/transcriptions", &headers, &upload).finish();
    assert_eq!(answer.json()["bytes"], 300_000);
    assert_eq!(get(gateway.url(), "/v1/something/new?x=1").json()["path"], "/v1/something/new?x=1");
    assert_eq!(post(gateway.url(), "/tokenize", r#"{"model":"m","prompt":"x"}"#).json()["path"], "/tokenize");
    // Bodies of unknown APIs may be unreadable, unless they claim to be a JSON object.
    for odd in ["[1,2]", "not json"] {
        assert_eq!(post(gateway.url(), "/v1/batches", odd).json()["bytes"], odd.len());
    }
    let lines = "{\"a\":1}\n{\"a\":2}\n";
    let kind = ["content-type: application/x-ndjson"];
    let answer = Call::send(gateway.url(), "POST", "/v1/batches", &kind, lines.as_bytes()).finish();
    assert_eq!(answer.json()["bytes"], lines.len());
    assert_eq!(post(gateway.url(), "/v1/batches", lines).status, 400);
    // Engine-control headers from clients are dropped.
    for path in
        ["/reset_prefix_cache", "/v1/load_lora_adapter", "/v1/../reset_prefix_cache", "/v1/%2e%2e/metrics"]
    {
        assert_eq!(post(gateway.url(), path, "{}").status, 404, "{path}");
    }
    assert_eq!(engine.asked(), 6);
}

#[test]
fn uploads_and_odd_content_types_go_to_workers_that_serve_their_model() {
    let answer_as = |name: &'static str| {
        Scripted::with_models(Some(name), move |mut asked| asked.answer(&format!("{name:?}")))
    };
    let (whisper, chat) = (answer_as("whisper"), answer_as("chat"));
    let gateway = Gateway::over(&[&whisper.url, &chat.url], &["--policy", "round_robin"]);
    let form = "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--x--\r\n";
    for _ in 0..6 {
        let headers = ["content-type: Multipart/Form-Data; boundary=x"];
        let call = Call::send(gateway.url(), "POST", "/v1/audio/transcriptions", &headers, form.as_bytes());
        assert_eq!(call.finish().json(), "whisper");
        for kind in [
            "content-type: application/x-www-form-urlencoded",
            "content-type: Application/JSON",
            "x-no: type",
        ] {
            let body = br#"{"model":"chat","input":"x"}"#;
            let call = Call::send(gateway.url(), "POST", "/v1/embeddings", &[kind], body);
            assert_eq!(call.finish().json(), "chat", "{kind}");
        }
    }
}

#[test]
fn a_request_without_a_body_is_tried_again() {
    let bad = Scripted::new(|asked| asked.reset());
    let good = Scripted::new(|mut asked| asked.answer("{}"));
    let gateway = Gateway::over(&[&bad.url, &good.url], &["--policy", "round_robin"]);
    for method in ["GET", "DELETE", "GET", "DELETE"] {
        let call = Call::raw(
            gateway.url(),
            format!("{method} /v1/files/f HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n").as_bytes(),
        );
        assert_eq!(call.finish().status, 200, "{method}");
    }
    assert!(bad.asked() > 0);
}

#[test]
fn request_ids_are_accepted_created_echoed_and_forwarded() {
    let engine = Scripted::new(|mut asked| {
        let answer = format!("{{\"id\":{:?}}}", asked.header("x-request-id").unwrap());
        asked.answer(&answer);
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    let with = |header: &str| {
        Call::send(gateway.url(), "POST", "/v1/chat/completions", &[header], chat("m").as_bytes()).finish()
    };
    // Engines name requests by this header, so two requests of one id must not meet there.
    let given = [with("x-request-id: abc-123"), with("x-request-id: abc-123")];
    let in_engine = given.each_ref().map(|given| given.json()["id"].as_str().unwrap().to_owned());
    assert!(given.iter().all(|given| given.header("x-request-id") == Some("abc-123")));
    assert!(in_engine[0] != in_engine[1] && in_engine.iter().all(|id| id.starts_with("abc-123-")));
    let created = with("accept: */*");
    assert!(created.json()["id"].as_str().unwrap().starts_with(created.header("x-request-id").unwrap()));
    assert_eq!(created.header("x-request-id").unwrap().len(), 32);
    let refused = post(gateway.url(), "/v1/chat/completions", "{");
    assert!(refused.header("x-request-id").is_some(), "refusals can be traced too");
}

#[test]
fn a_client_that_leaves_cancels_the_worker_in_a_stream_and_before_it() {
    for streams in [true, false] {
        let (told, gone) = mpsc::channel::<()>();
        let told = Mutex::new(told);
        let engine = Scripted::new(move |mut asked| {
            if streams {
                asked.begin_events();
                asked.chunk("data: {}\n\n");
            }
            asked.wait_for_hang_up();
            told.lock().unwrap().send(()).unwrap();
        });
        let gateway = Gateway::over(&[&engine.url], &[]);
        let body = if streams { chat_stream("m", 9) } else { chat("m") };
        let mut call = Call::send(gateway.url(), "POST", "/v1/chat/completions", &[], body.as_bytes());
        if streams {
            call.read_until("data: {}");
        } else {
            engine.wait_for_asked(1);
        }
        assert_eq!(gateway.workers()[0]["in_flight"], 1);
        call.hang_up();
        gone.recv_timeout(crate::harness::TIMEOUT).expect("the worker is hung up on");
        gateway.wait_for_idle();
        engine.check();
        if streams {
            let cancelled =
                format!("warmroute_requests_total{{worker=\"{}\",outcome=\"cancelled\"}}", engine.url);
            assert_eq!(gateway.metric(&cancelled), 1.0);
        }
    }
}

#[test]
fn the_rank_header_of_a_client_is_replaced() {
    let engine = Scripted::new(|mut asked| {
        let answer = format!("{{\"rank\":{:?}}}", asked.header("x-data-parallel-rank").unwrap_or("none"));
        asked.answer(&answer);
    });
    let gateway = Gateway::start(&[&engine.url], &["--dp-size", "2", "--policy", "round_robin"]);
    gateway.wait_for_ready(2);
    let ask = || {
        let headers = ["x-data-parallel-rank: 7"];
        let call = Call::send(gateway.url(), "POST", "/v1/chat/completions", &headers, chat("m").as_bytes());
        let response = call.finish();
        (
            response.json()["rank"].as_str().unwrap().to_owned(),
            response.header("x-warmroute-worker").unwrap().to_owned(),
        )
    };
    let mut ranks = [ask(), ask()];
    ranks.sort();
    assert_eq!(ranks, [("0".into(), format!("{}@0", engine.url)), ("1".into(), format!("{}@1", engine.url))]);
}

#[test]
fn a_connection_the_worker_closed_while_idle_is_no_failure() {
    // The worker closes each connection after its answer, although HTTP/1.1 keeps it open by default.
    let (closed, has_closed) = mpsc::channel::<()>();
    let closed = Mutex::new(closed);
    let engine = Scripted::new(move |mut asked| {
        asked.answer("{}");
        drop(asked);
        closed.lock().unwrap().send(()).unwrap();
    });
    let gateway = Gateway::over(&[&engine.url], &["--retry-max-retries", "0"]);
    for _ in 0..20 {
        assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("m")).status, 200);
        has_closed.recv_timeout(crate::harness::TIMEOUT).unwrap();
    }
    assert_eq!(engine.asked(), 20);
}

#[test]
fn a_simulated_engine_streams_through_in_order() {
    let engine = engine(&[]);
    let gateway = Gateway::over(&[engine.url()], &[]);
    let response = post(gateway.url(), "/v1/chat/completions", &chat_stream("llama-3.1-8b", 20));
    let text = response.text();
    let events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
    assert!(response.complete && events.len() > 20, "{}", response.text());
    assert_eq!(events.last(), Some(&"data: [DONE]"));
    assert_eq!(response.header("x-warmroute-policy"), Some("expected_ttft"));
    assert_eq!(response.header("x-warmroute-worker"), Some(engine.url()));
}

#[test]
fn a_websocket_is_refused_at_once_and_the_client_goes_on_by_http() {
    let engine = engine(&[]);
    let gateway = Gateway::over(&[engine.url()], &[]);
    let upgrade = [
        "connection: Upgrade",
        "upgrade: WebSocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    for path in ["/v1/responses", "/v1/realtime", "/v1/chat/completions"] {
        let refused = Call::send(gateway.url(), "GET", path, &upgrade, b"").finish();
        // Codex falls back to HTTP after this status. After a 405 it tries again for seconds.
        assert_eq!((refused.status, refused.header("upgrade")), (426, Some("HTTP/1.1")), "{path}");
        assert_eq!(refused.json()["error"]["code"], "websocket_not_offered");
    }
    let metrics = get(gateway.admin(), "/metrics").text();
    assert!(metrics.contains("warmroute_refusals_total{reason=\"websocket_not_offered\"} 3"), "{metrics}");
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("llama-3.1-8b")).status, 200);
}
