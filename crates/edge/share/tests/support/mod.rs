//! Routers on this machine, and a network between them with faults.

#![allow(dead_code, reason = "each test file uses some of it")]

pub mod server;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use warmroute_share::{Link, MeshConfig, MeshTimings, ReceivedMessage, Secret, TransportStatus, mesh};
use warmroute_types::{RouterId, To};

/// A test that takes longer fails.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub fn secret() -> Secret {
    Secret::new("what only these routers know")
}

/// A router that is silent for half a second counts as dead. Only for tests of that, because on a busy
/// machine live routers are silent, too.
pub fn short_timeouts() -> MeshTimings {
    MeshTimings {
        dead_after: Duration::from_millis(500),
        handshake: Duration::from_secs(2),
        ..fast_timings()
    }
}

/// Shorter intervals than in production, but timeouts that never expire.
pub fn fast_timings() -> MeshTimings {
    MeshTimings {
        alive_every: Duration::from_millis(50),
        dead_after: TEST_TIMEOUT,
        connect: Duration::from_secs(5),
        handshake: TEST_TIMEOUT,
        redial: Duration::from_millis(100),
        refused: Duration::from_secs(600),
        resolve_every: Duration::from_millis(200),
        probe_every: Duration::from_millis(200),
        gone_after: Duration::from_millis(400),
        settle: Duration::ZERO,
        remember: Duration::from_secs(600),
    }
}

pub fn config(peers: &[&str]) -> MeshConfig {
    let peers = peers.iter().map(|peer| (*peer).to_owned()).collect();
    MeshConfig { timings: fast_timings(), ..MeshConfig::new("127.0.0.1:0".parse().unwrap(), peers, secret()) }
}

pub fn start(me: u64, peers: &[&str]) -> Link {
    mesh(config(peers), RouterId(me)).unwrap()
}

pub fn address(link: &Link) -> String {
    link.status.listening().unwrap().to_string()
}

pub fn reported(status: &TransportStatus, words: &str) -> bool {
    status.problems().iter().any(|problem| problem.text.contains(words))
}

/// Waits for the next message.
pub async fn next(link: &mut Link) -> ReceivedMessage {
    let waiting = tokio::time::timeout(TEST_TIMEOUT, link.incoming.recv());
    waiting.await.unwrap_or_else(|_| panic!("no message arrived: {:?}", link.status))
}

/// Waits for a condition.
pub async fn wait_until(status: &TransportStatus, condition: impl Fn(&TransportStatus) -> bool) {
    let waiting = async {
        while !condition(status) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(TEST_TIMEOUT, waiting).await.is_err() {
        panic!(
            "the condition was never met: {:?} {:?} {:?}",
            status.peers(),
            status.traffic(),
            status.problem()
        );
    }
}

pub async fn wait_until_ready<T>(attempt: impl Fn() -> Option<T>) -> T {
    for _ in 0..TEST_TIMEOUT.as_millis() / 5 {
        if let Some(ready) = attempt() {
            return ready;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never ready");
}

pub async fn wait_until_connected(links: &[Link]) {
    let all: Vec<RouterId> = links.iter().map(|link| link.status.me()).collect();
    for link in links {
        let others: Vec<RouterId> =
            all.iter().copied().filter(|router| *router != link.status.me()).collect();
        wait_until(&link.status, |status| others.iter().all(|other| status.peers().contains_key(other)))
            .await;
    }
}

pub async fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// An address where no router listens.
pub async fn unused_address() -> String {
    free_port().await.to_string()
}

/// A router on its own thread that can be paused.
pub struct PausableRouter {
    pause: tokio::sync::mpsc::UnboundedSender<()>,
    resume: std::sync::mpsc::Sender<()>,
}

impl PausableRouter {
    pub fn start(me: u64, peer: String) -> PausableRouter {
        let (pause, mut paused) = tokio::sync::mpsc::unbounded_channel();
        let (resume, resumed) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let _link =
                    mesh(MeshConfig { timings: short_timeouts(), ..config(&[peer.as_str()]) }, RouterId(me))
                        .unwrap();
                while paused.recv().await.is_some() {
                    // Blocks the whole runtime on purpose.
                    _ = resumed.recv();
                }
            });
        });
        PausableRouter { pause, resume }
    }

    pub fn pause(&self) {
        self.pause.send(()).unwrap();
    }

    pub fn resume(&self) {
        self.resume.send(()).unwrap();
    }
}

