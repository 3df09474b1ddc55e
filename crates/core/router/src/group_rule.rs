//! Where a model with several caches can continue a prefix.
//!
//! Such a model keeps blocks in groups, and needs something else of each to continue after a boundary: all blocks
//! before it (full attention), the blocks of the last window (sliding window), or the block that ends there (a recurrent
//! state). An engine reuses the longest prefix that every group can serve, as vLLM's coordinator of hybrid caches does:
//! each group in turn accepts the present length or shortens it, until all accept it.

use warmroute_index::{Boundary, Trail, TrailPlace};
use warmroute_types::Attention;

/// What the groups with the same kind and block size need. They are looked up together: a block counts as held when
/// all of them hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupRule {
    pub attention: Attention,
    pub block_tokens: u32,
    /// The groups, one bit each.
    pub groups: u32,
}

impl GroupRule {
    /// Blocks before a boundary that must be held, unless the prompt has fewer there.
    fn blocks_needed(&self) -> u32 {
        match self.attention {
            Attention::Full => u32::MAX,
            // A token sees itself and the tokens before it.
            Attention::Window { tokens } => {
                tokens.saturating_sub(1).div_ceil(self.block_tokens.max(1)).max(1)
            }
            Attention::State | Attention::Unplaced | Attention::Unfollowed(_) => 1,
        }
    }

    /// Whether the start of a prompt may be continued with fewer blocks than needed, because there are no more.
    fn counts_from_start(&self) -> bool {
        matches!(self.attention, Attention::Full | Attention::Window { .. })
    }

    /// The last boundary, at `from` or before it, after which these groups can continue. Blocks are checked from right
    /// to left, so that a prefix that is held as a whole costs one window.
    fn longest(
        &self,
        trail: &Trail,
        from: TrailPlace,
        alignment: u32,
        held: &impl Fn(&Boundary) -> u32,
    ) -> TrailPlace {
        let needed = self.blocks_needed();
        let (mut end, mut run, mut place) = (TrailPlace::default(), 0, from);
        while let Some(boundary) = trail.at(place) {
            let tokens = boundary.reach.tokens;
            // Only some boundaries end a block of these groups.
            if tokens.is_multiple_of(self.block_tokens.max(1)) {
                let is_held = held(boundary) & self.groups == self.groups;
                if !is_held {
                    run = 0;
                } else if run > 0 {
                    run += 1;
                } else if tokens.is_multiple_of(alignment) {
                    (end, run) = (place, 1);
                }
                if run >= needed {
                    return end;
                }
            }
            place = boundary.before;
        }
        if run > 0 && self.counts_from_start() { end } else { TrailPlace::default() }
    }
}

/// The last boundary, at `from` or before it, after which all groups can continue. `held` tells the groups that hold
/// the block before a boundary. `alignment` is a multiple of all block sizes.
pub(crate) fn longest_common(
    rules: &[GroupRule],
    alignment: u32,
    trail: &Trail,
    from: TrailPlace,
    held: impl Fn(&Boundary) -> u32,
) -> TrailPlace {
    let mut end = from;
    loop {
        let before = end;
        for rule in rules {
            end = rule.longest(trail, end, alignment, &held);
        }
        if end == before {
            return end;
        }
    }
}

/// The least common multiple of block sizes, at which all groups have a boundary.
pub(crate) fn alignment_of(block_tokens: impl Iterator<Item = u32>) -> u32 {
    fn divisor(a: u32, b: u32) -> u32 {
        if b == 0 { a } else { divisor(b, a % b) }
    }
    block_tokens
        .map(|tokens| tokens.max(1))
        .fold(1, |lcm, tokens| (lcm / divisor(lcm, tokens)).saturating_mul(tokens))
}
