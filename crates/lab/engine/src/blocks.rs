//! The paged KV cache: a fixed number of blocks, each held by sequences or free, each with or without a name.
//!
//! A free block keeps its name until it is reused, so free blocks are the cache, and their order is the eviction
//! order: least recently used first, and a sequence's end first, because a block is useless without the blocks before
//! it. A free block without a name can never be hit and is reused before all others (vLLM since 0.24); such blocks
//! are only counted.
//!
//! Named free blocks are listed in a log of [`Span`]s. Freed spans are appended, and a hit invalidates its entry by
//! the clock of its leaf, without a search. So a prompt of thousands of tokens costs a few entries and no walk over
//! its blocks.

use std::collections::VecDeque;

use crate::BlockName;
use crate::leaf::{NONE, SLOTS, Span};
use crate::pages::Pages;

/// All blocks of one engine.
#[derive(Clone, Debug)]
pub struct BlockPool {
    total: u32,
    /// Free blocks without a name.
    nameless: u32,
    /// Free blocks with a name.
    free_named: u32,
    /// Blocks with a name, free or held.
    named: u32,
    pages: Pages,
    log: VecDeque<Freed>,
    /// Length at which invalid entries are removed from the log.
    log_max: usize,
    namings: u32,
}

/// The blocks that a sequence holds: those of its chain with names, and the number of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// The named blocks, in the order of the chain.
    pub spans: Vec<Span>,
    /// Number of named blocks.
    pub named: u32,
    /// Number of blocks that are not full yet.
    pub nameless: u32,
}

/// A span that was freed. A slot of it is still free if its time matches.
#[derive(Clone, Copy, Debug)]
struct Freed {
    span: Span,
    at: u32,
}

const LOG_MIN: usize = 64;

impl Hold {
    /// All held blocks.
    pub fn count(&self) -> u32 {
        self.named + self.nameless
    }
}

impl BlockPool {
    /// An empty cache.
    pub fn new(blocks: u32) -> BlockPool {
        BlockPool {
            total: blocks,
            nameless: blocks,
            free_named: 0,
            named: 0,
            pages: Pages::default(),
            log: VecDeque::new(),
            log_max: LOG_MIN,
            namings: 0,
        }
    }

    /// All blocks.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Blocks without a holder.
    pub fn free(&self) -> u32 {
        self.nameless + self.free_named
    }

    /// Blocks with a holder.
    pub fn used(&self) -> u32 {
        self.total - self.free()
    }

    /// Blocks that can be hit.
    pub fn named(&self) -> u32 {
        self.named
    }

    /// Every name that a block carries, once.
    pub fn names(&self) -> impl Iterator<Item = BlockName> {
        self.pages.names()
    }

    /// Whether a block carries this name.
    pub fn has(&self, name: BlockName) -> bool {
        self.pages.find(name).is_some()
    }

    /// Appends the spans of a chain from its start, as far as it is cached; of each block the oldest copy.
    pub fn find_chain(&self, chain: &[BlockName], spans: &mut Vec<Span>) {
        let mut at = 0;
        while let Some(span) = chain.get(at).and_then(|_| self.find_span(&chain[at..])) {
            spans.push(span);
            at += span.len() as usize;
        }
    }

    /// The span of a chain's first block, with the following blocks that are next to it.
    fn find_span(&self, chain: &[BlockName]) -> Option<Span> {
        let first = chain[0].0;
        let head = self.pages.head(first / SLOTS)?;
        let from = (first % SLOTS) as u8;
        let leaf = self.pages.oldest_of(head, from)?;
        let is_next = |slot: u8, name: &BlockName| {
            name.0 == first - u64::from(from) + u64::from(slot)
                && self.pages.oldest_of(head, slot) == Some(leaf)
        };
        let next = (from + 1..SLOTS as u8).zip(&chain[1..]);
        let more = next.take_while(|(slot, name)| is_next(*slot, name)).count();
        Some(Span { leaf, from, to: from + 1 + more as u8 })
    }

