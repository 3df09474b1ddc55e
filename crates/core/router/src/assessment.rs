//! What an answer shows about a worker's cache: prediction and observation in, corrections out.
//!
//! All rules about "what does a worker hold" after an answer are here, as one pure function. `router/feedback.rs`
//! gathers the observation and executes the corrections.
//!
//! ```text
//!   predicted:  view, tokens from events (proven, sampled, expected, restorable), presumed bytes
//!   observed:   prompt and cached tokens of the answer, tokens that events report by now
//!   corrected:  trust in the feed, reported blocks, presumed chunks, learned rates
//! ```

use warmroute_types::{CacheView, Usage};

use crate::feedback::{Expected, Feedback};
use crate::prompt::PromptChunks;
use crate::reported_overlap::CachePrediction;
use crate::trust::Prediction;

/// Reciprocal of the share by which the token density of a prompt's beginning may differ from its mean.
const DENSITY_MARGIN: u32 = 8;

/// Consecutive answers without any predicted token after which the engine counts as restarted.
const LOST_IN_A_ROW: u8 = 3;

/// The prediction for one request on its worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PredictedCache {
    /// Source of what was known about the cache.
    pub view: CacheView,
    /// Cached tokens as the policy saw them; `None` without a lookup.
    pub cached_tokens: Option<u32>,
    /// Presumed overlap in bytes.
    pub presumed_bytes: u32,
    /// Prediction from the engine's events; `None` without them, or if the prompt was not rendered.
    pub reported: Option<CachePrediction>,
}

/// What is known when the answer has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedCache<'a> {
    /// Token counts of the answer.
    pub usage: Usage,
    /// Block size of the engine in tokens.
    pub block_tokens: u32,
    /// The prompt, if its bytes are proportional to its tokens. (An image is a hash here and thousands of tokens in the
    /// engine.)
    pub prompt: Option<PromptChunks<'a>>,
    /// Whether the cache is still the one that the prediction was made for.
    pub is_same_cache: bool,
    /// Tokens of the prompt that events report by now; `None` if the prompt cannot be compared with events.
    pub reported_tokens: Option<u32>,
    /// Tokens that events have removed since the prediction.
    pub evicted_tokens: u32,
    /// Whether the worker got no request since this one. Otherwise cutting would also remove what later requests stored.
    pub is_latest: bool,
    /// Consecutive answers before this one without any predicted token.
    pub failures: u8,
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Corrections {
    /// Predicted and reported cached tokens.
    pub feedback: Feedback,
    /// Of the reported cache; `None` if the answer says nothing about it.
    pub reported: Option<ReportedCorrections>,
    /// Of the presumed cache.
    pub presumed: PresumedCorrection,
    /// Of the count of consecutive failed predictions.
    pub failures: Failures,
    /// Tokens found that teach how far presumed overlaps fall short.
    pub shortfall_found: Option<u32>,
}

/// Corrections of a reported cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportedCorrections {
    /// Whether the answer counts in the feed's statistics of matches.
    pub is_counted: bool,
    /// Whether the feed's claims held, if it made any.
    pub trust: Option<Prediction>,
    /// How many of the sampled tokens were found.
    pub sampled: Option<SampledFound>,
    /// Whether the engine used the last block that events report; `None` if something else may have decided it.
    pub last_block: Option<LastBlock>,
    /// The events of earlier requests have arrived, so their presumptions are obsolete.
    pub earlier_events_arrived: bool,
    /// All blocks of this prompt are reported, so its own presumption is obsolete.
    pub own_events_arrived: bool,
    /// Blocks to remove.
    pub cut: ReportedCut,
    /// Sampled blocks of this prompt become proven: the engine has computed or found it.
    pub is_proof: bool,
}

/// Sampled tokens of a prompt, and those that the engine found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampledFound {
    pub found: u32,
    pub sampled: u32,
}

