//! A proxy that follows a script: it sends messages of the protocol and shows every reply.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use warmroute_fleet::{Models, ProbeResult, WorkerLoadView, WorkerView};
use warmroute_gateway::{Drain, Drained, Gateway, Records};
use warmroute_policy::Standard;
use warmroute_router::{Change, Router};
use warmroute_types::Address;
use warmroute_wire::Acceptor;

use crate::Config;
use crate::grpc::MessageDecoder;
use crate::request::tests::{metadata, write_headers};
use warmroute_protobuf::{FieldValue, MessageFields, MessageWriter};

/// A picker on a free port, with workers that do not exist.
pub(crate) struct Fixture {
    pub gateway: Arc<Gateway>,
    pub address: SocketAddr,
    /// The listeners of pools, in their order.
    pub pools: Vec<SocketAddr>,
    pub drain: Drain,
    pub serving: JoinHandle<Drained>,
}

impl Fixture {
    pub(crate) async fn start(workers: &[&str], config: Config) -> Fixture {
        Fixture::with(workers, config, warmroute_gateway::Config::default()).await
    }

    pub(crate) async fn with(
        workers: &[&str],
        config: Config,
        settings: warmroute_gateway::Config,
    ) -> Fixture {
        Fixture::with_pools(workers, &[], config, settings).await
    }

    /// With a listener for each of these pools, too.
    pub(crate) async fn with_pools(
        workers: &[&str],
        pools: &[&str],
        config: Config,
        settings: warmroute_gateway::Config,
    ) -> Fixture {
        let policy: Standard = "expected_ttft".parse().unwrap();
        let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
        let gateway = Gateway::new(Arc::clone(&router), settings, Records::default()).unwrap();
        for (rank, url) in workers.iter().enumerate() {
            let address = match url.strip_suffix("#rank") {
                Some(url) => Address { rank: Some(rank as u16), ..Address::new(url) },
                None => Address::new(*url),
            };
            router.join(address, Models::Any).unwrap();
        }
        for view in router.inspect().workers() {
            let (result, at) = (ProbeResult::Answered, gateway.now());
            router.apply(Change::Probed { worker: view.worker, result, at });
        }
        if !workers.is_empty() {
            gateway.note_workers_known();
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, drain) = (listener.local_addr().unwrap(), Drain::default());
        let mut listeners = vec![crate::PoolListener { listener, pool: None }];
        let mut at = Vec::new();
        for pool in pools {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            at.push(listener.local_addr().unwrap());
            listeners.push(crate::PoolListener { listener, pool: Some((*pool).to_owned()) });
        }
        let serving =
            crate::serve(Arc::clone(&gateway), config, listeners, Acceptor::default(), drain.clone());
        Fixture { gateway, address, pools: at, drain, serving: tokio::spawn(serving) }
    }

    pub(crate) async fn proxy(&self) -> Proxy {
        Fixture::proxy_to(self.address).await
    }

    pub(crate) async fn proxy_to(address: SocketAddr) -> Proxy {
        Proxy::on(TcpStream::connect(address).await.unwrap()).await
    }

    /// A proxy on another machine.
    pub(crate) async fn proxy_from(&self, address: [u8; 4]) -> Proxy {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((address, 0))).unwrap();
        Proxy::on(socket.connect(self.address).await.unwrap()).await
    }

    /// Opens a stream and sends the head of a request.
    pub(crate) async fn ask(&self, mode: Option<u64>, head: &[(&str, &str)]) -> Call {
        let mut call = self.proxy().await.call().await;
        call.request_headers(mode.map(|mode| (mode, 0)), head, false);
        call
    }

    pub(crate) fn workers(&self) -> Vec<WorkerView> {
        self.gateway.router().inspect().workers()
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.workers().iter().map(|view| view.load.in_flight).sum()
    }

    /// The metrics' lines about outcomes.
    pub(crate) fn outcomes(&self) -> String {
        let text = self.gateway.metrics_text();
        text.lines()
            .filter(|line| line.starts_with("warmroute_requests_total{"))
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// Puts a worker into pools.
    pub(crate) fn assign(&self, worker: usize, pools: &[&str]) {
        let (worker, groups) =
            (Arc::clone(&self.workers()[worker].worker), pools.iter().map(|&pool| pool.to_owned()));
        self.gateway.router().apply(Change::Grouped { worker, groups: groups.collect() });
    }

    /// Adds a worker that is ready.
    pub(crate) fn join(&self, url: &str, models: Models) {
        let router = self.gateway.router();
        router.join(Address::new(url), models).unwrap();
        let views = self.workers().into_iter().filter(|view| view.worker.address.url == url);
        let (result, at) = (ProbeResult::Answered, self.gateway.now());
        views.for_each(|view| router.apply(Change::Probed { worker: view.worker, result, at }));
    }

    /// Requests that wait for a worker.
    pub(crate) fn awaiting_worker(&self) -> u32 {
        let text = self.gateway.metrics_text();
        let line = text.lines().find_map(|line| line.strip_prefix("warmroute_requests_awaiting_worker "));
        line.and_then(|count| count.parse().ok()).unwrap_or_default()
    }

    /// Waits until so many requests are in flight.
    pub(crate) async fn wait_in_flight(&self, expected: u32) {
        self.wait_until(|| self.in_flight() == expected, "requests in flight").await;
    }

    /// Waits until this holds for the first worker's load.
    pub(crate) async fn wait_for(&self, what: &str, holds: impl Fn(&WorkerLoadView) -> bool) {
        self.wait_until(|| holds(&self.workers()[0].load), what).await;
    }

    pub(crate) async fn wait_until(&self, holds: impl Fn() -> bool, what: &str) {
        let waiting = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
        waited.unwrap_or_else(|_| panic!("it never happened: {what}; {} in flight", self.in_flight()));
    }
}