    /// How many blocks of a span have no holder: holding them uses up free ones.
    pub fn free_in(&self, span: Span) -> u32 {
        let holders = &self.pages.leaves[span.leaf as usize].holders;
        span.slots().filter(|&slot| holders[usize::from(slot)] == 0).count() as u32
    }

    /// Adds a holder to the blocks of a span.
    pub fn hold(&mut self, span: Span) {
        self.free_named -= self.free_in(span);
        let leaf = &mut self.pages.leaves[span.leaf as usize];
        for slot in span.slots().map(usize::from) {
            leaf.holders[slot] += 1;
            leaf.freed[slot] = 0;
        }
    }

    /// Takes the next free blocks for one holder; there must be that many. Passes the evicted names to `evicted`.
    pub fn take(&mut self, count: u32, mut evicted: impl FnMut(BlockName)) {
        debug_assert!(count <= self.free(), "room was made");
        let nameless = count.min(self.nameless);
        self.nameless -= nameless;
        let mut missing = count - nameless;
        while missing > 0 {
            missing -= self.evict(missing, &mut evicted);
        }
    }

    /// Names blocks once they are full; the holder must have that many without a name.
    pub fn name(&mut self, hold: &mut Hold, mut names: &[BlockName]) {
        self.namings = self.namings.wrapping_add(1);
        let count = names.len() as u32;
        while let Some(&BlockName(first)) = names.first() {
            let slots_left = (SLOTS - first % SLOTS) as usize;
            let is_next = |(name, next): &(&BlockName, u64)| name.0 == *next;
            let row = names.iter().zip(first..).take(slots_left).take_while(is_next).count();
            self.name_row(hold, first, row as u8);
            names = &names[row..];
        }
        (hold.named, hold.nameless, self.named) =
            (hold.named + count, hold.nameless - count, self.named + count);
    }

    /// Names blocks of one page, in the leaf of the blocks before them if it has room.
    fn name_row(&mut self, hold: &mut Hold, first: u64, count: u8) {
        let (page, from) = (first / SLOTS, (first % SLOTS) as u8);
        let row = Span { leaf: NONE, from, to: from + count };
        let leaves = &self.pages.leaves;
        let has_room = |span: &&mut Span| {
            let leaf = &leaves[span.leaf as usize];
            leaf.page == page && span.to == from && leaf.named & row.mask() == 0
        };
        let leaf = match hold.spans.last_mut().filter(has_room) {
            Some(span) => {
                span.to = row.to;
                span.leaf
            }
            None => {
                let leaf = self.pages.open(page, self.namings);
                hold.spans.push(Span { leaf, ..row });
                leaf
            }
        };
        self.pages.leaves[leaf as usize].fill(row, self.namings);
    }

    /// Releases everything that a sequence holds.
    pub fn release(&mut self, hold: &mut Hold) {
        for span in hold.spans.drain(..).rev() {
            self.release_span(span);
        }
        self.nameless += hold.nameless;
        (hold.named, hold.nameless) = (0, 0);
        if self.log.len() > self.log_max {
            self.compact();
        }
    }

    /// Releases the first named blocks of a hold, its end first.
    pub fn release_front(&mut self, hold: &mut Hold, blocks: u32) {
        let (mut left, mut front) = (blocks.min(hold.named), Vec::new());
        hold.named -= left;
        while left > 0 {
            let span = &mut hold.spans[0];
            let to = span.to.min(span.from.saturating_add(left.min(SLOTS as u32) as u8));
            front.push(Span { to, ..*span });
            left -= u32::from(to - span.from);
            span.from = to;
            if span.from == span.to {
                hold.spans.remove(0);
            }
        }
        front.into_iter().rev().for_each(|span| self.release_span(span));
    }

    /// Removes every name. No block may be held.
    pub fn forget_names(&mut self) {
        debug_assert_eq!(self.used(), 0);
        self.pages.clear();
        self.log.clear();
        (self.nameless, self.free_named, self.named) = (self.total, 0, 0);
    }

