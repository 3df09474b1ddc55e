//! What one decision reads: the request, the prompt's overlaps, and the router's state.

use std::sync::Arc;

use warmroute_fleet::{Fleet, LoadSummary, PrefillFeatures, WorkerLoadView};
use warmroute_index::Index;
use warmroute_types::{CacheView, Micros, WorkerId, WorkerState};

use crate::decision::Expectation;
use crate::estimate::{self, PromptOverlap};
use crate::group_table::GroupTable;
use crate::presumed_shortfall::PresumedShortfall;
use crate::prompt::PromptText;
use crate::reported_overlap::{CachePrediction, PredictionWeights, ReportedOverlap, whole_blocks};
use crate::reported_view::ReportedView;
use crate::request::Request;
use crate::sampled_reuse::SampledReuse;
use crate::scratch::Scratch;
use crate::speculation::Speculations;
use crate::token_rate::TokenRate;
use crate::unit::Unit;

/// The router's state that a decision reads, beside the request.
pub(crate) struct DecisionContext<'a> {
    pub fleet: &'a Arc<Fleet>,
    pub index: &'a Arc<Index>,
    pub speculations: &'a Speculations,
    /// The caches of workers with several groups.
    pub groups: &'a GroupTable,
    /// Number of peers with a lower id.
    pub router_rank: u32,
    /// Number of routers that share the fleet, this one included.
    pub routers: u32,
    /// Load that peers may have assigned without this router knowing.
    pub unpropagated_load: Micros,
    pub report_age_max: Micros,
    /// A view of reported caches that predictions ignore.
    pub without_view: Option<ReportedView>,
    pub in_flight_max: u32,
    /// Media that have appeared in events.
    pub media_moment: u64,
    /// Hash of the request's LoRA adapter, if it is one.
    pub adapter: Option<u64>,
    pub now: Micros,
    pub random: u64,
}

/// The input of one decision.
#[derive(Clone, Copy)]
pub(crate) struct CandidateInput<'a> {
    pub tokens: &'a TokenRate,
    pub sampled_reuse: &'a SampledReuse,
    pub presumed_shortfall: &'a PresumedShortfall,
    pub context: &'a DecisionContext<'a>,
    pub request: &'a Request<'a>,
    pub prompt_tokens: u32,
    /// Overlaps of the prompt.
    pub scratch: &'a Scratch,
}

/// Whether paused workers are candidates.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum PausedWorkers {
    Skip,
    Include,
}

impl CandidateInput<'_> {
    /// Whether the worker may get this request.
    #[inline]
    pub(crate) fn is_usable(&self, load: &LoadSummary, paused: PausedWorkers) -> bool {
        let is_skipped = paused == PausedWorkers::Skip && self.context.now < load.paused_until;
        let is_stored_here =
            || self.request.stored_at == Some(load.worker) && load.state == WorkerState::Draining;
        let takes_it = load.takes_requests || is_stored_here();
        let has_room = takes_it && load.in_flight < self.context.in_flight_max;
        has_room && !is_skipped && self.request.usable().includes(load.worker)
    }

    /// Whether the worker is believed to hold nothing of the prompt, as most are.
    #[inline]
    pub(crate) fn finds_nothing(&self, worker: WorkerId) -> bool {
        self.request.known_tokens.is_none()
            && self.scratch.overlap_bytes(worker) == 0
            && (self.request.texts.is_empty() || !self.scratch.held(worker).has_tokens())
    }

    /// The expected overlap with a worker's cache.
    #[inline]
    pub(crate) fn found(&self, worker: WorkerId) -> PromptOverlap {
        match self.finds_nothing(worker) {
            true => PromptOverlap::none_of(self.prompt_tokens),
            false => self.overlap(worker),
        }
    }

    /// The inputs of the prefill prediction for a worker.
    pub(crate) fn features(&self, load: &LoadSummary) -> PrefillFeatures {
        let forecast = self.context.fleet.forecast(load.worker, self.context.now);
        estimate::features(load, &forecast, self.found(load.worker))
    }

    /// The prediction for a worker's cache.
    pub(crate) fn expectation(&self, worker: WorkerId, load: &WorkerLoadView) -> Expectation {
        let presumed_bytes = self.scratch.overlap_bytes(worker);
        let prediction = self.prediction(load, || self.scratch.held(worker));
        let WorkerLoadView { view, generation, evicted_blocks, .. } = *load;
        Expectation { view, generation, evicted_blocks, presumed_bytes, prediction }
    }

    /// The expected overlap with a worker's cache that holds something. Few do, so this is out of line.
    #[inline(never)]
    pub(crate) fn overlap(&self, worker: WorkerId) -> PromptOverlap {
        let load = self.context.fleet.load_view(worker);
        let Expectation { presumed_bytes, prediction, .. } = self.expectation(worker, &load);
        // Engines always compute the last token for its logits.
        let usable = self.prompt_tokens.saturating_sub(1);
        let presumed = match presumed_bytes {
            0 => 0,
            bytes => whole_blocks(self.tokens.tokens_in(bytes).min(usable), load.block_tokens.unwrap_or(1)),
        };
        // The maximum, not the sum: a presumption beside a prediction stands only until its event must have
        // arrived. Without a prediction, as for prompts that are not rendered, presumptions last.
        let believed = prediction.map_or(presumed, |prediction| {
            let block_tokens = load.block_tokens.unwrap_or(1);
            prediction.expected.max(self.scratch.held(worker).awaited(presumed, block_tokens))
        });
        let reported = prediction.map_or(0, |prediction| prediction.expected + prediction.restorable);
        PromptOverlap {
            prompt_tokens: self.prompt_tokens,
            overlap_tokens: self.request.known_tokens.map_or(believed, |known| known[worker.index()]),
            restorable_tokens: reported.saturating_sub(believed),
            shortfall_tokens: self.shortfall(prediction.is_none(), believed, usable),
        }
    }

    /// Tokens that a worker without events probably holds beyond the presumed overlap; 0 without an overlap.
    fn shortfall(&self, is_presumed: bool, presumed: u32, usable: u32) -> u32 {
        let applies = is_presumed && presumed > 0 && self.request.known_tokens.is_none();
        let shortfall = || self.presumed_shortfall.tokens();
        if applies { shortfall().min((usable - presumed.min(usable)) / 2) } else { 0 }
    }

    /// Prediction from the worker's events; `None` without events, or for a prompt that is not rendered.
    fn prediction(
        &self,
        load: &WorkerLoadView,
        held: impl FnOnce() -> ReportedOverlap,
    ) -> Option<CachePrediction> {
        let texts = self.request.texts;
        let first = texts.first().filter(|_| load.view != CacheView::Presumed)?;
        let held = held().without(self.context.without_view);
        // A worker matches only the text of its own family.
        let text: &PromptText<'_> = texts.get(usize::from(held.text)).unwrap_or(first);
        let block_tokens = load.block_tokens.unwrap_or(1);
        let prompt_bytes = u32::try_from(text.bytes.len()).unwrap_or(u32::MAX);
        let (view, trust) = (load.view, load.trust);
        let sampled_weight = match text.unit {
            Unit::Byte => self.sampled_reuse.weight(),
            // Token ids match exactly, sampled or not.
            Unit::Token => 1.0,
        };
        let recomputes_last_block = load.recomputes_last_block;
        Some(held.predict(PredictionWeights {
            view,
            trust,
            sampled_weight,
            block_tokens,
            prompt_bytes,
            recomputes_last_block,
        }))
    }
}
