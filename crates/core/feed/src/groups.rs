//! The caches of a model that mixes kinds of attention, as far as a stream shows them.
//!
//! Such a model reports blocks once for each of its groups, under one name. An engine continues a prefix where all
//! groups can, so every group is followed. What cannot be followed is an obstacle: a group whose rule is not known, a
//! model without full attention (nothing then shows where a prefix begins), or blocks that end between those of the
//! full attention. With an obstacle the events do not show what the engine reuses, and the cache stays presumed.

use std::collections::BTreeMap;
use std::fmt;

use warmroute_types::{Attention, CacheEvent, StoredBlocks, UnfollowedKind};

/// Most groups that are followed. Models have fewer than sixteen.
pub const GROUPS_MAX: usize = 32;

/// Why the events of a model with several caches do not show what the engine can reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupObstacle {
    /// A group's rule for reuse is not known.
    Unfollowed {
        /// The engine's number of the group.
        group: u16,
        /// The kind of attention that the engine states.
        kind: UnfollowedKind,
    },
    /// No group has full attention.
    NoFullAttention,
    /// A group's blocks end between those of the full attention.
    BlockSizes {
        /// The engine's number of the group.
        group: u16,
        /// Tokens in its blocks.
        tokens: u32,
        /// Tokens in the full attention's blocks.
        full_tokens: u32,
    },
    /// More than [`GROUPS_MAX`] groups.
    TooMany,
}

impl fmt::Display for GroupObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupObstacle::Unfollowed { group, kind } => {
                write!(f, "the kind of its KV cache group {group} is {}", kind.as_str())
            }
            GroupObstacle::NoFullAttention => f.write_str(
                "none of its KV cache groups has full attention, so its events do not show whole prefixes",
            ),
            GroupObstacle::BlockSizes { group, tokens, full_tokens } => write!(
                f,
                "blocks of its KV cache group {group} have {tokens} tokens, which is no multiple of the full attention's {full_tokens}"
            ),
            GroupObstacle::TooMany => write!(f, "it has more than {GROUPS_MAX} KV cache groups"),
        }
    }
}

/// What is known about one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupShape {
    attention: Attention,
    /// Size of its largest block, because the last one of a prompt may be reported before it is full.
    block_tokens: u32,
}

/// The groups that a stream has shown.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    shapes: BTreeMap<u16, GroupShape>,
    is_too_many: bool,
}

impl Groups {
    /// Removes events that show nothing: those of groups that are not followed, and blocks without a position. Returns
    /// how many blocks those had.
    pub fn filter(&mut self, events: &mut Vec<CacheEvent>) -> u64 {
        let mut skipped = 0;
        events.retain(|event| {
            let (counts, blocks) = self.assess(event);
            skipped += if counts { 0 } else { blocks as u64 };
            counts
        });
        skipped
    }

    /// What keeps the events from showing which prefixes the engine can reuse.
    pub fn obstacle(&self) -> Option<GroupObstacle> {
        if self.is_too_many {
            return Some(GroupObstacle::TooMany);
        }
        for (&group, shape) in &self.shapes {
            if let Attention::Unfollowed(kind) = shape.attention {
                return Some(GroupObstacle::Unfollowed { group, kind });
            }
        }
        let full = self.shapes.values().find(|shape| shape.attention == Attention::Full);
        let Some(full) = full else {
            return (!self.shapes.is_empty()).then_some(GroupObstacle::NoFullAttention);
        };
        let full_tokens = full.block_tokens.max(1);
        let is_between = |shape: &&GroupShape| !shape.block_tokens.is_multiple_of(full_tokens);
        let (&group, other) = self.shapes.iter().find(|(_, shape)| is_between(shape))?;
        Some(GroupObstacle::BlockSizes { group, tokens: other.block_tokens, full_tokens })
    }

    fn assess(&mut self, event: &CacheEvent) -> (bool, usize) {
        match event {
            CacheEvent::Stored(stored) => (self.assess_stored(stored), stored.names.len()),
            CacheEvent::Removed(removed) => {
                let shape = self.shapes.get(&removed.group);
                let is_followed = |shape: &GroupShape| !matches!(shape.attention, Attention::Unfollowed(_));
                (shape.map_or(removed.group == 0, is_followed), removed.names.len())
            }
            CacheEvent::Cleared => (true, 0),
        }
    }

