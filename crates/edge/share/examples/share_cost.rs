//! What a message costs a router: CPU and bytes, by mesh and by Redis.
//!
//!     cargo run --release -p warmroute-share --example share_cost [MESSAGES [BYTES]]
//!
//! Routers of one process on this machine, each telling all others one message every so often, as fast as they are taken. CPU is the whole process's,
//! sending and receiving together, divided by the messages that arrived; a redis-server's own is told beside it.

#![allow(clippy::unwrap_used, reason = "an example ends with its error")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warmroute_share::{Link, MeshConfig, RedisConfig, Secret, To, mesh, redis};
use warmroute_types::RouterId;

/// So many messages may be on their way: no queue is ever full, and nothing is dropped.
const WINDOW: usize = 64;

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse().unwrap());
    let messages = numbers.next().unwrap_or(20_000);
    let sizes = numbers.next().map_or(vec![200, 4_096, 65_536], |bytes| vec![bytes]);
    println!(
        "{:<7}{:>9}{:>9}{:>14}{:>16}{:>18}{:>14}",
        "by", "routers", "bytes", "CPU µs/heard", "messages/s", "wire bytes/sent", "redis µs"
    );
    for bytes in sizes {
        let messages = if bytes > 10_000 { messages / 8 } else { messages };
        for routers in [2, 4, 8] {
            report("mesh", meshed(routers), None, messages, bytes).await;
            if let Some(server) = Server::start() {
                report("redis", server.joined(routers), Some(&server), messages, bytes).await;
            }
        }
    }
}

fn secret() -> Secret {
    Secret::new("a secret for a measurement")
}

fn meshed(count: u64) -> Vec<Link> {
    let open = |me, peers| {
        mesh(MeshConfig::new("127.0.0.1:0".parse().unwrap(), peers, secret()), RouterId(me)).unwrap()
    };
    let seed = open(1, Vec::new());
    let at = seed.status.listening().unwrap().to_string();
    let others = (2..=count).map(|me| open(me, vec![at.clone()]));
    std::iter::once(seed).chain(others).collect()
}

/// The first tells all others; what it costs them all is divided by what they heard.
async fn report(by: &str, mut links: Vec<Link>, server: Option<&Server>, messages: usize, bytes: usize) {
    let others = links.len() - 1;
    for link in &links {
        let all = |peers: &Arc<std::collections::BTreeMap<_, _>>| peers.len() == others;
        link.status.watch_peers().wait_for(all).await.unwrap();
    }
    let message: Arc<[u8]> = vec![7; bytes].into();
    let (before, sent_before) = (links[0].status.traffic(), Instant::now());
    let (cpu, server_cpu) = (cpu_of("self"), server.map_or(0.0, Server::cpu));
    for _ in 0..messages / WINDOW {
        (0..WINDOW).for_each(|_| links[0].outgoing.send(To::Everyone, Arc::clone(&message)).unwrap());
        for link in &mut links[1..] {
            for _ in 0..WINDOW {
                link.incoming.recv().await;
            }
        }
    }
    let (took, sent) = (sent_before.elapsed().as_secs_f64(), (messages / WINDOW * WINDOW) as f64);
    let heard = sent * others as f64;
    let wire = (links[0].status.traffic().bytes_out - before.bytes_out) as f64 / sent;
    let cpu = (cpu_of("self") - cpu) / heard * 1e6;
    let server_cpu =
        server.map(|server| format!("{:.1}", (server.cpu() - server_cpu) / sent * 1e6)).unwrap_or_default();
    let rate = sent / took;
    println!("{by:<7}{:>9}{bytes:>9}{cpu:>14.1}{rate:>16.0}{wire:>18.0}{server_cpu:>14}", others + 1);
}

/// Seconds of CPU that a process has used, all threads.
fn cpu_of(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    // The kernel counts in hundredths for everybody who asks this way.
    ticks / 100.0
}

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Option<Server> {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        let child = command.stdout(Stdio::null()).spawn().ok()?;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(Server { child, port })
    }

    fn joined(&self, count: u64) -> Vec<Link> {
        let config = RedisConfig::new(format!("redis://127.0.0.1:{}", self.port), secret());
        (1..=count).map(|me| redis(config.clone(), RouterId(me)).unwrap()).collect()
    }

    fn cpu(&self) -> f64 {
        cpu_of(&self.child.id().to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