/// A listener that closes and counts every connection. Tests use it as a clock of dial attempts.
pub struct DialCounter {
    pub address: String,
    dials: watch::Receiver<u32>,
}

impl DialCounter {
    pub async fn start() -> DialCounter {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (count, dials) = watch::channel(0);
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                count.send_modify(|count| *count += 1);
            }
        });
        DialCounter { address, dials }
    }

    /// Waits for this many further dials.
    pub async fn wait_for_dials(&self, dials: u32) {
        let mut seen = self.dials.clone();
        let wait_until = *seen.borrow() + dials;
        let waiting = seen.wait_for(|count| *count >= wait_until);
        tokio::time::timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
    }
}

/// Sends until it is received: a message may be lost before the routers are connected.
pub async fn wait_until_received(from: &Link, to: &mut Link, words: &str) {
    let sending = async {
        loop {
            from.outgoing.send(To::Everyone, words.as_bytes()).unwrap();
            let received = tokio::time::timeout(Duration::from_millis(100), to.incoming.recv()).await;
            if received.is_ok_and(|message| message.bytes == words.as_bytes()) {
                return;
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, sending).await.unwrap_or_else(|_| panic!("{words} never arrived"));
}

/// Faults of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Nothing is forwarded or closed; new connections stall, too.
    Hang,
    /// Data towards the server is sent twice.
    Repeat,
    /// Additional data is sent towards the server.
    Invent,
    /// An impossible frame length is sent towards the server.
    Oversize,
}

/// A proxy in front of one server.
pub struct Proxy {
    address: SocketAddr,
    fault: watch::Sender<Fault>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (fault, faults) = watch::channel(Fault::None);
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(forward(client, server, faults.clone()));
            }
        });
        Proxy { address, fault, task }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A stalled connection stays stalled, like one that the network has forgotten.
async fn forward(mut client: TcpStream, server: SocketAddr, mut faults: watch::Receiver<Fault>) {
    if *faults.borrow() == Fault::Hang {
        return std::future::pending().await;
    }
    let Ok(mut upstream) = TcpStream::connect(server).await else { return };
    let (mut up, mut down) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    loop {
        tokio::select! {
            changed = faults.changed() => {
                let fault = *faults.borrow_and_update();
                if changed.is_err() { return };
                if fault == Fault::Hang { return hang(client, upstream).await };
            }
            read = client.read(&mut up) => {
                let Ok(bytes @ 1..) = read else { return };
                let fault = *faults.borrow();
                let sent = match fault {
                    Fault::Repeat => [&up[..bytes], &up[..bytes]].concat(),
                    Fault::Invent => [&[0, 0, 0, 20][..], &[2; 20], &up[..bytes]].concat(),
                    Fault::Oversize => [0xff_u8; 4].to_vec(),
                    Fault::None | Fault::Hang => up[..bytes].to_vec(),
                };
                if upstream.write_all(&sent).await.is_err() { return };
            }
            read = upstream.read(&mut down) => {
                let Ok(bytes @ 1..) = read else { return };
                if client.write_all(&down[..bytes]).await.is_err() { return };
            }
        }
    }
}

/// Holds both sides open without reading.
async fn hang(client: TcpStream, upstream: TcpStream) {
    let _held = (client, upstream);
    std::future::pending().await
}

/// A certificate authority; its certificate is `ca.pem` in the folder.
pub fn authority(folder: &Path) -> rcgen::CertifiedIssuer<'static, rcgen::KeyPair> {
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    std::fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    authority
}

/// Files of the authority, of a certificate with these names, and of its key.
pub fn certificate(
    authority: &rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
    folder: &Path,
    name: &str,
    names: &[&str],
) -> (PathBuf, PathBuf, PathBuf) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let key = rcgen::KeyPair::generate().unwrap();
    let made = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, authority).unwrap();
    let [cert_file, key_file] = ["pem", "key"].map(|ending| folder.join(format!("{name}.{ending}")));
    std::fs::write(&cert_file, made.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    (folder.join("ca.pem"), cert_file, key_file)
}
