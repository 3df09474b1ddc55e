//! The decision about a request: its worker, the reasons, and what it holds until the request is over.

use std::sync::Arc;

use warmroute_fleet::{Booking, Worker};
use warmroute_index::Span;
use warmroute_peers::{BookingRecord, PromptDigests};
use warmroute_types::{CacheView, Micros};

use crate::assessment::PredictedCache;
use crate::candidate_record::{CANDIDATE_RECORDS_MAX, CandidateRecord};
use crate::presumption_guard::PresumptionGuard;
use crate::prompt::{PRESUMED_CHUNKS_MAX, PromptChunks};
use crate::reported_overlap::CachePrediction;
use crate::request::Request;
use crate::sharing::AssignmentGuard;
use crate::speculation::SpeculationTicket;

/// The chosen worker of a request. Its booking counts as load until the decision is dropped.
#[derive(Debug)]
pub struct Decision {
    /// The worker that gets the request.
    pub worker: Arc<Worker>,
    /// Name of the policy.
    pub policy: &'static str,
    /// Reason of the choice.
    pub reason: &'static str,
    /// Predicted cached tokens; `None` without a lookup.
    pub cached_tokens: Option<u32>,
    /// The longest predicted overlap of any candidate.
    pub longest_match: Option<u32>,
    /// Prompt tokens, counted or estimated.
    pub prompt_tokens: u32,
    /// Source of what was known about the worker's cache.
    pub view: CacheView,
    /// The chosen candidate, then the next best by expected TTFT, as the policy saw them.
    pub candidate_records: [Option<CandidateRecord>; CANDIDATE_RECORDS_MAX],
    /// All candidates; empty unless [`crate::Scratch::kept`] asks for them.
    pub all_candidates: Vec<CandidateRecord>,
    /// Time of the decision.
    pub made: Micros,
    /// Basis of the prediction.
    pub(crate) expectation: Expectation,
    /// Number of first tokens observed before the decision.
    pub(crate) moment: u64,
    /// Media that had appeared in events before the decision.
    pub(crate) media_moment: u64,
    /// The worker's booking count at the decision.
    pub(crate) bookings: u32,
    /// The work booked on the worker.
    pub booking: Booking,
    /// The presumption about the worker's cache.
    pub(crate) presumed: Option<PresumptionGuard>,
    /// Ticket of the presumption while it waits for an event.
    pub(crate) ticket: Option<SpeculationTicket>,
    /// The adapter that the worker must load first, or finish to load.
    pub(crate) loading_adapter: Option<u64>,
    /// Announces the assignment to peers, if there are any.
    pub(crate) assignment_guard: Option<AssignmentGuard>,
}

impl Decision {
    /// Predicted time to first token, from the decision on.
    pub fn expected_ttft_ms(&self) -> f32 {
        self.candidate_records[0].as_ref().map_or(0.0, |chosen| chosen.numbers.estimate.ttft_ms())
    }

    /// Whether the worker's events will report the prompt, so that its presumption only bridges the time until then.
    /// Events of a prompt that was not rendered cannot be recognized.
    pub(crate) fn awaits_event(&self) -> bool {
        self.view == CacheView::Reported && self.expectation.prediction.is_some()
    }

    /// The part of that time until the work ahead on the worker is done.
    pub fn expected_queue_ms(&self) -> f32 {
        self.candidate_records[0].as_ref().map_or(0.0, |chosen| chosen.numbers.estimate.queue_ms)
    }

    /// The prediction for the worker's cache.
    pub(crate) fn predicted(&self) -> PredictedCache {
        let Expectation { view, presumed_bytes, prediction: reported, .. } = self.expectation;
        PredictedCache { view, cached_tokens: self.cached_tokens, presumed_bytes, reported }
    }

    /// The booking as peers learn of it.
    pub(crate) fn booking_record(&self, request: &Request<'_>, spans: &[Span]) -> BookingRecord {
        let numbers = self.candidate_records[0].as_ref().map(|chosen| chosen.numbers);
        let chunk_tokens = spans.first().map_or(1, |span| span.tokens);
        let digests = |prompt: PromptChunks<'_>| PromptDigests {
            root: prompt.root.to_bits(),
            chunk_bytes: prompt.chunk_bytes,
            chunk_tokens,
            digests: prompt.digests[..prompt.digests.len().min(PRESUMED_CHUNKS_MAX)].into(),
            is_unrendered: request.texts.is_empty(),
        };
        BookingRecord {
            worker: self.worker.identity,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: numbers.map_or(0, |numbers| numbers.overlap_tokens),
            restorable_tokens: numbers.map_or(0, |numbers| numbers.restorable_tokens),
            delivery: request.delivery,
            prompt: request.prompt.filter(|prompt| !prompt.digests.is_empty()).map(digests),
        }
    }
}

/// The prediction for a worker's cache, and its basis.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expectation {
    pub view: CacheView,
    /// Generation of the cache.
    pub generation: u32,
    /// Blocks that the engine's events had removed; wraps.
    pub evicted_blocks: u16,
    /// Presumed overlap in bytes.
    pub presumed_bytes: u32,
    /// Prediction from the engine's events; `None` without them, or if the prompt was not rendered.
    pub prediction: Option<CachePrediction>,
}

/// Why a request cannot be routed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// No worker serves this model, and all have listed their models.
    #[error("the model does not exist")]
    UnknownModel,
    /// Workers exist, but none is ready now.
    #[error("no worker is ready")]
    NotReady,
    /// All ready workers are at their concurrency limit.
    #[error("all workers are at their concurrency limit")]
    Full,
    /// There is no worker at all.
    #[error("the fleet is empty")]
    NoWorkers,
}
