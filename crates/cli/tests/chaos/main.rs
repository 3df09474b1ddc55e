//! Many faults at once: eight engine processes, two hundred clients, and a fault injector that kills, stops, restarts
//! and corrupts them by a seed. All guarantees must hold during the run, and no resource may leak.
//!
//! `CHAOS_SECONDS=300 CHAOS_SEED=7 cargo test -p warmroute-cli --test chaos engines -- --ignored --nocapture` prints the
//! table of docs/reliability.md. The seed fixes the faults and their times, but not the scheduling of threads and
//! packets. With `CHAOS_HANDOVERS=0` one gateway serves the whole run, so that its leaks show. With `CHAOS_ONE_HEAP=0`
//! gateways have a heap for each thread, as the C library gives them, and the figures of memory include what these keep.
//! With `CHAOS_QDISC="netem delay 20ms loss 1%"`, as root, packets are delayed and lost. `attack` is a run of its own.

#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

mod attack;
mod engines;
mod faults;
mod footprint;
#[path = "../harness/mod.rs"]
mod harness;
mod honest;
mod load;
mod network;
mod outcome;
mod random;
mod settings;

use std::time::{Duration, Instant};

use engines::Engines;
use faults::{Counted, FaultInjector, Gateways};
use footprint::Footprint;
use harness::process::Gateway;
use load::Load;
use outcome::Tally;
use random::Random;
use settings::Settings;

/// The name of this test, to run it again in a network namespace.
const THIS: &str = "no_request_is_lost_and_no_stream_ends_silently_while_engines_die_hang_and_lie";
const ENGINES: usize = 8;
const CLIENTS: usize = 200;
/// Requests of each client in a load that memory is judged by.
const EQUAL_REQUESTS: usize = 20;
/// Tolerated growth of the peak from one equal load to the next, of 4,000 requests each. Without a leak it is less than
/// half of this and falls as the index fills; a leak of a kilobyte a request adds 3.9.
const LEAK_MIB_MAX: f64 = 3.5;
/// Tolerated growth of the peak of the same load over the run: the index, learned times, gaps in the heap.
const GROWTH_MIB_MAX: f64 = 16.0;

/// Lost requests whose story is told.
const TOLD_MAX: usize = 5;

/// The figures of the table.
struct Story {
    seconds: u64,
    seed: u64,
    tally: Tally,
    faults: FaultInjector,
    in_flight_most: u64,
    before: Footprint,
    after: Footprint,
    memory: MemoryPeaks,
}

/// Peaks of a gateway's memory under the same load without faults.
struct MemoryPeaks {
    /// Several times in a row, at the start.
    before_mib: [f64; 4],
    after_mib: f64,
}

