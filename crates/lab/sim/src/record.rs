//! Record of one answered request.

use serde::Serialize;
use warmroute_types::Micros;

/// An answered request, as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Arrival, in microseconds since the start of the run.
    pub asked_us: u64,
    /// Time to first token, in microseconds.
    pub ttft_us: u64,
    /// Time to last token, in microseconds.
    pub e2e_us: u64,
    /// Wait in the engine's queue, in microseconds.
    pub queued_us: u64,
    /// Index of the engine that answered.
    pub worker: u32,
    /// Turn within the session, from 0.
    pub turn: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
    /// Prompt tokens that the engine found in its cache.
    pub cached_tokens: u32,
    /// Cached tokens that the router predicted; `None` without a prediction.
    pub predicted_tokens: Option<u32>,
    /// Prompt tokens that the engine's cache held when the router chose it; `None` where that is not known.
    pub held_tokens: Option<u32>,
    /// Tokens that the router expected from slower memory, beyond the predicted ones.
    pub restorable_tokens: u32,
    /// Tokens predicted but not cached, beyond the margin.
    pub stale_tokens: u32,
    /// Tokens cached but not predicted, beyond the margin.
    pub missed_tokens: u32,
}

impl Record {
    /// Arrival of the last token, since the start of the run.
    pub fn ended(&self) -> Micros {
        Micros(self.asked_us + self.e2e_us)
    }

    /// Whether the predicted prefix was not in the cache already when the engine was chosen. Otherwise a stale request lost it while it
    /// waited.
    pub fn was_stale_at_choice(&self) -> bool {
        let Some((predicted, held)) = self.predicted_tokens.zip(self.held_tokens) else { return false };
        self.stale_tokens > 0 && 2 * predicted.saturating_sub(held) >= self.stale_tokens
    }

    /// Milliseconds per output token after the first; `None` for answers of one token.
    pub fn tpot_ms(&self) -> Option<f64> {
        let after = self.output_tokens.checked_sub(1).filter(|&after| after > 0)?;
        Some((self.e2e_us - self.ttft_us) as f64 / 1_000.0 / f64::from(after))
    }
}
