//! What each view of a reported cache is worth: runs with one of them left out of predictions.
//!
//! `cargo run --release -p warmroute-sim --example reported_views` prints the table of docs/internals/kv-events.md.
//! Engines publish events, a share of the answers tokenizes otherwise when a later prompt repeats it, and evicted blocks
//! go to host memory. `-- WORKLOAD SHARE` prints the lines of one workload (sharegpt, burst) and share.
#![expect(clippy::print_stdout, reason = "a command for people: what it prints is what it is for")]

use warmroute_engine::{Config as EngineConfig, Profile, Tier};
use warmroute_router::ReportedView;
use warmroute_sim::{Config, Rule, View, Workload, WorkloadScale, run};
use warmroute_types::Micros;

const WORKERS: usize = 8;
const SEEDS: u64 = 2;

/// A workload at a rate at which the fleet is busy, with a GPU cache that does not hold all of it.
struct Scene {
    workload: Workload,
    rate: f64,
    requests: u64,
    kv_tokens: u64,
}

const SCENES: [Scene; 2] = [
    Scene { workload: Workload::Sharegpt, rate: 1.0, requests: 2_000, kv_tokens: 50_000 },
    Scene { workload: Workload::Burst, rate: 1.0, requests: 2_000, kv_tokens: 100_000 },
];

/// Shares of answers that tokenize otherwise: as learned from real models at first, and many.
const RETOKENIZED: [f64; 2] = [0.1, 0.5];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |scene: &Scene, share: f64| match &args[..] {
        [workload, retokenized] => scene.workload.as_str() == workload && retokenized.parse() == Ok(share),
        _ => true,
    };
    println!(
        "{:<10}{:>12}  {:<10}{:>10}{:>10}{:>8}",
        "workload", "retokenized", "without", "mean ms", "p99 ms", "hits"
    );
    for scene in &SCENES {
        for share in RETOKENIZED.into_iter().filter(|&share| wanted(scene, share)) {
            let views = [ReportedView::Proven, ReportedView::Sampled, ReportedView::AllTiers];
            line(scene, share, None);
            views.into_iter().for_each(|view| line(scene, share, Some(view)));
        }
    }
}

fn line(scene: &Scene, retokenized: f64, without: Option<ReportedView>) {
    let (mut ttft_ms, mut cached, mut prompts) = (Vec::new(), 0, 0);
    for seed in 1..=SEEDS {
        let config = Config { seed, retokenized, without_view: without, ..config(scene) };
        let scale = WorkloadScale { seed, rate: scene.rate, requests: Some(scene.requests) };
        let rule = Rule::parse("expected_ttft").expect("a policy");
        let outcome = run(&config, &rule, scene.workload.sessions(scale)).expect("a valid config");
        for record in &outcome.records {
            ttft_ms.push(record.ttft_us as f64 / 1e3);
            cached += u64::from(record.cached_tokens);
            prompts += u64::from(record.prompt_tokens);
        }
    }
    ttft_ms.sort_by(f64::total_cmp);
    println!(
        "{:<10}{retokenized:>12}  {:<10}{:>10.1}{:>10.1}{:>7.1}%",
        scene.workload.as_str(),
        without.map_or("-".to_owned(), |view| format!("{view:?}")),
        ttft_ms.iter().sum::<f64>() / ttft_ms.len() as f64,
        ttft_ms[ttft_ms.len() * 99 / 100],
        100.0 * cached as f64 / prompts as f64
    );
}

fn config(scene: &Scene) -> Config {
    let host = Tier { tokens: 4 * scene.kv_tokens, megabytes_per_s: 25_000, latency: Micros(100) };
    let usual = EngineConfig::for_profile(Profile::Llama3_1_8b);
    let engine = EngineConfig { kv_tokens: scene.kv_tokens, host: Some(host), ..usual };
    Config {
        fleet: vec![engine; WORKERS],
        view: View::Reported,
        ..Config::new(Profile::Llama3_1_8b, WORKERS)
    }
}
