//! Sockets compared with captured bytes of libzmq, with each other, and with peers that misbehave.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use warmroute_zmtp::{Dealer, Endpoint, Error, Listener, Message, Options, Publisher, Router, Sub};

/// A test that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("nothing happens")
}

fn free() -> Endpoint {
    "tcp://127.0.0.1:0".parse().unwrap()
}

fn message(parts: &[&[u8]]) -> Message {
    parts.iter().map(|part| Bytes::copy_from_slice(part)).collect()
}

fn impatient() -> Options {
    let ms = Duration::from_millis;
    Options {
        handshake_timeout: ms(200),
        heartbeat_interval: ms(50),
        heartbeat_timeout: ms(200),
        ..Options::default()
    }
}

/// A peer that sends raw bytes.
struct Raw {
    listener: TcpListener,
}

impl Raw {
    async fn bind() -> (Raw, Endpoint) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
        (Raw { listener }, endpoint)
    }

    async fn play(self, bytes: &[u8]) -> TcpStream {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }
}

/// Reads until the input contains this.
async fn read_until(stream: &mut TcpStream, wanted: &[u8]) -> Vec<u8> {
    let mut read = Vec::new();
    while !read.windows(wanted.len()).any(|window| window == wanted) {
        let more = soon(stream.read_buf(&mut read)).await.unwrap();
        assert!(more > 0, "it ended without {:?} in {:?}", wanted.escape_ascii(), read.escape_ascii());
    }
    read
}

fn greeting(minor: u8, socket_type: &str) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, minor];
    bytes.extend(b"NULL");
    bytes.resize(64, 0);
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend((socket_type.len() as u32).to_be_bytes());
    body.extend(socket_type.as_bytes());
    bytes.extend([4, body.len() as u8]);
    bytes.extend(body);
    bytes
}

#[tokio::test]
async fn a_captured_publisher_is_understood_and_its_heartbeats_are_answered() {
    let capture = include_bytes!("captures/libzmq-4.3.5-pub-heartbeats.bin");
    let pings = capture.windows(5).filter(|window| *window == b"\x04PING").count();
    assert!(pings >= 2, "the capture shows heartbeats");
    let (raw, endpoint) = Raw::bind().await;
    let reading = async {
        let mut sub = Sub::connect(&endpoint, b"kv", &Options::default()).await.unwrap();
        let mut received = Vec::new();
        for _ in 0..3 {
            received.push(soon(sub.receive()).await.unwrap());
        }
        (sub, received)
    };
    let ((mut sub, received), mut stream) = tokio::join!(reading, raw.play(capture));
    let lengths: Vec<Vec<usize>> =
        received.iter().map(|message| message.iter().map(Bytes::len).collect()).collect();
    assert_eq!(lengths, [[4, 8, 5], [4, 8, 512], [4, 8, 0]]);
    assert_eq!(received[1][1], 1u64.to_be_bytes()[..]);
    // Queued bytes are written while the subscriber waits for more.
    let sent = tokio::select! {
        _ = sub.receive() => panic!("there is no fourth message"),
        sent = read_until(&mut stream, b"\x04PONG") => sent,
    };
    assert!(sent.windows(12).any(|window| window == b"\x09SUBSCRIBEkv"));
}

#[tokio::test]
async fn captured_router_replies_are_understood() {
    let capture = include_bytes!("captures/libzmq-4.3.5-router-replay.bin");
    let (raw, endpoint) = Raw::bind().await;
    let options = Options::default();
    let (dealer, mut stream) = tokio::join!(Dealer::connect(&endpoint, &options), raw.play(capture));
    let mut dealer = dealer.unwrap();
    dealer.send(&[&[][..], &7u64.to_be_bytes()]).await.unwrap();
    let first = soon(dealer.receive()).await.unwrap();
    assert_eq!(first, message(&[b"", b"kv", &7u64.to_be_bytes(), &[b'y'; 300]]));
    assert_eq!(soon(dealer.receive()).await.unwrap(), message(&[b"", b"", &[0xff; 8], b""]));
    read_until(&mut stream, b"\x01\x00\x00\x08\0\0\0\0\0\0\0\x07").await;
}

