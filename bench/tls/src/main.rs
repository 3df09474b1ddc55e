//! What does TLS on both sides cost, beside nginx with the same cipher suite?
//!
//! ```text
//!   clients ──TLS──> warmroute | nginx ──TLS──> nginx (ends TLS, not measured) ──> one engine
//! ```
//!
//! Requests on connections that stay open show what encryption costs; a connection for each request shows what a
//! handshake costs, in full and resumed. All handshakes are TLS 1.3 with X25519, a P-256 certificate and AES-128-GCM.

mod client;
mod servers;

use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use client::{Client, Handshakes};
use servers::Servers;
use warmroute_bench_gateway::args::{bench, read_flags};
use warmroute_bench_gateway::case::Case;
use warmroute_bench_gateway::scratch::Scratch;
use warmroute_bench_gateway::stats::Spread;
use warmroute_bench_gateway::target::Target;

const USAGE: &str = "\
Usage: cargo run --release --manifest-path bench/tls/Cargo.toml -- [OPTIONS]

  --seconds S         Length of one measurement [default: 3]
  --rounds N          How often everything is measured [default: 5]
  --binary PATH       The gateway [default: target/release/warmroute of this checkout]
  --before PATH       Another build of it, to be measured too
  --help              This text

It needs nginx.";

/// Connections at a time.
const CONNECTIONS: usize = 16;
const WARM_UP: Duration = Duration::from_millis(300);

/// What was asked for.
struct Args {
    seconds: f64,
    rounds: usize,
    binary: String,
    before: Option<String>,
}

/// A row's measurement in one round.
struct Sample {
    cpu_us: f64,
    requests_per_s: f64,
    /// Share of the connections whose handshake was resumed.
    resumed: f64,
    errors: u64,
}

/// One kind of traffic through one proxy.
struct Row {
    traffic: &'static str,
    case: usize,
    handshakes: Handshakes,
    proxy: usize,
    samples: Vec<Sample>,
}

fn main() -> ExitCode {
    let mut args = Args {
        seconds: 3.0,
        rounds: 5,
        binary: concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/warmroute").to_owned(),
        before: None,
    };
    let parsed = read_flags(std::env::args().skip(1), |flag, value| args.set(flag, value));
    bench(USAGE, parsed.map(|is_asked| is_asked.then_some(args)), run)
}

impl Args {
    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        let bad = || format!("{flag}: `{value}` is not a number above 0");
        match flag {
            "--seconds" => {
                self.seconds =
                    value.parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0).ok_or_else(bad)?
            }
            "--rounds" => self.rounds = value.parse().ok().filter(|n| *n > 0).ok_or_else(bad)?,
            "--binary" => self.binary = value.to_owned(),
            "--before" => self.before = Some(value.to_owned()),
            _ => return Err(format!("unknown option {flag}")),
        }
        Ok(())
    }
}

/// Runs everything and prints the table. Returns the number of failed requests.
fn run(args: &Args) -> Result<u64, Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let servers = Servers::start(&args.binary, args.before.as_deref(), &scratch)?;
    let cases = Case::named(&[])?;
    for proxy in &servers.proxies {
        let client = Client::new(&servers.certificate, proxy.port, Handshakes::Full)?;
        let ready = client.wait_until_ready(&Case::tiny());
        ready.map_err(|error| format!("{} does not answer: {error}", proxy.name))?;
    }
    let mut rows = rows(&cases, servers.proxies.len());
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for row in &mut rows {
            let case = &cases[row.case];
            case.pace.set(servers.engine.port)?;
            let proxy = &servers.proxies[row.proxy];
            let client = Client::new(&servers.certificate, proxy.port, row.handshakes)?;
            drive(&client, case, WARM_UP);
            row.samples.push(measure(&client, case, proxy, Duration::from_secs_f64(args.seconds))?);
        }
    }
    print(&rows, &servers.proxies);
    Ok(rows.iter().flat_map(|row| &row.samples).map(|sample| sample.errors).sum())
}

/// Every case on open connections, and the smallest one with a connection for each request; each through every proxy.
fn rows(cases: &[Case], proxies: usize) -> Vec<Row> {
    let open = cases.iter().enumerate().map(|(index, case)| (case.name, index, Handshakes::Once));
    let tiny = cases.iter().position(|case| case.name == "tiny").expect("there is a case `tiny`");
    let new = [("handshake", tiny, Handshakes::Full), ("resumed", tiny, Handshakes::Resumed)];
    let row = |(traffic, case, handshakes), proxy| Row { traffic, case, handshakes, proxy, samples: vec![] };
    open.chain(new).flat_map(|kind| (0..proxies).map(move |proxy| row(kind, proxy))).collect()
}

fn measure(client: &Client, case: &Case, proxy: &Target, length: Duration) -> Result<Sample, Box<dyn Error>> {
    let before_us = proxy.cpu_us()?;
    let began = Instant::now();
    let (requests, connections, resumed, errors) = drive(client, case, length);
    let elapsed_s = began.elapsed().as_secs_f64();
    let cpu_us = (proxy.cpu_us()? - before_us) as f64;
    Ok(Sample {
        cpu_us: cpu_us / requests.max(1) as f64,
        requests_per_s: requests as f64 / elapsed_s,
        resumed: resumed as f64 / connections.max(1) as f64,
        errors,
    })
}

/// Sends requests on all connections; how many were answered, the connections, those resumed, and failures.
fn drive(client: &Client, case: &Case, length: Duration) -> (u64, u64, u64, u64) {
    let deadline = Instant::now() + length;
    let sum = |a: (u64, u64, u64, u64), b: (u64, u64, u64, u64)| (a.0 + b.0, a.1 + b.1, a.2 + b.2, a.3 + b.3);
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..CONNECTIONS).map(|_| scope.spawn(|| client.send_until(case, deadline))).collect();
        let counts = threads.into_iter().map(|thread| thread.join().expect("a client does not panic"));
        counts.fold((0, 0, 0, 0), sum)
    })
}

fn print(rows: &[Row], proxies: &[Target]) {
    println!(
        "{:<11}{:<20}{:>9}{:>18}{:>9}{:>9}{:>9}{:>8}",
        "traffic", "through", "CPU µs", "min..max", "x nginx", "req/s", "resumed", "errors"
    );
    for row in rows {
        let cpu = Spread::of(row.samples.iter().map(|sample| sample.cpu_us));
        let is_nginx = |other: &&Row| other.traffic == row.traffic && proxies[other.proxy].name == "nginx";
        let nginx = rows.iter().find(is_nginx).expect("nginx is one of the proxies");
        let ratio = cpu.median / Spread::of(nginx.samples.iter().map(|sample| sample.cpu_us)).median;
        let range = format!("{:.1}..{:.1}", cpu.min, cpu.max);
        let rate = Spread::of(row.samples.iter().map(|sample| sample.requests_per_s)).median;
        let resumed = Spread::of(row.samples.iter().map(|sample| sample.resumed)).median;
        let errors: u64 = row.samples.iter().map(|sample| sample.errors).sum();
        println!(
            "{:<11}{:<20}{:>9.1}{range:>18}{ratio:>9.2}{rate:>9.0}{resumed:>9.2}{errors:>8}",
            row.traffic, proxies[row.proxy].name, cpu.median
        );
    }
}
