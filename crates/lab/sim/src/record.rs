//! What became of one request.

use serde::Serialize;
use warmroute_types::Micros;

/// A request that was answered, as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// When it was sent, in microseconds since the beginning.
    pub asked_us: u64,
    /// Until its first token came.
    pub ttft_us: u64,
    /// Until its last token came.
    pub e2e_us: u64,
    /// Which engine answered.
    pub worker: u32,
    /// Which turn of its session it was; 0 is the first.
    pub turn: u32,
    /// Tokens asked.
    pub prompt_tokens: u32,
    /// Tokens answered.
    pub output_tokens: u32,
    /// Prompt tokens that the engine found in its cache.
    pub cached_tokens: u32,
    /// What the router had promised; `None` when it promises nothing.
    pub predicted_tokens: Option<u32>,
    /// What it had expected the engine to fetch from slower memory beyond that.
    pub restorable_tokens: u32,
    /// Promised and not there, beyond the margin.
    pub stale_tokens: u32,
    /// There and not promised, beyond the margin.
    pub missed_tokens: u32,
}

impl Record {
    /// When its last token came.
    pub fn ended(&self) -> Micros {
        Micros(self.asked_us + self.e2e_us)
    }

    /// Milliseconds for each token after the first; `None` when there was only one.
    pub fn tpot_ms(&self) -> Option<f64> {
        let after = self.output_tokens.checked_sub(1).filter(|&after| after > 0)?;
        Some((self.e2e_us - self.ttft_us) as f64 / 1_000.0 / f64::from(after))
    }
}
