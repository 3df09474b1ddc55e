//! Fetching a prefix from slower memory compared with recomputing it, by length and bandwidth.
//!
//! `cargo run -p warmroute-engine --example break_even` prints the tables of
//! `docs/study/results/fetch-or-recompute.md`. A prompt has 128 tokens after the prefix, which are always
//! computed, and is alone on the engine.
#![expect(clippy::print_stdout, reason = "a command for people: what it prints is what it is for")]

use warmroute_engine::{Config, Profile, Tier};
use warmroute_types::Micros;

/// Tokens after the prefix.
const OWN_TOKENS: u32 = 128;
const LENGTHS: [u32; 9] = [64, 256, 512, 1_024, 2_048, 4_096, 8_192, 32_768, 131_072];
/// Name, megabytes a second, microseconds of latency.
const MEMORIES: [(&str, u64, u64); 6] = [
    ("host 50 GB/s", 50_000, 100),
    ("host 25 GB/s", 25_000, 100),
    ("pool 12.5 GB/s", 12_500, 1_000),
    ("pool 5 GB/s", 5_000, 1_000),
    ("pool 2.5 GB/s", 2_500, 1_000),
    ("pool 1.25 GB/s", 1_250, 1_000),
];

fn main() {
    for profile in Profile::ALL {
        println!("\n### {profile}: milliseconds to the first token\n");
        let names = MEMORIES.map(|(name, ..)| name).join(" | ");
        println!("| prefix tokens | compute | {names} |\n|---:|---:|{}", "---:|".repeat(MEMORIES.len()));
        for tokens in LENGTHS {
            let times = memories().map(|tier| cell(profile, tokens, tier)).join(" | ");
            println!("| {tokens} | {:.1} | {times} |", computing_ms(profile, 0, tokens + OWN_TOKENS));
        }
        let even = memories().map(|tier| break_even(profile, tier)).join(" | ");
        println!("| **pays from** | | {even} |");
    }
}

fn memories() -> [Tier; 6] {
    MEMORIES.map(|(_, megabytes_per_s, latency_us)| Tier {
        tokens: 0,
        megabytes_per_s,
        latency: Micros(latency_us),
    })
}

/// A cell, in bold if fetching is faster.
fn cell(profile: Profile, tokens: u32, tier: Tier) -> String {
    let fetching = fetching_ms(profile, tokens, tier);
    if pays(profile, tokens, tier) { format!("**{fetching:.1}**") } else { format!("{fetching:.1}") }
}

fn pays(profile: Profile, tokens: u32, tier: Tier) -> bool {
    fetching_ms(profile, tokens, tier) < computing_ms(profile, 0, tokens + OWN_TOKENS)
}

/// Shortest prefix, in blocks of 16, that is faster to fetch.
fn break_even(profile: Profile, tier: Tier) -> String {
    let shortest = (16..=131_072).step_by(16).find(|&tokens| pays(profile, tokens, tier));
    shortest.map_or("never".to_owned(), |tokens| tokens.to_string())
}

fn fetching_ms(profile: Profile, tokens: u32, tier: Tier) -> f64 {
    let fetch = tier.takes(u64::from(tokens) * profile.kv_token_bytes());
    fetch.as_millis_f64() + computing_ms(profile, tokens, OWN_TOKENS)
}

fn computing_ms(profile: Profile, cached_tokens: u32, new_tokens: u32) -> f64 {
    let step_tokens_max = Config::for_profile(profile).step_tokens_max;
    profile.cost().of_prompt(cached_tokens, new_tokens, step_tokens_max).as_millis_f64()
}
