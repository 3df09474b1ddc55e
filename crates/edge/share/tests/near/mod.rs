//! Routers on this machine, and a network between them that can be spoiled.

#![allow(dead_code, reason = "each test file uses some of it")]

pub mod server;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use warmroute_share::{Incoming, Link, MeshConfig, MeshPace, Secret, Status, mesh};
use warmroute_types::{RouterId, To};

/// A test that takes longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn secret() -> Secret {
    Secret::new("what only these routers know")
}

/// Whoever is silent for half a second is dead. For tests of that only: on a busy machine the living are silent, too.
pub fn impatient() -> MeshPace {
    MeshPace { dead_after: Duration::from_millis(500), handshake: Duration::from_secs(2), ..quick() }
}

/// Faster than in production, so that tests are, but nobody is given up.
pub fn quick() -> MeshPace {
    MeshPace {
        alive_every: Duration::from_millis(50),
        dead_after: PATIENCE,
        connect: Duration::from_secs(5),
        handshake: PATIENCE,
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
    MeshConfig { pace: quick(), ..MeshConfig::new("127.0.0.1:0".parse().unwrap(), peers, secret()) }
}

pub fn start(me: u64, peers: &[&str]) -> Link {
    mesh(config(peers), RouterId(me)).unwrap()
}

pub fn address(link: &Link) -> String {
    link.status.listening().unwrap().to_string()
}

pub fn told(status: &Status, words: &str) -> bool {
    status.troubles().iter().any(|trouble| trouble.text.contains(words))
}

/// The next message.
pub async fn next(link: &mut Link) -> Incoming {
    let waiting = tokio::time::timeout(PATIENCE, link.incoming.recv());
    waiting.await.unwrap_or_else(|_| panic!("nothing came: {:?}", link.status))
}

/// Until it is so.
pub async fn until(status: &Status, so: impl Fn(&Status) -> bool) {
    let waiting = async {
        while !so(status) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("never so: {:?} {:?} {:?}", status.peers(), status.traffic(), status.trouble());
    }
}

pub async fn until_ready<T>(attempt: impl Fn() -> Option<T>) -> T {
    for _ in 0..PATIENCE.as_millis() / 5 {
        if let Some(ready) = attempt() {
            return ready;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never ready");
}

pub async fn everybody_knows(links: &[Link]) {
    let all: Vec<RouterId> = links.iter().map(|link| link.status.me()).collect();
    for link in links {
        let others: Vec<RouterId> =
            all.iter().copied().filter(|router| *router != link.status.me()).collect();
        until(&link.status, |status| others.iter().all(|other| status.peers().contains_key(other))).await;
    }
}

pub async fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// A place where nobody answers.
pub async fn nobody() -> String {
    free_port().await.to_string()
}

/// A router on a thread of its own, which can be made to stand still.
pub struct Stoppable {
    stop: tokio::sync::mpsc::UnboundedSender<()>,
    go_on: std::sync::mpsc::Sender<()>,
}

impl Stoppable {
    pub fn start(me: u64, peer: String) -> Stoppable {
        let (stop, mut stopped) = tokio::sync::mpsc::unbounded_channel();
        let (go_on, goes_on) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let _link =
                    mesh(MeshConfig { pace: impatient(), ..config(&[peer.as_str()]) }, RouterId(me)).unwrap();
                while stopped.recv().await.is_some() {
                    // Blocks the whole runtime, on purpose.
                    _ = goes_on.recv();
                }
            });
        });
        Stoppable { stop, go_on }
    }

    pub fn stop(&self) {
        self.stop.send(()).unwrap();
    }

    pub fn go_on(&self) {
        self.go_on.send(()).unwrap();
    }
}

/// A place where everybody is hung up on, and counted: time, as one who dials sees it.
pub struct Counter {
    pub address: String,
    dials: watch::Receiver<u32>,
}

impl Counter {
    pub async fn start() -> Counter {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (count, dials) = watch::channel(0);
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                count.send_modify(|count| *count += 1);
            }
        });
        Counter { address, dials }
    }

    /// Until it has been dialed so often from now on.
    pub async fn more(&self, dials: u32) {
        let mut seen = self.dials.clone();
        let until = *seen.borrow() + dials;
        let waiting = seen.wait_for(|count| *count >= until);
        tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    }
}

/// Says it until it is heard: a message may be lost while a router is not known yet.
pub async fn hears(from: &Link, to: &mut Link, words: &str) {
    let saying = async {
        loop {
            from.outgoing.send(To::Everyone, words.as_bytes()).unwrap();
            let heard = tokio::time::timeout(Duration::from_millis(100), to.incoming.recv()).await;
            if heard.is_ok_and(|message| message.bytes == words.as_bytes()) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, saying).await.unwrap_or_else(|_| panic!("{words} was never heard"));
}

/// What is wrong with the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Nothing goes through any more, and nothing is closed; new connections hang as well.
    Hang,
    /// What goes towards the server goes twice.
    Repeat,
    /// Something of its own goes towards the server.
    Invent,
    /// A frame's length that no frame has goes towards the server.
    Oversize,
}

/// A network between whoever connects and one server.
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
                let (near, _) = listener.accept().await.unwrap();
                tokio::spawn(carry(near, server, faults.clone()));
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

/// A connection that hangs once hangs for good, as in a network that forgot about it.
async fn carry(mut near: TcpStream, server: SocketAddr, mut faults: watch::Receiver<Fault>) {
    if *faults.borrow() == Fault::Hang {
        return std::future::pending().await;
    }
    let Ok(mut far) = TcpStream::connect(server).await else { return };
    let (mut up, mut down) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    loop {
        tokio::select! {
            changed = faults.changed() => {
                let fault = *faults.borrow_and_update();
                if changed.is_err() { return };
                if fault == Fault::Hang { return hang(near, far).await };
            }
            read = near.read(&mut up) => {
                let Ok(bytes @ 1..) = read else { return };
                let fault = *faults.borrow();
                let sent = match fault {
                    Fault::Repeat => [&up[..bytes], &up[..bytes]].concat(),
                    Fault::Invent => [&[0, 0, 0, 20][..], &[2; 20], &up[..bytes]].concat(),
                    Fault::Oversize => [0xff_u8; 4].to_vec(),
                    Fault::None | Fault::Hang => up[..bytes].to_vec(),
                };
                if far.write_all(&sent).await.is_err() { return };
            }
            read = far.read(&mut down) => {
                let Ok(bytes @ 1..) = read else { return };
                if near.write_all(&down[..bytes]).await.is_err() { return };
            }
        }
    }
}

/// Holds both ends without reading either.
async fn hang(near: TcpStream, far: TcpStream) {
    let _held = (near, far);
    std::future::pending().await
}

/// An authority, its certificate as `ca.pem` in the folder.
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