/// What an engine did with the last cached block of a prompt. With EAGLE or MTP drafts, vLLM computes it again: the drafter
/// needs its hidden states. Neither events nor metrics tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastBlock {
    Used,
    Recomputed,
}

/// Reported blocks to remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReportedCut {
    #[default]
    Nothing,
    /// Everything after this many tokens.
    All { keep_tokens: u32 },
    /// What is sampled and not proven, after this many tokens. No tier holds it under the tokens of this text.
    Sampled { keep_tokens: u32 },
}

/// Presumed chunks to remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PresumedCorrection {
    #[default]
    Nothing,
    /// All after the first chunks; events tell what the request stored.
    Cut { kept_chunks: u32 },
    /// All after the first chunks; what the request itself stored is presumed again.
    Replace { kept_chunks: u32 },
    /// The whole cache: the engine was restarted.
    Clear,
}

/// Change of the count of consecutive failed predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Failures {
    #[default]
    Unchanged,
    Reset,
    OneMore,
}

/// Compares the prediction for a request with its answer.
pub(crate) fn assess(predicted: &PredictedCache, observed: &ObservedCache<'_>) -> Corrections {
    let reported = predicted.reported.and_then(|reported| assess_reported(predicted, reported, observed));
    let rest = match (predicted.reported, observed.prompt) {
        (Some(reported), _) if predicted.view == CacheView::Reported => {
            assess_complete(predicted, reported, observed)
        }
        (_, Some(prompt)) => assess_presumed(predicted, prompt, observed),
        // In a prompt with images, bytes do not tell where the cached part ends.
        (_, None) => Corrections {
            feedback: Feedback::of(observed.usage, None, observed.block_tokens),
            ..Corrections::default()
        },
    };
    Corrections { reported, ..rest }
}

/// Corrections of the reported cache, whether its feed is complete or not.
fn assess_reported(
    predicted: &PredictedCache,
    reported: CachePrediction,
    observed: &ObservedCache<'_>,
) -> Option<ReportedCorrections> {
    let ObservedCache { usage, block_tokens, .. } = *observed;
    let found = usage.cached_tokens.filter(|_| observed.is_same_cache)?;
    let CachePrediction { proven, sampled, .. } = reported;
    let (is_kept, sampled_only) = (proven <= found.saturating_add(block_tokens), sampled - proven);
    // A request waits in the engine, and what was evicted meanwhile was announced.
    let is_explained = proven <= found.saturating_add(block_tokens).saturating_add(observed.evicted_tokens);
    let trust = match is_kept {
        _ if proven == 0 => None,
        true => Some(Prediction::Confirmed),
        false => (!is_explained).then_some(Prediction::Refuted),
    };
    let cut = if !is_kept && predicted.view == CacheView::Uncertain && observed.is_latest {
        ReportedCut::All { keep_tokens: found }
    } else if sampled_only > 0 && found < sampled {
        ReportedCut::Sampled { keep_tokens: found.max(proven) }
    } else {
        ReportedCut::Nothing
    };
    let claims = ReportedCorrections {
        // A request sent a moment ago may not have its event yet, which is no mismatch.
        is_counted: sampled > 0 || predicted.presumed_bytes == 0,
        trust,
        sampled: (is_kept && sampled_only > 0)
            .then_some(SampledFound { found: found.saturating_sub(proven), sampled: sampled_only }),
        last_block: last_block(predicted, reported, observed),
        ..ReportedCorrections::default()
    };
    let Some(reported_tokens) = observed.reported_tokens else { return Some(claims) };
    Some(ReportedCorrections {
        // This request's own blocks are reported, so all earlier events have arrived. One recomputed block is within
        // the margin.
        earlier_events_arrived: reported_tokens >= found.saturating_add(2 * block_tokens),
        own_events_arrived: is_reported(reported_tokens, usage.prompt_tokens, block_tokens),
        cut,
        is_proof: true,
        ..claims
    })
}

