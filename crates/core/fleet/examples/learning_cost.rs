//! CPU time that booking a prompt and learning from its answer take: `cargo run --release -p warmroute-fleet --example learning_cost`.
use std::sync::Arc;

use warmroute_fleet::*;
use warmroute_types::{Address, Micros};

fn main() {
    let fleet = Arc::new(Fleet::new(HealthConfig::default()));
    let workers: Vec<_> = (0..8)
        .map(|i| fleet.join(Address::new(&format!("http://e{i}")), Models::named(&["m"])).unwrap())
        .collect();
    let n = 200_000u64;
    for round in 0..3 {
        let began = cpu();
        for i in 0..n {
            let now = Micros((round * n + i) * 10_000);
            let worker = workers[(i % 8) as usize].id;
            let features = PrefillFeatures {
                miss_tokens: 100 + (i % 97) as u32 * 40,
                cached_tokens: (i % 31) as u32 * 100,
                ..PrefillFeatures::default()
            };
            let work = BookedWork {
                prefill_tokens: 1,
                context_tokens: 1,
                features,
                delivery: warmroute_types::Delivery::Streamed,
            };
            let mut booking = Booking::of_peer(&fleet, worker, work, now);
            let took = 20_000 + u64::from(features.miss_tokens) * 25;
            booking.first_token(Micros(now.0 + took));
            booking.reported(
                ObservedPrompt {
                    prompt_tokens: features.miss_tokens + features.cached_tokens,
                    cached_tokens: features.cached_tokens,
                },
                Micros(now.0 + took + 5_000),
            );
        }
        println!("{:.3} us", (cpu() - began) * 1e6 / n as f64);
    }
}

fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}
