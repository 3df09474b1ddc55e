//! Does the gateway's memory stay where it is?
//!
//! A million requests by default, at full speed, each with a prompt of 2 KB that was never seen before: whatever is kept for a prompt,
//! a request or a connection and not given back shows. Eight simulated engines that take next to no time, the gateway as it is without
//! any option. A row for every twentieth; it fails when memory or files exceed their bounds, or any request its answer.

mod args;
mod row;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use args::{Args, USAGE};
use row::{Row, verdict};
use warmroute_bench_gateway::case::Case;
use warmroute_bench_gateway::measure::exchange;
use warmroute_bench_gateway::process::Process;
use warmroute_bench_gateway::proxies::start_engine;
use warmroute_bench_gateway::scratch::Scratch;
use warmroute_bench_gateway::target::Target;
use warmroute_bench_gateway::wire::Answer;

/// Rows of the table.
const ROWS: u64 = 20;
/// Files beside the connections.
const OTHER_FILES_MAX: usize = 40;
const LOOK_EVERY: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    let outcome = match Args::parse(std::env::args().skip(1)) {
        Ok(Some(args)) => run(&args),
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => Err(format!("{wrong}\n\n{USAGE}").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let engines =
        (0..args.engines).map(|_| start_engine(&args.binary, &scratch)).collect::<Result<Vec<_>, _>>()?;
    let gateway = start_gateway(&args.binary, &engines, &scratch)?;
    println!("{}", Row::HEAD);
    let work = Work::new(args.requests);
    let (rows, failure) = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..args.connections).map(|_| scope.spawn(|| work.send_on(gateway.port))).collect();
        let rows = watch(&gateway, &work);
        let failures = clients.into_iter().map(|client| client.join().expect("a client does not panic"));
        (rows, failures.filter_map(Result::err).next())
    });
    if let Some(failure) = failure {
        return Err(format!("a request got no sound answer: {failure}").into());
    }
    // Each client may need a connection to every engine.
    let files_max = OTHER_FILES_MAX + args.connections as usize * (args.engines as usize + 1);
    Ok(verdict(&rows?, files_max)?)
}

/// With nothing but where to listen and whom to send to.
fn start_gateway(binary: &Path, engines: &[Target], scratch: &Scratch) -> Result<Target, Box<dyn Error>> {
    let urls: Vec<String> =
        engines.iter().map(|engine| format!("http://127.0.0.1:{}", engine.port)).collect();
    let mut words = vec!["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--worker-urls"];
    words.extend(urls.iter().map(String::as_str));
    let mut process = Process::start(binary, &words, scratch.file("gateway.log"))?;
    Target::proxy("warmroute", process.announced_port()?, process)
}

/// What is left to send, shared by all connections.
struct Work {
    requests: u64,
    taken: AtomicU64,
    done: AtomicU64,
    has_failed: AtomicBool,
}

impl Work {
    fn new(requests: u64) -> Work {
        Work {
            requests,
            taken: AtomicU64::new(0),
            done: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        }
    }

    /// One request after another on one connection, until all are sent or one fails.
    fn send_on(&self, port: u16) -> Result<(), String> {
        let (mut connection, mut answer) = (None, Answer::default());
        loop {
            let number = self.taken.fetch_add(1, Ordering::Relaxed);
            if number >= self.requests || self.is_broken_off() {
                return Ok(());
            }
            let case = Case::unique(number);
            let sent = exchange(port, &mut connection, &case, &case.request(port), &mut answer);
            sent.inspect_err(|_| self.has_failed.store(true, Ordering::Relaxed))?;
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All clients stop when one has failed.
    fn is_broken_off(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

/// Takes and prints a row for every twentieth of the requests.
fn watch(gateway: &Target, work: &Work) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = vec![Row::first(gateway.usage()?)];
    let began = Instant::now();
    while rows.len() as u64 <= ROWS && !work.is_broken_off() {
        let done = work.done.load(Ordering::Relaxed);
        if done >= work.requests * rows.len() as u64 / ROWS {
            let row = Row::after(&rows[rows.len() - 1], done, began.elapsed(), gateway.usage()?);
            println!("{row}");
            rows.push(row);
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(rows)
}
