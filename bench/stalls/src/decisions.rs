//! What one decision costs in fleets of 64, 512 and 4,096 workers: CPU time of the thread, median and spread of 15 rounds.

use warmroute_fleet::Models;
use warmroute_router::{Request, Scratch};
use warmroute_types::Micros;

use crate::thread_time::cpu_ns;
use crate::world::{self, BEGIN, MODEL};

const ROUNDS: usize = 15;

pub fn run() {
    println!("\n{:<34}{:>14}{:>20}", "expected_ttft, workers", "decision, µs", "min .. max");
    for workers in [64, 512, 4_096] {
        let router = world::router(warmroute_index::Config::default());
        (0..workers).for_each(|number| _ = world::join(&router, number, &Models::Any));
        let mut scratch = Scratch::default();
        let decisions = 400_000 / (workers + 100);
        let mut rounds: Vec<f64> = (0..ROUNDS as u64)
            .map(|round| {
                let began = cpu_ns();
                for number in 0..decisions as u64 {
                    let request = Request { model: Some(MODEL), prompt_tokens: 500, ..Request::default() };
                    let now = BEGIN + Micros(round * 1_000_000 + number);
                    drop(router.route(
                        &request,
                        &mut scratch,
                        now,
                        number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    ));
                }
                (cpu_ns() - began) as f64 / 1e3 / decisions as f64
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        let spread = format!("{:.1} .. {:.1}", rounds[0], rounds[ROUNDS - 1]);
        println!("{workers:<34}{:>14.1}{spread:>20}", rounds[ROUNDS / 2]);
    }
}
