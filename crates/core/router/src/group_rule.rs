//! Where a model with several caches can continue a prefix.
//!
//! Such a model keeps blocks in groups, and needs something else of each to continue after a boundary: all blocks
//! before it (full attention), the blocks of the last window (sliding window), or the block that ends there (a recurrent
//! state). An engine reuses the longest prefix that every group can serve, as vLLM's coordinator of hybrid caches does.

use warmroute_feed::GROUPS_MAX;
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

    /// Whether a block of these groups ends at the boundary.
    fn ends_block(&self, boundary: &Boundary) -> bool {
        boundary.reach.tokens.is_multiple_of(self.block_tokens.max(1))
    }

    /// Whether the start of a prompt may be continued with fewer blocks than needed, because there are no more.
    fn counts_from_start(&self) -> bool {
        matches!(self.attention, Attention::Full | Attention::Window { .. })
    }
}

/// How far a rule has looked at the blocks before a boundary. As the boundary moves left, so does the look, and no block
/// is looked at twice.
#[derive(Clone, Copy)]
struct WindowScan {
    /// The next boundary to look at.
    next: TrailPlace,
    /// Held blocks between the boundary and `next`.
    held_blocks: u32,
}

impl WindowScan {
    /// Whether the groups of a rule can continue after the boundary.
    fn accepts(&mut self, rule: &GroupRule, trail: &Trail, held: &impl Fn(&Boundary) -> u32) -> bool {
        let needed = rule.blocks_needed();
        while self.held_blocks < needed {
            let Some(boundary) = trail.at(self.next) else {
                return self.held_blocks > 0 && rule.counts_from_start();
            };
            if rule.ends_block(boundary) {
                if held(boundary) & rule.groups != rule.groups {
                    return false;
                }
                self.held_blocks += 1;
            }
            self.next = boundary.before;
        }
        true
    }

    /// Moves from a boundary to the one before it.
    fn move_left(&mut self, rule: &GroupRule, from: TrailPlace, boundary: &Boundary) {
        if self.next == from {
            self.next = boundary.before;
        } else if rule.ends_block(boundary) {
            self.held_blocks -= 1;
        }
    }
}

/// The last boundary, at `from` or before it, after which all groups can continue. `held` tells the groups that hold
/// the block before a boundary. `alignment` is a multiple of all block sizes. Costs at most two looks at each boundary
/// for each rule, whatever the windows.
pub(crate) fn longest_common(
    rules: &[GroupRule],
    alignment: u32,
    trail: &Trail,
    from: TrailPlace,
    held: impl Fn(&Boundary) -> u32,
) -> TrailPlace {
    let mut scans = [WindowScan { next: from, held_blocks: 0 }; GROUPS_MAX];
    let mut place = from;
    while let Some(boundary) = trail.at(place) {
        // Only some boundaries end a block of every group.
        let is_aligned = boundary.reach.tokens.is_multiple_of(alignment);
        if is_aligned && rules.iter().zip(&mut scans).all(|(rule, scan)| scan.accepts(rule, trail, &held)) {
            break;
        }
        for (rule, scan) in rules.iter().zip(&mut scans) {
            scan.move_left(rule, place, boundary);
        }
        place = boundary.before;
    }
    place
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
