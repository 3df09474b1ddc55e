//! What does it cost that routers share their state?
//!
//! 1, 2, 4 and 8 routers over eight simulated engines, with and without sharing, on the same requests: prompts of 2 KB
//! that no other request has. Clients send at a steady rate, and then as fast as they can. What sharing costs is the CPU
//! time of all routers for a request, less that of routers that share nothing.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use warmroute_bench_gateway::args::{bench, read_flags};
use warmroute_bench_gateway::case::Case;
use warmroute_bench_gateway::measure::exchange;
use warmroute_bench_gateway::process::Process;
use warmroute_bench_gateway::proxies::{free_port, start_engine};
use warmroute_bench_gateway::scratch::Scratch;
use warmroute_bench_gateway::stats::Spread;
use warmroute_bench_gateway::target::Target;
use warmroute_bench_gateway::wire::{Answer, Connection};

const USAGE: &str = "\
Usage: cargo run --release --manifest-path bench/gateway/Cargo.toml --bin routers -- [OPTIONS]

  --seconds S         Length of one measurement [default: 4]
  --rounds N          How often everything is measured [default: 3]
  --routers A,B       Numbers of routers [default: 1,2,4,8]
  --rates A,B         Requests a second in all; 0 is as many as possible [default: 100,300,0]
  --binary PATH       The gateway [default: target/release/warmroute of this checkout]
  --help              This text";

const ENGINES: usize = 8;
const CONNECTIONS: usize = 16;
const WARM_UP: Duration = Duration::from_millis(1_000);
const READY_WITHIN: Duration = Duration::from_secs(30);

struct Args {
    seconds: f64,
    rounds: usize,
    routers: Vec<usize>,
    rates: Vec<usize>,
    binary: PathBuf,
}

/// One number of routers at one rate.
struct Row {
    routers: usize,
    rate: usize,
    /// CPU µs of all routers for a request, round by round, without and with sharing; and requests a second.
    alone: Vec<(f64, f64)>,
    shared: Vec<(f64, f64)>,
}

fn main() -> ExitCode {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/warmroute");
    let mut args = Args {
        seconds: 4.0,
        rounds: 3,
        routers: vec![1, 2, 4, 8],
        rates: vec![100, 300, 0],
        binary: PathBuf::from(own),
    };
    let parsed = read_flags(std::env::args().skip(1), |flag, value| args.set(flag, value));
    bench(USAGE, parsed.map(|is_asked| is_asked.then_some(args)), run)
}

impl Args {
    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        let bad = || format!("{flag}: `{value}` is not a number, or a list of them");
        let list = || value.split(',').map(|word| word.parse().ok()).collect::<Option<Vec<usize>>>();
        match flag {
            "--seconds" => {
                self.seconds =
                    value.parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0).ok_or_else(bad)?
            }
            "--rounds" => self.rounds = value.parse().ok().filter(|n| *n > 0).ok_or_else(bad)?,
            "--routers" => self.routers = list().filter(|list| !list.contains(&0)).ok_or_else(bad)?,
            "--rates" => self.rates = list().ok_or_else(bad)?,
            "--binary" => self.binary = PathBuf::from(value),
            _ => return Err(format!("unknown option {flag}")),
        }
        Ok(())
    }
}

/// Runs everything and prints the table. A failed request ends the run.
fn run(args: &Args) -> Result<u64, Box<dyn Error>> {
    let scratch = Scratch::new()?;
    fs::write(scratch.file("secret"), "a secret for this run and no other")?;
    let engines =
        (0..ENGINES).map(|_| start_engine(&args.binary, &scratch)).collect::<Result<Vec<_>, _>>()?;
    let of_routers =
        |routers: &usize| args.rates.iter().map(move |rate| (*routers, *rate)).collect::<Vec<_>>();
    let row = |(routers, rate)| Row { routers, rate, alone: vec![], shared: vec![] };
    let mut rows: Vec<Row> = args.routers.iter().flat_map(of_routers).map(row).collect();
    let next = AtomicU64::new(0);
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for row in &mut rows {
            for shares in [false, true] {
                if shares && row.routers == 1 {
                    continue;
                }
                let routers = start_routers(row.routers, shares, &engines, &args.binary, &scratch)?;
                drive(&routers, row.rate, WARM_UP, &next)?;
                let before_us = cpu_us(&routers)?;
                let began = Instant::now();
                let requests =
                    drive(&routers, row.rate, Duration::from_secs_f64(args.seconds), &next)? as f64;
                let rate = requests / began.elapsed().as_secs_f64();
                let sample = ((cpu_us(&routers)? - before_us) as f64 / requests, rate);
                if shares { &mut row.shared } else { &mut row.alone }.push(sample);
            }
        }
    }
    print(&rows);
    Ok(0)
}

