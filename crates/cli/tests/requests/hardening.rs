//! Malicious clients: request smuggling, endless heads and bodies, internal headers, odd paths.

use std::sync::{Arc, Mutex};

use crate::harness::client::{Call, Response, chat, get, post};
use crate::harness::eventually;
use crate::harness::gated::Gated;
use crate::harness::process::{Gateway, engine};
use crate::harness::script::Scripted;
use crate::harness::temp_folder::TempFolder;
use serde_json::json;

type Seen = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// An engine that keeps the requests it receives.
fn keeper() -> (Scripted, Seen) {
    let seen = Seen::default();
    let kept = Arc::clone(&seen);
    let engine = Scripted::new(move |mut asked| {
        kept.lock().unwrap().push((asked.head.to_ascii_lowercase(), asked.body.clone()));
        asked.answer("{}");
    });
    (engine, seen)
}

fn raw(gateway: &Gateway, text: &str) -> Option<Response> {
    Call::raw(gateway.url(), text.as_bytes()).finish_if_begun()
}

/// An ambiguous request is either refused or framed anew as one request for the worker.
#[test]
fn no_request_is_smuggled_to_a_worker() {
    let (engine, seen) = keeper();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let post = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\n";
    let body = chat("m");
    let n = body.len();
    let chunked = format!("{n:x}\r\n{body}\r\n0\r\n\r\n");
    let hidden = "POST /reset_prefix_cache HTTP/1.1\r\nhost: t\r\ncontent-length: 0\r\n\r\n";
    let refused = [
        format!("{post}content-length: {n}\r\ncontent-length: {}\r\n\r\n{body}{hidden}", n + 1),
        format!("{post}content-length: {n}, {}\r\n\r\n{body}", n + 1),
        format!("{post}content-length: +{n}\r\n\r\n{body}"),
        format!("{post}content-length: -1\r\n\r\n{body}"),
        format!("{post}content-length: 0x10\r\n\r\n{body}"),
        format!("{post}content-length : {n}\r\n\r\n{body}"),
        format!("{post}transfer-encoding: xchunked\r\n\r\n{chunked}"),
        format!("{post}transfer-encoding: chunked, identity\r\n\r\n{chunked}"),
        format!("{post}transfer-encoding: identity\r\n\r\n{chunked}"),
        format!("{post}transfer-encoding : chunked\r\n\r\n{chunked}"),
        format!("{post}x-folded: a\r\n b\r\ncontent-length: {n}\r\n\r\n{body}"),
        format!("{post}x-bare: a\rb\r\ncontent-length: {n}\r\n\r\n{body}"),
        format!("{post}x-nul: a\0b\r\ncontent-length: {n}\r\n\r\n{body}"),
        format!("{post}transfer-encoding: chunked\r\n\r\n0x{chunked}"),
        format!("{post}transfer-encoding: chunked\r\n\r\n-{chunked}"),
        format!("{post}transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{body}\r\n0\r\n\r\n"),
        format!("{post}transfer-encoding: chunked\r\n\r\n{n:x}\n{body}\n0\n\n"),
        format!("{post}transfer-encoding: chunked\r\n\r\n{n:x}\r\n{body}XX0\r\n\r\n"),
        format!(
            "POST /v1/chat/completions HTTP/1.0\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"
        ),
        format!("POST /v1/chat/completions\x0bHTTP/1.1 HTTP/1.1\r\nhost: t\r\n\r\n{body}"),
    ];
    for text in &refused {
        let answer = raw(&gateway, text);
        assert!(answer.as_ref().is_none_or(|answer| answer.status == 400), "{text:?}: {answer:?}");
    }
    assert_eq!(engine.asked(), 0, "{:?}", seen.lock().unwrap());

    // With both framings, the chunks count (RFC 9112, 6.3); the worker gets one length, and the rest is not part of
    // the body.
    let both = format!("{post}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n{chunked}{hidden}");
    assert_eq!(raw(&gateway, &both).unwrap().status, 200);
    let (head, received) = seen.lock().unwrap().pop().unwrap();
    assert_eq!(received, body.as_bytes());
    assert!(head.contains(&format!("content-length: {n}")) && !head.contains("transfer-encoding"), "{head}");
    assert_eq!(head.matches("content-length").count(), 1);
    // On a kept connection, the rest is a request of its own and checked as one.
    let kept = both
        .replace("connection: close\r\n", "")
        .replace("content-length: 0", "connection: close\r\ncontent-length: 0");
    let answers =
        String::from_utf8_lossy(&Call::raw(gateway.url(), kept.as_bytes()).finish().body).into_owned();
    assert!(answers == "{}" || answers.contains("404 Not Found"), "{answers}");
    assert!(seen.lock().unwrap().iter().all(|(head, _)| !head.contains("reset_prefix_cache")));
}