/// A connection to the picker.
pub(crate) struct Proxy {
    requests: SendRequest<Bytes>,
}

impl Proxy {
    async fn on(stream: TcpStream) -> Proxy {
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(async move { _ = connection.await });
        Proxy { requests }
    }

    pub(crate) async fn call(&mut self) -> Call {
        self.call_to("/envoy.service.ext_proc.v3.ExternalProcessor/Process").await
    }

    pub(crate) async fn call_to(&mut self, path: &str) -> Call {
        let request = Request::post(format!("http://picker{path}")).body(()).unwrap();
        let mut ready = self.requests.clone().ready().await.unwrap();
        let (response, send) = ready.send_request(request, false).unwrap();
        Call { send, answer: Answer::Awaited(response), decoder: MessageDecoder::new(1 << 30) }
    }
}

enum Answer {
    Awaited(h2::client::ResponseFuture),
    Begun { stream: RecvStream, head: HeaderMap },
}

/// A stream to the picker.
pub(crate) struct Call {
    send: SendStream<Bytes>,
    answer: Answer,
    decoder: MessageDecoder,
}

impl Call {
    /// Resets the stream, as a proxy does whose client has left.
    pub(crate) fn leave(mut self) {
        self.send.send_reset(h2::Reason::CANCEL);
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, fill: impl FnOnce(&mut MessageWriter)) {
        let mut writer = MessageWriter::default();
        fill(&mut writer);
        self.send_raw(0, &writer.finish());
    }

    pub(crate) fn send_raw(&mut self, is_compressed: u8, message: &[u8]) {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let frame = [&[is_compressed][..], &length, message].concat();
        self.send.send_data(frame.into(), false).unwrap();
    }

    /// Sends the start of a message of this length.
    pub(crate) fn send_start(&mut self, length: u32, start: &[u8]) {
        let frame = [&[0][..], &length.to_be_bytes(), start].concat();
        self.send.send_data(frame.into(), false).unwrap();
    }

    /// Sends the head of a request. `modes`: how the filter sends the bodies of requests and responses.
    pub(crate) fn request_headers(&mut self, modes: Option<(u64, u64)>, head: &[(&str, &str)], is_end: bool) {
        self.request_headers_with(modes, head, is_end, &[]);
    }

    pub(crate) fn request_headers_with(
        &mut self,
        modes: Option<(u64, u64)>,
        head: &[(&str, &str)],
        is_end: bool,
        metadata: &[u8],
    ) {
        self.send(|message| {
            message.message(2, |headers| {
                write_headers(headers, head);
                headers.flag(3, is_end);
            });
            message.bytes(8, metadata);
            modes.into_iter().for_each(|(request, response)| {
                message.message(11, |config| {
                    config.number(1, request);
                    config.number(2, response);
                });
            });
        });
    }

    pub(crate) fn request_body(&mut self, body: &[u8], is_end: bool) {
        self.body(4, body, is_end);
    }

    pub(crate) fn response_body(&mut self, body: &[u8], is_end: bool) {
        self.body(5, body, is_end);
    }

    fn body(&mut self, field: u64, body: &[u8], is_end: bool) {
        self.send(|message| {
            message.message(field, |part| {
                part.bytes(1, body);
                part.flag(2, is_end);
            });
        });
    }

    pub(crate) fn response_headers(&mut self, head: &[(&str, &str)], served: Option<&str>) {
        self.send(|message| {
            message.message(3, |headers| write_headers(headers, head));
            let served = served.map(|served| {
                metadata("envoy.lb", "x-gateway-destination-endpoint-served", |value| {
                    value.bytes(3, served.as_bytes());
                })
            });
            served.into_iter().for_each(|served| message.bytes(8, &served));
        });
    }

    /// Sends trailers: field 6 for a request, 7 for a response.
    pub(crate) fn trailers(&mut self, field: u64) {
        self.send(|message| message.message(field, |_| {}));
    }

