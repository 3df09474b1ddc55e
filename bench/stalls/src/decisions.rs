//! What one decision costs in fleets of 64, 512 and 4,096 workers: CPU time of the thread, median and spread of 15 rounds.

use warmroute_fleet::Models;
use warmroute_policy::Standard;
use warmroute_router::{Request, Router, Scratch};
use warmroute_types::Micros;

use crate::thread_time::cpu_ns;
use crate::world::{self, BEGIN, MODEL};

const ROUNDS: usize = 15;
const POLICIES: [&str; 2] = ["expected_ttft", "cache_aware"];

pub fn run() {
    println!("\n{:<24}{:>10}{:>14}{:>20}", "policy", "workers", "decision, µs", "min .. max");
    for workers in [64, 512, 4_096] {
        for name in POLICIES {
            let router = world::router_with(name, warmroute_index::Config::default());
            (0..workers).for_each(|number| _ = world::join(&router, number, &Models::Any));
            let mut rounds: Vec<f64> =
                (0..ROUNDS as u64).map(|round| decide(&router, workers, round)).collect();
            rounds.sort_by(f64::total_cmp);
            let spread = format!("{:.1} .. {:.1}", rounds[0], rounds[ROUNDS - 1]);
            println!("{name:<24}{workers:>10}{:>14.1}{spread:>20}", rounds[ROUNDS / 2]);
        }
    }
}

/// CPU time of one decision, in microseconds.
fn decide(router: &Router<Standard>, workers: usize, round: u64) -> f64 {
    let mut scratch = Scratch::default();
    let decisions = 2_000_000 / (workers + 100);
    let began = cpu_ns();
    for number in 0..decisions as u64 {
        let request = Request { model: Some(MODEL), prompt_tokens: 500, ..Request::default() };
        let now = BEGIN + Micros(round * 1_000_000 + number);
        let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        drop(router.route(&request, &mut scratch, now, random));
    }
    (cpu_ns() - began) as f64 / 1e3 / decisions as f64
}