/// What the engine did with the last cached block, where the cached tokens are certain and nothing was evicted.
fn last_block(
    predicted: &PredictedCache,
    reported: CachePrediction,
    observed: &ObservedCache<'_>,
) -> Option<LastBlock> {
    let CachePrediction { proven, sampled, recomputed, .. } = reported;
    let is_certain = predicted.view == CacheView::Reported && proven > 0 && proven == sampled;
    let (found, held) = (observed.usage.cached_tokens?, proven + recomputed);
    match is_certain && observed.evicted_tokens == 0 {
        true if found == held => Some(LastBlock::Used),
        true if found.saturating_add(observed.block_tokens) == held => Some(LastBlock::Recomputed),
        _ => None,
    }
}

/// Whether events report all blocks of a prompt.
pub(crate) fn is_reported(reported_tokens: u32, prompt_tokens: u32, block_tokens: u32) -> bool {
    reported_tokens.saturating_add(block_tokens) > prompt_tokens
}

/// With a complete feed, presumptions only bridge the time until the event.
fn assess_complete(
    predicted: &PredictedCache,
    reported: CachePrediction,
    observed: &ObservedCache<'_>,
) -> Corrections {
    // Engines count restored tokens as cached, but may also recompute them.
    let expected = predicted.cached_tokens.map(|tokens| Expected {
        tokens,
        counted_otherwise: tokens.max(reported.expected + reported.restorable),
    });
    let feedback = Feedback::of(observed.usage, expected, observed.block_tokens);
    let presumed = match observed.prompt.filter(|_| feedback.stale > 0) {
        Some(prompt) => PresumedCorrection::Cut { kept_chunks: found_chunks(prompt, observed.usage) },
        None => PresumedCorrection::Nothing,
    };
    Corrections { feedback, presumed, ..Corrections::default() }
}

/// Without a complete feed, and for prompts that are not rendered, presumptions last and answers correct them.
fn assess_presumed(
    predicted: &PredictedCache,
    prompt: PromptChunks<'_>,
    observed: &ObservedCache<'_>,
) -> Corrections {
    let usage = observed.usage;
    let (expected, margin) = expected_in(predicted, prompt, observed);
    let feedback = Feedback::of(usage, Some(expected), margin);
    let failures = match feedback.cached {
        // Events report a restart themselves.
        _ if predicted.view == CacheView::Reported => Failures::Unchanged,
        Some(0) if feedback.stale > 0 => Failures::OneMore,
        Some(found) if found > 0 => Failures::Reset,
        _ => Failures::Unchanged,
    };
    if failures == Failures::OneMore && observed.failures.saturating_add(1) >= LOST_IN_A_ROW {
        let (presumed, failures) = (PresumedCorrection::Clear, Failures::Reset);
        return Corrections { feedback, presumed, failures, ..Corrections::default() };
    }
    let presumed = match feedback.stale > 0 {
        true => PresumedCorrection::Replace { kept_chunks: found_chunks(prompt, usage) },
        false => PresumedCorrection::Nothing,
    };
    let shortfall_found = feedback.cached.filter(|_| predicted.reported.is_none());
    Corrections { feedback, reported: None, presumed, failures, shortfall_found }
}

/// The prediction in the prompt's own tokens per byte, which are known now, and the margin of the comparison.
fn expected_in(
    predicted: &PredictedCache,
    prompt: PromptChunks<'_>,
    observed: &ObservedCache<'_>,
) -> (Expected, u32) {
    let scale = f64::from(observed.usage.prompt_tokens) / f64::from(prompt.bytes.max(1));
    let tokens = |bytes: u32| (f64::from(bytes) * scale) as u32;
    let usable = observed.usage.prompt_tokens.saturating_sub(1);
    let presumed = tokens(predicted.presumed_bytes).min(usable);
    let reported = predicted.reported.map_or(0, |reported| reported.expected);
    let expected = Expected {
        tokens: presumed.max(reported),
        counted_otherwise: predicted.cached_tokens.unwrap_or(0).min(usable),
    };
    let chunk_bytes = prompt.chunk_bytes_at(predicted.presumed_bytes);
    let margin = [observed.block_tokens, expected.tokens / DENSITY_MARGIN]
        .into_iter()
        .fold(tokens(chunk_bytes), u32::saturating_add);
    (expected, margin)
}

