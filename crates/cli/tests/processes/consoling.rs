//! The live console: its page, its stream, and what an open page costs requests. `conformance/console` looks at it in a
//! real browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::harness::client::{Call, authority, chat_stream, get, post};
use crate::harness::process::{Gateway, Process, engine};
use crate::harness::{TIMEOUT, eventually};

/// A page's stream.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(gateway: &Gateway, headers: &[&str]) -> Events {
        let mut stream = TcpStream::connect(authority(gateway.admin())).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(&Call::request("GET", "/ui/stream", headers, b"")).unwrap();
        Events(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream ended");
        line.trim_end().to_owned()
    }

    /// The data of the next event with this name. A frame is one chunk, so the lengths of chunks are lines of their own.
    fn next(&mut self, name: &str) -> Value {
        let wanted = format!("event: {name}");
        while self.line() != wanted {}
        serde_json::from_str(self.line().strip_prefix("data: ").unwrap()).unwrap()
    }

    /// What is left until the connection closes.
    fn rest(mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }
}

#[test]
fn the_page_is_one_document_under_a_strict_policy() {
    let engine = engine(&[]);
    let gateway = Gateway::over(&[engine.url()], &[]);
    let page = get(gateway.admin(), "/ui");
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert!(page.text().contains("</script>"));
    assert_eq!(post(gateway.admin(), "/ui", "").status, 405);
}

#[test]
fn a_stream_tells_of_workers_requests_and_prefixes_and_its_requests_can_be_opened() {
    let engines = [engine(&[]), engine(&[])];
    let gateway = Gateway::over(&[engines[0].url(), engines[1].url()], &["--shadow", "round_robin"]);
    let mut stream = Events::open(&gateway, &[]);
    let hello = stream.next("hello");
    assert_eq!(hello["requests"].as_array().unwrap().len(), 0);
    assert_eq!(stream.next("frame")["workers"].as_array().unwrap().len(), 2);
    post(gateway.url(), "/v1/chat/completions", &chat_stream("llama-3.1-8b", 3));
    let row = eventually("the request is told", || {
        stream.next("frame")["requests"].as_array().unwrap().first().cloned()
    });
    assert_eq!((row["policy"].as_str(), row["of"].as_u64()), (Some("expected_ttft"), Some(2)));
    let path = format!("/ui/request?number={}", row["number"]);
    let opened = get(gateway.admin(), &path).json();
    let candidates = opened["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 2);
    assert_eq!(candidates.iter().filter(|candidate| candidate["chosen"] == true).count(), 1);
    // Shorter prompts are not in the index.
    let long = chat_stream("llama-3.1-8b", 3).replace("Hello", &"Tell me more about it. ".repeat(200));
    post(gateway.url(), "/v1/chat/completions", &long);
    eventually("the prefix is told", || {
        let frame = stream.next("frame");
        let heads = frame["prefixes"]["heads"].as_array()?;
        (heads.first()?["holders"] == 1).then_some(())
    });
    assert_eq!(get(gateway.admin(), "/ui/request?number=4096").status, 404);
    assert_eq!(get(gateway.admin(), "/ui/request").status, 400);
}

#[test]
fn all_candidates_are_kept_only_while_a_page_is_open() {
    let engines: Vec<Process> = (0..6).map(|_| engine(&[])).collect();
    let urls: Vec<&str> = engines.iter().map(|engine| engine.url()).collect();
    let gateway = Gateway::over(&urls, &[]);
    let kept = || {
        post(gateway.url(), "/v1/chat/completions", &chat_stream("llama-3.1-8b", 3));
        get(gateway.admin(), "/explain?n=1").json()[0]["candidates"].as_array().unwrap().len()
    };
    assert_eq!(kept(), 4, "the chosen one and the next best");
    let mut stream = Events::open(&gateway, &[]);
    stream.next("frame");
    eventually("all candidates are kept", || (kept() == 6).then_some(()));
    drop(stream);
    eventually("the recording has ended", || (kept() == 4).then_some(()));
}

#[test]
fn data_needs_the_admin_token_and_the_page_does_not() {
    let engine = engine(&[]);
    let gateway = Gateway::start(&[engine.url()], &["--admin-token", "a-token-of-the-test"]);
    assert_eq!(get(gateway.admin(), "/ui").status, 200);
    assert_eq!(get(gateway.admin(), "/ui/stream").status, 401);
    assert_eq!(get(gateway.admin(), "/ui/request?number=0").status, 401);
    let mut stream = Events::open(&gateway, &["authorization: Bearer a-token-of-the-test"]);
    stream.next("frame");
}

#[test]
fn an_open_page_does_not_delay_a_stop_and_pages_are_limited() {
    let engine = engine(&[]);
    let gateway = Gateway::over(&[engine.url()], &[]);
    let mut streams: Vec<Events> = (0..16).map(|_| Events::open(&gateway, &[])).collect();
    streams.iter_mut().for_each(|stream| _ = stream.next("frame"));
    assert_eq!(get(gateway.admin(), "/ui/stream").status, 503);
    gateway.process.signal("-TERM");
    // Streams end with the process; pages connect again.
    streams.into_iter().for_each(|stream| drop(stream.rest()));
    assert!(gateway.process.wait().success());
}
