//! Engines that answer without end, and clients that invent names without end: held in 0.1.0.

use std::io::Write;
use std::net::TcpStream;

use serde_json::json;

use crate::harness::client::{Call, chat, chat_stream, post};
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;

const PATH: &str = "/v1/chat/completions";

/// Most bytes that an engine sends in vain.
const FLOOD_BYTES: usize = 64 << 20;

/// What the gateway's memory may grow by: buffers, and the heap's own.
const GROWTH_MIB_MAX: f64 = 24.0;

/// Repeats a text until the other side closes, or for long.
fn repeat(stream: &mut TcpStream, text: &str) {
    let many = text.repeat(64_000 / text.len());
    let times = FLOOD_BYTES / many.len();
    _ = (0..times).try_for_each(|_| stream.write_all(many.as_bytes()));
}

fn memory_mib(gateway: &Gateway) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.process.id())).unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    kib.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

#[test]
fn endless_heads_and_informational_answers_of_an_engine_cost_its_own_request() {
    let engine = Scripted::new(|mut asked| {
        let kind = String::from_utf8_lossy(&asked.body).into_owned();
        if kind.contains("endless head") {
            asked.write("HTTP/1.1 200 OK\r\n");
            repeat(&mut asked.stream, "x-header: of many\r\n");
        } else if kind.contains("long header") {
            asked.write("HTTP/1.1 200 OK\r\nx-header: ");
            repeat(&mut asked.stream, "long ");
        } else if kind.contains("informational") {
            repeat(&mut asked.stream, "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
        } else {
            asked.answer("{}");
        }
    });
    let gateway = Gateway::over(&[&engine.url], &["--first-byte-timeout-secs", "5"]);
    assert_eq!(post(gateway.url(), PATH, &chat("m")).status, 200);
    let before = memory_mib(&gateway);
    for attack in ["endless head", "long header", "informational"] {
        let body = chat("m").replace("Hello", attack);
        let attacked = Call::send(gateway.url(), "POST", PATH, &[], body.as_bytes());
        assert_eq!(post(gateway.url(), PATH, &chat("m")).status, 200, "beside an {attack}");
        let status = attacked.finish().status;
        assert!([502, 504].contains(&status), "{attack}: {status}");
        assert_eq!(post(gateway.url(), PATH, &chat("m")).status, 200, "after an {attack}");
    }
    let grown = memory_mib(&gateway) - before;
    assert!(grown < GROWTH_MIB_MAX, "{grown:.1} MiB");
}

#[test]
fn a_line_without_end_is_passed_on_and_not_kept() {
    let engine = Scripted::new(|mut asked| {
        asked.begin_events();
        asked.chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"");
        let piece = "x".repeat(64_000);
        (0..FLOOD_BYTES / piece.len()).for_each(|_| asked.chunk(&piece));
        asked.chunk("\"}}]}\n\ndata: [DONE]\n\n");
        asked.end_chunks();
    });
    let gateway = Gateway::over(&[&engine.url], &[]);
    let before = memory_mib(&gateway);
    let answer = post(gateway.url(), PATH, &chat_stream("m", 4));
    assert!(
        answer.status == 200 && answer.body.len() > FLOOD_BYTES / 2 && answer.text().ends_with("[DONE]\n\n")
    );
    let grown = memory_mib(&gateway) - before;
    assert!(grown < GROWTH_MIB_MAX, "{grown:.1} MiB");
    engine.check();
}

#[test]
fn invented_salts_sessions_and_models_take_bounded_memory() {
    let engine = Scripted::new(|mut asked| asked.answer("{}"));
    let gateway = Gateway::over(&[&engine.url], &[]);
    let invent = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            let name = format!("{number} {}", "n".repeat(2_000));
            let body = json!({"model": "m", "cache_salt": name, "user": name, "session_id": name, "prompt_cache_key": name,
                "messages": [{"role": "user", "content": "Hello"}]});
            let header = format!("x-session-id: {name}");
            let sent = Call::send(gateway.url(), "POST", PATH, &[&header], body.to_string().as_bytes());
            assert_eq!(sent.finish().status, 200);
            let body = json!({"model": name, "messages": []}).to_string();
            assert_eq!(post(gateway.url(), PATH, &body).status, 404);
        }
    };
    invent(0..500);
    let before = memory_mib(&gateway);
    invent(500..2_500);
    let grown = memory_mib(&gateway) - before;
    // The names alone have 24 MiB.
    assert!(grown < 12.0, "{grown:.1} MiB");
}
