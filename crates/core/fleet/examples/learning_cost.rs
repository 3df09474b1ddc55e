//! The CPU time of booking a prompt and learning from its answer:
//! `cargo run --release -p warmroute-fleet --example learning_cost`.

use std::fs;
use std::sync::Arc;

use warmroute_fleet::{BookedWork, Booking, Fleet, HealthConfig, Models, ObservedPrompt, PrefillFeatures};
use warmroute_types::{Address, Delivery, Micros, WorkerId};

const WORKERS: u64 = 8;
const REQUESTS: u64 = 200_000;

fn main() {
    let fleet = Arc::new(Fleet::new(HealthConfig::default()));
    let join = |at| fleet.join(Address::new(format!("http://engine-{at}")), Models::named(&["m"]));
    let workers: Vec<WorkerId> = (0..WORKERS).map(|at| join(at).expect("the fleet has room").id).collect();
    for round in 0..3 {
        let began = cpu_s();
        for request in round * REQUESTS..(round + 1) * REQUESTS {
            serve(&fleet, workers[(request % WORKERS) as usize], request);
        }
        println!("{:.2} µs a request", (cpu_s() - began) * 1e6 / REQUESTS as f64);
    }
}

/// Books a prompt, sees its first token and reads the engine's count of cached tokens.
fn serve(fleet: &Arc<Fleet>, worker: WorkerId, request: u64) {
    let (miss_tokens, cached_tokens) = (100 + (request % 97) as u32 * 40, (request % 31) as u32 * 100);
    let features = PrefillFeatures { miss_tokens, cached_tokens, ..PrefillFeatures::default() };
    let (context_tokens, delivery) = (miss_tokens + cached_tokens, Delivery::Streamed);
    let work = BookedWork { prefill_tokens: miss_tokens, context_tokens, features, delivery };
    let booked_us = request * 10_000;
    let first_token_us = booked_us + 20_000 + u64::from(miss_tokens) * 25;
    let mut booking = Booking::of_peer(fleet, worker, work, Micros(booked_us));
    booking.first_token(Micros(first_token_us));
    let prompt = ObservedPrompt { prompt_tokens: context_tokens, cached_tokens };
    booking.reported(prompt, Micros(first_token_us + 5_000));
}

/// Seconds that this thread has run.
fn cpu_s() -> f64 {
    let stat = fs::read_to_string("/proc/self/schedstat").expect("Linux has it");
    let nanoseconds = stat.split(' ').next().and_then(|text| text.parse::<f64>().ok());
    nanoseconds.expect("the first number is time") / 1e9
}
