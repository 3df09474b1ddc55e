//! What a large fleet costs while it gets few requests: `cargo run --release --bin fleet -- [SECONDS] [BINARY]`.
//!
//! One simulated engine listens on every loopback address, so it is as many workers as there are addresses. The gateway
//! probes them, and its metrics are read every 15 seconds: that is its idle CPU. Then its metrics are read as fast as
//! they come while requests are sent, and requests are sent without that.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use warmroute_bench_gateway::case::Case;
use warmroute_bench_gateway::process::Process;
use warmroute_bench_gateway::scratch::Scratch;
use warmroute_bench_gateway::wire::{Answer, Connection};

const FLEETS: [usize; 2] = [100, 1_000];
/// Prometheus' usual interval.
const SCRAPE_EVERY: Duration = Duration::from_secs(15);
const REQUESTS_FOR: Duration = Duration::from_secs(3);
const SETTLE: Duration = Duration::from_secs(5);
const READY_WITHIN: Duration = Duration::from_secs(120);

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1).peekable();
    let seconds = words.next_if(|word| word.parse::<u64>().is_ok()).map_or(Ok(45), |word| word.parse())?;
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/warmroute");
    let binary = PathBuf::from(words.next().unwrap_or_else(|| own.to_owned()));
    let scratch = Scratch::new()?;
    let engine_words = ["engine", "--host", "0.0.0.0", "--port", "0", "--speed", "10000"];
    let mut engine = Process::start(&binary, &engine_words, scratch.file("engine.log"))?;
    let engine_port = engine.announced_port()?;
    println!(
        "{:>8}{:>12}{:>14}{:>16}{:>20}{:>22}{:>22}",
        "workers",
        "idle cores",
        "metrics, KiB",
        "CPU ms a read",
        "read ms p50 .. max",
        "request ms p50, p99",
        "and while reading"
    );
    for workers in FLEETS {
        Fleet::start(&binary, workers, engine_port, &scratch)?.measure(Duration::from_secs(seconds))?;
    }
    Ok(())
}

/// A gateway with many workers.
struct Fleet {
    workers: usize,
    gateway: Process,
    port: u16,
    admin: u16,
}

impl Fleet {
    /// Starts a gateway and waits until all workers are ready.
    fn start(
        binary: &Path,
        workers: usize,
        engine_port: u16,
        scratch: &Scratch,
    ) -> Result<Fleet, Box<dyn Error>> {
        let address = |at: usize| format!("http://127.0.{}.{}:{engine_port}", at / 250, at % 250 + 1);
        let urls: Vec<String> = (0..workers).map(address).collect();
        let mut words =
            vec!["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--worker-urls"];
        words.extend(urls.iter().map(String::as_str));
        let mut gateway = Process::start(binary, &words, scratch.file("gateway.log"))?;
        let [port, admin] = gateway.announced_ports()?;
        let fleet = Fleet { workers, gateway, port, admin };
        let deadline = Instant::now() + READY_WITHIN;
        while fleet.ready()? < workers {
            if Instant::now() > deadline {
                return Err(format!("{} of {workers} workers are ready", fleet.ready()?).into());
            }
            thread::sleep(Duration::from_millis(200));
        }
        thread::sleep(SETTLE);
        Ok(fleet)
    }

