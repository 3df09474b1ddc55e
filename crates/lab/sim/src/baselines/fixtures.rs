//! Candidates for table tests.

use warmroute_policy::{Candidate, Estimate, PolicyRequest};
use warmroute_types::WorkerId;

use crate::mix;

/// An idle worker with an empty cache.
pub fn idle(index: u16) -> Candidate {
    Candidate {
        worker: WorkerId(index),
        identity: mix(u64::from(index) + 1),
        overlap_tokens: 0,
        restorable_tokens: 0,
        shortfall_tokens: 0,
        in_flight: 0,
        prefill_tokens: 0,
        decode_tokens: 0,
        waiting: None,
        estimate: Estimate::default(),
    }
}

/// Workers with (tokens held, requests in flight).
pub fn holding(rows: &[(u32, u32)]) -> Vec<Candidate> {
    let rows = rows.iter().enumerate();
    rows.map(|(index, &(overlap_tokens, in_flight))| Candidate {
        overlap_tokens,
        in_flight,
        ..idle(index as u16)
    })
    .collect()
}

/// Workers with (tokens held, tokens queued for prefill).
pub fn behind(rows: &[(u32, u64)]) -> Vec<Candidate> {
    let rows = rows.iter().enumerate();
    rows.map(|(index, &(overlap_tokens, prefill_tokens))| Candidate {
        overlap_tokens,
        prefill_tokens,
        ..idle(index as u16)
    })
    .collect()
}

/// A prompt of a thousand tokens.
pub fn thousand(random: u64) -> PolicyRequest {
    PolicyRequest {
        prompt_tokens: 1_000,
        prefix_key: Some(7),
        random: mix(random),
        ..PolicyRequest::default()
    }
}
