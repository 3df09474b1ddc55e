//! Speed of the engine model on one core, which limits the simulator's speed.
//!
//! Each workload keeps a number of requests in the engine and replaces each that finishes. Run it with `cargo
//! run --release -p warmroute-engine --example throughput`.
#![expect(clippy::print_stdout, reason = "a command for people: what it prints is what it is for")]

use std::time::Instant;

use warmroute_engine::{BlockName, Config, Engine, Happened, Profile, Request};
use warmroute_types::Micros;

struct Workload {
    name: &'static str,
    outstanding: usize,
    requests: u64,
    /// Tokens shared by the prompts of one group.
    shared_tokens: u32,
    groups: u64,
    prompt_tokens: u32,
    output_tokens: u32,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "chat: 2k prompts, 1k shared",
        outstanding: 200,
        requests: 20_000,
        shared_tokens: 1_024,
        groups: 50,
        prompt_tokens: 2_000,
        output_tokens: 200,
    },
    Workload {
        name: "short: 200 in, 8 out",
        outstanding: 200,
        requests: 500_000,
        shared_tokens: 128,
        groups: 50,
        prompt_tokens: 200,
        output_tokens: 8,
    },
    Workload {
        name: "documents: 32k prompts, 30k shared",
        outstanding: 20,
        requests: 5_000,
        shared_tokens: 30_000,
        groups: 40,
        prompt_tokens: 32_000,
        output_tokens: 100,
    },
    Workload {
        name: "overload: 32k prompts, 1k waiting",
        outstanding: 1_000,
        requests: 5_000,
        shared_tokens: 30_000,
        groups: 40,
        prompt_tokens: 32_000,
        output_tokens: 400,
    },
];

fn main() {
    println!("{:<36}{:>12}{:>12}{:>14}{:>10}", "workload", "requests/s", "steps/s", "virtual/wall", "hits");
    for workload in &WORKLOADS {
        let begun = Instant::now();
        let (engine, ended) = run(workload);
        let wall_s = begun.elapsed().as_secs_f64();
        let stats = engine.stats();
        println!(
            "{:<36}{:>12.0}{:>12.0}{:>13.0}x{:>9.0}%",
            workload.name,
            stats.finished as f64 / wall_s,
            stats.steps as f64 / wall_s,
            ended.as_secs_f64() / wall_s,
            100.0 * stats.prefix_hits_tokens as f64 / stats.prefix_queries_tokens as f64,
        );
    }
}

fn run(workload: &Workload) -> (Engine, Micros) {
    let config = Config::for_profile(Profile::Llama3_1_8b);
    let mut engine = Engine::new(config).expect("the default config is valid");
    let (mut now, mut happened) = (Micros::ZERO, Vec::new());
    let mut requests = (0..workload.requests).map(|number| workload.request(number));
    for request in requests.by_ref().take(workload.outstanding) {
        engine.submit(now, request).expect("it fits");
    }
    while let Some(ends) = engine.begin_step(now) {
        now = ends;
        engine.finish_step(&mut happened);
        let finished =
            happened.drain(..).filter(|happened| matches!(happened, Happened::Finished { .. })).count();
        for request in requests.by_ref().take(finished) {
            engine.submit(now, request).expect("it fits");
        }
    }
    (engine, now)
}

impl Workload {
    fn request(&self, number: u64) -> Request {
        let (prompt_tokens, output_tokens) = (self.prompt_tokens, self.output_tokens);
        let shared_blocks = u64::from(self.shared_tokens / 16);
        let group = mix(number) % self.groups;
        let name = |block| {
            let text = if block < shared_blocks { mix(group) } else { mix(number + (1 << 40)) };
            BlockName(mix(text ^ block))
        };
        let chain = (0..u64::from((prompt_tokens + output_tokens) / 16)).map(name).collect();
        Request { chain, prompt_tokens, output_tokens }
    }
}

/// SplitMix64's finalizer: spreads a number over 64 bits.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
