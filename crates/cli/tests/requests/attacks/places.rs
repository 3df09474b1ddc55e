//! Clients that hold the gateway's places: bodies that drip, and silent connections from many addresses.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use socket2::{Domain, Socket, Type};

use super::{ask_as, key_file, status_as};
use crate::harness::client::{Call, authority, chat};
use crate::harness::eventually;
use crate::harness::process::Gateway;
use crate::harness::script::Scripted;

fn answering() -> Scripted {
    Scripted::new(|mut asked| asked.answer("{}"))
}

/// A request whose body has begun and does not go on.
fn dripping(url: &str, key: &str) -> Call {
    drip(url, key, "POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json", "{")
}

/// The same for a body that is passed on while it arrives.
fn dripping_upload(url: &str, key: &str) -> Call {
    let head = "POST /v1/audio/transcriptions HTTP/1.1\r\ncontent-type: multipart/form-data; boundary=b";
    drip(url, key, head, "--b\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\n")
}

fn drip(url: &str, key: &str, head: &str, start: &str) -> Call {
    let rest = format!("host: t\r\ncontent-length: 1000\r\nauthorization: Bearer {key}");
    Call::raw(url, format!("{head}\r\n{rest}\r\n\r\n{start}").as_bytes())
}

#[test]
fn bodies_that_drip_count_as_concurrent_requests_of_their_key() {
    let lines = "sk-drip name=drip concurrent-requests=4 tokens-per-minute=100000\nsk-good name=good\n";
    let (_folder, keys) = key_file("drip", lines);
    let engine = answering();
    let limits = ["--api-keys-file", &keys, "--max-client-connections", "40"];
    let gateway = Gateway::over(&[&engine.url], &limits);
    let drips: Vec<Call> = (0..120).map(|_| dripping(gateway.url(), "sk-drip")).collect();
    for _ in 0..20 {
        assert_eq!(status_as(gateway.url(), "sk-good"), 200);
    }
    let refused = eventually("its places are taken", || {
        let response = ask_as(gateway.url(), "sk-drip", &chat("m"));
        (response.status == 429).then_some(response)
    });
    assert_eq!(refused.json()["error"]["code"], "concurrency_limit");
    drop(drips);
    eventually("its places are free", || (status_as(gateway.url(), "sk-drip") == 200).then_some(()));
    // A request that was refused for its body does not count, and neither does one that was served.
    for _ in 0..8 {
        assert_eq!(ask_as(gateway.url(), "sk-drip", "{").status, 400);
        assert_eq!(status_as(gateway.url(), "sk-drip"), 200);
    }
}

#[test]
fn slow_bodies_of_a_key_without_a_limit_give_way_when_no_place_is_left() {
    let (_folder, keys) = key_file("slow", "sk-drip name=drip\nsk-good name=good\n");
    let engine = answering();
    for drip in [dripping, dripping_upload] {
        let limits = ["--api-keys-file", &keys, "--max-client-connections", "40"];
        let gateway = Gateway::over(&[&engine.url], &limits);
        let drips: Vec<Call> = (0..80).map(|_| drip(gateway.url(), "sk-drip")).collect();
        for _ in 0..20 {
            assert_eq!(status_as(gateway.url(), "sk-good"), 200);
        }
        drop(drips);
    }
}

/// A connection from an address of this machine.
fn connect_from(address: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// 2,000 silent connections from as many addresses come at a listener with room for a hundred, while honest clients
/// work on kept connections and on new ones.
#[test]
fn silent_connections_from_many_addresses_cost_no_client_its_request() {
    let (_folder, keys) = key_file("many-addresses", "sk-good name=good\n");
    let engine = Scripted::new(|mut asked| {
        while {
            asked.answer("{}");
            asked.next_request()
        } {}
    });
    let gateway =
        Gateway::over(&[&engine.url], &["--api-keys-file", &keys, "--max-client-connections", "100"]);
    let to: SocketAddr = authority(gateway.url()).parse().unwrap();
    let body = chat("m");
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nauthorization: Bearer sk-good";
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let (is_over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let (mut kept, mut answers) = (Call::raw(gateway.url(), &request), 1);
                while !is_over.load(SeqCst) || answers < 20 {
                    eventually("a kept connection is served", || {
                        (kept.count_of("200 OK") == answers).then_some(())
                    });
                    kept.write(&request);
                    answers += 1;
                    assert_eq!(status_as(gateway.url(), "sk-good"), 200);
                    served.fetch_add(2, SeqCst);
                }
            });
        }
        let silent: Vec<TcpStream> = (0..2_000_u32)
            .map(|i| connect_from([127, 1, (i / 250) as u8, (i % 250) as u8 + 1], to))
            .collect();
        is_over.store(true, SeqCst);
        drop(silent);
    });
    println!(
        "2,000 silent connections from 2,000 addresses: {} requests served, none lost",
        served.load(SeqCst)
    );
}

/// A request that is refused by its head, and whose body has not ended: the answer comes, the rest of the body is read, and
/// the connection serves the next request. A gateway that waits for the body answers when it gives up, and disconnects.
#[test]
fn a_refused_client_gets_its_answer_before_its_body_has_ended() {
    let (_folder, keys) = key_file("refused", "sk-one name=one concurrent-requests=1\n");
    let engine = answering();
    let patient = ["--api-keys-file", &keys, "--client-body-timeout-secs", "600"];
    let gateway = Gateway::over(&[&engine.url], &patient);
    // The question whether the place is taken may take it itself, and have a slow body refused.
    let mut slow = Vec::new();
    eventually("its place is taken", || {
        slow.push(dripping(gateway.url(), "sk-one"));
        (status_as(gateway.url(), "sk-one") == 429).then_some(())
    });
    let next =
        "GET /v1/models HTTP/1.1\r\nhost: t\r\nauthorization: Bearer sk-one\r\nconnection: close\r\n\r\n";
    // The rest of a body is read for some seconds, within which a busy machine may not get to send it.
    eventually("the connection goes on after a refusal", || {
        let mut refused = dripping(gateway.url(), "sk-one");
        refused.read_until("429");
        refused.read_until("concurrency_limit");
        let rest = "x".repeat(999);
        refused.write(format!("{rest}{next}").as_bytes());
        refused.finish_if_begun().filter(|response| response.text().contains("\"list\"")).map(|_| ())
    });
    // So does one after a path that does not exist.
    eventually("the connection goes on after 404", || {
        let head =
            "POST /nothing HTTP/1.1\r\nhost: t\r\ncontent-length: 100000\r\nauthorization: Bearer sk-one";
        let mut refused = Call::raw(gateway.url(), format!("{head}\r\n\r\n{{").as_bytes());
        refused.read_until("404");
        refused.write(format!("{}{next}", "x".repeat(99_999)).as_bytes());
        refused.finish_if_begun().filter(|response| response.text().contains("\"list\"")).map(|_| ())
    });
    // Without a key, the connection is closed after the answer.
    let mut unknown = dripping(gateway.url(), "sk-unknown");
    unknown.read_until("401");
}
