//! The blocks of one worker's further caches, beside the chain of full attention that the index holds.
//!
//! Engines name a block alike in every group, and events of further groups often give names without positions. So
//! blocks are kept by name, with the groups that hold each. The full attention's events tell which boundary of a prompt
//! a name stands for; a lookup's trail asks by boundary. A name whose boundary is not known counts as absent.

use warmroute_feed::GROUPS_MAX;
use warmroute_index::{Boundary, BoundaryKey, NamedSpan, Reach, TableHash, Trail, TrailPlace};
use warmroute_types::{Attention, Group};

use crate::group_rule::{GroupRule, alignment_of, longest_common};
use crate::split_map::SplitMap;

/// Names of one boundary. Engines have one or two; a boundary with more holds nothing, so that a decision looks at few.
const ALIASES_MAX: usize = 8;

/// Most names of one worker. Further blocks count as absent.
const NAMES_MAX: usize = 1 << 22;

/// Most counts of blocks that a group stored more than once. Further ones are not counted, so that such a block is gone
/// with its first removal: too little is promised, not too much.
const EXTRA_COUNTS_MAX: usize = if cfg!(test) { 100 } else { 1 << 20 };

/// A block of one or several groups.
#[derive(Clone, Copy, Debug, Default)]
struct NamedBlock {
    /// The boundary at its end, once the full attention's event told it.
    key: Option<BoundaryKey>,
    /// The groups that hold it, one bit each.
    groups: u32,
}

/// The name behind a boundary, with the groups that hold it.
#[derive(Clone, Copy, Debug)]
struct BoundaryBlock {
    name: u64,
    groups: u32,
}

/// The blocks of a worker with several groups.
pub(crate) struct GroupCache {
    /// The groups in the order of their bits.
    groups: Vec<(Group, u32)>,
    /// The group whose chain the index holds.
    followed: u16,
    rules: Vec<GroupRule>,
    alignment: u32,
    blocks: SplitMap<u64, NamedBlock>,
    by_key: SplitMap<u64, BoundaryBlock>,
    /// Further names of a boundary: other tokens with the same text. It is not known which of them a prompt has.
    aliases: SplitMap<u64, Vec<u64>>,
    /// How often more than once a group has stored a name.
    extra_counts: SplitMap<(u64, u16), u32>,
}

impl GroupCache {
    /// No blocks yet. The index holds the chain of the `followed` group.
    pub fn new(followed: u16, hash: TableHash) -> GroupCache {
        GroupCache {
            groups: Vec::new(),
            followed,
            rules: Vec::new(),
            alignment: 1,
            blocks: SplitMap::new(hash),
            by_key: SplitMap::new(hash),
            aliases: SplitMap::new(hash),
            extra_counts: SplitMap::new(hash),
        }
    }

    /// Takes all blocks out; the groups stay. Decisions wait while this is locked, so the caller drops them later.
    pub fn take(&mut self) -> GroupCache {
        let GroupCache { followed, alignment, .. } = *self;
        let (groups, rules) = (self.groups.clone(), self.rules.clone());
        let empty = GroupCache { groups, rules, alignment, ..GroupCache::new(followed, self.blocks.hash()) };
        std::mem::replace(self, empty)
    }

    /// Bytes in use, about.
    pub fn bytes(&self) -> usize {
        let GroupCache { blocks, by_key, aliases, extra_counts, .. } = self;
        let aliased = aliases.len() * ALIASES_MAX * size_of::<u64>();
        blocks.bytes() + by_key.bytes() + aliases.bytes() + aliased + extra_counts.bytes()
    }

    /// Stores a chain of the followed group after a block, or after the root of its namespace.
    pub fn store_chain(
        &mut self,
        group: Group,
        block_tokens: u32,
        after: Result<u64, BoundaryKey>,
        spans: &[NamedSpan],
    ) {
        let Some(bit) = self.bit_of(group, block_tokens) else { return };
        let mut key = match after {
            Ok(parent) => self.blocks.get(&parent).and_then(|block| block.key),
            Err(root) => Some(root),
        };
        for NamedSpan { name, span } in spans {
            key = key.map(|key| key.after(span.digest));
            self.store_one(*name, bit, group.index);
            if let Some(key) = key {
                self.place(*name, key);
            }
        }
    }

    /// Stores blocks of a further group.
    pub fn store(&mut self, group: Group, block_tokens: u32, names: &[u64]) {
        let Some(bit) = self.bit_of(group, block_tokens) else { return };
        names.iter().for_each(|&name| self.store_one(name, bit, group.index));
    }

    /// Removes blocks of a group.
    pub fn remove(&mut self, group: u16, names: &[u64]) {
        let Some(bit) = self.groups.iter().position(|(known, _)| known.index == group) else { return };
        for &name in names {
            if let Some(count) = self.extra_counts.get_mut(&(name, group)) {
                *count -= 1;
                if *count == 0 {
                    self.extra_counts.remove(&(name, group));
                }
            } else {
                self.remove_one(name, 1 << bit);
            }
        }
    }

    /// How far of a prefix that the followed group holds all groups together can serve. The engine computes the last
    /// token of a prompt again, so a prefix must end before that.
    pub fn usable(&self, trail: &Trail, place: TrailPlace, prompt_bytes: u32) -> Reach {
        let is_whole = |boundary: &&Boundary| boundary.reach.bytes >= prompt_bytes;
        let from = trail.at(place).filter(is_whole).map_or(place, |whole| whole.before);
        let from = self.aligned(trail, from);
        let end = longest_common(&self.rules, self.alignment, trail, from, |boundary| self.held(boundary));
        trail.at(end).map_or(Reach::default(), |boundary| boundary.reach)
    }