/// Starts routers with one thread each. The first one that shares is a peer of all others.
fn start_routers(
    count: usize,
    shares: bool,
    engines: &[Target],
    binary: &Path,
    scratch: &Scratch,
) -> Result<Vec<Target>, Box<dyn Error>> {
    let urls: Vec<String> =
        engines.iter().map(|engine| format!("http://127.0.0.1:{}", engine.port)).collect();
    let secret = scratch.file("secret").display().to_string();
    let first = format!("127.0.0.1:{}", free_port()?);
    let mut routers = Vec::new();
    let mut admins = Vec::new();
    for at in 0..count {
        let mut words =
            vec!["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--threads", "1"];
        words.push("--worker-urls");
        words.extend(urls.iter().map(String::as_str));
        match (shares, at) {
            (false, _) => {}
            (true, 0) => {
                words.extend(["--share", "mesh", "--share-secret-file", &secret, "--mesh-listen", &first])
            }
            (true, _) => {
                words.extend(["--share", "mesh", "--share-secret-file", &secret]);
                words.extend(["--mesh-listen", "127.0.0.1:0", "--mesh-peers", &first]);
            }
        }
        let mut process = Process::start(binary, &words, scratch.file(&format!("router-{at}.log")))?;
        let [port, admin] = process.announced_ports()?;
        admins.push(admin);
        routers.push(Target::proxy(&format!("router {at}"), port, process)?);
    }
    if shares {
        admins.into_iter().try_for_each(|admin| wait_for_peers(admin, count - 1))?;
    }
    Ok(routers)
}

/// Waits until a router has this many peers.
fn wait_for_peers(admin: u16, peers: usize) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + READY_WITHIN;
    let request = format!("GET /peers HTTP/1.1\r\nhost: 127.0.0.1:{admin}\r\n\r\n");
    let mut answer = Answer::default();
    loop {
        Connection::open(admin)?.exchange(request.as_bytes(), &mut answer)?;
        let text = String::from_utf8_lossy(&answer.body);
        // Each peer's entry has one `router`.
        let known = text.split(r#""peers":["#).nth(1).map_or(0, |list| list.matches(r#""router":"#).count());
        if known >= peers {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("a router has {known} of {peers} peers: {text}").into());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn cpu_us(routers: &[Target]) -> std::io::Result<u64> {
    routers.iter().map(Target::cpu_us).sum()
}

/// Sends requests, each connection to one router; how many were answered.
fn drive(routers: &[Target], rate: usize, length: Duration, next: &AtomicU64) -> Result<u64, String> {
    let began = Instant::now();
    // At a given rate each connection sends when its turn has come.
    let interval = (rate > 0).then(|| Duration::from_secs_f64(CONNECTIONS as f64 / rate.max(1) as f64));
    let client = |at: usize| -> Result<u64, String> {
        let port = routers[at % routers.len()].port;
        let (mut connection, mut answer, mut sent) = (None, Answer::default(), 0);
        loop {
            if let Some(interval) = interval {
                let due = began + interval.mul_f64(sent as f64 + at as f64 / CONNECTIONS as f64);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            if began.elapsed() >= length {
                return Ok(sent);
            }
            let case = Case::unique(next.fetch_add(1, Relaxed));
            exchange(port, &mut connection, &case, &case.request(port), &mut answer)?;
            sent += 1;
        }
    };
    thread::scope(|scope| {
        let client = &client;
        let clients: Vec<_> = (0..CONNECTIONS).map(|at| scope.spawn(move || client(at))).collect();
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).sum()
    })
}

fn print(rows: &[Row]) {
    println!(
        "| routers | requests/s | CPU µs a request, all routers, sharing nothing | sharing | sharing adds | % of it |"
    );
    println!("|--:|--:|--:|--:|--:|--:|");
    for row in rows {
        let cpu = |samples: &[(f64, f64)]| Spread::of(samples.iter().map(|sample| sample.0));
        let (alone, shared) = (cpu(&row.alone), cpu(&row.shared));
        let told = |spread: Spread| format!("{:.0} ({:.0}–{:.0})", spread.median, spread.min, spread.max);
        let rate = |samples: &[(f64, f64)]| Spread::of(samples.iter().map(|sample| sample.1)).median;
        let rates = match (row.rate, row.routers) {
            (0, 1) => format!("{:.0}, the most", rate(&row.alone)),
            (0, _) => format!("{:.0} and {:.0}, the most", rate(&row.alone), rate(&row.shared)),
            (given, _) => given.to_string(),
        };
        if row.routers == 1 {
            println!("| 1 | {rates} | {} | | | |", told(alone));
            continue;
        }
        let pairs = row.alone.iter().zip(&row.shared).map(|(alone, shared)| shared.0 - alone.0);
        let added = Spread::of(pairs);
        println!(
            "| {} | {rates} | {} | {} | {} | {:.0} |",
            row.routers,
            told(alone),
            told(shared),
            told(added),
            100.0 * added.median / alone.median
        );
    }
}
