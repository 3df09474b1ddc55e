//! Heads and paths that two servers may read differently.

use crate::harness::client::{Call, chat};
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;

#[test]
fn ambiguous_heads_are_refused() {
    let engine = Scripted::new(|mut asked| asked.answer("{}"));
    let gateway = Gateway::over(&[&engine.url], &[]);
    let body = chat("m");
    let n = body.len();
    let chunked = format!("{n:x}\r\n{body}\r\n0\r\n\r\n");
    for (head, body) in [
        (format!("host: a\r\nhost: b\r\ncontent-length: {n}"), &body),
        (format!("host: a\r\nhost: a\r\ncontent-length: {n}"), &body),
        (format!("content-length: {n}"), &body),
        (format!("host: a\r\ncontent-length: {n}, {n}"), &body),
        ("host: a\r\ntransfer-encoding: gzip, chunked".to_owned(), &chunked),
        ("host: a\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked".to_owned(), &chunked),
        ("host: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked".to_owned(), &chunked),
    ] {
        let text = format!("POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\n{head}\r\n\r\n{body}");
        let answer = Call::raw(gateway.url(), text.as_bytes()).finish_if_begun();
        assert!(answer.as_ref().is_none_or(|answer| answer.status == 400), "{head:?}: {answer:?}");
    }
    assert_eq!(engine.asked(), 0);
    for path in ["/v1/..;/sleep", "/v1/completions;a=b", "/v1/%2e%2e%3b/sleep", "/v1/files;/../sleep"] {
        let answer = Call::send(gateway.url(), "POST", path, &[], b"{}").finish();
        assert_eq!(answer.status, 404, "{path}");
    }
    assert_eq!(engine.asked(), 0);
}
