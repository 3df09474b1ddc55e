//! Clients that hold memory, connections or files and do nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{key_file, status_as};
use crate::harness::client::{Call, authority, chat, get};
use crate::harness::eventually;
use crate::harness::process::{Gateway, Process};
use crate::harness::script::Scripted;

fn answering() -> Scripted {
    Scripted::new(|mut asked| asked.answer("{}"))
}

/// A body that begins and stops: `sent` bytes of an announced megabyte.
fn stalled(url: &str, key: &str, sent: usize) -> Call {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\ncontent-length: 1000000\r\n\r\n"
    );
    let mut call = Call::raw(url, head.as_bytes());
    call.write(&vec![b' '; sent]);
    call
}

#[test]
fn stalled_bodies_of_one_key_leave_room_for_the_others() {
    let (_folder, keys) = key_file("stalled", "sk-bad name=bad\nsk-good name=good\nsk-also name=bad\n");
    let engine = answering();
    let limits = ["--max-payload-size", "1000000", "--max-buffered-bytes", "4000000"];
    let gateway = Gateway::over(&[&engine.url], &[&["--api-keys-file", &keys][..], &limits].concat());
    let stalls: Vec<Call> =
        (0..20).map(|i| stalled(gateway.url(), ["sk-bad", "sk-also"][i % 2], 900_000)).collect();
    let refused = "warmroute_refusals_total{reason=\"memory_share_full\"}";
    eventually("the attacker has filled its part", || (gateway.metric(refused) >= 1.0).then_some(()));
    for _ in 0..5 {
        assert_eq!(status_as(gateway.url(), "sk-good"), 200);
    }
    let large = chat("m").replace("Hello", &"long ".repeat(100_000));
    assert_eq!(super::ask_as(gateway.url(), "sk-good", &large).status, 200, "a long prompt too");
    drop(stalls);
}

#[test]
fn slow_bodies_of_many_keys_give_way_when_the_memory_is_full() {
    let lines: String = (0..20).map(|i| format!("sk-{i} name=n{i}\n")).collect();
    let (_folder, keys) = key_file("stalled-keys", &(lines + "sk-good name=good\n"));
    let engine = answering();
    let patience = ["--api-keys-file", &keys, "--client-body-timeout-secs", "600"];
    let limits = ["--max-payload-size", "1000000", "--max-buffered-bytes", "4000000"];
    let gateway = Gateway::over(&[&engine.url], &[&patience[..], &limits].concat());
    let stalls: Vec<Call> = (0..20).map(|i| stalled(gateway.url(), &format!("sk-{i}"), 390_000)).collect();
    // Nine or ten of the bodies: while the last ones arrive, earlier ones may give way already. The next request does not fit.
    eventually("the memory is full", || (gateway.metric("warmroute_body_bytes") > 3_500_000.0).then_some(()));
    let large = chat("m").replace("Hello", &"long ".repeat(100_000));
    let ask = || super::ask_as(gateway.url(), "sk-good", &large).status;
    eventually("slow bodies give way", || (ask() == 200).then_some(()));
    for _ in 0..5 {
        assert_eq!(ask(), 200);
    }
    drop(stalls);
    eventually("its memory is given back", || (gateway.metric("warmroute_body_bytes") == 0.0).then_some(()));
}

#[test]
fn a_body_that_stalls_ends_however_much_was_sent() {
    let engine = answering();
    let limits = ["--client-body-timeout-secs", "1", "--max-payload-size", "1000000"];
    let gateway = Gateway::over(&[&engine.url], &limits);
    for sent in [0, 100_000, 999_999] {
        let began = Instant::now();
        stalled(gateway.url(), "none", sent).read_until("408 Request Timeout");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(15), "{sent} bytes bought {took:?}");
    }
    eventually("its memory is given back", || (gateway.metric("warmroute_body_bytes") == 0.0).then_some(()));
}

#[test]
fn silent_connections_give_way_to_clients() {
    let (_folder, keys) = key_file("silent", "sk-good name=good\n");
    let engine = answering();
    let gateway =
        Gateway::over(&[&engine.url], &["--api-keys-file", &keys, "--max-client-connections", "50"]);
    let connect = |first: &[u8]| {
        let mut stream = TcpStream::connect(authority(gateway.url())).unwrap();
        stream.write_all(first).unwrap();
        stream
    };
    let beginnings: [&[u8]; 3] =
        [b"", b"POST /v1/chat/comple", b"GET /v1/models HTTP/1.1\r\nhost: t\r\nx-a: "];
    let silent: Vec<TcpStream> = (0..200).map(|i| connect(beginnings[i % 3])).collect();
    for _ in 0..20 {
        assert_eq!(status_as(gateway.url(), "sk-good"), 200);
    }
    // A refused client does not keep its place either.
    let mut refused = connect(b"GET /v1/models HTTP/1.1\r\nhost: t\r\n\r\n");
    let mut answer = String::new();
    refused.set_read_timeout(Some(crate::harness::TIMEOUT)).unwrap();
    refused.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("connection: close"), "{answer}");
    drop(silent);
}