#[test]
#[ignore = "wants the machine for itself for a minute: -- --ignored"]
fn no_request_is_lost_and_no_stream_ends_silently_while_engines_die_hang_and_lie() {
    if network::has_been_tried_inside(THIS) {
        return;
    }
    let (seconds, seed) = (from_environment("CHAOS_SECONDS", 15), from_environment("CHAOS_SEED", 7));
    let mut engines = Engines::start(ENGINES);
    let settings = Settings::new();
    let mut gateway = engines.gateway(&settings);
    warm_up(&gateway, seed);
    let before_mib = std::array::from_fn(|_| peak_of_equal_load_mib(&gateway, seed));
    let before = Footprint::at_rest(&gateway);
    let load = Load::start(gateway.url(), CLIENTS, seed);
    let gateways = match from_environment("CHAOS_HANDOVERS", 1) {
        0 => Gateways::One,
        _ => Gateways::OneAfterAnother,
    };
    let mut faults = FaultInjector::new(Random::new(seed), settings, gateways);
    let in_flight_most = inject_faults(&mut faults, &mut engines, &mut gateway, seconds);
    // Under load, because an unhealthy worker is tried with real requests.
    gateway.wait_for_ready(ENGINES);
    let mut tally = load.stop();
    faults.floods.iter().for_each(|flood| tally.add(flood));
    engines::wait_for_views(&gateway);
    let after = Footprint::no_more_than(&gateway, &before);
    faults.counted.add(&gateway);
    let memory = MemoryPeaks { before_mib, after_mib: peak_of_equal_load_mib(&gateway, seed) };
    let story = Story { seconds, seed, tally, faults, in_flight_most, before, after, memory };
    story.tell();
    story.check();
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// Load without faults: every request succeeds. This also opens connections and trains the latency model.
fn warm_up(gateway: &Gateway, seed: u64) {
    let load = Load::start(gateway.url(), CLIENTS / 4, seed);
    std::thread::sleep(Duration::from_secs(2));
    let tally = load.stop();
    assert_eq!(tally.served() + tally.left, tally.sent, "{tally:?}");
}

/// The peak of the gateway's memory under a load of always the same kind. Every request succeeds.
fn peak_of_equal_load_mib(gateway: &Gateway, seed: u64) -> f64 {
    footprint::peak_mib(gateway, || {
        let tally = load::requests(gateway.url(), CLIENTS, EQUAL_REQUESTS, seed);
        assert_eq!(tally.served(), tally.sent, "{tally:?}");
    })
}

/// Returns the maximum number of requests in flight.
fn inject_faults(
    faults: &mut FaultInjector,
    engines: &mut Engines,
    gateway: &mut Gateway,
    seconds: u64,
) -> u64 {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut in_flight_most = 0;
    while Instant::now() < end {
        faults.step(engines, gateway);
        let in_flight = gateway.workers().iter().map(|worker| worker["in_flight"].as_u64().unwrap()).sum();
        in_flight_most = in_flight_most.max(in_flight);
        std::thread::sleep(Duration::from_millis(50));
    }
    faults.end_all(engines, gateway);
    in_flight_most
}

impl Story {
    fn tell(&self) {
        let Story { tally, faults, before, after, .. } = self;
        println!("{} s, seed {}, {ENGINES} engines, {CLIENTS} clients", self.seconds, self.seed);
        network::spoiled().iter().for_each(|how| println!("the network: {how}"));
        println!("at most in flight               {:>7}", self.in_flight_most);
        println!("{tally}");
        let Counted { retries, retries_denied, reloads } = faults.counted;
        println!("sent to another worker          {retries:>7}");
        println!("not sent, the budget was used up {retries_denied:>6}");
        println!("what was done: {}", faults.list());
        println!("settings: {} times applied, {} times refused", reloads[0], reloads[1]);
        println!("open files  {} before, {} after", before.files, after.files);
        let (before, most, after) = (before.rss_mib, faults.most_mib, after.rss_mib);
        println!(
            "memory      {before:.1} MiB before, {after:.1} MiB after, of those who were succeeded {most:.1} MiB at most"
        );
        let MemoryPeaks { before_mib, after_mib } = self.memory;
        println!("peaks of the same load  {before_mib:.1?} MiB before, {after_mib:.1} MiB after");
        for request in tally.lost_requests.iter().take(TOLD_MAX) {
            println!("what the gateways wrote about a lost request:\n{}", faults.log_of(request));
        }
    }

    fn check(&self) {
        let Story { tally, .. } = self;
        assert!(
            tally.lost.is_empty(),
            "requests were lost before they had begun to stream: {:#?}",
            tally.lost
        );
        assert!(tally.silent.is_empty(), "answers ended without an error event: {:#?}", tally.silent);
        assert!(self.faults.count() >= self.seconds as usize / 2, "too few faults were injected");
        assert!(self.faults.counted.retries > 0.0 && tally.broken() > 0, "the faults affected no request");
        let was_full = tally.turned_away > 0;
        assert!(was_full || self.faults.floods.is_empty(), "the queue was never full");
        let [.., last_but_one, last] = self.memory.before_mib;
        let leaked_mib = last - last_but_one;
        assert!(leaked_mib < LEAK_MIB_MAX, "the same load takes {leaked_mib:.1} MiB more the next time");
        let grown_mib = self.memory.after_mib - last;
        assert!(grown_mib < GROWTH_MIB_MAX, "the same load takes {grown_mib:.1} MiB more after the run");
    }
}
