//! Service-level objective: how late tokens may come.

use crate::Record;

/// Service-level objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Maximum time to first token.
    pub ttft_ms: f64,
    /// Maximum time per output token after the first.
    pub tpot_ms: f64,
}

impl Default for Slo {
    fn default() -> Slo {
        Slo { ttft_ms: 2_000.0, tpot_ms: 50.0 }
    }
}

impl Slo {
    /// Whether an answer met the objective.
    pub(crate) fn is_met(&self, record: &Record) -> bool {
        record.ttft_us as f64 / 1_000.0 <= self.ttft_ms
            && record.tpot_ms().is_none_or(|tpot_ms| tpot_ms <= self.tpot_ms)
    }
}
