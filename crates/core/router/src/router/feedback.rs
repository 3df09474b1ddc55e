//! Feedback: compares the cached tokens of answers with the predictions and corrects what is believed.

use warmroute_fleet::{CacheBelief, ObservedPrompt, Worker};
use warmroute_index::{Overlaps, Prompt, Span};
use warmroute_policy::Policy;
use warmroute_types::{CacheView, Micros, Usage, WorkerId};

use super::Router;
use crate::decision::{Decision, Expectation};
use crate::feedback::Expected;
use crate::outcome::Answered;
use crate::presumption_guard::PresumptionGuard;
use crate::reported_overlap::CachePrediction;
use crate::reported_view::ReportedView;
use crate::request::{Content, Request, Silence};
use crate::token_rate::TokenRate;
use crate::trust::{self, Prediction};
use crate::{Feedback, PromptChunks, PromptText, Unit};

/// Assumed block size if the engine has not reported one: vLLM's default on GPUs. Part of the margin within
/// which prediction and report agree.
const BLOCK_TOKENS: u32 = 16;

/// Reciprocal of the share by which the token density of a prompt's beginning may differ from its mean.
const DENSITY_MARGIN: u32 = 8;

/// Consecutive answers without any predicted token after which the engine counts as restarted.
const LOST_IN_A_ROW: u8 = 3;

impl<P: Policy> Router<P> {
    /// Compares the engine's cached tokens with the prediction.
    pub(super) fn feedback(&self, decision: &mut Decision, answered: Answered<'_>) -> Feedback {
        let Answered { request, usage, at: now } = answered;
        let said = usage.cached_tokens;
        let cached_tokens = match request.silence {
            Silence::MeansZero => self.fleet.cached_tokens(&decision.worker, said),
            Silence::MeansNothing => said,
        };
        let usage = Usage { cached_tokens, ..usage };
        let block_tokens = self.fleet.block_tokens(decision.worker.id).unwrap_or(BLOCK_TOKENS);
        // Without a report the prediction is the best estimate. It is exact for a complete feed and too low
        // otherwise.
        let cached = usage.cached_tokens.or(decision.cached_tokens).unwrap_or(0);
        if usage.prompt_tokens.saturating_sub(cached) >= 2 * block_tokens {
            self.fleet.count_block_filling(decision.worker.id);
        }
        if let Some(cached_tokens) = usage.cached_tokens {
            let observed = ObservedPrompt { prompt_tokens: usage.prompt_tokens, cached_tokens };
            decision.booking.reported(observed, now);
        }
        let prompt = request.prompt.filter(|_| request.content == Content::Text);
        prompt.into_iter().for_each(|prompt| self.learn(request.model, prompt, usage));
        if let Some(prediction) = decision.expectation.prediction {
            let text = self.written_for(decision.worker.id, request.texts);
            let has_blocks = usage.prompt_tokens >= 2 * block_tokens;
            if let Some(text) = text.filter(|_| usage.cached_tokens.is_none() && has_blocks) {
                self.reported.check_prompt_reported(&self.index, decision.worker.id, text, now);
            }
            let request = &Request { texts: text.as_slice(), ..*request };
            self.assess(decision, prediction, request, usage, block_tokens);
            if decision.view == CacheView::Reported {
                // Engines count restored tokens as cached, but may also recompute them.
                let expected = decision.cached_tokens.map(|tokens| Expected {
                    tokens,
                    counted_otherwise: tokens.max(prediction.expected + prediction.restorable),
                });
                let feedback = Feedback::of(usage, expected, block_tokens);
                if let Some(prompt) = prompt.filter(|_| feedback.stale > 0) {
                    let kept = found_chunks(prompt, usage);
                    decision
                        .assignment_guard
                        .iter_mut()
                        .for_each(|assignment_guard| assignment_guard.found(kept));
                    self.cut_presumed(&decision.worker, decision.bookings, prompt, kept);
                }
                return feedback;
            }
        }
        let Some(prompt) = prompt else {
            // In a prompt with images, bytes do not tell where the cached part ends.
            return Feedback::of(usage, None, block_tokens);
        };
        // The prediction in this prompt's own tokens per byte, known now.
        let scale = f64::from(usage.prompt_tokens) / f64::from(prompt.bytes.max(1));
        let tokens = |bytes: u32| (f64::from(bytes) * scale) as u32;
        let usable = usage.prompt_tokens.saturating_sub(1);
        let presumed = tokens(decision.expectation.presumed_bytes).min(usable);
        let promised = decision.expectation.prediction.map_or(0, |prediction| prediction.expected);
        let expected = Expected {
            tokens: presumed.max(promised),
            counted_otherwise: decision.cached_tokens.unwrap_or(0).min(usable),
        };
        let chunk_bytes = prompt.chunk_bytes_at(decision.expectation.presumed_bytes);
        let margin = [block_tokens, expected.tokens / DENSITY_MARGIN]
            .into_iter()
            .fold(tokens(chunk_bytes), u32::saturating_add);
        let feedback = Feedback::of(usage, Some(expected), margin);
        if self.is_lost(decision, &feedback) {
            self.index.clear_presumed(decision.worker.id);
            self.fleet.reset_failed_predictions(decision.worker.id);
            self.sharing.get().into_iter().for_each(|sharing| sharing.emptied(&decision.worker));
            return feedback;
        }
        if let (Some(found), CacheView::Presumed) = (feedback.cached, decision.view) {
            self.learn_shortfall(request.model, found, decision.cached_tokens.unwrap_or(0));
        }
        if feedback.stale > 0 {
            let kept = found_chunks(prompt, usage);
            decision.assignment_guard.iter_mut().for_each(|assignment_guard| assignment_guard.found(kept));
            let rate = self.token_rate(request.model);
            self.correct(&decision.worker, decision.bookings, (prompt, rate), kept, now);
        }
        feedback
    }

