//! One case through one target: a calm phase for latency, a busy phase for cost.
//!
//! The two do not mix. With every connection busy on a machine of few cores, latency is the reciprocal of throughput and
//! says nothing about the way through the proxy; with one connection it is just that. CPU time per request is taken
//! under load, where it is what capacity is made of.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::stats::quantile;
use crate::target::Target;
use crate::wire::{Answer, Connection};

/// Long enough to open every connection and fill the proxy's pool.
const WARM_UP: Duration = Duration::from_millis(200);
/// The calm phase's share of the busy one's length.
const CALM_SHARE: f64 = 0.25;

/// How long and how hard.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Length of the busy phase.
    pub busy: Duration,
    /// Connections in the busy phase.
    pub connections: usize,
}

impl Load {
    /// How long one measurement takes.
    pub fn length(&self) -> Duration {
        WARM_UP + self.calm() + self.busy
    }

    fn calm(&self) -> Duration {
        self.busy.mul_f64(CALM_SHARE)
    }
}

/// What one measurement found.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// CPU time of the proxy's processes per request, in µs; zero for direct.
    pub cpu_us: f64,
    /// Median latency on one connection, in µs.
    pub p50_us: f64,
    /// 99th percentile of it.
    pub p99_us: f64,
    /// Throughput under load.
    pub requests_per_s: f64,
    /// Memory of the proxy's processes afterwards.
    pub rss_bytes: u64,
    /// Requests in any phase that did not get a sound answer.
    pub errors: u64,
    /// Why the first one failed.
    pub first_failure: Option<String>,
}

/// Requests sent one after another on each of some connections.
#[derive(Default)]
struct Drive {
    latencies_us: Vec<f64>,
    errors: u64,
    first_failure: Option<String>,
}

/// Measures one case through one target.
pub fn measure(target: &Target, case: &Case, load: &Load) -> Result<Sample, Box<dyn Error>> {
    let warm_up = drive(target.port, case, load.connections, WARM_UP);
    let mut calm = drive(target.port, case, 1, load.calm());
    let cpu_before_us = target.cpu_us()?;
    let began = Instant::now();
    let busy = drive(target.port, case, load.connections, load.busy);
    let elapsed_s = began.elapsed().as_secs_f64();
    let cpu_us = target.cpu_us()? - cpu_before_us;
    calm.latencies_us.sort_by(f64::total_cmp);
    let requests = busy.latencies_us.len() as f64;
    Ok(Sample {
        cpu_us: cpu_us as f64 / requests.max(1.0),
        p50_us: quantile(&calm.latencies_us, 0.50),
        p99_us: quantile(&calm.latencies_us, 0.99),
        requests_per_s: requests / elapsed_s,
        rss_bytes: target.rss_bytes()?,
        errors: warm_up.errors + calm.errors + busy.errors,
        first_failure: warm_up.first_failure.or(calm.first_failure).or(busy.first_failure),
    })
}

fn drive(port: u16, case: &Case, connections: usize, length: Duration) -> Drive {
    let deadline = Instant::now() + length;
    let request = case.request(port);
    thread::scope(|scope| {
        let client = || scope.spawn(|| drive_one(port, case, &request, deadline));
        let clients: Vec<_> = (0..connections).map(|_| client()).collect();
        clients.into_iter().fold(Drive::default(), |whole, client| {
            whole.joined(client.join().expect("a client thread has nothing to panic about"))
        })
    })
}

fn drive_one(port: u16, case: &Case, request: &[u8], deadline: Instant) -> Drive {
    let mut drive = Drive::default();
    let mut connection = None;
    let mut answer = Answer::default();
    while Instant::now() < deadline {
        let began = Instant::now();
        match exchange(port, &mut connection, case, request, &mut answer) {
            Ok(()) => drive.latencies_us.push(began.elapsed().as_secs_f64() * 1e6),
            Err(failure) => drive.failed(failure),
        }
    }
    drive
}

/// One request on the connection at hand. It is given up when the server says so, or after a failure.
pub fn exchange(
    port: u16,
    connection: &mut Option<Connection>,
    case: &Case,
    request: &[u8],
    answer: &mut Answer,
) -> Result<(), String> {
    let mut open = match connection.take() {
        Some(open) => open,
        None => Connection::open(port).map_err(|error| error.to_string())?,
    };
    open.exchange(request, answer).map_err(|error| error.to_string())?;
    case.check(answer)?;
    *connection = Some(open).filter(|_| !answer.closes);
    Ok(())
}

impl Drive {
    fn failed(&mut self, failure: String) {
        self.errors += 1;
        self.first_failure.get_or_insert(failure);
    }

    fn joined(mut self, other: Drive) -> Drive {
        self.latencies_us.extend(other.latencies_us);
        self.errors += other.errors;
        self.first_failure = self.first_failure.or(other.first_failure);
        self
    }
}
