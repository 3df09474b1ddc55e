//! How many instructions and system calls does a request take?
//!
//! CPU time depends on what else the machine does. These two do not, or hardly: the same requests are sent one after
//! another on one connection to a proxy under callgrind, which counts every instruction outside the kernel, and then on
//! several connections to the proxy as it is, while perf counts its system calls.

mod args;
mod syscalls;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use args::{Args, USAGE};
use warmroute_bench_gateway::args::bench;
use warmroute_bench_gateway::case::Case;
use warmroute_bench_gateway::launch::{Launch, count_instructions, zero_counts};
use warmroute_bench_gateway::measure::exchange;
use warmroute_bench_gateway::pace::Pace;
use warmroute_bench_gateway::proxies;
use warmroute_bench_gateway::scratch::Scratch;
use warmroute_bench_gateway::target::Target;
use warmroute_bench_gateway::wire::Answer;

/// Connections while system calls are counted.
const CONNECTIONS: usize = 16;
/// Requests before counting: learned sizes, pools and caches are then as they stay.
const WARM_UP: usize = 100;

/// What a request costs.
#[derive(Clone, Copy, Default)]
struct Cost {
    instructions: f64,
    syscalls: f64,
}

/// What is measured: its name, and how it is started.
type Start<'a> = (&'a str, Box<dyn Fn(&Scratch, &Launch) -> Result<Target, Box<dyn Error>> + 'a>);

fn main() -> ExitCode {
    bench(USAGE, Args::parse(std::env::args().skip(1)), |args| run(args).map(|()| 0))
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let (scratch, cases) = (Scratch::new()?, Case::named(&args.cases)?);
    let engine = proxies::start_engine(&args.binary, &scratch)?;
    let upstream = engine.port;
    let mut starts: Vec<Start> = Vec::new();
    if let Some(before) = &args.before {
        starts.push(("warmroute before", start_of(before, upstream)));
    }
    starts.push(("warmroute", start_of(&args.binary, upstream)));
    starts.push((
        "nginx",
        Box::new(move |scratch, launch| proxies::start_configured("nginx", upstream, scratch, launch)),
    ));
    let mut costs = vec![vec![Cost::default(); starts.len()]; cases.len()];
    for (column, (name, start)) in starts.iter().enumerate() {
        eprintln!("{name}: instructions");
        let folder = args.counts.as_ref().map_or_else(|| scratch.file("counts"), PathBuf::clone).join(name);
        std::fs::create_dir_all(&folder)?;
        let counts = count_instructions_of(start, &cases, upstream, args.requests, &scratch, &folder)?;
        costs.iter_mut().zip(counts).for_each(|(row, count)| row[column].instructions = count);
        eprintln!("{name}: system calls");
        let target = start(&scratch, &Launch::Plain)?;
        for (index, case) in cases.iter().enumerate() {
            case.pace.set(upstream)?;
            costs[index][column].syscalls = syscalls_per_request(&target, case, args.requests)?;
        }
    }
    print_table(&cases, &starts, &costs);
    Ok(())
}

fn start_of<'a>(
    binary: &'a Path,
    upstream: u16,
) -> Box<dyn Fn(&Scratch, &Launch) -> Result<Target, Box<dyn Error>> + 'a> {
    Box::new(move |scratch, launch| proxies::start_gateway(binary, "guarded", upstream, scratch, launch))
}

/// Instructions per request, case by case, all in one process. callgrind's files go to the folder.
fn count_instructions_of(
    start: &dyn Fn(&Scratch, &Launch) -> Result<Target, Box<dyn Error>>,
    cases: &[Case],
    engine_port: u16,
    requests: usize,
    scratch: &Scratch,
    folder: &Path,
) -> Result<Vec<f64>, Box<dyn Error>> {
    Pace::FlatOut.set(engine_port)?;
    let out = folder.join("callgrind");
    let target = start(scratch, &Launch::Callgrind { out: out.clone() })?;
    let pid = target.family()?[0];
    let mut counts = Vec::new();
    for case in cases {
        case.pace.set(engine_port)?;
        send(target.port, case, WARM_UP)?;
        zero_counts(pid)?;
        send(target.port, case, requests)?;
        counts.push(count_instructions(pid, &out, counts.len() + 1)? as f64 / requests as f64);
    }
    Ok(counts)
}

fn syscalls_per_request(target: &Target, case: &Case, requests: usize) -> Result<f64, Box<dyn Error>> {
    send_on_all(target.port, case, WARM_UP)?;
    let counter = syscalls::Counter::start(&target.family()?)?;
    send_on_all(target.port, case, requests)?;
    Ok(counter.stop()? as f64 / (requests.div_ceil(CONNECTIONS) * CONNECTIONS) as f64)
}

fn send_on_all(port: u16, case: &Case, requests: usize) -> Result<(), String> {
    thread::scope(|scope| {
        let each = requests.div_ceil(CONNECTIONS);
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(move || send(port, case, each))).collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().expect("a client thread has nothing to panic about"))
    })
}

/// Sends requests one after another on one connection. Each must get a sound answer.
fn send(port: u16, case: &Case, requests: usize) -> Result<(), String> {
    let (request, mut connection, mut answer) = (case.request(port), None, Answer::default());
    (0..requests).try_for_each(|_| exchange(port, &mut connection, case, &request, &mut answer))
}

fn print_table(cases: &[Case], starts: &[Start], costs: &[Vec<Cost>]) {
    println!(
        "{:<8}{:<20}{:>14}{:>9}{:>14}{:>9}",
        "case", "through", "instructions", "x nginx", "system calls", "x nginx"
    );
    for (case, costs) in cases.iter().zip(costs) {
        let nginx = costs.last().copied().unwrap_or_default();
        for ((name, _), cost) in starts.iter().zip(costs) {
            println!(
                "{:<8}{name:<20}{:>14.0}{:>9.2}{:>14.2}{:>9.2}",
                case.name,
                cost.instructions,
                cost.instructions / nginx.instructions,
                cost.syscalls,
                cost.syscalls / nginx.syscalls
            );
        }
    }
}
