//! OpenTelemetry traces, read field by field. `conformance/otel` decodes them with OpenTelemetry's own package.

use std::sync::{Arc, Mutex};

use warmroute_protobuf::{FieldValue, MessageFields};

use crate::harness::client::{Call, chat, chat_stream, post};
use crate::harness::eventually;
use crate::harness::process::{Gateway, engine};
use crate::harness::script::Scripted;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT: &str = "b7ad6b7169203331";

/// A span as far as these tests look at it.
#[derive(Clone, Debug)]
struct Received {
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: u64,
    start: u64,
    end: u64,
    events: Vec<String>,
    is_error: bool,
    attributes: Vec<(String, String)>,
}

impl Received {
    fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// All fields of a message with this number.
fn all(message: &[u8], number: u64) -> Vec<FieldValue<'_>> {
    let fields = MessageFields::of(message).map(Result::unwrap);
    fields.filter(|(field, _)| *field == number).map(|(_, value)| value).collect()
}

fn bytes(message: &[u8], number: u64) -> &[u8] {
    all(message, number).first().map_or(&[], |value| value.bytes())
}

fn number(message: &[u8], number: u64) -> u64 {
    all(message, number).first().map_or(0, |value| value.number())
}

fn text(message: &[u8], number: u64) -> String {
    String::from_utf8(bytes(message, number).to_vec()).unwrap()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn received(span: &[u8]) -> Received {
    let value = |value: &[u8]| match text(value, 1) {
        empty if empty.is_empty() => number(value, 3).to_string(),
        text => text,
    };
    Received {
        trace: hex(bytes(span, 1)),
        id: hex(bytes(span, 2)),
        parent: hex(bytes(span, 4)),
        name: text(span, 5),
        kind: number(span, 6),
        start: number(span, 7),
        end: number(span, 8),
        events: all(span, 11).iter().map(|event| text(event.bytes(), 2)).collect(),
        is_error: number(bytes(span, 15), 3) == 2,
        attributes: all(span, 9)
            .iter()
            .map(|pair| (text(pair.bytes(), 1), value(bytes(pair.bytes(), 2))))
            .collect(),
    }
}

/// A collector, and all bytes that it got.
fn collector() -> (Scripted, Arc<Mutex<Vec<Vec<u8>>>>) {
    let exports: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let kept = Arc::clone(&exports);
    let collector = Scripted::new(move |mut request| {
        assert!(request.head.starts_with("POST /v1/traces HTTP/1.1"), "{}", request.head);
        kept.lock().unwrap().push(request.body.clone());
        request.answer("");
    });
    (collector, exports)
}

/// The spans of the request with this id, once they have arrived, by their start.
fn spans_of(exports: &Mutex<Vec<Vec<u8>>>, request_id: &str) -> Vec<Received> {
    let mut spans = eventually(&format!("the spans of {request_id}"), || {
        let exports = exports.lock().unwrap();
        let mut spans = Vec::new();
        for resource in exports.iter().flat_map(|export| all(export, 1)) {
            for scope in all(resource.bytes(), 2) {
                spans.extend(all(scope.bytes(), 2).iter().map(|span| received(span.bytes())));
            }
        }
        let named = |span: &&Received| span.attribute("warmroute.request_id") == Some(request_id);
        let trace = spans.iter().find(named)?.trace.clone();
        Some(spans.into_iter().filter(|span| span.trace == trace).collect::<Vec<_>>())
    });
    // The server's span begins first; a route begins before its attempt.
    spans.sort_by_key(|span| (span.start, span.kind != 2, span.kind == 3));
    spans
}

#[test]
fn a_request_and_its_retry_are_spans_below_the_clients() {
    let (collector, exports) = collector();
    let contexts: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&contexts);
    // The first attempt is refused, wherever it goes.
    let turn = Arc::new(Mutex::new(0));
    let script = move |mut request: crate::harness::script::ReceivedRequest| {
        seen.lock().unwrap().push(request.header("traceparent").unwrap_or_default().to_owned());
        let first = std::mem::replace(&mut *turn.lock().unwrap(), 1) == 0;
        if first {
            return request.write("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
        }
        request.begin_events();
        request.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
        request.chunk("data: [DONE]\n\n");
        request.end_chunks();
    };
    let script = Arc::new(script);
    let engines = [0, 1].map(|_| {
        let script = Arc::clone(&script);
        Scripted::new(move |request| script(request))
    });
    let urls = [engines[0].url.as_str(), engines[1].url.as_str()];
    let gateway = Gateway::over(&urls, &["--otlp-endpoint", &collector.url]);
    let parent = format!("traceparent: 00-{TRACE}-{CLIENT}-01");
    let headers = [parent.as_str(), "x-request-id: mine-1"];
    let body = chat_stream("m", 4);
    let served =
        Call::send(gateway.url(), "POST", "/v1/chat/completions", &headers, body.as_bytes()).finish();
    assert_eq!(served.status, 200, "{}", served.text());
    let spans = spans_of(&exports, "mine-1");
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["POST /v1/chat/completions", "route", "chat m", "route", "chat m"]);
    let [server, first_route, refused, _, served] = &spans[..] else { unreachable!() };
    assert_eq!((server.trace.as_str(), server.parent.as_str(), server.kind), (TRACE, CLIENT, 2));
    for child in &spans[1..] {
        assert_eq!(child.parent, server.id);
        assert!(server.start <= child.start && child.start <= child.end && child.end <= server.end);
    }
    assert_eq!(first_route.events, ["candidate", "candidate"]);
    assert_eq!((refused.is_error, refused.attribute("error.type")), (true, Some("503")));
    assert_eq!((served.is_error, served.attribute("http.request.resend_count")), (false, Some("1")));
    assert_eq!((served.events.as_slice(), server.is_error), (&["first token".to_owned()][..], false));
    let sent = [refused, served].map(|attempt| format!("00-{TRACE}-{}-01", attempt.id));
    assert_eq!(*contexts.lock().unwrap(), sent, "workers continue the trace");
}

