//! How much of a prompt a worker's engine reports to hold, and what that promises.

use warmroute_index::{Overlap, Reach};
use warmroute_types::CacheView;

use crate::plane::Plane;

/// Reported reaches of one worker for one prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub certain: Reach,
    pub hoped: Reach,
    pub tiers: Reach,
    /// In which of the prompt's writings.
    pub text: u8,
}

/// What a view promises of one prompt. Tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Promise {
    /// Certainly in the cache.
    pub certain: u32,
    /// In the cache, if answers tokenize to what was sampled.
    pub hoped: u32,
    /// What is expected: between the two, discounted where the view is uncertain, in whole blocks.
    pub expected: u32,
    /// Beyond that, in slower memory.
    pub restorable: u32,
}

/// By what a promise is weighed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    pub view: CacheView,
    pub trust: f32,
    /// How often what was stored while decoding is found again, 0 to 1.
    pub unproven: f32,
    pub block_tokens: u32,
    /// Bytes of the prompt.
    pub prompt_bytes: u32,
}

impl Held {
    pub fn add(&mut self, overlap: &Overlap, plane: Plane) {
        match plane {
            Plane::Certain => self.certain = overlap.reach,
            Plane::Hoped => self.hoped = overlap.reach,
            Plane::Tiers => self.tiers = overlap.reach,
        }
    }

    /// What may be expected of the worker.
    pub fn promise(&self, by: Weights) -> Promise {
        let usable = |reach: Reach| usable_tokens(reach, by);
        let certain = usable(self.certain);
        let hoped = usable(self.hoped).max(certain);
        let trust = if by.view == CacheView::Uncertain { by.trust } else { 1.0 };
        let weighed = certain as f32 + (hoped - certain) as f32 * by.unproven;
        let beyond = usable(self.tiers).saturating_sub(hoped);
        let expected = whole_blocks(weighed * trust, by);
        let restorable = whole_blocks((weighed + beyond as f32) * trust, by) - expected;
        Promise { certain, hoped, expected, restorable }
    }
}

/// With a thousandth of a block, so that a product that should be whole is not one block less.
fn whole_blocks(tokens: f32, by: Weights) -> u32 {
    (tokens / by.block_tokens as f32 + 0.001) as u32 * by.block_tokens
}

/// The last token is computed anew, because its logits are wanted: a prompt that ends with a block is not all found.
fn usable_tokens(reach: Reach, by: Weights) -> u32 {
    if reach.bytes >= by.prompt_bytes { reach.tokens.saturating_sub(by.block_tokens) } else { reach.tokens }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(tokens: u32) -> Reach {
        Reach { spans: tokens / 16, bytes: tokens * 4, tokens }
    }

    fn weights(view: CacheView, trust: f32) -> Weights {
        Weights { view, trust, unproven: 0.5, block_tokens: 16, prompt_bytes: 1_000 }
    }

    #[test]
    fn a_promise_is_whole_blocks_and_less_where_less_is_known() {
        let held = Held { certain: reach(96), hoped: reach(192), tiers: reach(240), text: 0 };
        let sure = held.promise(weights(CacheView::Reported, 0.3));
        assert_eq!(sure, Promise { certain: 96, hoped: 192, expected: 144, restorable: 48 });
        let unsure = held.promise(weights(CacheView::Uncertain, 0.5));
        assert_eq!(unsure.expected, 64, "72 tokens are four whole blocks");
        assert_eq!(unsure.restorable, 32, "what is doubted on the GPU is not hoped for from elsewhere");
        let proven = Held { certain: reach(96), ..Held::default() };
        assert_eq!(proven.promise(weights(CacheView::Reported, 1.0)).expected, 96);
    }

    #[test]
    fn the_block_with_the_last_token_is_computed_anew() {
        let whole = Held { certain: Reach { spans: 4, bytes: 1_000, tokens: 64 }, ..Held::default() };
        assert_eq!(whole.promise(weights(CacheView::Reported, 1.0)).expected, 48);
    }
}
