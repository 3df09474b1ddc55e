//! What do long prompts cost when many streams are open?
//!
//! 2,000 clients each send a prompt of 220 KB and read a stream until the next one is due, so that about 2,000 streams are
//! open at any moment. The servers send the first token at once, so what a client waits for is the way there: directly,
//! through nginx, and through the gateway, at growing rates until the machine is busy.

mod clients;
mod engine;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use clients::{Clients, Prompts, Round};
use engine::Engine;
use warmroute_bench_gateway::args::{bench, read_flags};
use warmroute_bench_gateway::process::Process;
use warmroute_bench_gateway::proxies::{Nginx, find, free_port};
use warmroute_bench_gateway::scratch::Scratch;
use warmroute_bench_gateway::stats::quantile;
use warmroute_bench_gateway::usage::Usage;

const USAGE: &str = "\
Usage: cargo run --release --manifest-path bench/gateway/Cargo.toml --bin streams -- [OPTIONS]

  --streams N         Streams open at a time [default: 2000]
  --rates A,B         Requests a second, one measurement after another [default: 100,200,300]
  --binary PATH       The gateway [default: target/release/warmroute of this checkout]
  --help              This text

It needs nginx.";

const WORKERS: usize = 8;
const READY_WITHIN: Duration = Duration::from_secs(30);
const MIB: f64 = 1024.0 * 1024.0;

struct Args {
    streams: usize,
    rates: Vec<u64>,
    binary: String,
}

fn main() -> ExitCode {
    let mut args = Args {
        streams: 2_000,
        rates: vec![100, 200, 300],
        binary: concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/warmroute").to_owned(),
    };
    let parsed = read_flags(std::env::args().skip(1), |flag, value| args.set(flag, value));
    bench(USAGE, parsed.map(|is_asked| is_asked.then_some(args)), run)
}

impl Args {
    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        let number = |text: &str| text.parse().ok().filter(|n| *n > 0);
        let bad = || format!("{flag}: `{value}` is not a number above 0, or a list of them");
        match flag {
            "--streams" => self.streams = value.parse().ok().filter(|n| *n > 0).ok_or_else(bad)?,
            "--rates" => {
                self.rates = value.split(',').map(number).collect::<Option<_>>().ok_or_else(bad)?;
            }
            "--binary" => self.binary = value.to_owned(),
            _ => return Err(format!("unknown option {flag}")),
        }
        Ok(())
    }
}

/// Runs everything, a row for each rate and way. Returns the number of failed requests.
fn run(args: &Args) -> Result<u64, Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let engine = Engine::start()?;
    let prompts = Prompts::new();
    println!(
        "{:>6}  {:<12}{:>9}{:>9}{:>9}{:>9}{:>9}{:>12}{:>9}{:>8}",
        "req/s", "through", "p50 ms", "p90 ms", "p99 ms", "+p50", "+p99", "CPU ms/req", "RSS MiB", "errors"
    );
    let mut errors = 0;
    for rate in &args.rates {
        let period = Duration::from_secs_f64(args.streams as f64 / *rate as f64);
        engine.stream_for(period.mul_f64(0.9));
        let mut direct = None;
        for way in ["direct", "nginx", "warmroute"] {
            let proxy = Proxy::start(way, engine.port, &args.binary, &scratch)?;
            let clients = Clients { port: proxy.port, count: args.streams, period, prompts: &prompts };
            let before_us = proxy.usage()?.cpu_us;
            let is_over = AtomicBool::new(false);
            let (mut round, rss_bytes) = thread::scope(|scope| {
                let most = scope.spawn(|| most_rss(&proxy, &is_over));
                let round = clients.run();
                is_over.store(true, Relaxed);
                (round, most.join().expect("reading memory does not panic"))
            });
            let usage = proxy.usage()?;
            round.first_token_ms.sort_by(f64::total_cmp);
            let cpu_ms = (usage.cpu_us - before_us) as f64 / 1e3 / round.requests.max(1) as f64;
            print_row(*rate, way, &round, direct.as_ref(), cpu_ms, rss_bytes as f64 / MIB);
            errors += round.errors;
            if way == "direct" {
                direct = Some(round);
            }
        }
    }
    Ok(errors)
}

/// The most memory that the proxy has while its clients send.
fn most_rss(proxy: &Proxy, is_over: &AtomicBool) -> u64 {
    let mut most = 0;
    while !is_over.load(Relaxed) {
        most = most.max(proxy.usage().map_or(0, |usage| usage.rss_bytes));
        thread::sleep(Duration::from_millis(200));
    }
    most
}

fn print_row(rate: u64, way: &str, round: &Round, direct: Option<&Round>, cpu_ms: f64, rss_mib: f64) {
    let of = |round: &Round, share| quantile(&round.first_token_ms, share);
    let added = |share| {
        direct.map_or("-".to_owned(), |direct| format!("{:+.1}", of(round, share) - of(direct, share)))
    };
    println!(
        "{rate:>6}  {way:<12}{:>9.1}{:>9.1}{:>9.1}{:>9}{:>9}{cpu_ms:>12.2}{rss_mib:>9.0}{:>8}",
        of(round, 0.5),
        of(round, 0.9),
        of(round, 0.99),
        added(0.5),
        added(0.99),
        round.errors
    );
}

/// What requests go through, if anything.
struct Proxy {
    port: u16,
    process: Option<Process>,
}

impl Proxy {
    fn start(way: &str, engine: u16, binary: &str, scratch: &Scratch) -> Result<Proxy, Box<dyn Error>> {
        let workers = (1..=WORKERS).map(|at| format!("127.0.0.{at}:{engine}"));
        let log = scratch.file(&format!("{way}.log"));
        let (port, process) = match way {
            "nginx" => {
                let (port, config) = (free_port()?, scratch.file("nginx.conf"));
                let (listen, servers) = (format!("{port} backlog=4096"), workers.collect());
                let nginx = Nginx { name: way, listen, servers, scheme: "http", more: String::new() };
                fs::write(&config, nginx.config(scratch.path()))?;
                let program = find("nginx").ok_or("nginx is not installed")?;
                let words = ["-c".into(), config.into_os_string()];
                (port, Some(Process::start(&program, &words, log)?))
            }
            "warmroute" => {
                let urls: Vec<String> = workers.map(|address| format!("http://{address}")).collect();
                let mut words =
                    vec!["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--worker-urls"];
                words.extend(urls.iter().map(String::as_str));
                let mut process = Process::start(Path::new(binary), &words, log)?;
                (process.announced_port()?, Some(process))
            }
            _ => (engine, None),
        };
        let proxy = Proxy { port, process };
        let deadline = Instant::now() + READY_WITHIN;
        while let Err(error) = clients::try_once(proxy.port) {
            if Instant::now() > deadline {
                return Err(format!("{way} does not answer: {error}").into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(proxy)
    }

    fn usage(&self) -> std::io::Result<Usage> {
        self.process.as_ref().map_or(Ok(Usage::default()), Process::usage)
    }
}
