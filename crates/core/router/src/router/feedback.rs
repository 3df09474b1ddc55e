//! Feedback: gathers what an answer shows, and executes the corrections that [`assess`] derives from it.

use std::sync::Arc;

use warmroute_fleet::{CacheBelief, ObservedPrompt, Worker, WorkerLoadView};
use warmroute_index::{HolderId, Overlaps, Prompt, Span};
use warmroute_policy::Policy;
use warmroute_prompt::{MediumFacts, RenderedMedium};
use warmroute_types::{CacheView, Micros, Usage, WorkerId};

use super::Router;
use crate::assessment::{
    Corrections, Failures, LastBlock, ObservedCache, PresumedCorrection, ReportedCorrections, ReportedCut,
    SampledFound, assess,
};
use crate::decision::Decision;
use crate::media::AwaitedMedia;
use crate::outcome::Answered;
use crate::pool::Pool;
use crate::presumption_guard::PresumptionGuard;
use crate::reported_view::ReportedView;
use crate::request::{Content, Request, Silence};
use crate::token_rate::TokenRate;
use crate::trust::{self, Prediction};
use crate::{Feedback, PromptChunks, PromptText, Unit};

/// Assumed block size if the engine has not reported one: vLLM's default on GPUs. Part of the margin within
/// which prediction and report agree.
const BLOCK_TOKENS: u32 = 16;

impl<P: Policy> Router<P> {
    /// Compares the engine's token counts with the prediction and corrects what is believed about the worker.
    pub(super) fn feedback(&self, decision: &mut Decision, answered: Answered<'_>) -> Feedback {
        let Answered { request, usage, at } = answered;
        let id = decision.worker.id;
        let cached_tokens = match request.silence {
            Silence::MeansZero => self.fleet.cached_tokens(&decision.worker, usage.cached_tokens),
            Silence::MeansNothing => usage.cached_tokens,
        };
        let usage = Usage { cached_tokens, ..usage };
        let block_tokens = self.fleet.block_tokens(id).unwrap_or(BLOCK_TOKENS);
        self.learn_times(decision, usage, block_tokens, at);
        let prompt = request.prompt.filter(|_| request.content == Content::Text);
        prompt.into_iter().for_each(|prompt| {
            self.learn(request, |pool| pool.tokens.learn(prompt.bytes, usage.prompt_tokens));
        });
        let text = decision.expectation.prediction.and_then(|_| self.written_for(id, request.texts));
        if let Some(text) =
            text.filter(|_| cached_tokens.is_none() && usage.prompt_tokens >= 2 * block_tokens)
        {
            self.reported.check_prompt_reported(&self.index, id, text, at);
        }
        if let Some(media) = request.unknown_media {
            let text = request.texts.get(media.text).filter(|text| text.unit == Unit::Byte);
            let awaited = |text| AwaitedMedia::new(id, text, media, usage, decision.media_moment);
            text.map(awaited).into_iter().for_each(|media| self.learn_media(media));
        }
        let observed = self.observed(decision, usage, block_tokens, prompt, text);
        let corrections = assess(&decision.predicted(), &observed);
        if let Some(reported) = corrections.reported {
            self.correct_reported(decision, request, usage, text, reported);
        }
        self.correct_presumed(decision, request, &corrections, at);
        // What the chosen worker had was reachable, whatever was believed.
        let found = corrections.feedback.cached.unwrap_or(0);
        let reachable = decision.longest_match.map(|tokens| tokens.max(found).min(usage.prompt_tokens));
        Feedback { reachable, ..corrections.feedback }
    }