#[test]
fn internal_headers_from_clients_are_dropped() {
    let (engine, seen) = keeper();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let spoofed = [
        "x-warmroute-worker: http://127.0.0.1:1",
        "x-warmroute-anything: 1",
        "x-data-parallel-rank: 3",
        "forwarded: for=10.0.0.1",
        "x-forwarded-for: 10.0.0.1",
        "x-forwarded-host: internal",
        "x-real-ip: 10.0.0.1",
        "connection: x-hop, authorization",
        "x-hop: 1",
        "proxy-connection: keep-alive",
        "keep-alive: timeout=5",
        "te: trailers",
        "upgrade: h2c",
        "proxy-authorization: Basic eDp5",
    ];
    let ask = |gateway: &Gateway| {
        let body = chat("m");
        Call::send(gateway.url(), "POST", "/v1/chat/completions", &spoofed, body.as_bytes()).finish()
    };
    assert_eq!(ask(&gateway).status, 200);
    let (head, _) = seen.lock().unwrap().pop().unwrap();
    for name in spoofed.map(|line| line.split(':').next().unwrap()) {
        assert!(!head.contains(&format!("{name}:")), "{name}: {head}");
    }
    let gateway = Gateway::over(&[&engine.url], &["--forwarded-headers", "pass"]);
    assert_eq!(ask(&gateway).status, 200);
    let (head, _) = seen.lock().unwrap().pop().unwrap();
    assert!(head.contains("x-forwarded-for: 10.0.0.1") && !head.contains("x-warmroute"), "{head}");
}

#[test]
fn a_client_chooses_its_worker_only_if_allowed() {
    let engines = [0; 3].map(|_| engine(&[]));
    let urls = engines.each_ref().map(|engine| engine.url());
    let gateway = Gateway::over(&urls, &["--allow-worker-choice"]);
    let body = chat("llama-3.1-8b");
    let ask = |worker: &str| {
        let header = format!("x-warmroute-worker: {worker}");
        Call::send(gateway.url(), "POST", "/v1/chat/completions", &[&header], body.as_bytes()).finish()
    };
    for url in urls {
        for _ in 0..3 {
            assert_eq!(ask(url).header("x-warmroute-worker"), Some(url));
        }
    }
    let unknown = ask("http://127.0.0.1:1");
    assert_eq!((unknown.status, unknown.json()["error"]["code"].as_str()), (404, Some("unknown_worker")));
}

#[test]
fn heads_have_an_end() {
    let (engine, _) = keeper();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let ask = |headers: &str| {
        let body = chat("m");
        raw(
            &gateway,
            &format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
                body.len()
            ),
        )
    };
    let large = ask(&format!("x-large: {}\r\n", "x".repeat(70_000))).unwrap();
    assert_eq!((large.status, large.json()["error"]["code"].as_str()), (431, Some("head_too_large")));
    let many: String = (0..150).map(|n| format!("x-{n}: 1\r\n")).collect();
    assert_eq!(ask(&many).unwrap().status, 431);
    // Far too large: the connection may close before everything is sent.
    for bytes in [100 << 10, 2 << 20] {
        let huge = ask(&format!("x-huge: {}\r\n", "x".repeat(bytes)));
        assert!(huge.as_ref().is_none_or(|huge| huge.status == 431), "{huge:?}");
    }
    let target =
        |path: &str| raw(&gateway, &format!("GET {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n"));
    for long in [format!("/v1/files/{}", "x".repeat(9_000)), format!("/v1/files?{}", "x".repeat(9_000))] {
        let long = target(&long).unwrap();
        assert_eq!((long.status, long.json()["error"]["code"].as_str()), (414, Some("target_too_long")));
    }
    assert_eq!(
        target(&format!("/v1/%{}41", "25".repeat(4_000))).unwrap().status,
        404,
        "it is encoded 4,000 times"
    );
    assert_eq!(engine.asked(), 0);
    assert_eq!(ask("x-fine: 1\r\n").unwrap().status, 200);
}

