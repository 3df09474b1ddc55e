//! Single requests: an optional prefix that all share, then unique tokens.

use warmroute_types::Micros;

use super::{Sessions, WorkloadScale, up_to};
use crate::random::{Random, mix};
use crate::{Piece, Session};

/// Parameters of the requests.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    purpose: u64,
    rate_per_s: f64,
    requests: u64,
    /// Tokens of the prefix that all prompts share.
    shared_tokens: u32,
    own: Lengths,
    answer: Lengths,
}

/// Log-normal token counts, within bounds.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    median: f64,
    sigma: f64,
    least: u32,
    most: u32,
}

const fn exactly(tokens: u32) -> Lengths {
    Lengths { median: tokens as f64, sigma: 0.0, least: 1, most: tokens }
}

/// 250 shared and 1,000 unique tokens, 8,000 of answer.
pub const REASONING: Single = Single {
    purpose: 101,
    rate_per_s: 4.0,
    requests: 2_000,
    shared_tokens: 250,
    own: exactly(1_000),
    answer: exactly(8_000),
};

/// All at once: at this rate the last request arrives half a second after the first.
pub const BATCH: Single = Single {
    purpose: 102,
    rate_per_s: 10_000.0,
    requests: 5_000,
    shared_tokens: 1_000,
    own: Lengths { median: 1_500.0, sigma: 0.5, least: 100, most: 8_000 },
    answer: Lengths { median: 150.0, sigma: 0.5, least: 10, most: 1_000 },
};

pub const SHORT: Single = Single {
    purpose: 103,
    rate_per_s: 400.0,
    requests: 40_000,
    shared_tokens: 0,
    own: exactly(200),
    answer: exactly(20),
};

pub const UNIQUE: Single = Single {
    purpose: 104,
    rate_per_s: 60.0,
    requests: 10_000,
    shared_tokens: 0,
    own: exactly(2_000),
    answer: exactly(200),
};

pub const ONE_HOT_PREFIX: Single = Single {
    purpose: 105,
    rate_per_s: 150.0,
    requests: 20_000,
    shared_tokens: 4_000,
    own: Lengths { median: 300.0, sigma: 0.5, least: 20, most: 2_000 },
    answer: Lengths { median: 100.0, sigma: 0.5, least: 5, most: 800 },
};

/// The mean and the median of Azure's conversation trace of 2023 (1,155 and 1,020 tokens in, 211 out), at a rate that keeps
/// eight H200 half busy.
pub const AZURE: Single = Single {
    purpose: 106,
    rate_per_s: 80.0,
    requests: 20_000,
    shared_tokens: 0,
    own: Lengths { median: 1_020.0, sigma: 0.65, least: 20, most: 4_142 },
    answer: Lengths { median: 150.0, sigma: 0.8, least: 5, most: 1_000 },
};

/// Generates the requests as a Poisson process.
pub fn sessions(scale: WorkloadScale, single: Single) -> Sessions {
    let mut random = Random::new(scale.seed, single.purpose);
    let rate_per_s = single.rate_per_s * scale.rate;
    let head = Piece { content: mix(random.bits()), tokens: single.shared_tokens };
    let mut now = Micros::ZERO;
    let stream = std::iter::repeat_with(move || {
        now = now + random.gap(rate_per_s);
        let own = Piece { content: random.bits(), tokens: single.own.draw(&mut random) };
        let answer = Piece { content: random.bits(), tokens: single.answer.draw(&mut random) };
        let prompt = if head.tokens > 0 { vec![head, own] } else { vec![own] };
        Session::single(now, prompt, vec![answer]).with_system(head.tokens)
    });
    up_to(stream, scale.requests.unwrap_or(single.requests))
}

impl Lengths {
    fn draw(&self, random: &mut Random) -> u32 {
        random.tokens(self.median, self.sigma, self.least, self.most)
    }
}