    /// What is known about the worker's cache now.
    fn observed<'a>(
        &self,
        decision: &Decision,
        usage: Usage,
        block_tokens: u32,
        prompt: Option<PromptChunks<'a>>,
        text: Option<PromptText<'_>>,
    ) -> ObservedCache<'a> {
        let id = decision.worker.id;
        let WorkerLoadView { generation, evicted_blocks, .. } = self.fleet.load_view(id);
        let evicted_blocks = evicted_blocks.wrapping_sub(decision.expectation.evicted_blocks);
        let sampled = ReportedView::Sampled.holder(id);
        ObservedCache {
            usage,
            block_tokens,
            prompt,
            is_same_cache: self.fleet.is_member(&decision.worker)
                && generation == decision.expectation.generation,
            reported_tokens: text.map(|text| self.reported_tokens(text, sampled)),
            evicted_tokens: u32::from(evicted_blocks) * block_tokens,
            is_latest: self.fleet.bookings(id) == decision.bookings,
            failures: self.fleet.failed_predictions(id),
        }
    }

    /// Passes the token counts to the latency model and to the feed.
    fn learn_times(&self, decision: &mut Decision, usage: Usage, block_tokens: u32, now: Micros) {
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
    }

    /// Tokens of a text that events report for a holder.
    pub(super) fn reported_tokens(&self, text: PromptText<'_>, holder: HolderId) -> u32 {
        let mut overlaps = Overlaps::new();
        self.index.lookup(text.root, Prompt::Bytes(text.bytes), &mut overlaps);
        overlaps.of(holder).tokens
    }

    /// Learns from answers whose events have arrived since.
    pub(super) fn learn_awaited_media(&self, worker: WorkerId) {
        for media in self.reported.media.take_awaited(worker) {
            self.learn_media(media);
        }
    }

    /// Learns what the worker's family makes of the media of an answered prompt, and checks what is known about them. Where
    /// one stays unexplained, further events are awaited.
    fn learn_media(&self, media: AwaitedMedia) {
        let family = media.family;
        let (mut bytes, mut rest, mut explained) = (media.bytes.clone(), media.rest.as_slice(), Vec::new());
        while let Some(next @ RenderedMedium { medium: Some(medium), after, .. }) = RenderedMedium::read(rest)
        {
            let known = self.reported.media.get(family, medium);
            let known = known.filter(|known| {
                known.is_checked || self.reach(&media, &bytes, after, &known.facts).is_some()
            });
            let facts = known.map(|known| known.facts).or_else(|| self.explain_medium(&media, &bytes, next));
            let Some(facts) = facts.filter(|facts| facts.write(after, &mut bytes).is_some()) else { break };
            explained.push((medium, facts));
            rest = next.rest;
        }
        let is_unexplained = RenderedMedium::read(rest).is_some_and(|next| next.medium.is_some());
        explained.into_iter().for_each(|(medium, facts)| self.reported.media.learn(family, medium, facts));
        if is_unexplained {
            self.reported.media.keep(media);
        }
    }

    /// The only medium that can stand after these bytes of an answered prompt. If the engine has computed it, one medium that
    /// has appeared in events since the decision continues the bytes. If the engine has found it, the worker's cache, of
    /// which every medium is known, holds the whole prompt with one of them. An engine that reports no count has done either.
    fn explain_medium(
        &self,
        media: &AwaitedMedia,
        bytes: &[u8],
        next: RenderedMedium<'_>,
    ) -> Option<MediumFacts> {
        let AwaitedMedia { worker, family, root, .. } = *media;
        let text = PromptText { root, bytes, unit: Unit::Byte };
        let before = self.reported_tokens(text, ReportedView::Sampled.holder(worker));
        if media.found.is_some_and(|found| found <= before) {
            let appeared = self.reported.media_since(worker, family, media.moment);
            return only(appeared, |facts| self.reach(media, bytes, next.after, facts).is_some());
        }
        // The last medium's prompt can be compared to its end.
        let is_complete = || self.fleet.load_view(worker).view == CacheView::Reported;
        if !next.rest.is_empty() || media.prompt_tokens == 0 || !is_complete() {
            return None;
        }
        let block_tokens = self.fleet.block_tokens(worker).unwrap_or(BLOCK_TOKENS);
        let is_whole = |reached: u32| reached.saturating_add(block_tokens) > media.prompt_tokens;
        let held = self.reported.media_since(worker, family, 0);
        only(held, |facts| self.reach(media, bytes, next.after, facts).is_some_and(is_whole))
    }

    /// Tokens that the worker's cache holds of these bytes and the text after them with a medium; `None` where it does not
    /// hold the medium there.
    fn reach(&self, media: &AwaitedMedia, bytes: &[u8], after: &[u8], facts: &MediumFacts) -> Option<u32> {
        let mut longer = bytes.to_vec();
        let mark_at = facts.write(after, &mut longer)?;
        let mut overlaps = Overlaps::new();
        self.index.lookup(media.root, Prompt::Bytes(&longer), &mut overlaps);
        let overlap = overlaps.of(ReportedView::Sampled.holder(media.worker));
        (overlap.bytes as usize > bytes.len() + mark_at).then_some(overlap.tokens)
    }

    /// The prompt text of the worker's family: of several, the one with the longest reported overlap.
    fn written_for<'a>(&self, worker: WorkerId, texts: &[PromptText<'a>]) -> Option<PromptText<'a>> {
        match texts {
            [text] => Some(*text),
            several => {
                let reported = |text: &&PromptText<'_>| {
                    self.reported_tokens(**text, ReportedView::Sampled.holder(worker))
                };
                several.iter().max_by_key(reported).copied()
            }
        }
    }

    /// Executes corrections of a reported cache.
    fn correct_reported(
        &self,
        decision: &mut Decision,
        request: &Request<'_>,
        usage: Usage,
        text: Option<PromptText<'_>>,
        corrections: ReportedCorrections,
    ) {
        let id = decision.worker.id;
        let sampled = decision.expectation.prediction.map_or(0, |prediction| prediction.sampled);
        if corrections.is_counted {
            self.reported.count_match(id, sampled, usage.cached_tokens.unwrap_or(0));
        }
        corrections.trust.into_iter().for_each(|prediction| self.trust(decision, prediction));
        if let Some(last_block) = corrections.last_block {
            let was_recomputed = last_block == LastBlock::Recomputed;
            self.revise_belief(decision, |belief| CacheBelief {
                last_block: belief.last_block.after(was_recomputed),
                ..belief
            });
        }
        // Token matching has nothing to learn.
        let is_in_bytes = text.is_some_and(|text| text.unit == Unit::Byte);
        if let Some(SampledFound { found, sampled }) = corrections.sampled.filter(|_| is_in_bytes) {
            self.learn(request, |pool| pool.sampled_reuse.learn(found, sampled));
        }
        if corrections.earlier_events_arrived {
            self.speculations.caught_up(id, decision.moment);
        }
        if corrections.own_events_arrived {
            decision.presumed = None;
            decision.ticket.take().into_iter().for_each(|ticket| self.speculations.answered(ticket));
        }
        if let Some(text) = text {
            self.cut_reported(id, text, corrections.cut);
            if corrections.is_proof {
                self.prove(id, text, usage.prompt_tokens);
            }
            // The text of a prompt with media may end before the prompt does.
            let is_whole = request.content == Content::Text;
            if !corrections.own_events_arrived && is_whole && decision.view == CacheView::Reported {
                self.await_events(decision, text, usage.prompt_tokens);
            }
        }
    }

    /// Removes reported blocks of a prompt.
    fn cut_reported(&self, worker: WorkerId, text: PromptText<'_>, cut: ReportedCut) {
        let (root, prompt) = (text.root, Prompt::Bytes(text.bytes));
        match cut {
            ReportedCut::Nothing => {}
            ReportedCut::All { keep_tokens } => ReportedView::ALL
                .into_iter()
                .for_each(|view| self.index.cut(view.holder(worker), root, prompt, keep_tokens)),
            ReportedCut::Sampled { keep_tokens } => {
                let proven = ReportedView::Proven.holder(worker);
                for view in [ReportedView::Sampled, ReportedView::AllTiers] {
                    let cut = self.index.cut_unless(view.holder(worker), root, prompt, keep_tokens, proven);
                    cut.expect("the root is a reported one");
                }
            }
        }
    }

    /// Marks the sampled blocks of a prompt as proven: they match the tokenization of the text.
    pub(super) fn prove(&self, worker: WorkerId, text: PromptText<'_>, prompt_tokens: u32) {
        let (sampled, proven) = (ReportedView::Sampled.holder(worker), ReportedView::Proven.holder(worker));
        let mut overlaps = Overlaps::new();
        self.index.lookup(text.root, Prompt::Bytes(text.bytes), &mut overlaps);
        if overlaps.of(sampled).tokens > overlaps.of(proven).tokens {
            let prompt = Prompt::Bytes(text.bytes);
            let copied = self.index.copy_prefix(sampled, proven, text.root, prompt, prompt_tokens);
            copied.expect("the root is a reported one, and both are holder numbers");
        }
    }

    /// Executes corrections of a presumed cache.
    fn correct_presumed(
        &self,
        decision: &mut Decision,
        request: &Request<'_>,
        corrections: &Corrections,
        now: Micros,
    ) {
        let id = decision.worker.id;
        match corrections.failures {
            Failures::Unchanged => {}
            Failures::Reset => self.fleet.reset_failed_predictions(id),
            Failures::OneMore => _ = self.fleet.record_failed_prediction(id),
        }
        if let Some(found) = corrections.shortfall_found {
            let presumed = decision.cached_tokens.unwrap_or(0);
            self.learn(request, |pool| pool.presumed_shortfall.learn(found, presumed));
        }
        let found = |decision: &mut Decision, kept_chunks| {
            decision.assignment_guard.iter_mut().for_each(|guard| guard.found(kept_chunks));
        };
        match (corrections.presumed, request.prompt) {
            (PresumedCorrection::Clear, _) => {
                self.index.clear_presumed(id.into());
                self.sharing.get().into_iter().for_each(|sharing| sharing.emptied(&decision.worker));
            }
            (PresumedCorrection::Cut { kept_chunks }, Some(prompt)) => {
                found(decision, kept_chunks);
                self.cut_presumed(&decision.worker, decision.bookings, prompt, kept_chunks);
            }
            (PresumedCorrection::Replace { kept_chunks }, Some(prompt)) => {
                found(decision, kept_chunks);
                let rate = self.token_rate(request.model);
                self.correct(&decision.worker, decision.bookings, (prompt, rate), kept_chunks, now);
            }
            (PresumedCorrection::Nothing, _) | (_, None) => {}
        }
    }

    /// Adjusts the trust in the feed. Presumptions made while in doubt stay: answers confirm that the feed's claims are
    /// true, not that they are complete. A wrong presumption is cut by the answer that refutes it.
    fn trust(&self, decision: &Decision, promised: Prediction) {
        self.revise_belief(decision, |belief| trust::answered(belief, promised));
    }

    /// Changes what is believed about the worker's cache, unless it was reset since the prediction.
    fn revise_belief(&self, decision: &Decision, change: impl Fn(CacheBelief) -> CacheBelief) {
        let generation = decision.expectation.generation;
        let is_same = |belief: &CacheBelief| belief.generation == generation;
        self.fleet.revise(&decision.worker, |belief| if is_same(&belief) { change(belief) } else { belief });
    }

    /// Cuts presumed chunks after the first `kept` ones. Only without later requests on the worker, whose
    /// chunks would be cut too.
    pub(super) fn cut_presumed(&self, worker: &Worker, bookings: u32, prompt: PromptChunks<'_>, kept: u32) {
        if !self.is_latest(worker, bookings) {
            return;
        }
        let holder = HolderId::from(worker.id);
        let kept = prompt.digests.len().min(kept as usize);
        let mut overlaps = Overlaps::new();
        self.index.lookup(prompt.root, Prompt::Chunks(&prompt.digests[..kept]), &mut overlaps);
        let keep_tokens = overlaps.of(holder).tokens;
        self.index.cut(holder, prompt.root, Prompt::Chunks(prompt.digests), keep_tokens);
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
        let spans = Arc::new(spans);
        let presumed = PresumptionGuard::make(&self.index, worker.id, prompt.root, &spans, now);
        presumed.into_iter().for_each(|mut presumed| presumed.confirm());
    }

    /// Tokens per byte of the model.
    fn token_rate(&self, model: Option<&str>) -> f32 {
        self.pools.read().serving(model, None).map_or(TokenRate::default().rate(), |pool| pool.tokens.rate())
    }

    /// Learns something about the request's model.
    fn learn(&self, request: &Request<'_>, learn: impl FnOnce(&Pool)) {
        if let Ok(pool) = self.pools.read().serving(request.model, request.within) {
            learn(pool);
        }
    }
}

/// The only one of some media that fits; `None` where there are two. A medium may have appeared more than once.
fn only(media: Vec<MediumFacts>, fits: impl Fn(&MediumFacts) -> bool) -> Option<MediumFacts> {
    let mut fitting = media.into_iter().filter(fits);
    let first = fitting.next()?;
    fitting.all(|other| other == first).then_some(first)
}