    /// Workers that are ready, by the metrics.
    fn ready(&self) -> Result<usize, Box<dyn Error>> {
        let text = String::from_utf8(self.scrape()?.body)?;
        Ok(text.lines().filter(|line| line.contains(r#"state="ready""#) && line.ends_with(" 1")).count())
    }

    fn scrape(&self) -> Result<Answer, Box<dyn Error>> {
        let mut answer = Answer::default();
        let request = format!("GET /metrics HTTP/1.1\r\nhost: 127.0.0.1:{}\r\n\r\n", self.admin);
        Connection::open(self.admin)?.exchange(request.as_bytes(), &mut answer)?;
        if answer.status == 200 { Ok(answer) } else { Err(format!("/metrics: {}", answer.status).into()) }
    }

    fn cpu(&self) -> Result<Duration, Box<dyn Error>> {
        Ok(Duration::from_micros(self.gateway.usage()?.cpu_us))
    }

    fn measure(&self, idle_for: Duration) -> Result<(), Box<dyn Error>> {
        let idle = self.idle_cores(idle_for)?;
        let quiet = self.requests(|| Ok(()))?;
        let busy = self.requests(|| self.scrape().map(drop))?;
        let kib = self.scrape()?.body.len() / 1_024;
        println!(
            "{:>8}{idle:>12.3}{kib:>14}{:>16.1}{:>20}{:>22}{:>22}",
            self.workers,
            (busy.cpu_ms - quiet.cpu_ms * busy.requests_ms.len() as f64 / quiet.requests_ms.len() as f64)
                / busy.scrapes_ms.len() as f64,
            format!("{:.1} .. {:.1}", quantile(&busy.scrapes_ms, 0.5), quantile(&busy.scrapes_ms, 1.0)),
            quiet.shown(),
            busy.shown(),
        );
        Ok(())
    }

    /// Cores that the gateway uses without requests.
    fn idle_cores(&self, span: Duration) -> Result<f64, Box<dyn Error>> {
        let (began, before) = (Instant::now(), self.cpu()?);
        while began.elapsed() < span {
            self.scrape()?;
            thread::sleep(SCRAPE_EVERY.min(span.saturating_sub(began.elapsed())));
        }
        Ok((self.cpu()? - before).as_secs_f64() / began.elapsed().as_secs_f64())
    }

    /// Sends requests one after another for a while, and does something beside them again and again.
    fn requests(
        &self,
        mut beside: impl FnMut() -> Result<(), Box<dyn Error>>,
    ) -> Result<Requests, Box<dyn Error>> {
        let (before, is_over) = (self.cpu()?, AtomicBool::new(false));
        let mut scrapes_ms = Vec::new();
        let requests_ms = thread::scope(|scope| {
            let client = scope.spawn(|| self.send(&is_over));
            let began = Instant::now();
            while began.elapsed() < REQUESTS_FOR {
                let scraped = Instant::now();
                beside()?;
                scrapes_ms.push(scraped.elapsed().as_secs_f64() * 1e3);
                thread::sleep(Duration::from_millis(1));
            }
            is_over.store(true, Relaxed);
            let sent = client.join().expect("the client does not panic");
            sent.map_err(|error| Box::<dyn Error>::from(error.to_string()))
        })?;
        let cpu_ms = (self.cpu()? - before).as_secs_f64() * 1e3;
        Ok(Requests { requests_ms, scrapes_ms, cpu_ms })
    }

    /// Milliseconds of each request on one connection.
    fn send(&self, is_over: &AtomicBool) -> std::io::Result<Vec<f64>> {
        let (case, mut answer, mut took_ms) = (Case::tiny(), Answer::default(), Vec::new());
        let request = case.request(self.port);
        let mut connection = Connection::open(self.port)?;
        while !is_over.load(Relaxed) {
            let sent = Instant::now();
            connection.exchange(&request, &mut answer)?;
            took_ms.push(sent.elapsed().as_secs_f64() * 1e3);
            case.check(&answer).map_err(std::io::Error::other)?;
            thread::sleep(Duration::from_millis(2));
        }
        Ok(took_ms)
    }
}

/// Requests of some seconds, and what was read beside them.
struct Requests {
    requests_ms: Vec<f64>,
    scrapes_ms: Vec<f64>,
    cpu_ms: f64,
}

impl Requests {
    fn shown(&self) -> String {
        format!("{:.2}, {:.2}", quantile(&self.requests_ms, 0.5), quantile(&self.requests_ms, 0.99))
    }
}

fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len().saturating_sub(1) as f64 * part).round() as usize).copied().unwrap_or(0.0)
}