    /// Frees the slots without another holder, and appends runs of them to the log, the chain's end first.
    fn release_span(&mut self, span: Span) {
        let leaf = &mut self.pages.leaves[span.leaf as usize];
        leaf.clock = leaf.clock.wrapping_add(1).max(1);
        let at = leaf.clock;
        let mut free_to = span.to;
        for slot in span.slots().rev() {
            let index = usize::from(slot);
            leaf.holders[index] -= 1;
            if leaf.holders[index] == 0 {
                leaf.freed[index] = at;
                self.free_named += 1;
                continue;
            }
            self.log.extend(Freed::from(span.leaf, slot + 1, free_to, at));
            free_to = slot;
        }
        self.log.extend(Freed::from(span.leaf, span.from, free_to, at));
    }

    /// Evicts the blocks of the log's first entry, but no more than wanted.
    fn evict(&mut self, wanted: u32, mut report: impl FnMut(BlockName)) -> u32 {
        let freed = self.log.front_mut().expect("what is free and has a name is in the log");
        let leaf = &mut self.pages.leaves[freed.span.leaf as usize];
        let mut evicted = 0;
        while freed.span.from < freed.span.to && evicted < wanted {
            freed.span.to -= 1;
            let slot = freed.span.to;
            if leaf.freed[usize::from(slot)] == freed.at {
                report(leaf.name(slot));
                leaf.empty(slot);
                evicted += 1;
            }
        }
        let (number, is_empty) = (freed.span.leaf, evicted > 0 && leaf.named == 0);
        if freed.span.from == freed.span.to {
            self.log.pop_front();
        }
        if is_empty {
            self.pages.close(number);
        }
        (self.free_named, self.named) = (self.free_named - evicted, self.named - evicted);
        evicted
    }

    /// Removes invalid entries from the log.
    fn compact(&mut self) {
        let leaves = &self.pages.leaves;
        self.log.retain(|freed| {
            let leaf = &leaves[freed.span.leaf as usize];
            freed.span.slots().any(|slot| leaf.freed[usize::from(slot)] == freed.at)
        });
        self.log_max = LOG_MIN.max(2 * self.log.len());
    }
}

impl Freed {
    /// An entry, or `None` for an empty range.
    fn from(leaf: u32, from: u8, to: u8, at: u32) -> Option<Freed> {
        (from < to).then_some(Freed { span: Span { leaf, from, to }, at })
    }
}

#[cfg(test)]
impl BlockPool {
    /// Panics unless the pool is consistent and `holds` lists exactly the held blocks.
    pub fn check<'a>(&self, holds: impl Iterator<Item = &'a Hold> + Clone) {
        let mut held = vec![[0_u16; SLOTS as usize]; self.pages.leaves.len()];
        for span in holds.clone().flat_map(|hold| &hold.spans) {
            span.slots().for_each(|slot| held[span.leaf as usize][usize::from(slot)] += 1);
        }
        let mut listed: Vec<(u32, u8)> = Vec::new();
        for freed in &self.log {
            let leaf = &self.pages.leaves[freed.span.leaf as usize];
            let valid = freed.span.slots().filter(|&slot| leaf.freed[usize::from(slot)] == freed.at);
            listed.extend(valid.map(|slot| (freed.span.leaf, slot)));
        }
        listed.sort_unstable();
        let mut free = Vec::new();
        for (number, leaf) in (0..).zip(&self.pages.leaves) {
            assert_eq!(leaf.holders, held[number as usize], "reference counts are uses");
            let slots =
                (0..SLOTS as u8).filter(|&slot| leaf.has(slot) && leaf.holders[usize::from(slot)] == 0);
            free.extend(slots.map(|slot| (number, slot)));
        }
        assert_eq!(listed, free, "what is free and named is in the log, once");
        assert_eq!(free.len() as u32, self.free_named);
        let named: u32 = self.pages.leaves.iter().map(|leaf| leaf.named.count_ones()).sum();
        let nameless: u32 = holds.clone().map(|hold| hold.nameless).sum();
        assert_eq!(
            (named, named + nameless + self.nameless),
            (self.named, self.total),
            "every block is somewhere"
        );
        let spans = |hold: &Hold| hold.spans.iter().map(Span::len).sum::<u32>();
        assert!(holds.clone().all(|hold| spans(hold) == hold.named));
    }
}

#[cfg(test)]
mod tests;
