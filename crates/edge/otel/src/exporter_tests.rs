//! The exporter against collectors that misbehave.

use std::time::UNIX_EPOCH;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use warmroute_protobuf::MessageWriter;

use super::*;
use crate::counts::SpanCounts;
use crate::{Attributes, SpanId, SpanKind, SpanStatus, TraceContext, TraceId, Tracer};

fn spans(count: usize) -> Vec<TraceSpan> {
    let now = UNIX_EPOCH + Duration::from_secs(1);
    let span = |n: usize| TraceSpan {
        context: TraceContext::root(TraceId(1), SpanId(n as u64 + 1), true),
        parent: None,
        is_parent_remote: false,
        state: None,
        name: "test".into(),
        kind: SpanKind::Internal,
        start: now,
        end: now,
        attributes: Attributes::default(),
        events: Vec::new(),
        status: SpanStatus::Unset,
    };
    (0..count).map(span).collect()
}

/// A listener, and a tracer that exports to it.
async fn collector(timeout: Duration) -> (TcpListener, Tracer) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config =
        CollectorConfig::new(&format!("http://{}/base", listener.local_addr().unwrap())).unwrap();
    config.timeout = timeout;
    config.add_headers("x-key=secret").unwrap();
    (listener, Tracer::start(config).unwrap())
}

/// Reads one export: its head and its body.
async fn read_export(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    loop {
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "the export ends early");
        let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if bytes.len() - at - 4 == length.parse::<usize>().unwrap() {
            return (head, bytes[at + 4..].to_vec());
        }
    }
}

async fn answer(stream: &mut TcpStream, status: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
}

/// Waits until the counters show `expected`.
async fn counted(tracer: &Tracer, expected: SpanCounts) {
    let until = Instant::now() + Duration::from_secs(60);
    while tracer.counts() != expected {
        assert!(Instant::now() < until, "{:?}, not {expected:?}", tracer.counts());
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_batch_is_posted_with_headers_and_refused_spans_are_counted() {
    let (listener, tracer) = collector(Duration::from_secs(60)).await;
    tracer.export(spans(2));
    tracer.export(spans(3));
    let (mut stream, _) = listener.accept().await.unwrap();
    let (head, body) = read_export(&mut stream).await;
    assert!(head.starts_with("POST /base/v1/traces HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    assert!(head.contains("x-key: secret") && !head.contains("application/json"), "{head}");
    assert_eq!(body, encode_request(&[], &[spans(2), spans(3)].concat()));
    let mut partial = MessageWriter::default();
    partial.message(1, |partial| partial.number(1, 1));
    answer(&mut stream, "200 OK", &partial.finish()).await;
    counted(&tracer, SpanCounts { sent: 4, rejected: 1, ..SpanCounts::default() }).await;
}

#[tokio::test]
async fn a_busy_collector_gets_the_batch_again_and_a_refused_batch_is_given_up() {
    let (listener, tracer) = collector(Duration::from_secs(60)).await;
    tracer.export(spans(2));
    let (mut stream, _) = listener.accept().await.unwrap();
    let (_, first) = read_export(&mut stream).await;
    answer(&mut stream, "503 Service Unavailable", b"").await;
    let (_, second) = read_export(&mut stream).await;
    assert_eq!(first, second);
    answer(&mut stream, "200 OK", b"").await;
    counted(&tracer, SpanCounts { sent: 2, ..SpanCounts::default() }).await;
    tracer.export(spans(1));
    read_export(&mut stream).await;
    answer(&mut stream, "400 Bad Request", b"").await;
    counted(&tracer, SpanCounts { sent: 2, failed: 1, ..SpanCounts::default() }).await;
}

#[tokio::test]
async fn a_full_queue_drops_spans_at_once() {
    let (_silent, tracer) = collector(Duration::from_secs(600)).await;
    // The exporter has not run yet: the queue holds the first requests.
    (0..4 * 2_048).for_each(|_| tracer.export(spans(1)));
    assert_eq!(tracer.counts().dropped, 3 * 2_048);
}

#[tokio::test]
async fn a_flush_sends_what_is_queued_and_is_bounded() {
    let (listener, tracer) = collector(Duration::from_secs(600)).await;
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut exports = 0;
        while exports < 3 {
            read_export(&mut stream).await;
            answer(&mut stream, "200 OK", b"").await;
            exports += 1;
        }
        (stream, listener)
    });
    let many = (2 * BATCH_SPANS + 1) as u64;
    (0..many).for_each(|_| tracer.export(spans(1)));
    tracer.flush(Duration::from_secs(60)).await;
    let SpanCounts { sent, dropped, .. } = tracer.counts();
    assert_eq!(sent + dropped, many);
    served.abort();
    // A collector that does not answer.
    let (_silent, tracer) = collector(Duration::from_secs(600)).await;
    tracer.export(spans(1));
    let began = Instant::now();
    tracer.flush(Duration::from_millis(20)).await;
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_collector_that_is_gone_costs_spans_only() {
    let (listener, tracer) = collector(Duration::from_secs(60)).await;
    drop(listener);
    tracer.export(spans(2));
    tracer.flush(Duration::from_secs(60)).await;
    assert_eq!(tracer.counts(), SpanCounts { failed: 2, ..SpanCounts::default() });
}
