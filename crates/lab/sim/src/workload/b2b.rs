//! The B2B SaaS replay of llm-d's "KV-cache wins you can see", with its published stages.
//!
//! 150 groups of 5 prompts, in a shuffled order that repeats: 6,000 tokens shared by a group, 1,200 of the
//! prompt's own, 1,000 of answer. The published fleet was 8 workers with Qwen3-32B on two H100 each and
//! 307,328 tokens of cache: here that is `--speed-percent 55 --kv-tokens 307328` of the 8B profile, which
//! takes the published 0.40 s for a prefill of 8,192 tokens.

use warmroute_types::Micros;

use super::{Sessions, WorkloadScale};
use crate::random::{Random, mix};
use crate::{Piece, Session};

const GROUPS: u64 = 150;
const PROMPTS: u64 = 5;
const SYSTEM_TOKENS: u32 = 6_000;
const QUESTION_TOKENS: u32 = 1_200;
const ANSWER_TOKENS: u32 = 1_000;

/// Requests per second, and duration in seconds.
const STAGES: [(f64, f64); 17] = [
    (15.0, 50.0),
    (3.0, 20.0),
    (10.0, 20.0),
    (15.0, 20.0),
    (20.0, 38.0),
    (22.0, 34.0),
    (25.0, 30.0),
    (30.0, 25.0),
    (35.0, 21.0),
    (40.0, 38.0),
    (43.0, 36.0),
    (46.0, 33.0),
    (49.0, 30.0),
    (52.0, 29.0),
    (55.0, 27.0),
    (57.0, 26.0),
    (60.0, 25.0),
];

/// Generates the replay. A maximum of requests cuts it short.
pub fn sessions(scale: WorkloadScale) -> Sessions {
    let mut random = Random::new(scale.seed, 301);
    let texts = random.bits();
    let order = shuffled(&mut random);
    let requests = scale.requests.unwrap_or(u64::MAX);
    let arrivals = arrivals(scale.rate, &mut random);
    let sessions = arrivals.into_iter().enumerate().map(move |(number, at)| {
        let prompt = order[number % order.len()];
        let system = Piece { content: mix(texts ^ (prompt / PROMPTS)), tokens: SYSTEM_TOKENS };
        let question = Piece { content: mix(texts ^ (1 << 40) ^ prompt), tokens: QUESTION_TOKENS };
        let answer = Piece { content: mix(texts ^ (1 << 41) ^ number as u64), tokens: ANSWER_TOKENS };
        Session::single(at, vec![system, question], vec![answer]).with_system(SYSTEM_TOKENS)
    });
    Box::new(sessions.take(usize::try_from(requests).unwrap_or(usize::MAX)))
}

/// Poisson arrivals within each stage.
fn arrivals(rate: f64, random: &mut Random) -> Vec<Micros> {
    let (mut arrivals, mut begins) = (Vec::new(), Micros::ZERO);
    for (rate_per_s, seconds) in STAGES {
        let ends = begins + Micros::from_millis_f64(seconds * 1_000.0);
        let mut now = begins + random.gap(rate_per_s * rate);
        while now < ends {
            arrivals.push(now);
            now = now + random.gap(rate_per_s * rate);
        }
        begins = ends;
    }
    arrivals
}

/// All prompts in random order.
fn shuffled(random: &mut Random) -> Vec<u64> {
    let mut order: Vec<u64> = (0..GROUPS * PROMPTS).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.between(0, last as u64) as usize);
    }
    order
}
