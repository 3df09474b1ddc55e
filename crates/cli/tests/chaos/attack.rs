//! Attackers inside: stalled bodies, floods without a key, an engine that lies about its usage, and one that lies about
//! its cache. Honest tenants must hardly notice.
//!
//! `CHAOS_SECONDS=300 cargo test -p warmroute-cli --test chaos attackers -- --ignored --nocapture` prints the table of
//! docs/security.md. A quarter of the time runs without attackers, half with them, and a quarter without them again; the
//! worse of the two quiet parts is what the attacked one is compared with, so that a slow machine is not an attack.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::engines::Engines;
use crate::from_environment;
use crate::harness::client::authority;
use crate::harness::temp_folder::TempFolder;
use crate::honest::{HonestClients, Service};

const ENGINES: usize = 4;
/// An engine whose usage is a lie, and one whose events are.
const LIAR: usize = 0;
const LYING_PUBLISHER: usize = 1;
const STALLED: usize = 64;
const FLOODERS: usize = 6;
/// Between two requests of a flooder. Attackers share the machine with everything else.
const FLOOD_PAUSE: Duration = Duration::from_millis(4);
/// Tolerated p99 of the time to first token, as a multiple of the quiet one.
const TTFT_FACTOR_MAX: f64 = 1.5;
/// Added to that: what threads of a busy machine wait for a core, which multiples of short times do not cover.
const SCHEDULING_MS: f64 = 100.0;
const SUCCESS_MIN: f64 = 0.999;

const KEYS: &str = "sk-honest-1 name=honest-1\nsk-honest-2 name=honest-2\nsk-honest-3 name=honest-3\n\
                    sk-evil name=evil\n";

#[test]
#[ignore = "wants the machine for itself for a minute: -- --ignored"]
fn honest_tenants_are_served_while_attackers_stall_flood_and_lie() {
    let seconds = from_environment("CHAOS_SECONDS", 16).max(8);
    let engines = Engines::start(ENGINES);
    let folder = TempFolder::new("chaos-attack");
    let keys = folder.file("keys");
    std::fs::write(&keys, KEYS).unwrap();
    let gateway = engines.plain_gateway(&["--api-keys-file", &keys, "--client-body-timeout-secs", "5"]);
    let serve = |part: u64, number: u64| {
        HonestClients::start(gateway.url(), number).stop_after(Duration::from_secs(seconds * part / 4))
    };
    // Opens connections and trains the latency model.
    HonestClients::start(gateway.url(), 0).stop_after(Duration::from_secs(2));
    let before = serve(1, 1);
    engines.order(LIAR, r#"{"kind":"lie"}"#);
    engines.order(LYING_PUBLISHER, r#"{"kind":"events","stores":"ahead","removals":"hidden"}"#);
    let attackers = Attackers::start(gateway.url());
    let attacked = serve(2, 2);
    let tried = attackers.stop();
    engines.order(LIAR, r#"{"kind":"none"}"#);
    engines.order(LYING_PUBLISHER, r#"{"kind":"none"}"#);
    let after = serve(1, 3);
    println!("{seconds} s, {ENGINES} engines, two of them lie");
    for (name, service) in [("quiet, before", &before), ("attacked", &attacked), ("quiet, after", &after)] {
        println!("{name:<16}{service}");
    }
    println!("attacks: {} bodies stalled, {} requests without a key", tried.stalled, tried.floods);
    assert!(tried.floods > 10 * seconds && tried.stalled as usize >= STALLED, "{tried:?}");
    check(&before, &attacked, &after);
}

fn check(before: &Service, attacked: &Service, after: &Service) {
    assert!(attacked.success() >= SUCCESS_MIN, "{:?}", attacked.failures);
    let quiet_ms = before.p99_ttft_ms().max(after.p99_ttft_ms());
    let allowed_ms = TTFT_FACTOR_MAX * quiet_ms + SCHEDULING_MS;
    assert!(attacked.p99_ttft_ms() <= allowed_ms, "{attacked}: more than {allowed_ms:.0} ms");
}

/// What attackers have done.
#[derive(Debug, Default)]
struct Tried {
    stalled: u64,
    floods: u64,
}

struct Attackers {
    is_over: Arc<AtomicBool>,
    stalled: Arc<AtomicU64>,
    floods: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Attackers {
    fn start(url: &str) -> Attackers {
        let (is_over, stalled, floods) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let address = authority(url).to_owned();
        let mut threads = Vec::new();
        for number in 0..STALLED {
            let (address, is_over, stalled) = (address.clone(), Arc::clone(&is_over), Arc::clone(&stalled));
            // Half of them have a key: a tenant may be an attacker.
            let key = (number % 2 == 0).then_some("sk-evil");
            threads.push(std::thread::spawn(move || stall_bodies(&address, key, &is_over, &stalled)));
        }
        for number in 0..FLOODERS {
            let (address, is_over, floods) = (address.clone(), Arc::clone(&is_over), Arc::clone(&floods));
            let key = (number % 2 == 0).then_some("sk-guessed");
            threads.push(std::thread::spawn(move || flood(&address, key, &is_over, &floods)));
        }
        Attackers { is_over, stalled, floods, threads }
    }

    fn stop(self) -> Tried {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        Tried { stalled: self.stalled.load(Ordering::Relaxed), floods: self.floods.load(Ordering::Relaxed) }
    }
}

fn head(key: Option<&str>, length: usize) -> String {
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{key}content-length: {length}\r\n\r\n")
}

/// Sends the beginning of a large body and then nothing, again and again.
fn stall_bodies(address: &str, key: Option<&str>, is_over: &AtomicBool, stalled: &AtomicU64) {
    while !is_over.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let begun = format!("{}{{\"model\":\"{}", head(key, 1_000_000), "x".repeat(10_000));
        _ = stream.write_all(begun.as_bytes());
        stalled.fetch_add(1, Ordering::Relaxed);
        stream.set_read_timeout(Some(Duration::from_millis(250))).unwrap();
        let mut answer = [0; 1_024];
        loop {
            match stream.read(&mut answer) {
                Ok(0) => break,
                Err(error) if !is_timeout(&error) => break,
                _ if is_over.load(Ordering::Relaxed) => break,
                _ => {}
            }
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// Sends requests without a valid key, one after another, each on its own connection.
fn flood(address: &str, key: Option<&str>, is_over: &AtomicBool, floods: &AtomicU64) {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"let me in"}]}"#;
    while !is_over.load(Ordering::Relaxed) {
        if let Ok(mut stream) = TcpStream::connect(address) {
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            _ = stream.write_all(format!("{}{body}", head(key, body.len())).as_bytes());
            let mut answer = Vec::new();
            _ = stream.read_to_end(&mut answer);
            floods.fetch_add(u64::from(answer.starts_with(b"HTTP/1.1 401")), Ordering::Relaxed);
        }
        std::thread::sleep(FLOOD_PAUSE);
    }
}