    /// The prompt text of the worker's family: of several, the one with the longest reported overlap.
    fn written_for<'a>(&self, worker: WorkerId, texts: &[PromptText<'a>]) -> Option<PromptText<'a>> {
        let mut overlaps = Overlaps::new();
        let mut reported = |text: &&PromptText<'_>| {
            self.index.lookup(text.root, Prompt::Bytes(text.bytes), &mut overlaps);
            overlaps.of(ReportedView::Sampled.holder(worker)).tokens
        };
        match texts {
            [text] => Some(*text),
            several => several.iter().max_by_key(|text| reported(text)).copied(),
        }
    }

    /// Compares the engine's cached tokens with its events. Adjusts the trust in the feed, cuts an uncertain
    /// view, and proves or drops blocks stored while decoding.
    fn assess(
        &self,
        decision: &mut Decision,
        prediction: CachePrediction,
        request: &Request<'_>,
        usage: Usage,
        block_tokens: u32,
    ) {
        let (Some(found), true) = (usage.cached_tokens, self.fleet.is_member(&decision.worker)) else {
            return;
        };
        let (id, Expectation { generation, presumed_bytes, .. }) = (decision.worker.id, decision.expectation);
        if self.fleet.load_view(id).generation != generation {
            // The prediction was made for an earlier cache.
            return;
        }
        // A request sent a moment ago may not have its event yet, which is no mismatch.
        if prediction.sampled > 0 || presumed_bytes == 0 {
            self.reported.count_match(id, prediction.sampled, found);
        }
        let is_kept = prediction.proven <= found.saturating_add(block_tokens);
        if prediction.proven > 0 {
            self.trust(decision, if is_kept { Prediction::Confirmed } else { Prediction::Refuted });
        }
        let sampled_only = prediction.sampled - prediction.proven;
        if is_kept && sampled_only > 0 {
            self.learn_sampled_reuse(request, found.saturating_sub(prediction.proven), sampled_only);
        }
        let Some(&PromptText { root, bytes, .. }) = request.texts.first() else { return };
        let (prompt, sampled, proven) =
            (Prompt::Bytes(bytes), ReportedView::Sampled.holder(id), ReportedView::Proven.holder(id));
        let mut overlaps = Overlaps::new();
        self.index.lookup(root, prompt, &mut overlaps);
        let reported = overlaps.of(sampled).tokens;
        if reported >= found.saturating_add(2 * block_tokens) {
            // This request's own blocks are reported, so all earlier events have arrived. One recomputed
            // block is within the margin.
            self.speculations.caught_up(id, decision.moment);
        }
        if reported + block_tokens > usage.prompt_tokens {
            // All blocks are reported: the presumption is obsolete.
            decision.presumed = None;
            decision.ticket.take().into_iter().for_each(|ticket| self.speculations.answered(ticket));
        }
        // Cutting would also remove the blocks of later requests.
        let is_latest = self.fleet.bookings(id) == decision.bookings;
        if !is_kept && decision.view == CacheView::Uncertain && is_latest {
            ReportedView::ALL
                .into_iter()
                .for_each(|reported_view| self.index.cut(reported_view.holder(id), root, prompt, found));
        } else if sampled_only > 0 && found < prediction.sampled {
            let keep = found.max(prediction.proven);
            // No tier holds the blocks under the tokens of this text.
            for reported_view in [sampled, ReportedView::AllTiers.holder(id)] {
                let cut = self.index.cut_unless(reported_view, root, prompt, keep, proven);
                cut.expect("the root is a reported one");
            }
        }
        self.index.lookup(root, prompt, &mut overlaps);
        if overlaps.of(sampled).tokens > overlaps.of(proven).tokens {
            // The engine has computed or found this prompt, so its blocks match the tokenization of the text.
            let adopted = self.index.copy_prefix(sampled, proven, root, prompt, usage.prompt_tokens);
            adopted.expect("the root is a reported one, and both are holder numbers");
        }
    }

    /// Adjusts the trust in the feed, unless the cache was reset since the prediction.
    fn trust(&self, decision: &Decision, promised: Prediction) {
        let generation = decision.expectation.generation;
        let revised = |belief: CacheBelief| match belief.generation == generation {
            true => trust::answered(belief, promised),
            false => belief,
        };
        // Presumptions made while in doubt stay: answers confirm that the feed's claims are true, not that
        // they are complete. A wrong presumption is cut by the answer that refutes it.
        self.fleet.revise(&decision.worker, revised);
    }

    /// Learns how often sampled tokens equal the tokenization of their text. Token matching has nothing to
    /// learn.
    fn learn_sampled_reuse(&self, request: &Request<'_>, found: u32, sampled: u32) {
        let is_in_bytes = request.texts.first().is_some_and(|text| text.unit == Unit::Byte);
        if let (Ok(pool), true) = (self.pools.read().serving(request.model), is_in_bytes) {
            pool.sampled_reuse.learn(found, sampled);
        }
    }

    /// Cuts presumed chunks after the first `kept` ones. Only without later requests on the worker, whose
    /// chunks would be cut too.
    pub(super) fn cut_presumed(&self, worker: &Worker, bookings: u32, prompt: PromptChunks<'_>, kept: u32) {
        if !self.is_latest(worker, bookings) {
            return;
        }
        let kept = prompt.digests.len().min(kept as usize);
        let mut overlaps = Overlaps::new();
        self.index.lookup(prompt.root, Prompt::Chunks(&prompt.digests[..kept]), &mut overlaps);
        let keep_tokens = overlaps.of(worker.id).tokens;
        self.index.cut(worker.id, prompt.root, Prompt::Chunks(prompt.digests), keep_tokens);
    }

    /// Whether the worker got no request since it had this booking count.
    fn is_latest(&self, worker: &Worker, bookings: u32) -> bool {
        self.fleet.bookings(worker.id) == bookings && self.fleet.is_member(worker)
    }

    /// Cuts presumed chunks and presumes again what the request itself has put into the cache.
    pub(super) fn correct(
        &self,
        worker: &Worker,
        bookings: u32,
        (prompt, tokens_per_byte): (PromptChunks<'_>, f32),
        kept: u32,
        now: Micros,
    ) {
        if !self.is_latest(worker, bookings) {
            return;
        }
        self.cut_presumed(worker, bookings, prompt, kept);
        let spans: Vec<Span> = prompt.spans(|bytes| (bytes as f32 * tokens_per_byte) as u32).collect();
        let presumed = PresumptionGuard::make(&self.index, worker.id, prompt.root, &spans, now);
        presumed.into_iter().for_each(|mut presumed| presumed.confirm());
    }

    /// Whether predictions for the worker failed repeatedly and completely: its cache is then empty.
    fn is_lost(&self, decision: &Decision, feedback: &Feedback) -> bool {
        let id = decision.worker.id;
        match feedback.cached {
            Some(0) if feedback.stale > 0 => self.fleet.record_failed_prediction(id) >= LOST_IN_A_ROW,
            Some(found) if found > 0 => {
                self.fleet.reset_failed_predictions(id);
                false
            }
            _ => false,
        }
    }

    /// Learns how many tokens engines find beyond the presumed overlap.
    fn learn_shortfall(&self, model: Option<&str>, found: u32, presumed: u32) {
        if let Ok(pool) = self.pools.read().serving(model) {
            pool.presumed_shortfall.learn(found, presumed);
        }
    }

    /// Tokens per byte of the model.
    fn token_rate(&self, model: Option<&str>) -> f32 {
        self.pools.read().serving(model).map_or(TokenRate::default().rate(), |pool| pool.tokens.rate())
    }

    /// Learns the tokens per byte of the model.
    fn learn(&self, model: Option<&str>, prompt: PromptChunks<'_>, usage: Usage) {
        if let Ok(pool) = self.pools.read().serving(model) {
            pool.tokens.learn(prompt.bytes, usage.prompt_tokens);
        }
    }
}

/// Number of chunks that the engine found, a partial one included.
fn found_chunks(prompt: PromptChunks<'_>, usage: Usage) -> u32 {
    let found = f64::from(usage.cached_tokens.unwrap_or(0));
    let scale = f64::from(usage.prompt_tokens) / f64::from(prompt.bytes.max(1));
    prompt.chunks_in((found / scale) as u32)
}
