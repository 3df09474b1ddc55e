//! Ingests one worker's cache events: into the index, and into the table of its further groups.
//!
//! An event carries token ids. They become bytes here (or stay tokens, if a model's bytes cannot be
//! reconstructed), are digested block by block and stored under the engine's own names. This happens when the
//! event arrives, so requests need no tokenizing. Blocks that cannot be read are stored under digests that no prompt
//! has: their names must be known for removal, and their children must not wait for them.

use parking_lot::MutexGuard;
use warmroute_feed::Counters;
use warmroute_index::{BoundaryKey, Digester, Index, NamedSpan, Parent, RootKey, Span};
use warmroute_prompt::{Blocks, medium_mark};
use warmroute_types::{Attention, CacheEvent, Group, Medium, RemovedBlocks, StoredBlocks, WorkerId};

use crate::feed_check::AwaitedPrompt;
use crate::group_cache::is_beside;
use crate::group_table::{GroupTable, SharedGroupCache};
use crate::matching::{Alphabet, Matching};
use crate::media::SeenMedia;
use crate::reported_view::ReportedView;
use crate::unit::Unit;

/// Blocks that are converted and stored at once. Others that wait for a lock get it in between, and the buffers stay
/// small.
const BLOCKS_A_SLICE: usize = 2_048;

/// Counters of one worker's ingested events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ingested {
    /// Blocks stored.
    pub stored: u64,
    /// Blocks removed that were held.
    pub removed: u64,
    /// Blocks removed or referred to by name that are not known.
    pub unknown: u64,
    /// Blocks stored in slower memory.
    pub offloaded: u64,
    /// Blocks whose parent is not known yet.
    pub parked: u64,
    /// Blocks that did not fit into the index.
    pub refused: u64,
    /// Blocks with token ids outside the model's vocabulary.
    pub foreign: u64,
    /// Answers whose cache hit the events predicted, and prompts that appeared in events.
    pub matched: u64,
    /// Answers with a cache hit that no event predicted, and prompts that did not appear in events.
    pub unmatched: u64,
}

/// The ingest state of one worker.
pub(crate) struct WorkerIngest {
    pub matching: Matching,
    blocks: Blocks,
    spans: Vec<NamedSpan>,
    /// The engine has reported slower memory.
    has_tiers: bool,
    /// The group whose chain the index holds: the first seen with full attention.
    pub followed: Option<u16>,
    /// The other groups, where the engine has reported any.
    pub groups: Option<SharedGroupCache>,
    /// Media of its latest events.
    pub media: SeenMedia,
    /// Size of its largest block in tokens.
    pub block_tokens: Option<u32>,
    pub counted: Ingested,
    pub stream: Option<Counters>,
    pub awaited: Option<AwaitedPrompt>,
}

/// A part of an event's blocks.
struct BlockSlice {
    from: usize,
    /// Leading blocks of the event that can be compared with prompts.
    text_blocks: usize,
}

/// Whether the index takes more blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Left,
    None,
}

impl BlockSlice {
    fn first(blocks: &StoredBlocks, unit: Unit) -> BlockSlice {
        let readable = match unit {
            // Marks are inserted between bytes; tokens after a medium are not compared.
            Unit::Byte => blocks.text_blocks.saturating_add(blocks.media_blocks),
            Unit::Token => blocks.text_blocks,
        };
        BlockSlice { from: 0, text_blocks: (readable as usize).min(blocks.names.len()) }
    }

    /// The names of the slice; `None` behind the last one.
    fn names<'a>(&self, blocks: &'a StoredBlocks) -> Option<&'a [u64]> {
        let rest = blocks.names.get(self.from..).filter(|rest| !rest.is_empty())?;
        Some(&rest[..rest.len().min(BLOCKS_A_SLICE)])
    }

    /// The tokens of the blocks in the slice that have text.
    fn text<'a>(&self, blocks: &'a StoredBlocks) -> &'a [u32] {
        let block_tokens = blocks.block_tokens.max(1) as usize;
        let end = (self.from + BLOCKS_A_SLICE).min(self.text_blocks);
        let end = end.saturating_mul(block_tokens).min(blocks.tokens.len());
        let start = self.from.saturating_mul(block_tokens).min(end);
        &blocks.tokens[start..end]
    }
}

/// Forgets the worker's reported and presumed cache.
pub(crate) fn forget(index: &Index, worker: WorkerId) {
    ReportedView::ALL.into_iter().for_each(|reported_view| index.clear(reported_view.holder(worker)));
}

