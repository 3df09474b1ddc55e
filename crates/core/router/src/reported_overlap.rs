//! The overlap that a worker's engine reports for a prompt, and the cache prediction derived from it.

use warmroute_index::{Overlap, Reach};
use warmroute_types::CacheView;

use crate::reported_view::ReportedView;

/// Reported overlaps of one worker for one prompt, one per [`ReportedView`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportedOverlap {
    pub proven: Reach,
    pub sampled: Reach,
    pub all_tiers: Reach,
    /// Index of the prompt text that matched.
    pub text: u8,
    /// For a model with several caches, how far its full attention alone reaches; zero for other models.
    pub chain: Reach,
}

/// Prediction of cached tokens for one prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CachePrediction {
    /// Tokens in the cache for certain.
    pub proven: u32,
    /// Tokens in the cache if the text of earlier answers tokenizes to the sampled tokens.
    pub sampled: u32,
    /// Expected tokens: between the two, discounted for an uncertain view, in whole blocks.
    pub expected: u32,
    /// Further tokens in slower memory.
    pub restorable: u32,
    /// Cached tokens that the engine computes again, which are left out of the others.
    pub recomputed: u32,
}

/// What turns a reported overlap into expected tokens: the trust in the view, and the engine's rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PredictionWeights {
    pub view: CacheView,
    pub trust: f32,
    /// Share of sampled tokens that later prompts find, 0 to 1.
    pub sampled_weight: f32,
    pub block_tokens: u32,
    /// Length of the prompt in bytes.
    pub prompt_bytes: u32,
    /// Whether the engine computes the last cached block of every prompt again.
    pub recomputes_last_block: bool,
}

impl ReportedOverlap {
    pub fn add(&mut self, reach: Reach, reported_view: ReportedView) {
        match reported_view {
            ReportedView::Proven => self.proven = reach,
            ReportedView::Sampled => self.sampled = reach,
            ReportedView::AllTiers => self.all_tiers = reach,
        }
    }

    /// Adds what all caches of the model can serve of an overlap. Slower memories of such models are not followed.
    pub fn add_common(&mut self, usable: Reach, overlap: &Overlap, reported_view: ReportedView) {
        match reported_view {
            ReportedView::Proven => self.proven = usable,
            ReportedView::Sampled => (self.sampled, self.chain) = (usable, overlap.reach),
            ReportedView::AllTiers => {}
        }
    }

    /// Whether the engine has reported any tokens. Without them every prediction is zero.
    pub fn has_tokens(&self) -> bool {
        self.proven.tokens | self.sampled.tokens | self.all_tiers.tokens | self.chain.tokens > 0
    }

    /// Presumed tokens that count until the events of their requests arrive. Where a model has several caches and the
    /// full attention's blocks are reported already, the events are there, and they know better. Presumed tokens are
    /// estimated, hence the margin.
    pub fn awaited(&self, presumed_tokens: u32, block_tokens: u32) -> u32 {
        let reported =
            self.chain.tokens.saturating_add(self.chain.tokens / 8).saturating_add(2 * block_tokens);
        if self.chain.tokens > 0 && presumed_tokens <= reported { 0 } else { presumed_tokens }
    }

    /// The overlap as it would be known without one of the views.
    pub fn without(self, view: Option<ReportedView>) -> ReportedOverlap {
        match view {
            None => self,
            Some(ReportedView::Proven) => ReportedOverlap { proven: self.sampled, ..self },
            Some(ReportedView::Sampled) => ReportedOverlap { sampled: self.proven, ..self },
            Some(ReportedView::AllTiers) => ReportedOverlap { all_tiers: self.sampled, ..self },
        }
    }

