//! A decision as the admin listener returns it.

use serde::Deserialize;

/// A decision. `None` fields exist only for requests that were sent.
#[derive(Deserialize)]
pub struct Decision {
    pub model: Option<String>,
    pub policy: String,
    pub reason: String,
    pub prompt_tokens: u32,
    pub candidates: Vec<Candidate>,
    pub age_ms: Option<u64>,
    pub request_id: Option<String>,
    pub observed_ttft_ms: Option<f64>,
}

/// A worker that was considered.
#[derive(Deserialize)]
pub struct Candidate {
    pub worker: String,
    pub rank: Option<u16>,
    pub chosen: bool,
    pub overlap_tokens: u32,
    pub prompts_ahead: u32,
    pub queue_ms: f64,
    pub prefill_ms: f64,
    pub lacking_ms: f64,
    pub step_ms: f64,
    pub expected_ttft_ms: f64,
    /// The policy's cost, if it compares milliseconds.
    pub cost_ms: Option<f64>,
}

impl Decision {
    pub fn chosen(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.chosen)
    }

    /// Share of the prompt expected in a candidate's cache, in percent.
    pub fn cached_percent(&self, candidate: &Candidate) -> f64 {
        100.0 * f64::from(candidate.overlap_tokens) / f64::from(self.prompt_tokens.max(1))
    }
}

impl Candidate {
    /// The worker's address and rank.
    pub fn label(&self) -> String {
        self.rank.map_or_else(|| self.worker.clone(), |rank| format!("{}@{rank}", self.worker))
    }

    /// The value by which candidates are sorted: the policy's cost, or else the expected time to first token.
    pub fn compared_ms(&self) -> f64 {
        self.cost_ms.unwrap_or(self.expected_ttft_ms)
    }
}