impl WorkerIngest {
    pub fn new(matching: Matching) -> WorkerIngest {
        WorkerIngest {
            matching,
            blocks: Blocks::default(),
            spans: Vec::new(),
            has_tiers: false,
            followed: None,
            groups: None,
            media: SeenMedia::default(),
            block_tokens: None,
            counted: Ingested::default(),
            stream: None,
            awaited: None,
        }
    }

    /// Stores the blocks of an event, slice by slice.
    pub fn store(
        source: &mut MutexGuard<'_, WorkerIngest>,
        index: &Index,
        worker: WorkerId,
        root: RootKey,
        blocks: &StoredBlocks,
    ) {
        if blocks.is_by_name() {
            for names in blocks.names.chunks(BLOCKS_A_SLICE) {
                source.store_again(index, worker, names);
                MutexGuard::bump(source);
            }
            return;
        }
        if blocks.medium != Medium::Gpu {
            source.open_tiers(index, worker);
            source.counted.offloaded += blocks.names.len() as u64;
        }
        let mut slice = BlockSlice::first(blocks, source.matching.unit());
        let mut parent = blocks.parent.map_or(Parent::Root(root), Parent::Name);
        while let Some(names) = slice.names(blocks) {
            source.cut(index.digester(), blocks, &mut slice);
            source.store_boundaries(parent, blocks);
            if source.store_spans(index, worker, parent, blocks) == Room::None {
                break;
            }
            parent = names.last().map_or(parent, |&name| Parent::Name(name));
            slice.from += names.len();
            MutexGuard::bump(source);
        }
    }

    /// Stores the converted spans in every view that has them.
    fn store_spans(
        &mut self,
        index: &Index,
        worker: WorkerId,
        parent: Parent,
        blocks: &StoredBlocks,
    ) -> Room {
        // A single block may have been filled while decoding; prompts arrive in runs of blocks.
        let is_prompt = blocks.names.len() > 1;
        let mut room = Room::Left;
        for reported_view in ReportedView::ALL {
            let is_there = match reported_view {
                ReportedView::Proven => blocks.medium == Medium::Gpu && is_prompt,
                ReportedView::Sampled => blocks.medium == Medium::Gpu,
                ReportedView::AllTiers => self.has_tiers,
            };
            if !is_there {
                continue;
            }
            let stored = index
                .store(reported_view.holder(worker), parent, &self.spans)
                .expect("a worker's views are valid holders, and the root is a reported one");
            if stored.refused > 0 {
                room = Room::None;
            }
            if reported_view == ReportedView::Sampled {
                self.counted.stored += stored.placed as u64;
                self.counted.parked += stored.parked as u64;
                self.counted.refused += stored.refused as u64;
            }
        }
        room
    }

    /// Records blocks in slower memory that events refer to by name only. Their content is known from the GPU
    /// event. Engines that use separate names for slower memory get no tiers.
    fn store_again(&mut self, index: &Index, worker: WorkerId, names: &[u64]) {
        if !self.has_tiers && index.knows_any(ReportedView::Sampled.holder(worker), names) {
            self.open_tiers(index, worker);
        }
        let known = if self.has_tiers {
            index.store_by_name(ReportedView::AllTiers.holder(worker), names)
        } else {
            0
        };
        self.counted.offloaded += known as u64;
        self.counted.unknown += (names.len() - known) as u64;
    }

    /// Starts the tier view with a copy of the GPU's blocks, so that chains can continue in slower memory.
    fn open_tiers(&mut self, index: &Index, worker: WorkerId) {
        if !std::mem::replace(&mut self.has_tiers, true) {
            let adopted =
                index.copy_all(ReportedView::Sampled.holder(worker), ReportedView::AllTiers.holder(worker));
            adopted.expect("a worker's views are valid holders");
        }
    }

    /// Removes the blocks of an event, slice by slice.
    pub fn remove(
        source: &mut MutexGuard<'_, WorkerIngest>,
        index: &Index,
        worker: WorkerId,
        blocks: &RemovedBlocks,
    ) {
        if let Some(groups) = source.groups.as_ref().filter(|_| blocks.medium == Medium::Gpu) {
            let slices = blocks.names.chunks(BLOCKS_A_SLICE);
            slices.for_each(|names| groups.write().remove(blocks.group, names));
        }
        if source.followed.is_some_and(|followed| followed != blocks.group) {
            return;
        }
        for names in blocks.names.chunks(BLOCKS_A_SLICE) {
            if blocks.medium == Medium::Gpu {
                index.remove(ReportedView::Proven.holder(worker), names);
                let removed = index.remove(ReportedView::Sampled.holder(worker), names);
                source.counted.removed += removed.known as u64;
                source.counted.unknown += removed.unknown as u64;
            }
            if source.has_tiers {
                index.remove(ReportedView::AllTiers.holder(worker), names);
            }
            MutexGuard::bump(source);
        }
    }

