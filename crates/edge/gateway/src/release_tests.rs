//! Release order: a request that ends frees its worker before its permit admits the next request.
//!
//! The fleet is one worker with room for one request, and nothing but the release itself admits waiting requests. If the
//! permit were released before the booking, the next request would find the worker full and wait forever.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use warmroute_fleet::{Models, ProbeResult};
use warmroute_policy::Standard;
use warmroute_router::{Change, Router};
use warmroute_types::Address;
use warmroute_wire::Acceptor;

use crate::{AdmissionConfig, Config, Drain, Gateway, Records, WorkerLimit, serve};

const TIME_MAX: Duration = Duration::from_secs(20);

/// How the first request ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FirstRequest {
    Completes,
    WorkerFails,
    ClientLeavesDuringResponse,
    ClientLeavesBeforeResponse,
}

/// A worker that answers its first request as `end` says, and all later ones at once.
struct Worker {
    end: FirstRequest,
    requests: AtomicUsize,
    /// Lets the first response end.
    finish: Notify,
}

impl Worker {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&self).connection(stream));
        }
    }

    async fn connection(self: Arc<Self>, mut stream: TcpStream) -> std::io::Result<()> {
        while read_until(&mut stream, b"}]}").await? {
            if self.requests.fetch_add(1, Ordering::SeqCst) > 0 {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await?;
            } else if !self.first_response(&mut stream).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether the connection stays open.
    async fn first_response(&self, stream: &mut TcpStream) -> std::io::Result<bool> {
        if self.end != FirstRequest::ClientLeavesBeforeResponse {
            let head =
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head).await?;
            stream.write_all(b"a\r\ndata: {}\n\n\r\n").await?;
        }
        self.finish.notified().await;
        if self.end == FirstRequest::Completes {
            stream.write_all(b"0\r\n\r\n").await?;
        }
        Ok(self.end == FirstRequest::Completes)
    }
}

/// Reads until the bytes end so; false at the end of the connection.
async fn read_until(stream: &mut TcpStream, end: &[u8]) -> std::io::Result<bool> {
    let mut read = Vec::new();
    while !read.ends_with(end) {
        if stream.read_buf(&mut read).await? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn start_gateway(worker: &str) -> (Arc<Gateway>, String) {
    let config = warmroute_router::Config { in_flight_max: 1, ..warmroute_router::Config::default() };
    let router = Arc::new(Router::new("random".parse::<Standard>().unwrap(), config));
    router.join(Address::new(worker), Models::Any).unwrap();
    let admission = AdmissionConfig { worker_limit: WorkerLimit::On, ..AdmissionConfig::default() };
    let gateway =
        Gateway::new(router, Config { admission, ..Config::default() }, Records::default()).unwrap();
    let worker = Arc::clone(&gateway.router().inspect().workers()[0].worker);
    let change = Change::Probed { worker, result: ProbeResult::Answered, at: gateway.now() };
    gateway.router().apply(change);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(serve(Arc::clone(&gateway), listener, Acceptor::default(), Drain::default()));
    (gateway, address)
}

async fn send_request(gateway: &str) -> TcpStream {
    let body = r#"{"stream":true,"messages":[{"content":"x"}]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = TcpStream::connect(gateway).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    client
}

async fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn next_request_is_served_after(end: FirstRequest) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let worker = Arc::new(Worker { end, requests: AtomicUsize::new(0), finish: Notify::new() });
    tokio::spawn(Arc::clone(&worker).serve(listener));
    let (gateway, address) = start_gateway(&url).await;

    let mut first = send_request(&address).await;
    wait_until(|| worker.requests.load(Ordering::SeqCst) == 1).await;
    let mut second = send_request(&address).await;
    wait_until(|| gateway.gate.waiting() == 1).await;

    if end != FirstRequest::ClientLeavesBeforeResponse {
        assert!(read_until(&mut first, b"data: {}\n\n\r\n").await.unwrap());
    }
    match end {
        FirstRequest::Completes | FirstRequest::WorkerFails => worker.finish.notify_one(),
        FirstRequest::ClientLeavesDuringResponse | FirstRequest::ClientLeavesBeforeResponse => drop(first),
    }
    assert!(read_until(&mut second, b"{}").await.unwrap(), "{end:?}");
    assert_eq!(gateway.gate.counts().0, 0, "{end:?}: no permit is left");
}

#[tokio::test]
async fn a_request_frees_its_worker_before_it_admits_the_next_one() {
    for end in [
        FirstRequest::Completes,
        FirstRequest::WorkerFails,
        FirstRequest::ClientLeavesDuringResponse,
        FirstRequest::ClientLeavesBeforeResponse,
    ] {
        let served = tokio::time::timeout(TIME_MAX, next_request_is_served_after(end)).await;
        assert!(served.is_ok(), "{end:?}: the next request was not admitted");
    }
}