    /// Ends our side of the stream.
    pub(crate) fn close(&mut self) {
        self.send.send_data(Bytes::new(), true).unwrap();
    }

    /// Breaks the stream off.
    pub(crate) fn reset(mut self) {
        self.abandon();
    }

    /// Breaks the stream off, and keeps the handle.
    pub(crate) fn abandon(&mut self) {
        self.send.send_reset(h2::Reason::CANCEL);
    }

    async fn begun(&mut self) -> (&mut RecvStream, &HeaderMap) {
        if let Answer::Awaited(response) = &mut self.answer {
            let (head, stream) = response.await.unwrap().into_parts();
            self.answer = Answer::Begun { stream, head: head.headers };
        }
        match &mut self.answer {
            Answer::Begun { stream, head } => (stream, head),
            Answer::Awaited(_) => unreachable!("it has begun"),
        }
    }

    /// Waits until the picker has taken the stream.
    pub(crate) async fn answer_begins(&mut self) {
        self.begun().await;
    }

    /// The next message; `None` at the end.
    pub(crate) async fn message(&mut self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.decoder.next().unwrap() {
                return Some(message);
            }
            let bytes = self.begun().await.0.data().await?.unwrap();
            self.begun().await.0.flow_control().release_capacity(bytes.len()).unwrap();
            self.decoder.push(bytes);
        }
    }

    pub(crate) async fn reply(&mut self) -> Reply {
        Reply(self.message().await.expect("a reply"))
    }

    /// Whether no reply has come after a moment. Not a proof: it gives a defect the time to show.
    pub(crate) async fn has_no_reply(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(50), self.message()).await.is_err()
    }

    /// Reads to the end of the stream, and returns its status.
    pub(crate) async fn status(&mut self) -> u16 {
        assert_eq!(self.message().await, None, "nothing more is sent");
        let (stream, head) = self.begun().await;
        let head = head.clone();
        let trailers = stream.trailers().await.unwrap().unwrap_or(head);
        trailers["grpc-status"].to_str().unwrap().parse().unwrap()
    }
}

/// A reply.
#[derive(Debug)]
pub(crate) struct Reply(pub Bytes);

impl Reply {
    /// The values at this path of field numbers.
    pub(crate) fn all(&self, path: &[u64]) -> Vec<Vec<u8>> {
        let mut found = vec![self.0.to_vec()];
        for field in path {
            let inner = |message: &Vec<u8>| -> Vec<Vec<u8>> {
                let fields =
                    MessageFields::of(message).map(Result::unwrap).filter(|(number, _)| number == field);
                fields
                    .map(|(_, value)| match value {
                        FieldValue::Bytes(bytes) => bytes.to_vec(),
                        FieldValue::Number(number) => number.to_be_bytes().to_vec(),
                    })
                    .collect()
            };
            found = found.iter().flat_map(inner).collect();
        }
        found
    }

    pub(crate) fn text(&self, path: &[u64]) -> String {
        self.all(path).first().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
    }

    /// What the reply is about: its first field.
    pub(crate) fn phase(&self) -> u64 {
        MessageFields::of(&self.0).next().unwrap().unwrap().0
    }

    /// The headers to set, in an answer to a request.
    pub(crate) fn set_headers(&self, path: &[u64]) -> Vec<(String, String)> {
        let options = self.all(&[path, &[1, 1]].concat());
        let texts = |option: &Vec<u8>| {
            let option = Reply(Bytes::copy_from_slice(option));
            (option.text(&[1]), option.text(&[3]))
        };
        options.iter().map(texts).collect()
    }

    /// The chosen endpoint, which the header and the metadata must agree on.
    pub(crate) fn destination(&self) -> String {
        let named = self.text(&[8, 1, 2, 5, 1, 2, 3]);
        let headers = self.set_headers(&[self.phase(), 1, 2]);
        let header = headers.iter().find(|(name, _)| name == "x-gateway-destination-endpoint");
        assert_eq!(header.map(|(_, value)| value), Some(&named), "{self:?}");
        named
    }

    /// A part of a body that is sent back, and whether it is the last.
    pub(crate) fn body(&self, phase: u64) -> (Vec<u8>, bool) {
        assert_eq!(self.phase(), phase);
        let part = self.all(&[phase, 1, 3, 3]).remove(0);
        let part = Reply(part.into());
        (part.all(&[1]).concat(), !part.all(&[2]).is_empty())
    }

    /// The status, headers and body of an immediate response.
    pub(crate) fn immediate(&self) -> (u64, Vec<(String, String)>, String) {
        assert_eq!(self.phase(), 7, "{self:?}");
        let status = self.all(&[7, 1, 1]).remove(0).try_into().unwrap();
        (u64::from_be_bytes(status), self.set_headers(&[7, 2]), self.text(&[7, 3]))
    }
}
