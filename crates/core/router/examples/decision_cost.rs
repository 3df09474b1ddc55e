//! What one decision costs: `cargo run --release -p warmroute-router --example decision_cost`.
//!
//! Routes and releases on one thread, per policy and fleet size; the whole of `route` is timed, of which the critical
//! section is nearly all. Prints nanoseconds per decision, the median of nine rounds, with the spread. The last rows are the
//! first policy with shadows beside it. Names after `--` are the only policies measured.

use std::hint::black_box;
use std::time::Instant;

use warmroute_fleet::{Models, ProbeResult};
use warmroute_policy::Standard;
use warmroute_router::{Change, Config, Request, Router, Scratch};
use warmroute_types::{Address, Micros};

const ROUNDS: usize = 9;

/// What is asked beside the first policy.
const SHADOWS: [&str; 2] = ["round_robin", "cache_aware"];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    println!("{:<30}{:>9}{:>14}{:>20}", "policy", "workers", "ns median", "min .. max");
    for name in Standard::NAMES {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            measure(name, name, &[]);
        }
    }
    measure(&format!("{} + {} shadows", Standard::NAMES[0], SHADOWS.len()), Standard::NAMES[0], &SHADOWS);
}

fn measure(title: &str, policy: &str, shadows: &[&str]) {
    for workers in [8, 64, 512, 4_096] {
        let router = fleet(policy, shadows, workers);
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| ns_per_decision(&router, workers)).collect();
        rounds.sort_by(f64::total_cmp);
        let (least, median, most) = (rounds[0], rounds[ROUNDS / 2], rounds[ROUNDS - 1]);
        println!("{title:<30}{workers:>9}{median:>14.0}{:>20}", format!("{least:.0} .. {most:.0}"));
    }
}

fn fleet(policy: &str, shadows: &[&str], workers: usize) -> Router<Standard> {
    let parse = |name: &str| name.parse::<Standard>().expect("a name of ours");
    let shadows = shadows.iter().map(|name| parse(name)).collect();
    let router = Router::with_shadows(parse(policy), shadows, Config::default());
    for i in 0..workers {
        let address = Address::new(format!("http://engine-{i}"));
        router.join(address, Models::Any).expect("there is room");
    }
    for view in router.inspect().workers() {
        let change = Change::Probed { worker: view.worker, result: ProbeResult::Answered, at: Micros(1) };
        router.apply(change);
    }
    router
}

fn ns_per_decision(router: &Router<Standard>, workers: usize) -> f64 {
    let decisions = 2_000_000 / (workers + 100);
    let mut scratch = Scratch::default();
    let begin = Instant::now();
    for i in 0..decisions as u64 {
        let key = Some(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let request = Request {
            model: Some("m"),
            prompt_tokens: 500,
            prompt: None,
            session_key: key,
            prefix_key: key,
            avoid: &[],
            ..Request::default()
        };
        black_box(
            router.route(&request, &mut scratch, Micros(i), i.wrapping_mul(0x2545_f491_4f6c_dd1d)).ok(),
        );
    }
    begin.elapsed().as_nanos() as f64 / decisions as f64
}