#[tokio::test]
async fn an_older_peer_is_subscribed_by_message_and_never_pinged() {
    let (raw, endpoint) = Raw::bind().await;
    let (bytes, options) = (greeting(0, "PUB"), impatient());
    let (sub, mut stream) = tokio::join!(Sub::connect(&endpoint, b"kv", &options), raw.play(&bytes));
    let mut sub = sub.unwrap();
    read_until(&mut stream, b"\x00\x03\x01kv").await;
    let waited = tokio::time::timeout(Duration::from_millis(500), sub.receive()).await;
    assert!(waited.is_err(), "silence is no death where heartbeats are unknown");
    stream.write_all(b"\x00\x02hi").await.unwrap();
    assert_eq!(soon(sub.receive()).await.unwrap(), message(&[b"hi"]));
}

#[tokio::test]
async fn a_silent_peer_is_dead() {
    let (raw, endpoint) = Raw::bind().await;
    let (bytes, options) = (greeting(1, "PUB"), impatient());
    let (sub, _stream) = tokio::join!(Sub::connect(&endpoint, b"", &options), raw.play(&bytes));
    let error = soon(sub.unwrap().receive()).await.unwrap_err();
    assert!(matches!(error, Error::Dead(_)), "{error}");
}

/// libzmq ends a connection that stays silent for the time to live of its last PING, even while it publishes itself.
#[tokio::test]
async fn a_peer_that_publishes_all_the_time_is_pinged_all_the_time() {
    let (raw, endpoint) = Raw::bind().await;
    let publisher = tokio::spawn(async move {
        let mut stream = raw.play(&greeting(1, "PUB")).await;
        let (mut reader, mut writer) = stream.split();
        let publish = async {
            while writer.write_all(b"\0\x01x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let count_pings = async {
            let mut read = Vec::new();
            while read.windows(4).filter(|window| window == b"PING").count() < 5 {
                assert!(reader.read_buf(&mut read).await.unwrap() > 0, "the subscriber has left");
            }
        };
        tokio::select! { () = publish => panic!("the subscriber has left"), () = count_pings => {} }
        stream
    });
    let mut sub = Sub::connect(&endpoint, b"", &impatient()).await.unwrap();
    let receive = async { while sub.receive().await.is_ok() {} };
    tokio::select! {
        () = receive => panic!("the publisher has left"),
        pinged = soon(publisher) => drop(pinged.unwrap()),
    }
}

#[tokio::test]
async fn peers_that_are_not_publishers_are_rejected() {
    for (bytes, expected) in [
        (greeting(1, "ROUTER"), "ROUTER"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "does not follow ZMTP"),
        (b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\0".repeat(6), "older"),
        ([&greeting(1, "PUB")[..64], b"\x04\x0a\x05ERROR\x03no!"].concat(), "refused the connection: no!"),
        ([&greeting(1, "PUB")[..64], b"\x00\x01x"].concat(), "before READY"),
        (greeting(1, "PUB")[..80].to_vec(), "no greeting within"),
        (Vec::new(), "no greeting within"),
    ] {
        let (raw, endpoint) = Raw::bind().await;
        let options = impatient();
        let (sub, _stream) = tokio::join!(Sub::connect(&endpoint, b"", &options), raw.play(&bytes));
        let error = sub.err().unwrap().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

async fn until_subscribed(publisher: &Publisher, count: usize) {
    soon(async {
        while publisher.subscribers() < count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_message_beyond_the_limit_ends_the_connection() {
    let options = Options { message_bytes_max: 1_000, ..Options::default() };
    let publisher = Publisher::bind(&free(), Options::default()).await.unwrap();
    let mut sub = Sub::connect(publisher.endpoint(), b"", &options).await.unwrap();
    until_subscribed(&publisher, 1).await;
    publisher.send(&message(&[b"topic", &[0; 990]]));
    publisher.send(&message(&[b"topic", &[0; 1_000]]));
    assert_eq!(soon(sub.receive()).await.unwrap()[1].len(), 990);
    assert!(matches!(soon(sub.receive()).await, Err(Error::TooLarge(1_000))));
}

#[tokio::test]
async fn subscribers_receive_their_topics_in_order() {
    let publisher = Publisher::bind(&free(), Options::default()).await.unwrap();
    let mut all = Sub::connect(publisher.endpoint(), b"", &Options::default()).await.unwrap();
    let mut some = Sub::connect(publisher.endpoint(), b"b", &Options::default()).await.unwrap();
    until_subscribed(&publisher, 2).await;
    for n in 0..1_000u32 {
        let topic: &[u8] = if n % 2 == 0 { b"a" } else { b"b@x" };
        publisher.send(&message(&[topic, &n.to_be_bytes(), &vec![7; n as usize]]));
    }
    for n in 0..1_000u32 {
        assert_eq!(soon(all.receive()).await.unwrap()[1], n.to_be_bytes()[..]);
    }
    for n in (1..1_000u32).step_by(2) {
        assert_eq!(soon(some.receive()).await.unwrap()[1], n.to_be_bytes()[..]);
    }
    assert_eq!(publisher.dropped(), 0);
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_misses_messages_and_delays_no_other() {
    let options = Options { queue_max: 50, ..Options::default() };
    let publisher = Publisher::bind(&free(), options).await.unwrap();
    let _stuck = Sub::connect(publisher.endpoint(), b"", &Options::default()).await.unwrap();
    let mut reader = Sub::connect(publisher.endpoint(), b"", &Options::default()).await.unwrap();
    until_subscribed(&publisher, 2).await;
    let big = vec![0; 1 << 20];
    for n in 0..100u32 {
        publisher.send(&message(&[b"t", &n.to_be_bytes(), &big]));
        assert_eq!(soon(reader.receive()).await.unwrap()[1], n.to_be_bytes()[..]);
    }
    assert!(publisher.dropped() > 0, "100 MB do not fit anywhere");
}

#[tokio::test]
async fn a_subscriber_may_bind_and_publishers_reconnect() {
    let listener = Listener::bind(&free()).await.unwrap();
    let publisher = Publisher::connect(listener.endpoint().clone(), Options::default());
    for text in [&b"x"[..], b"y"] {
        let incoming = soon(listener.accept()).await.unwrap();
        let mut sub = Sub::accept(incoming, b"kv", &Options::default()).await.unwrap();
        let receiving = soon(sub.receive());
        tokio::pin!(receiving);
        // The last connection may still be open, so the message is sent until it arrives.
        let received = loop {
            publisher.send(&message(&[b"kv@1", text]));
            tokio::select! {
                biased;
                received = &mut receiving => break received.unwrap(),
                () = tokio::task::yield_now() => {}
            }
        };
        assert_eq!(received, message(&[b"kv@1", text]));
    }
}

#[tokio::test]
async fn a_dropped_publisher_closes_its_connections() {
    let publisher = Publisher::bind(&free(), Options::default()).await.unwrap();
    let mut sub = Sub::connect(publisher.endpoint(), b"", &Options::default()).await.unwrap();
    until_subscribed(&publisher, 1).await;
    publisher.cut_all();
    assert!(matches!(soon(sub.receive()).await, Err(Error::Closed | Error::Io(_))));
}

#[tokio::test]
async fn a_router_answers_each_dealer_over_a_unix_socket() {
    let path = std::env::temp_dir().join(format!("warmroute-zmtp-{}.sock", std::process::id()));
    let endpoint = Endpoint::Ipc(path.clone());
    let mut router = Router::bind(&endpoint, Options::default()).await.unwrap();
    let mut dealers = Vec::new();
    for name in [b"a", b"b"] {
        let mut dealer = Dealer::connect(&endpoint, &Options::default()).await.unwrap();
        dealer.send(&[&[][..], name]).await.unwrap();
        dealers.push(dealer);
    }
    for _ in 0..2 {
        let (peer, question) = soon(router.receive()).await.unwrap();
        for n in 0..3u8 {
            router.send(peer, message(&[b"", &question[1], &[n]])).await.unwrap();
        }
    }
    for (dealer, name) in dealers.iter_mut().zip([b"a", b"b"]) {
        for n in 0..3u8 {
            assert_eq!(soon(dealer.receive()).await.unwrap(), message(&[b"", name, &[n]]));
        }
    }
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_publisher_knows_when_everything_was_sent() {
    let publisher = Publisher::bind(&free(), Options::default()).await.unwrap();
    soon(publisher.sent()).await;
    let mut sub = soon(Sub::connect(publisher.endpoint(), b"", &Options::default())).await.unwrap();
    while publisher.subscribers() == 0 {
        tokio::task::yield_now().await;
    }
    publisher.send(&message(&[b"topic", b"1"]));
    let mut sent = std::pin::pin!(publisher.sent());
    // This thread runs all tasks, so the connection's task cannot have run since.
    let is_early = std::future::poll_fn(|cx| std::task::Poll::Ready(sent.as_mut().poll(cx).is_ready())).await;
    assert!(!is_early);
    soon(sent).await;
    assert_eq!(soon(sub.receive()).await.unwrap(), message(&[b"topic", b"1"]));
}
