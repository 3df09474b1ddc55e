//! Candidates for the tables of cases.

use warmroute_policy::{Candidate, Estimate, PolicyRequest};
use warmroute_types::WorkerId;

use crate::mix;

/// An idle worker with nothing in its cache.
pub fn idle(seat: u16) -> Candidate {
    Candidate {
        worker: WorkerId(seat),
        identity: mix(u64::from(seat) + 1),
        overlap_tokens: 0,
        restorable_tokens: 0,
        in_flight: 0,
        prefill_tokens: 0,
        decode_tokens: 0,
        waiting: None,
        estimate: Estimate::default(),
    }
}

/// Workers that hold so many tokens of the prompt and have so many requests in flight.
pub fn holding(rows: &[(u32, u32)]) -> Vec<Candidate> {
    let rows = rows.iter().enumerate();
    rows.map(|(seat, &(overlap_tokens, in_flight))| Candidate {
        overlap_tokens,
        in_flight,
        ..idle(seat as u16)
    })
    .collect()
}

/// Workers that hold so many tokens of the prompt and have so many to compute before it.
pub fn behind(rows: &[(u32, u64)]) -> Vec<Candidate> {
    let rows = rows.iter().enumerate();
    rows.map(|(seat, &(overlap_tokens, prefill_tokens))| Candidate {
        overlap_tokens,
        prefill_tokens,
        ..idle(seat as u16)
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
