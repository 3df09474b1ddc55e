//! A request as a page shows it: numbers, names and the reason of the choice, never a prompt.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use serde::Serialize;
use warmroute_router::CandidateRecord;

use super::rounding::thousandths;
use crate::history::PastDecision;

/// One request.
#[derive(Serialize)]
pub(super) struct RequestRow<'a> {
    number: u64,
    at: u64,
    id: Option<&'a str>,
    model: Option<&'a str>,
    policy: &'static str,
    reason: &'static str,
    prompt: u32,
    /// The longest predicted overlap of any candidate.
    reachable: Option<u32>,
    /// Candidates that can be asked for.
    of: usize,
    candidates: Vec<CandidateBrief<'a>>,
    #[serde(flatten)]
    progress: Progress,
}

/// A candidate in a row; the first one was chosen.
#[derive(Serialize)]
struct CandidateBrief<'a> {
    worker: &'a str,
    overlap: u32,
    ttft: f64,
}

/// What happened to a request so far.
#[derive(Clone, Copy, PartialEq, Serialize)]
pub(super) struct Progress {
    ttft: Option<f64>,
    took: Option<f64>,
    cached: Option<u32>,
    outcome: Option<&'static str>,
}

/// A change of a request that was sent before.
#[derive(Serialize)]
pub(super) struct RequestUpdate {
    number: u64,
    #[serde(flatten)]
    progress: Progress,
}

impl Progress {
    pub(super) fn of(past: &PastDecision) -> Progress {
        let end = past.end();
        Progress {
            ttft: past.ttft().map(|after| thousandths(after.as_millis_f64())),
            took: end.map(|end| thousandths(end.took.as_millis_f64())),
            cached: end.and_then(|end| end.cached_tokens),
            outcome: end.map(|end| end.outcome.as_str()),
        }
    }

    fn is_over(&self) -> bool {
        self.outcome.is_some()
    }
}

impl<'a> RequestRow<'a> {
    pub(super) fn of(past: &'a PastDecision) -> RequestRow<'a> {
        let brief = |candidate: &'a CandidateRecord| CandidateBrief {
            worker: &candidate.worker.label,
            overlap: candidate.numbers.overlap_tokens,
            ttft: thousandths(candidate.numbers.estimate.ttft_ms().into()),
        };
        RequestRow {
            number: past.number,
            at: past.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            id: past.request_id.as_ref().and_then(|id| id.to_str().ok()),
            model: past.model.as_deref(),
            policy: past.policy,
            reason: past.reason,
            prompt: past.prompt_tokens,
            reachable: past.longest_match,
            of: past.all_candidates.len(),
            candidates: past.considered.iter().flatten().map(brief).collect(),
            progress: Progress::of(past),
        }
    }
}

/// The rows that pages know and that are not over.
#[derive(Default)]
pub(super) struct SentRows {
    open: Vec<(Arc<PastDecision>, Progress)>,
    /// The highest number that was sent.
    last: Option<u64>,
}

impl SentRows {
    /// The rows that are new to the pages, and the changes of others.
    pub(super) fn advance(
        &mut self,
        rows: &[Arc<PastDecision>],
    ) -> (Vec<Arc<PastDecision>>, Vec<RequestUpdate>) {
        let mut updates = Vec::new();
        self.open.retain_mut(|(past, sent)| {
            let progress = Progress::of(past);
            if progress != *sent {
                *sent = progress;
                updates.push(RequestUpdate { number: past.number, progress });
            }
            !progress.is_over()
        });
        let new: Vec<_> = rows.iter().filter(|row| self.last < Some(row.number)).cloned().collect();
        self.last = new.iter().map(|row| row.number).max().or(self.last);
        let open = new.iter().map(|row| (Arc::clone(row), Progress::of(row)));
        self.open.extend(open.filter(|(_, progress)| !progress.is_over()));
        let beyond = self.open.len().saturating_sub(super::state::ROWS_MAX);
        self.open.drain(..beyond);
        (new, updates)
    }
}