    /// Looks for groups beside the full attention. All groups of a step come in one batch, so they are known before
    /// the first block is stored.
    pub fn find_groups(
        &mut self,
        index: &Index,
        worker: WorkerId,
        events: &[CacheEvent],
        table: &GroupTable,
    ) {
        let on_gpu = |event: &CacheEvent| match event {
            CacheEvent::Stored(blocks) if blocks.medium == Medium::Gpu => Some(blocks.group),
            _ => None,
        };
        let is_full = |group: &Group| group.attention == Attention::Full;
        if self.followed.is_none() {
            self.followed = events.iter().filter_map(on_gpu).find(is_full).map(|group| group.index);
        }
        let Some(followed) = self.followed.filter(|_| self.groups.is_none()) else { return };
        if events.iter().filter_map(on_gpu).any(|group| is_beside(group, Some(followed))) {
            self.groups = Some(table.open(worker, followed, index.table_hash()));
        }
    }

    /// Whether blocks are of another group than the followed one. With several groups, slower memories are not
    /// followed: events do not show which of the groups they hold.
    pub fn is_other_cache(&self, blocks: &StoredBlocks) -> bool {
        is_beside(blocks.group, self.followed) || self.groups.is_some() && blocks.medium != Medium::Gpu
    }

    pub fn store_other(&self, blocks: &StoredBlocks) {
        let Some(groups) = self.groups.as_ref().filter(|_| blocks.medium == Medium::Gpu) else { return };
        let slices = blocks.names.chunks(BLOCKS_A_SLICE);
        slices.for_each(|names| groups.write().store(blocks.group, blocks.block_tokens, names));
    }

    /// Tells the group cache which boundaries the names of the converted spans stand for.
    fn store_boundaries(&self, parent: Parent, blocks: &StoredBlocks) {
        let Some(groups) = self.groups.as_ref().filter(|_| blocks.medium == Medium::Gpu) else { return };
        let after = match parent {
            Parent::Root(root) => Err(BoundaryKey::of_root(root)),
            Parent::Name(name) => Ok(name),
        };
        groups.write().store_chain(blocks.group, blocks.block_tokens, after, &self.spans);
    }

    /// Converts a slice of blocks of tokens into spans.
    fn cut(&mut self, digester: &Digester, blocks: &StoredBlocks, slice: &mut BlockSlice) {
        self.spans.clear();
        let names = slice.names(blocks).unwrap_or_default();
        let block_tokens = blocks.block_tokens.max(1) as usize;
        let text = slice.text(blocks);
        let tokens = blocks.block_tokens;
        let named = |(bytes, &name): (&[u8], &u64)| NamedSpan {
            name,
            span: Span { digest: digester.digest(bytes), bytes: bytes.len() as u32, tokens },
        };
        match &self.matching.alphabet {
            Alphabet::Bytes(vocabulary) => {
                // Stops at an unknown token; the remaining blocks are filled in below.
                let first = slice.from * block_tokens;
                let marks = blocks.media.iter().map(|start| (start.token as usize, medium_mark(start.hash)));
                let marks = marks.filter_map(|(token, mark)| Some((token.checked_sub(first)?, mark)));
                let written = vocabulary.write_marked_blocks(text, block_tokens, marks, &mut self.blocks);
                self.counted.foreign += u64::from(written.is_err());
                self.spans.extend(self.blocks.iter().zip(names).map(named));
                // No block behind an unknown token can be compared.
                slice.text_blocks = if written.is_err() { 0 } else { slice.text_blocks };
            }
            Alphabet::Tokens => {
                let mut bytes = Vec::with_capacity(block_tokens * 4);
                for (block, name) in text.chunks_exact(block_tokens).zip(names) {
                    bytes.clear();
                    block.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
                    self.spans.push(named((&bytes, name)));
                }
            }
        }
        let others = &names[self.spans.len()..];
        let unmatchable = |&name: &u64| NamedSpan { name, span: Span { digest: !name, bytes: 1, tokens } };
        self.spans.extend(others.iter().map(unmatchable));
    }
}