    fn assess_stored(&mut self, stored: &StoredBlocks) -> bool {
        // Blocks reported by name may omit their group and its kind.
        if stored.is_by_name() {
            return true;
        }
        let (index, attention) = (stored.group.index, stored.group.attention);
        if attention == Attention::Unplaced {
            return false;
        }
        if self.shapes.len() >= GROUPS_MAX && !self.shapes.contains_key(&index) {
            self.is_too_many = true;
            return false;
        }
        let block_tokens = stored.block_tokens;
        let shape = self.shapes.entry(index).or_insert(GroupShape { attention, block_tokens });
        shape.attention = attention;
        shape.block_tokens = shape.block_tokens.max(block_tokens);
        !matches!(attention, Attention::Unfollowed(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::{Group, Medium, RemovedBlocks};

    const WINDOW: Attention = Attention::Window { tokens: 128 };

    fn stored(index: u16, attention: Attention) -> CacheEvent {
        let group = Group { index, attention };
        CacheEvent::Stored(StoredBlocks {
            names: vec![7],
            block_tokens: 16,
            group,
            ..StoredBlocks::default()
        })
    }

    fn removed(group: u16) -> CacheEvent {
        CacheEvent::Removed(RemovedBlocks { names: vec![7], group, ..RemovedBlocks::default() })
    }

    fn obstacle_of(events: &[CacheEvent]) -> Option<GroupObstacle> {
        let mut groups = Groups::default();
        groups.filter(&mut events.to_vec());
        groups.obstacle()
    }

    #[test]
    fn every_group_with_a_known_rule_counts() {
        let mut groups = Groups::default();
        let events = vec![
            stored(0, WINDOW),
            stored(1, Attention::Full),
            stored(2, Attention::State),
            removed(0),
            removed(2),
            CacheEvent::Cleared,
        ];
        let mut kept = events.clone();
        assert_eq!((groups.filter(&mut kept), groups.obstacle()), (0, None));
        assert_eq!(kept, events);
    }

    #[test]
    fn a_group_without_a_known_rule_is_an_obstacle_and_its_blocks_are_skipped() {
        use UnfollowedKind::{ChunkedLocal, Lookahead, Unknown, Unstated};
        for kind in [ChunkedLocal, Lookahead, Unstated, Unknown] {
            let mut groups = Groups::default();
            let mut events = vec![
                stored(0, Attention::Full),
                stored(1, Attention::Unfollowed(kind)),
                removed(0),
                removed(1),
            ];
            assert_eq!(groups.filter(&mut events), 2);
            assert_eq!(events, [stored(0, Attention::Full), removed(0)]);
            let obstacle = groups.obstacle().unwrap();
            assert_eq!(obstacle, GroupObstacle::Unfollowed { group: 1, kind });
            assert!(obstacle.to_string().starts_with("the kind of its KV cache group 1 is "), "{obstacle}");
        }
    }

    #[test]
    fn windows_and_states_need_a_full_attention_beside_them() {
        assert_eq!(obstacle_of(&[stored(0, WINDOW)]), Some(GroupObstacle::NoFullAttention));
        assert_eq!(obstacle_of(&[stored(0, WINDOW), stored(1, Attention::Full)]), None);
        assert_eq!(obstacle_of(&[]), None, "nothing is known yet");
    }

    #[test]
    fn blocks_must_end_where_the_full_attentions_do() {
        let sized = |index, attention, block_tokens| {
            let CacheEvent::Stored(stored) = stored(index, attention) else { unreachable!() };
            CacheEvent::Stored(StoredBlocks { block_tokens, ..stored })
        };
        let full = sized(0, Attention::Full, 16);
        assert_eq!(obstacle_of(&[full.clone(), sized(1, Attention::State, 64)]), None);
        let between = GroupObstacle::BlockSizes { group: 1, tokens: 8, full_tokens: 16 };
        assert_eq!(obstacle_of(&[full.clone(), sized(1, WINDOW, 8)]), Some(between));
        assert_eq!(
            obstacle_of(&[full.clone(), sized(0, Attention::Full, 3)]),
            None,
            "a block that is not full"
        );
    }

    #[test]
    fn blocks_without_a_position_are_skipped_and_say_nothing_about_their_group() {
        let mut groups = Groups::default();
        let mut events = vec![stored(0, Attention::Full), stored(0, Attention::Unplaced)];
        assert_eq!((groups.filter(&mut events), groups.obstacle()), (1, None));
    }

    #[test]
    fn names_alone_say_nothing_about_groups() {
        let CacheEvent::Stored(named) = stored(0, Attention::Full) else { unreachable!() };
        let named = CacheEvent::Stored(StoredBlocks { medium: Medium::Host, ..named });
        let mut groups = Groups::default();
        let mut events = vec![named, stored(1, WINDOW)];
        assert_eq!(groups.filter(&mut events), 0);
        assert_eq!(groups.obstacle(), Some(GroupObstacle::NoFullAttention));
    }

    #[test]
    fn removals_of_group_0_count_before_anything_was_stored() {
        let mut events = vec![removed(0)];
        assert_eq!(Groups::default().filter(&mut events), 0);
        assert_eq!(events, [removed(0)]);
    }

    #[test]
    fn the_number_of_groups_is_bounded() {
        let events: Vec<_> = (0..40).map(|index| stored(index, Attention::Full)).collect();
        let mut groups = Groups::default();
        assert_eq!(groups.filter(&mut events.clone()), 8);
        assert_eq!(groups.obstacle(), Some(GroupObstacle::TooMany));
    }
}