#[test]
fn refusals_and_disconnects_end_their_spans() {
    let (collector, exports) = collector();
    let engine = Scripted::new(|mut request| {
        request.begin_events();
        request.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
        request.wait_for_hang_up();
    });
    let gateway = Gateway::over(&[&engine.url], &["--otlp-endpoint", &collector.url]);
    let path = "/v1/chat/completions";
    assert_eq!(
        Call::send(gateway.url(), "POST", path, &["x-request-id: refused"], b"{").finish().status,
        400
    );
    let [refused] = &spans_of(&exports, "refused")[..] else { panic!("one span") };
    assert_eq!((refused.attribute("warmroute.error"), refused.is_error), (Some("invalid_json"), false));
    let body = chat_stream("m", 4);
    let mut leaving = Call::send(gateway.url(), "POST", path, &["x-request-id: left"], body.as_bytes());
    leaving.read_until("data: ");
    leaving.hang_up();
    let spans = spans_of(&exports, "left");
    for span in spans.iter().filter(|span| span.kind != 1) {
        assert_eq!((span.attribute("warmroute.outcome"), span.is_error), (Some("cancelled"), false));
    }
    assert_eq!(spans.len(), 3);
}

#[test]
fn prompts_are_in_no_span_and_without_a_collector_there_is_none() {
    let (collector, exports) = collector();
    let replica = engine(&[]);
    let body = chat("llama-3.1-8b").replace("\"content\":\"", "\"content\":\"hush-prompt ");
    assert!(body.contains("hush-prompt"), "{body}");
    {
        let flags = ["--otlp-endpoint", &collector.url, "--otlp-headers", "x-key=hush-header"];
        let gateway = Gateway::over(&[replica.url()], &flags);
        let headers = ["x-request-id: mine-2"];
        Call::send(gateway.url(), "POST", "/v1/chat/completions", &headers, body.as_bytes()).finish();
        assert_eq!(spans_of(&exports, "mine-2").len(), 3);
        let shown = crate::harness::client::get(gateway.admin(), "/config").text();
        assert!(!shown.contains("hush-header"), "{shown}");
        let sent = exports.lock().unwrap().concat();
        assert!(!String::from_utf8_lossy(&sent).contains("hush"), "a span contains a prompt");
        eventually("the spans are counted", || {
            (gateway.metric("warmroute_trace_spans_total{result=\"sent\"}") >= 3.0).then_some(())
        });
    }
    let contexts: Arc<Mutex<Vec<bool>>> = Arc::default();
    let seen = Arc::clone(&contexts);
    let silent = Scripted::new(move |mut request| {
        seen.lock().unwrap().push(request.header("traceparent").is_some());
        request.answer("{}");
    });
    let gateway = Gateway::over(&[&silent.url], &[]);
    assert_eq!(post(gateway.url(), "/v1/chat/completions", &chat("m")).status, 200);
    assert_eq!(*contexts.lock().unwrap(), [false]);
}