    /// The prediction for the worker.
    pub fn predict(&self, by: PredictionWeights) -> CachePrediction {
        let usable = |reach: Reach| usable_tokens(reach, by);
        let proven = usable(self.proven);
        let sampled = usable(self.sampled).max(proven);
        let trust = if by.view == CacheView::Uncertain { by.trust } else { 1.0 };
        let weighed = proven as f32 + (sampled - proven) as f32 * by.sampled_weight;
        let beyond = usable(self.all_tiers).saturating_sub(sampled);
        let expected = round_to_blocks(weighed * trust, by);
        let restorable = round_to_blocks((weighed + beyond as f32) * trust, by) - expected;
        CachePrediction { proven, sampled, expected, restorable, recomputed: by.recomputed_tokens() }
    }
}

impl PredictionWeights {
    fn recomputed_tokens(self) -> u32 {
        if self.recomputes_last_block { self.block_tokens } else { 0 }
    }
}

/// Tokens in whole blocks: caches hold nothing smaller.
pub(crate) fn whole_blocks(tokens: u32, block_tokens: u32) -> u32 {
    tokens - tokens % block_tokens.max(1)
}

/// Adds a thousandth of a block before rounding down, so that rounding errors do not cost a whole block.
fn round_to_blocks(tokens: f32, by: PredictionWeights) -> u32 {
    whole_blocks((tokens + by.block_tokens as f32 * 0.001) as u32, by.block_tokens)
}

/// Tokens usable from the cache. Engines always compute the last token for its logits, so a prompt that ends
/// with a block loses that block.
fn usable_tokens(reach: Reach, by: PredictionWeights) -> u32 {
    let last_token = if reach.bytes >= by.prompt_bytes { by.block_tokens } else { 0 };
    reach.tokens.saturating_sub(last_token + by.recomputed_tokens())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(tokens: u32) -> Reach {
        Reach { spans: tokens / 16, bytes: tokens * 4, tokens }
    }

    fn weights(view: CacheView, trust: f32) -> PredictionWeights {
        let (sampled_weight, recomputes_last_block) = (0.5, false);
        PredictionWeights {
            view,
            trust,
            sampled_weight,
            block_tokens: 16,
            prompt_bytes: 1_000,
            recomputes_last_block,
        }
    }

    #[test]
    fn a_prediction_is_whole_blocks_and_smaller_for_uncertain_views() {
        let held = ReportedOverlap {
            proven: reach(96),
            sampled: reach(192),
            all_tiers: reach(240),
            ..ReportedOverlap::default()
        };
        let sure = held.predict(weights(CacheView::Reported, 0.3));
        assert_eq!(
            sure,
            CachePrediction { proven: 96, sampled: 192, expected: 144, restorable: 48, recomputed: 0 }
        );
        let unsure = held.predict(weights(CacheView::Uncertain, 0.5));
        assert_eq!(unsure.expected, 64, "72 tokens are four whole blocks");
        assert_eq!(unsure.restorable, 32, "doubted GPU tokens are not expected from slower memory");
        let proven = ReportedOverlap { proven: reach(96), ..ReportedOverlap::default() };
        assert_eq!(proven.predict(weights(CacheView::Reported, 1.0)).expected, 96);
    }

    #[test]
    fn the_block_with_the_last_token_is_not_predicted() {
        let whole = ReportedOverlap {
            proven: Reach { spans: 4, bytes: 1_000, tokens: 64 },
            ..ReportedOverlap::default()
        };
        assert_eq!(whole.predict(weights(CacheView::Reported, 1.0)).expected, 48);
    }

    #[test]
    fn a_block_that_the_engine_computes_again_is_not_predicted() {
        let weights = PredictionWeights { recomputes_last_block: true, ..weights(CacheView::Reported, 1.0) };
        let predicted = |tokens, bytes| {
            let proven = Reach { spans: tokens / 16, bytes, tokens };
            let held = ReportedOverlap { proven, ..ReportedOverlap::default() };
            held.predict(weights).expected
        };
        assert_eq!(predicted(96, 384), 80);
        assert_eq!(predicted(96, 1_000), 64, "the last token's block, and the one before it");
        assert_eq!(predicted(16, 64), 0);
        assert_eq!(predicted(0, 0), 0);
    }
}
