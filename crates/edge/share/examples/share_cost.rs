//! Cost of a message: CPU time and bytes, by mesh and by Redis.
//!
//!     cargo run --release -p warmroute-share --example share_cost [MESSAGES [BYTES]]
//!
//! All routers run in one process. The first sends a message to all others, and the next one when all have received it, so every
//! message pays for waking its receivers, as in production with one message every 20 to 50 ms. CPU time is that of the whole
//! process, divided by the received messages; that of the redis-server is divided by the sent ones.

#![allow(clippy::unwrap_used, reason = "an example ends with its error")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warmroute_share::{Link, MeshConfig, RedisConfig, Secret, mesh, redis};
use warmroute_types::{RouterId, To};

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse().unwrap());
    let messages = numbers.next().unwrap_or(5_000);
    let sizes = numbers.next().map_or(vec![200, 4_096, 65_536], |bytes| vec![bytes]);
    let titles = ["routers", "bytes", "CPU µs/received", "median µs", "wire bytes/sent", "server µs/sent"];
    println!("{:<6}{}", "by", titles.map(|title| format!("{title:>16}")).concat());
    for bytes in sizes {
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

/// Sends from the first router to all others, and prints the cost per message.
async fn report(by: &str, mut links: Vec<Link>, server: Option<&Server>, messages: usize, bytes: usize) {
    let others = links.len() - 1;
    for link in &links {
        let all = |peers: &Arc<std::collections::BTreeMap<_, _>>| peers.len() == others;
        link.status.watch_peers().wait_for(all).await.unwrap();
    }
    let message: Arc<[u8]> = vec![7; bytes].into();
    let before = links[0].status.traffic().bytes_out;
    let (cpu, server_cpu) = (cpu_of("self"), server.map_or(0.0, Server::cpu));
    let mut took = Vec::new();
    for _ in 0..messages {
        let began = Instant::now();
        links[0].outgoing.send(To::Everyone, Arc::clone(&message)).unwrap();
        for link in &mut links[1..] {
            link.incoming.recv().await;
        }
        took.push(began.elapsed());
    }
    took.sort_unstable();
    let sent = messages as f64;
    let per_sent = |total: f64| total / sent;
    let cpu = per_sent(cpu_of("self") - cpu) / others as f64;
    let wire = per_sent((links[0].status.traffic().bytes_out - before) as f64);
    let server_cpu =
        server.map(|server| format!("{:.1}", per_sent(server.cpu() - server_cpu))).unwrap_or_default();
    let median = took[took.len() / 2].as_micros();
    println!("{by:<6}{:>16}{bytes:>16}{cpu:>16.1}{median:>16}{wire:>16.0}{server_cpu:>16}", others + 1);
}

/// CPU time of a process in microseconds, over all current threads.
fn cpu_of(process: &str) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let used = threads.map(|thread| {
        let text = std::fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0)
    });
    used.sum::<f64>() / 1_000.0
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
