//! Ingests the cache events of engines into the index.
//!
//! An event carries token ids. They become bytes here (or stay tokens, if a model's bytes cannot be
//! reconstructed), are digested block by block and stored under the engine's own names. This happens when the
//! event arrives, so requests need no tokenizing. Blocks without text are stored under digests that no prompt
//! has: their names must be known for removal, and their children must not wait for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};
use warmroute_feed::Counters;
use warmroute_index::{Digester, Index, NamedSpan, Parent, RootKey, Span};
use warmroute_prompt::{Blocks, Vocabulary};
use warmroute_types::{CacheEvent, Medium, Micros, RemovedBlocks, StoredBlocks, WorkerId};

use crate::PromptText;
use crate::family::Family;
use crate::feed_check::{AwaitedPrompt, PromptSeen};
use crate::reported_view::ReportedView;
use crate::unit::Unit;

/// Blocks that are converted and stored at once. Others that wait for a lock get it in between, and the buffers stay
/// small.
const BLOCKS_A_SLICE: usize = 2_048;

/// Maximum number of LoRA adapters; further ones are ignored.
const LORAS_MAX: usize = 4_096;

/// How one worker's events are matched with prompts.
#[derive(Clone, Debug)]
pub struct Matching {
    family: Family,
    alphabet: Alphabet,
}

/// The unit that reported tokens are converted to.
#[derive(Clone, Debug)]
enum Alphabet {
    Bytes(Arc<Vocabulary>),
    Tokens,
}

impl Matching {
    /// Matching in bytes: reported tokens are converted to text, requests are rendered but not tokenized.
    pub fn bytes(family: Family, vocabulary: Arc<Vocabulary>) -> Matching {
        Matching { family, alphabet: Alphabet::Bytes(vocabulary) }
    }

    /// Matching in tokens: requests are tokenized.
    pub fn tokens(family: Family) -> Matching {
        Matching { family, alphabet: Alphabet::Tokens }
    }

    /// The family of comparable workers.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// The unit of comparison.
    pub fn unit(&self) -> Unit {
        match self.alphabet {
            Alphabet::Bytes(_) => Unit::Byte,
            Alphabet::Tokens => Unit::Token,
        }
    }
}

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

/// The reported caches of all workers.
#[derive(Default)]
pub(crate) struct Reported {
    sources: RwLock<BTreeMap<WorkerId, Arc<Mutex<WorkerIngest>>>>,
    loras: RwLock<BTreeSet<Box<str>>>,
}

/// The ingest state of one worker.
pub(crate) struct WorkerIngest {
    matching: Matching,
    blocks: Blocks,
    spans: Vec<NamedSpan>,
    /// The engine has reported slower memory.
    has_tiers: bool,
    /// Size of its largest block in tokens.
    block_tokens: Option<u32>,
    counted: Ingested,
    stream: Option<Counters>,
    awaited: Option<AwaitedPrompt>,
}

/// Counters of one worker's events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeedReport {
    /// The feed's counters; `None` before the first report.
    pub stream: Option<Counters>,
    /// Counters of the ingested events.
    pub ingested: Ingested,
    /// The unit of comparison.
    pub unit: Unit,
}

impl Reported {
    /// Sets how this worker's events are matched; `None` if they cannot be read.
    pub fn align(&self, worker: WorkerId, matching: Option<Matching>) {
        let mut sources = self.sources.write();
        match matching {
            Some(matching) => _ = sources.insert(worker, Arc::new(Mutex::new(WorkerIngest::new(matching)))),
            None => _ = sources.remove(&worker),
        }
    }

    pub fn is_aligned(&self, worker: WorkerId) -> bool {
        self.sources.read().contains_key(&worker)
    }

    pub fn report(&self, worker: WorkerId) -> Option<FeedReport> {
        let source = self.sources.read().get(&worker).cloned()?;
        let source = source.lock();
        Some(FeedReport { stream: source.stream, ingested: source.counted, unit: source.matching.unit() })
    }

    /// Counts whether a cache hit and the events' prediction agree.
    pub fn count_match(&self, worker: WorkerId, promised: u32, found: u32) {
        let Some(source) = self.sources.read().get(&worker).cloned() else { return };
        let counted = &mut source.lock().counted;
        counted.matched += u64::from(promised > 0);
        counted.unmatched += u64::from(promised == 0 && found > 0);
    }

