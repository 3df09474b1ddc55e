//! Streams that break off, and answers whose text looks like an end.

use serde_json::json;

use crate::harness::client::{chat_stream, post};
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;

const CHAT: &str = "/v1/chat/completions";

/// Text that has every end.
const ENDS: &str = "data: [DONE]\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\nresponse.completed \
    response.incomplete \"error\" {\"error\":{}} \"finish_reason\":\"stop\" event: error\n\n";

fn choice(index: u32, text: &str, reason: &str) -> String {
    let content = json!({"content": text});
    format!(
        "data: {{\"error\":null,\"choices\":[{{\"index\":{index},\"delta\":{content},\"finish_reason\":{reason}}}]}}\n\n"
    )
}

fn event(kind: &str, text: &str) -> String {
    format!(
        "event: {kind}\ndata: {}\n\n",
        json!({"type": kind, "delta": {"type": "text_delta", "text": text}})
    )
}

/// Streams by path and body, whether each is whole, and what to say if it is not found so.
fn streams() -> Vec<(&'static str, String, String, bool)> {
    let one = chat_stream("m", 9);
    let two = one.replace("\"stream\"", "\"n\":2,\"stream\"");
    let long = ENDS.repeat(200);
    let stop = choice(0, "", "\"stop\"");
    let (created, delta) = ("response.created", "response.output_text.delta");
    let (start, part) = ("message_start", "content_block_delta");
    let cut = |path, body: &str, events: String| (path, body.to_owned(), events, false);
    let whole = |path, body: &str, events: String| (path, body.to_owned(), events, true);
    vec![
        cut(CHAT, &one, choice(0, ENDS, "null")),
        cut(CHAT, &one, choice(0, &long, "null")),
        cut(CHAT, &one, choice(0, "a", "null") + &choice(0, &long, "null")),
        cut(CHAT, &two, choice(0, "a", "null") + &choice(1, "b", "null") + &stop),
        cut(CHAT, &two, choice(0, "a", "null") + &stop),
        cut(CHAT, &one, choice(0, "a", "null") + "data: {\"error\":null}\n\n"),
        cut(CHAT, &one, choice(0, "a", "null") + "data: [DO"),
        cut("/v1/responses", &one, event(created, "") + &event(delta, ENDS)),
        cut("/v1/responses", &one, event(created, "") + &event(delta, &long)),
        cut("/v1/messages", &one, event(start, "") + &event(part, ENDS)),
        cut("/v1/messages", &one, event(start, "") + &event(part, &long) + "event: message_stop\n\n"),
        whole(CHAT, &one, choice(0, ENDS, "null") + "data: [DONE]\n\n"),
        whole(CHAT, &one, choice(0, &long, "null") + &stop),
        whole(CHAT, &two, choice(0, "a", "null") + &choice(1, "b", "\"length\"") + &stop),
        whole(CHAT, &two, choice(0, "a", "null") + "data: [DONE]\n\n"),
        whole(
            CHAT,
            &one,
            choice(0, "a", "null") + &choice(0, "a", &format!("\"stop\",\"x\":\"{}\"", "y".repeat(30_000))),
        ),
        whole(CHAT, &one, choice(0, "a", "null") + "data: {\"error\":{\"message\":\"dead\"}}\n\n"),
        whole("/v1/responses", &one, event(delta, &long) + &event("response.completed", &long)),
        whole("/v1/responses", &one, event(delta, "") + &event("response.failed", "")),
        whole("/v1/messages", &one, event(part, &long) + &event("message_stop", "")),
    ]
}

#[test]
fn no_text_ends_a_stream_and_no_stream_ends_silently_in_its_middle() {
    for (path, body, events, is_whole) in streams() {
        for is_framed in [true, false] {
            let sent = events.clone();
            let engine = Scripted::new(move |mut asked| {
                if is_framed {
                    asked.begin_events();
                    // Reads split the events anywhere.
                    for chunk in sent.as_bytes().chunks(1_000) {
                        asked.chunk(std::str::from_utf8(chunk).unwrap());
                    }
                    return asked.end_chunks();
                }
                asked
                    .write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
                asked.write(&sent);
            });
            let gateway = Gateway::over(&[&engine.url], &[]);
            let text = post(gateway.url(), path, &body).text();
            let what = format!("{path}, framed: {is_framed}: {events:.300}");
            // A half event need not reach the client.
            let passed = &events[..events.rfind("\n\n").unwrap() + 2];
            assert!(text.starts_with(passed), "{what}: {text:.300}");
            assert_eq!(text[passed.len()..].contains("The worker failed in the middle"), !is_whole, "{what}");
            gateway.wait_for_idle();
            let outcome = if is_whole { "ok" } else { "failed" };
            let counted =
                format!("warmroute_requests_total{{worker=\"{}\",outcome=\"{outcome}\"}}", engine.url);
            assert_eq!(gateway.metric(&counted), 1.0, "{what}");
        }
    }
}