/// Slow heads and bodies are cut off; other clients are served meanwhile.
#[test]
fn slow_clients_are_cut_off() {
    let (engine, _) = keeper();
    let flags = ["--client-head-timeout-secs", "1", "--client-body-timeout-secs", "1"];
    let gateway = Gateway::over(&[&engine.url], &flags);
    let half = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nx-slow: ";
    let heads: Vec<Call> = (0..20).map(|_| Call::raw(gateway.url(), half.as_bytes())).collect();
    let whole = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 100000\r\n\r\n{";
    let mut body = Call::raw(gateway.url(), whole.as_bytes());
    eventually("they are connected", || {
        (gateway.metric("warmroute_client_connections") >= 21.0).then_some(())
    });
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("m")).status, 200);
    body.read_until("408 Request Timeout");
    for call in heads {
        let answer = call.finish_if_begun();
        assert!(answer.as_ref().is_none_or(|answer| answer.status == 408), "{answer:?}");
    }
    body.hang_up();
    eventually("no connection is left", || {
        (gateway.metric("warmroute_client_connections") == 0.0).then_some(())
    });
    assert_eq!(engine.asked(), 1);
}

/// An occasional byte does not extend the deadline; the total received counts.
#[test]
fn a_body_that_trickles_is_cut_off() {
    let (engine, _) = keeper();
    let gateway = Gateway::over(&[&engine.url], &["--client-body-timeout-secs", "1"]);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 100000\r\n\r\n{";
    let mut call = Call::raw(gateway.url(), head.as_bytes());
    eventually("it is refused while it sends", || {
        if !call.has_come("408 Request Timeout") {
            call.write(b" ");
            std::thread::sleep(std::time::Duration::from_millis(50));
            return None;
        }
        Some(())
    });
    assert_eq!(engine.asked(), 0);
}

/// The body of an unauthorized request is not awaited, however fast it arrives.
#[test]
fn an_unauthorized_upload_holds_no_slot() {
    let (engine, _) = keeper();
    let folder = TempFolder::new("hardening-keys");
    let keys = folder.file("keys");
    std::fs::write(&keys, "sk-alpha name=alpha\n").unwrap();
    let gateway = Gateway::over(&[&engine.url], &["--api-keys-file", &keys]);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 10000000\r\n\r\n{";
    let mut call = Call::raw(gateway.url(), head.as_bytes());
    eventually("it is refused while it sends", || {
        if !call.has_come("401 Unauthorized") {
            call.write(&[b' '; 1_000]);
            std::thread::sleep(std::time::Duration::from_millis(50));
            return None;
        }
        Some(())
    });
    assert_eq!(engine.asked(), 0);
}

#[test]
fn connections_above_the_limit_wait() {
    let gated = Gated::serving("m", |mut asked| asked.answer("{}"));
    let gateway = Gateway::over(&[&gated.engine.url], &["--max-client-connections", "3"]);
    // Connections without a request would give way.
    let body = chat("m");
    let busy: Vec<Call> = (0..3)
        .map(|_| Call::send(gateway.url(), "POST", "/v1/chat/completions", &[], body.as_bytes()))
        .collect();
    eventually("three are served", || (gated.order().len() == 3).then_some(()));
    let bytes = Call::request("GET", "/health", &[], b"");
    let mut waiting = Call::raw(gateway.url(), &bytes);
    assert_eq!(gateway.metric("warmroute_client_connections"), 3.0);
    assert!(!waiting.has_come("HTTP/1.1"), "it waits");
    gated.gate.open();
    busy.into_iter().for_each(|call| assert_eq!(call.finish().status, 200));
    assert_eq!(waiting.finish().status, 200);
}

/// The gateway decompresses nothing: APIs that it parses refuse compressed bodies, others forward them.
#[test]
fn compressed_bodies_are_refused_or_forwarded_unread() {
    let (engine, seen) = keeper();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let packed = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    for encoding in ["gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP"] {
        let header = format!("content-encoding: {encoding}");
        let refused = Call::send(gateway.url(), "POST", "/v1/chat/completions", &[&header], &packed).finish();
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (415, &json!("unsupported_encoding")));
    }
    assert_eq!(engine.asked(), 0);
    let other = ["content-encoding: gzip", "content-type: application/octet-stream"];
    assert_eq!(Call::send(gateway.url(), "POST", "/v1/files", &other, &packed).finish().status, 200);
    assert_eq!(seen.lock().unwrap()[0].1, packed);
}

/// A content encoding that the bytes do not have hides no field from the gateway.
#[test]
fn plain_json_is_read_whatever_its_content_encoding_says() {
    let (engine, _) = keeper();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let steering = br#"{"input": "x", "kv_transfer_params": {"remote_host": "a"}}"#;
    for encoding in ["gzip", "Identity", "utf-8", ""] {
        for kind in ["application/json", "application/octet-stream"] {
            let headers = [format!("content-encoding: {encoding}"), format!("content-type: {kind}")];
            let headers = headers.each_ref().map(String::as_str);
            for path in ["/v1/embeddings", "/tokenize", "/v1/responses/compact"] {
                let refused = Call::send(gateway.url(), "POST", path, &headers, steering).finish();
                assert!((400..500).contains(&refused.status), "{path} {headers:?}: {}", refused.status);
            }
        }
    }
    assert_eq!(engine.asked(), 0);
}

#[test]
fn odd_paths_and_methods_reach_only_known_routes() {
    let (engine, seen) = keeper();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let send =
        |line: &str| raw(&gateway, &format!("{line} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n"));
    for line in [
        "GET /metrics",
        "GET /workers",
        "PUT /config",
        "GET /config",
        "POST /explain",
        "GET /v1/../metrics",
        "GET /v1/%2e%2e/metrics",
        "GET /v1/%2E./metrics",
        "GET /v1//load_lora_adapter",
        "POST /v1/load_lora_adapter",
        "POST /v1/load_lora_adapter/",
        "POST /v1/%6coad_lora_adapter",
        "GET /v1/x%0d%0aset-cookie:%20a",
        "GET http://internal/metrics",
        "CONNECT internal:443",
        "CONNECT /v1/files",
        "CONNECT http://internal/v1/files",
        "TRACE /v1/files",
        "BREW /v1/files",
        "OPTIONS *",
        "TRACE /metrics",
    ] {
        let status = send(line).map_or(400, |answer| answer.status);
        assert!([400, 404, 405].contains(&status), "{line}: {status}");
    }
    // Engines take the body of a CONNECT for another request.
    let hidden = "POST /load_lora_adapter HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\n{}";
    let text =
        format!("CONNECT /v1/files HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{hidden}", hidden.len());
    let answer = raw(&gateway, &text).unwrap();
    assert_eq!((answer.status, answer.header("connection")), (400, Some("close")));
    assert_eq!(engine.asked(), 0, "{:?}", seen.lock().unwrap());
    // An absolute URL counts by its path, and the worker sees its own host name.
    assert_eq!(send("GET http://internal:99/v1/files?x=1").unwrap().status, 200);
    let (head, _) = seen.lock().unwrap().pop().unwrap();
    assert!(head.starts_with("get /v1/files?x=1 http/1.1") && !head.contains("internal"), "{head}");
    assert_eq!(get(gateway.url(), "/v1/models").status, 200);
}