    /// Checks that a computed prompt appears in the worker's events, for engines that do not report cached
    /// tokens.
    pub fn check_prompt_reported(&self, index: &Index, worker: WorkerId, text: PromptText<'_>, now: Micros) {
        let Some(source) = self.sources.read().get(&worker).cloned() else { return };
        let mut source = source.lock();
        let stored = source.counted.stored + source.counted.parked;
        match &source.awaited {
            Some(awaited) if !awaited.is_due(now) => return,
            Some(awaited) => match awaited.look(index, worker, stored) {
                PromptSeen::Yes => source.counted.matched += 1,
                PromptSeen::No => source.counted.unmatched += 1,
                PromptSeen::Unknown => {}
            },
            None => {}
        }
        source.awaited = Some(AwaitedPrompt::new(text, now, stored));
    }

    /// Records the feed's counters.
    pub fn note(&self, worker: WorkerId, counters: Counters) {
        if let Some(source) = self.sources.read().get(&worker) {
            source.lock().stream = Some(counters);
        }
    }

    /// Ingests events; returns the block size if they contain it. Ignores workers without a matching.
    pub fn take(&self, index: &Index, worker: WorkerId, events: &[CacheEvent]) -> Option<u32> {
        let source = self.sources.read().get(&worker).cloned()?;
        let mut source = source.lock();
        let mut block_tokens = None;
        for event in events {
            match event {
                CacheEvent::Stored(blocks) => {
                    if blocks.medium == Medium::Gpu {
                        // The last block of a prompt may be reported before it is full.
                        block_tokens = block_tokens.max(Some(blocks.block_tokens)).max(source.block_tokens);
                        source.block_tokens = block_tokens;
                    }
                    let root = self.root_of(&source.matching, blocks);
                    WorkerIngest::store(&mut source, index, worker, root, blocks);
                }
                CacheEvent::Removed(blocks) => WorkerIngest::remove(&mut source, index, worker, blocks),
                CacheEvent::Cleared => forget(index, worker),
            }
            MutexGuard::bump(&mut source);
        }
        block_tokens
    }

    /// Forgets the block size: a restarted engine may use another.
    pub fn emptied(&self, worker: WorkerId) {
        if let Some(source) = self.sources.read().get(&worker) {
            source.lock().block_tokens = None;
        }
    }

    /// Declares an adapter before the first event about it.
    pub fn know_lora(&self, lora: &str) {
        let mut loras = self.loras.write();
        if loras.len() < LORAS_MAX {
            loras.insert(lora.into());
        }
    }

    fn root_of(&self, matching: &Matching, blocks: &StoredBlocks) -> RootKey {
        let lora = blocks.lora.as_deref();
        if let Some(lora) = lora.filter(|lora| !self.loras.read().contains(*lora)) {
            self.know_lora(lora);
        }
        matching.family.root(lora, blocks.salt.as_deref(), matching.unit())
    }

    /// The root of a request's prompt in a family. Requests name adapters like models. Any other name is the
    /// base model, because engines share one cache between all its names.
    pub fn root_for(&self, family: &Family, model: Option<&str>, salt: Option<&str>, unit: Unit) -> RootKey {
        let lora = model.filter(|model| self.loras.read().contains(*model));
        family.root(lora, salt, unit)
    }
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
    fn first(blocks: &StoredBlocks) -> BlockSlice {
        BlockSlice { from: 0, text_blocks: (blocks.text_blocks as usize).min(blocks.names.len()) }
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
    fn new(matching: Matching) -> WorkerIngest {
        WorkerIngest {
            matching,
            blocks: Blocks::default(),
            spans: Vec::new(),
            has_tiers: false,
            block_tokens: None,
            counted: Ingested::default(),
            stream: None,
            awaited: None,
        }
    }

    /// Stores the blocks of an event, slice by slice.
    fn store(
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
        let mut slice = BlockSlice::first(blocks);
        let mut parent = blocks.parent.map_or(Parent::Root(root), Parent::Name);
        while let Some(names) = slice.names(blocks) {
            source.cut(index.digester(), blocks, &mut slice);
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
    fn remove(
        source: &mut MutexGuard<'_, WorkerIngest>,
        index: &Index,
        worker: WorkerId,
        blocks: &RemovedBlocks,
    ) {
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
                let written = vocabulary.write_blocks(text, block_tokens, &mut self.blocks);
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
