//! Which of a model's caches counts.
//!
//! A model that mixes kinds of attention reports every block once for each of its caches, under one name. A prefix
//! can only be continued where the full attention's blocks are, so the feed follows one such cache and ignores the
//! others. Removals name only the group, so its kind is remembered from the stores.

use warmroute_types::{Attention, CacheEvent};

/// The group whose blocks count: the first seen with full attention, 0 until then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Groups {
    followed: Option<u16>,
}

impl Groups {
    /// Removes the events of other groups. Returns how many blocks those had.
    pub fn filter(&mut self, events: &mut Vec<CacheEvent>) -> u64 {
        let mut skipped = 0;
        events.retain(|event| {
            let (counts, blocks) = self.assess(event);
            skipped += if counts { 0 } else { blocks as u64 };
            counts
        });
        skipped
    }

    fn assess(&mut self, event: &CacheEvent) -> (bool, usize) {
        match event {
            CacheEvent::Stored(stored) => {
                let is_full = stored.group.attention == Attention::Full;
                // Blocks reported by name may omit their group, so they do not decide which one counts.
                if is_full && !stored.is_by_name() {
                    self.followed.get_or_insert(stored.group.index);
                }
                (is_full && self.followed == Some(stored.group.index), stored.names.len())
            }
            CacheEvent::Removed(removed) => {
                (self.followed.unwrap_or(0) == removed.group, removed.names.len())
            }
            CacheEvent::Cleared => (true, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::{Group, Medium, RemovedBlocks, StoredBlocks};

    fn stored(index: u16, attention: Attention) -> CacheEvent {
        let group = Group { index, attention };
        CacheEvent::Stored(StoredBlocks { names: vec![7], group, ..StoredBlocks::default() })
    }

    fn removed(group: u16) -> CacheEvent {
        CacheEvent::Removed(RemovedBlocks { names: vec![7], group, ..RemovedBlocks::default() })
    }

    #[test]
    fn only_one_full_attention_cache_counts() {
        let mut groups = Groups::default();
        let mut events = vec![
            stored(0, Attention::Other),
            stored(1, Attention::Full),
            stored(2, Attention::Full),
            removed(0),
            removed(1),
            removed(2),
            CacheEvent::Cleared,
        ];
        assert_eq!(groups.filter(&mut events), 4);
        assert_eq!(events, [stored(1, Attention::Full), removed(1), CacheEvent::Cleared]);
    }

    #[test]
    fn names_alone_do_not_decide_which_cache_counts() {
        let CacheEvent::Stored(named) = stored(0, Attention::Full) else { unreachable!() };
        let named = CacheEvent::Stored(StoredBlocks { medium: Medium::Host, ..named });
        let mut groups = Groups::default();
        let mut events = vec![named.clone(), stored(1, Attention::Full), named];
        assert_eq!(groups.filter(&mut events), 2);
        assert_eq!(events, [stored(1, Attention::Full)]);
    }

    #[test]
    fn removals_of_group_0_count_before_anything_was_stored() {
        let mut events = vec![removed(0)];
        assert_eq!(Groups::default().filter(&mut events), 0);
        assert_eq!(events, [removed(0)]);
    }
}