/// Number of chunks that the engine found, a partial one included.
fn found_chunks(prompt: PromptChunks<'_>, usage: Usage) -> u32 {
    let found = f64::from(usage.cached_tokens.unwrap_or(0));
    let scale = f64::from(usage.prompt_tokens) / f64::from(prompt.bytes.max(1));
    prompt.chunks_in((found / scale) as u32)
}

#[cfg(test)]
mod tests {
    use warmroute_index::{Namespace, RootKey, Source};

    use super::*;

    const CHUNK: u32 = 256;

    fn prompt(bytes: u32) -> PromptChunks<'static> {
        let source = Source::Presumed;
        let root = RootKey::of(&Namespace { model: "m", lora: None, salt: None, cut: CHUNK, source });
        PromptChunks { root, digests: &[], chunk_bytes: CHUNK, bytes }
    }

    /// An answer to a prompt of 1,000 tokens and 4,000 bytes, of which the engine found this many.
    fn found(cached_tokens: Option<u32>) -> ObservedCache<'static> {
        ObservedCache {
            usage: Usage { prompt_tokens: 1_000, output_tokens: 1, cached_tokens },
            block_tokens: 16,
            prompt: Some(prompt(4_000)),
            is_same_cache: true,
            reported_tokens: Some(0),
            evicted_tokens: 0,
            is_latest: true,
            failures: 0,
        }
    }

    fn presumed(tokens: u32) -> PredictedCache {
        let presumed_bytes = tokens * 4;
        PredictedCache { cached_tokens: Some(tokens), presumed_bytes, ..PredictedCache::default() }
    }

    fn reported(view: CacheView, proven: u32, sampled: u32) -> PredictedCache {
        let reported =
            Some(CachePrediction { proven, sampled, expected: sampled, ..CachePrediction::default() });
        PredictedCache { view, cached_tokens: Some(sampled), presumed_bytes: 0, reported }
    }

    #[test]
    fn presumed_chunks_are_kept_cut_or_given_up() {
        use PresumedCorrection::{Clear, Nothing, Replace};
        let replace = |kept_chunks| Replace { kept_chunks };
        // Tokens presumed and found, failures before; what follows for the chunks and the failures.
        for (expected, cached, failures, chunks, count) in [
            (640, Some(640), 0, Nothing, Failures::Reset),
            (640, Some(500), 0, Nothing, Failures::Reset),
            (640, Some(256), 0, replace(4), Failures::Reset),
            (640, Some(0), 0, replace(0), Failures::OneMore),
            (640, Some(0), 1, replace(0), Failures::OneMore),
            (640, Some(0), 2, Clear, Failures::Reset),
            (0, Some(0), 2, Nothing, Failures::Unchanged),
            (640, None, 2, Nothing, Failures::Unchanged),
        ] {
            let observed = ObservedCache { failures, ..found(cached) };
            let corrections = assess(&presumed(expected), &observed);
            assert_eq!(
                (corrections.presumed, corrections.failures),
                (chunks, count),
                "{expected} {cached:?}"
            );
            assert_eq!(corrections.reported, None, "no events");
        }
    }

    #[test]
    fn the_shortfall_is_learned_without_events_only() {
        let learned = |predicted: &PredictedCache| assess(predicted, &found(Some(640))).shortfall_found;
        assert_eq!(learned(&presumed(600)), Some(640));
        assert_eq!(learned(&reported(CacheView::Uncertain, 600, 600)), None);
        assert_eq!(learned(&reported(CacheView::Reported, 600, 600)), None);
        let unrendered = PredictedCache { view: CacheView::Reported, ..presumed(600) };
        assert_eq!(learned(&unrendered), Some(640), "nothing of it is in the events");
    }

    #[test]
    fn a_prompt_that_is_not_rendered_is_presumed_beside_events_and_says_nothing_about_them() {
        use PresumedCorrection::{Nothing, Replace};
        let replace = |kept_chunks| Replace { kept_chunks };
        // Tokens presumed and found, failures before; what follows for the chunks.
        for (expected, cached, failures, chunks) in [
            (640, Some(640), 0, Nothing),
            (640, Some(900), 0, Nothing),
            (640, Some(256), 0, replace(4)),
            (640, Some(0), 2, replace(0)),
            (0, Some(640), 2, Nothing),
            (640, None, 2, Nothing),
        ] {
            for view in [CacheView::Reported, CacheView::Uncertain] {
                let predicted = PredictedCache { view, ..presumed(expected) };
                let reported_tokens = None;
                let observed = ObservedCache { failures: failures.min(1), reported_tokens, ..found(cached) };
                let corrections = assess(&predicted, &observed);
                let told = (corrections.presumed, corrections.reported);
                assert_eq!(told, (chunks, None), "{view:?} {expected} {cached:?}");
            }
            let predicted = PredictedCache { view: CacheView::Reported, ..presumed(expected) };
            let corrections = assess(&predicted, &ObservedCache { failures, ..found(cached) });
            let told = (corrections.presumed, corrections.failures);
            assert_eq!(told, (chunks, Failures::Unchanged), "events report a restart themselves");
        }
    }

    #[test]
    fn claims_of_events_are_confirmed_or_refuted_by_what_was_found() {
        use ReportedCut::{All, Nothing, Sampled};
        let (confirmed, refuted) = (Some(Prediction::Confirmed), Some(Prediction::Refuted));
        let (sure, unsure) = (CacheView::Reported, CacheView::Uncertain);
        let some = |found, sampled| Some(SampledFound { found, sampled });
        // View, tokens proven, sampled and found; what follows for trust, sampled tokens and blocks.
        for (view, proven, sampled, cached, trust, share, cut) in [
            (sure, 640, 640, 640, confirmed, None, Nothing),
            (sure, 640, 640, 624, confirmed, None, Nothing),
            (sure, 640, 640, 320, refuted, None, Nothing),
            (unsure, 640, 640, 320, refuted, None, All { keep_tokens: 320 }),
            (sure, 640, 960, 960, confirmed, some(320, 320), Nothing),
            (sure, 640, 960, 800, confirmed, some(160, 320), Sampled { keep_tokens: 800 }),
            (sure, 640, 960, 320, refuted, None, Sampled { keep_tokens: 640 }),
            (unsure, 640, 960, 320, refuted, None, All { keep_tokens: 320 }),
            (sure, 0, 320, 0, None, some(0, 320), Sampled { keep_tokens: 0 }),
            (sure, 0, 0, 320, None, None, Nothing),
        ] {
            let corrections = assess(&reported(view, proven, sampled), &found(Some(cached)));
            let told = corrections.reported.unwrap();
            let row = (view, proven, sampled, cached);
            assert_eq!((told.trust, told.sampled, told.cut), (trust, share, cut), "{row:?}");
            assert!(told.is_counted && told.is_proof);
        }
    }

    #[test]
    fn one_block_less_than_certain_was_computed_again() {
        use LastBlock::{Recomputed, Used};
        let (sure, unsure) = (CacheView::Reported, CacheView::Uncertain);
        // View, tokens proven, sampled, left out of both, and found.
        for (view, proven, sampled, recomputed, cached, expected) in [
            (sure, 640, 640, 0, 640, Some(Used)),
            (sure, 640, 640, 0, 624, Some(Recomputed)),
            (sure, 624, 624, 16, 624, Some(Recomputed)),
            (sure, 624, 624, 16, 640, Some(Used)),
            (sure, 640, 640, 0, 608, None),
            (sure, 640, 640, 0, 656, None),
            (sure, 640, 656, 0, 640, None),
            (unsure, 640, 640, 0, 624, None),
            (sure, 0, 0, 16, 0, None),
            (sure, 640, 640, 0, u32::MAX, None),
        ] {
            let mut predicted = reported(view, proven, sampled);
            predicted.reported.as_mut().unwrap().recomputed = recomputed;
            let told = assess(&predicted, &found(Some(cached))).reported.unwrap();
            assert_eq!(told.last_block, expected, "{view:?} {proven} {sampled} {recomputed} {cached}");
        }
        let evicted = ObservedCache { evicted_tokens: 16, ..found(Some(624)) };
        assert_eq!(assess(&reported(sure, 640, 640), &evicted).reported.unwrap().last_block, None);
    }

    #[test]
    fn answers_of_another_cache_or_without_a_count_say_nothing_about_events() {
        let predicted = reported(CacheView::Reported, 640, 640);
        assert_eq!(assess(&predicted, &found(None)).reported, None);
        let restarted = ObservedCache { is_same_cache: false, ..found(Some(0)) };
        assert_eq!(assess(&predicted, &restarted).reported, None);
        let unreadable = ObservedCache { reported_tokens: None, ..found(Some(0)) };
        let told = assess(&predicted, &unreadable).reported.unwrap();
        assert_eq!(
            (told.trust, told.cut, told.is_proof),
            (Some(Prediction::Refuted), ReportedCut::Nothing, false)
        );
    }

    #[test]
    fn later_requests_on_the_worker_keep_an_uncertain_view_from_being_cut() {
        let late = ObservedCache { is_latest: false, ..found(Some(320)) };
        let told = assess(&reported(CacheView::Uncertain, 640, 640), &late).reported.unwrap();
        assert_eq!((told.trust, told.cut), (Some(Prediction::Refuted), ReportedCut::Nothing));
    }

    #[test]
    fn what_was_evicted_while_the_request_waited_refutes_nothing() {
        let trust = |evicted_tokens| {
            let observed = ObservedCache { evicted_tokens, ..found(Some(100)) };
            assess(&reported(CacheView::Reported, 640, 640), &observed).reported.unwrap().trust
        };
        assert_eq!(trust(0), Some(Prediction::Refuted));
        assert_eq!(trust(500), Some(Prediction::Refuted), "less than is missing");
        assert_eq!(trust(540), None);
    }

    #[test]
    fn events_have_arrived_when_they_report_the_prompt() {
        // Tokens reported by now, of a prompt of 1,000 tokens of which 320 were found.
        for (reported_tokens, earlier, own) in [
            (320, false, false),
            (351, false, false),
            (352, true, false),
            (984, true, false),
            (992, true, true),
        ] {
            let observed = ObservedCache { reported_tokens: Some(reported_tokens), ..found(Some(320)) };
            let told = assess(&reported(CacheView::Reported, 320, 320), &observed).reported.unwrap();
            let arrived = (told.earlier_events_arrived, told.own_events_arrived);
            assert_eq!(arrived, (earlier, own), "{reported_tokens}");
        }
    }

    #[test]
    fn a_complete_feed_bridges_by_presumptions_and_cuts_those_that_failed() {
        let predicted = PredictedCache { cached_tokens: Some(640), ..reported(CacheView::Reported, 0, 0) };
        let corrections = assess(&predicted, &found(Some(256)));
        assert_eq!(corrections.presumed, PresumedCorrection::Cut { kept_chunks: 4 });
        assert_eq!((corrections.feedback.stale, corrections.failures), (384, Failures::Unchanged));
        let media = ObservedCache { prompt: None, ..found(Some(256)) };
        assert_eq!(assess(&predicted, &media).presumed, PresumedCorrection::Nothing);
        assert_eq!(assess(&presumed(640), &media).feedback.predicted, None, "bytes do not tell its length");
    }
}