#[test]
fn connections_between_requests_give_way_to_other_tenants() {
    let (_folder, keys) = key_file("idle", "sk-greedy name=greedy\nsk-good name=good\n");
    let engine = answering();
    let gateway =
        Gateway::over(&[&engine.url], &["--api-keys-file", &keys, "--max-client-connections", "50"]);
    let ask = b"GET /v1/models HTTP/1.1\r\nhost: t\r\nauthorization: Bearer sk-greedy\r\n\r\n";
    let idle: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect(authority(gateway.url())).unwrap();
            stream.write_all(ask).unwrap();
            stream.set_read_timeout(Some(crate::harness::TIMEOUT)).unwrap();
            let mut answer = [0; 1024];
            let read = stream.read(&mut answer).unwrap();
            assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(status_as(gateway.url(), "sk-good"), 200);
    }
    drop(idle);
}

#[test]
fn a_part_of_a_head_does_not_hold_up_the_end() {
    let engine = answering();
    let gateway = Gateway::over(&[&engine.url], &[]);
    let mut first = TcpStream::connect(authority(gateway.url())).unwrap();
    first.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost:").unwrap();
    // A second one has had an answer before.
    let body = chat("m");
    let whole = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}POST /v1/cha",
        body.len()
    );
    let mut second = Call::raw(gateway.url(), whole.as_bytes());
    second.read_until("200 OK");
    gateway.process.signal("-TERM");
    assert!(gateway.process.wait().success());
    drop((first, second));
}

/// A gateway whose limit of open files is `hard`, of which `soft` are allowed at first.
fn with_file_limit(soft: u32, hard: u32, engine: &Scripted, keys: &str) -> Gateway {
    let mut command = Command::new("sh");
    let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_warmroute"), "serve", "--host", "127.0.0.1"]);
    command.args(["--port", "0", "--admin-port", "0", "--api-keys-file", keys, "--worker-urls", &engine.url]);
    command.stderr(std::process::Stdio::null());
    let gateway = Gateway { process: Process::of(command) };
    gateway.wait_for_ready(1);
    gateway
}

#[test]
fn connections_never_use_up_the_files_of_the_process() {
    let (_folder, keys) = key_file("files", "sk-good name=good\n");
    let engine = answering();
    let gateway = with_file_limit(100, 400, &engine, &keys);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.process.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().nth(3), Some("400"), "the soft limit is raised: {files}");
    let silent: Vec<TcpStream> =
        (0..600).map(|_| TcpStream::connect(authority(gateway.url())).unwrap()).collect();
    for _ in 0..20 {
        assert_eq!(status_as(gateway.url(), "sk-good"), 200);
        assert_eq!(get(gateway.admin(), "/readyz").status, 200);
    }
    assert_eq!(gateway.workers()[0]["state"], "ready", "no worker is blamed");
    drop(silent);
}

/// Sets how many files a process may open from now on.
fn limit_files(gateway: &Gateway, files: u64) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let process = Pid::from_raw(gateway.process.id() as i32).unwrap();
    let limit = Rlimit { current: Some(files), maximum: Some(400) };
    prlimit(Some(process), Resource::Nofile, limit).unwrap();
}

#[test]
fn a_worker_is_not_blamed_for_the_gateways_own_shortage_of_files() {
    let engine = Scripted::new(|mut asked| {
        asked.write("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}");
    });
    let (_folder, keys) = key_file("shortage", "sk-good name=good\n");
    let gateway = with_file_limit(400, 400, &engine, &keys);
    let mut call = Call::raw(gateway.url(), &keep_alive_chat());
    call.read_until("200 OK");
    limit_files(&gateway, 3);
    // More than open a breaker.
    for refused in 1..=8 {
        call.write(&keep_alive_chat());
        eventually("it is refused", || (call.count_of("out_of_resources") == refused).then_some(()));
    }
    limit_files(&gateway, 400);
    call.write(&keep_alive_chat());
    eventually("it is served again", || (call.count_of("200 OK") == 2).then_some(()));
    assert_eq!(gateway.workers()[0]["state"], "ready");
}

fn keep_alive_chat() -> Vec<u8> {
    let body = chat("m");
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer sk-good";
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}