    /// The last boundary at which every group has one.
    fn aligned(&self, trail: &Trail, mut place: TrailPlace) -> TrailPlace {
        while let Some(boundary) = trail.at(place) {
            if boundary.reach.tokens.is_multiple_of(self.alignment) {
                break;
            }
            place = boundary.before;
        }
        place
    }

    /// The groups that hold the block before a boundary, whichever name it has.
    fn held(&self, boundary: &Boundary) -> u32 {
        let key = boundary.key.to_bits();
        let Some(block) = self.by_key.get(&key) else { return 0 };
        if self.aliases.is_empty() {
            return block.groups;
        }
        let others = self.aliases.get(&key).map(Vec::as_slice).unwrap_or_default();
        if others.len() >= ALIASES_MAX {
            return 0;
        }
        let others = others.iter();
        let groups_of = |name: &u64| self.blocks.get(name).map_or(0, |block| block.groups);
        others.fold(block.groups, |groups, name| groups & groups_of(name))
    }

    /// The bit of a group. A new group, or one with another size, changes the rules.
    fn bit_of(&mut self, group: Group, block_tokens: u32) -> Option<u32> {
        let known = self.groups.iter().position(|(known, _)| known.index == group.index);
        let at = match known {
            Some(at) => {
                let (known, largest) = &mut self.groups[at];
                let is_same = *known == group && *largest >= block_tokens;
                (*known, *largest) = (group, block_tokens.max(*largest));
                if is_same {
                    return Some(1 << at);
                }
                at
            }
            None if self.groups.len() < GROUPS_MAX => {
                self.groups.push((group, block_tokens));
                self.groups.len() - 1
            }
            None => return None,
        };
        self.make_rules();
        Some(1 << at)
    }

    fn make_rules(&mut self) {
        self.rules.clear();
        self.alignment = alignment_of(self.groups.iter().map(|(_, tokens)| *tokens));
        for (at, &(Group { index, attention }, block_tokens)) in self.groups.iter().enumerate() {
            let is_same =
                |rule: &&mut GroupRule| (rule.attention, rule.block_tokens) == (attention, block_tokens);
            match self.rules.iter_mut().find(is_same) {
                _ if index == self.followed => {}
                Some(rule) => rule.groups |= 1 << at,
                None => self.rules.push(GroupRule { attention, block_tokens, groups: 1 << at }),
            }
        }
    }

    fn store_one(&mut self, name: u64, bit: u32, group: u16) {
        if self.blocks.len() >= NAMES_MAX && !self.blocks.contains_key(&name) {
            return;
        }
        let block = self.blocks.or_default(name);
        if block.groups & bit != 0 {
            return self.count_extra(name, group);
        }
        block.groups |= bit;
        let block = *block;
        self.publish(name, block);
    }

    fn count_extra(&mut self, name: u64, group: u16) {
        let is_full = self.extra_counts.len() >= EXTRA_COUNTS_MAX;
        match self.extra_counts.get_mut(&(name, group)) {
            Some(count) => *count = count.saturating_add(1),
            None if is_full => {}
            None => _ = self.extra_counts.insert((name, group), 1),
        }
    }

    fn remove_one(&mut self, name: u64, bit: u32) {
        let Some(block) = self.blocks.get_mut(&name) else { return };
        block.groups &= !bit;
        let block = *block;
        if block.groups != 0 {
            return self.publish(name, block);
        }
        self.blocks.remove(&name);
        block.key.into_iter().for_each(|key| self.unplace(name, key));
    }

    /// Sets the boundary that a name stands for.
    fn place(&mut self, name: u64, key: BoundaryKey) {
        let Some(block) = self.blocks.get_mut(&name) else { return };
        let former = block.key.replace(key);
        let groups = block.groups;
        if former == Some(key) {
            return;
        }
        former.into_iter().for_each(|former| self.unplace(name, former));
        match self.by_key.get(&key.to_bits()) {
            Some(_) => {
                let others = self.aliases.or_default(key.to_bits());
                if others.len() < ALIASES_MAX {
                    others.push(name);
                }
            }
            None => _ = self.by_key.insert(key.to_bits(), BoundaryBlock { name, groups }),
        }
    }

    fn unplace(&mut self, name: u64, key: BoundaryKey) {
        let key = key.to_bits();
        let mut others = self.aliases.remove(&key).unwrap_or_default();
        let is_first = self.by_key.get(&key).is_some_and(|block| block.name == name);
        if is_first {
            let next = others.pop();
            match next.and_then(|next| self.blocks.get(&next).map(|block| (next, block.groups))) {
                Some((name, groups)) => _ = self.by_key.insert(key, BoundaryBlock { name, groups }),
                None => _ = self.by_key.remove(&key),
            }
        } else {
            others.retain(|other| *other != name);
        }
        if !others.is_empty() {
            self.aliases.insert(key, others);
        }
    }

    /// Copies a block's groups to its boundary.
    fn publish(&mut self, name: u64, block: NamedBlock) {
        let at = block.key.and_then(|key| self.by_key.get_mut(&key.to_bits()));
        if let Some(at) = at.filter(|at| at.name == name) {
            at.groups = block.groups;
        }
    }
}

/// Whether an event's group is beside the full attention that the index follows.
pub(crate) fn is_beside(group: Group, followed: Option<u16>) -> bool {
    group.attention != Attention::Full || followed.is_some_and(|followed| followed != group.index)
}

#[cfg(test)]
mod tests;
