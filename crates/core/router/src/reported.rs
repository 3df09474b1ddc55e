//! The caches of all workers whose engines report them, and how each worker's events are matched with prompts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};
use warmroute_feed::Counters;
use warmroute_index::{Index, RootKey};
use warmroute_prompt::MediumFacts;
use warmroute_types::{CacheEvent, Medium, Micros, StoredBlocks, WorkerId};

use crate::PromptText;
use crate::family::Family;
use crate::feed_check::{AwaitedPrompt, PromptSeen};
use crate::group_table::GroupTable;
use crate::matching::{Alphabet, Matching};
use crate::media::{MediaBook, SeenMedia, SeenMedium};
use crate::unit::Unit;
use crate::worker_ingest::{Ingested, WorkerIngest, forget};

/// Maximum number of LoRA adapters; further ones are ignored.
const LORAS_MAX: usize = 4_096;

/// The reported caches of all workers.
#[derive(Default)]
pub(crate) struct Reported {
    sources: RwLock<BTreeMap<WorkerId, Arc<Mutex<WorkerIngest>>>>,
    loras: RwLock<BTreeSet<Box<str>>>,
    /// The caches of models with several groups.
    pub groups: GroupTable,
    /// What engines make of images and other media.
    pub media: MediaBook,
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
        self.groups.close(worker);
        let mut sources = self.sources.write();
        match matching {
            Some(matching) => {
                // The engine may be new, with other settings for media.
                self.media.doubt();
                sources.insert(worker, Arc::new(Mutex::new(WorkerIngest::new(matching))));
            }
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
        // Requests do not wait for events. The next answer checks.
        let Some(mut source) = source.try_lock() else { return };
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
        let source = self.sources.read().get(&worker).cloned();
        source.iter().for_each(|source| source.lock().stream = Some(counters));
    }

    /// Ingests events; returns the block size if they contain it. Ignores workers without a matching.
    pub fn take(&self, index: &Index, worker: WorkerId, events: &[CacheEvent]) -> Option<u32> {
        let source = self.sources.read().get(&worker).cloned()?;
        let mut source = source.lock();
        let mut block_tokens = None;
        source.find_groups(index, worker, events, &self.groups);
        for event in events {
            match event {
                CacheEvent::Stored(blocks) if source.is_other_cache(blocks) => source.store_other(blocks),
                CacheEvent::Stored(blocks) => {
                    if blocks.medium == Medium::Gpu {
                        // The last block of a prompt may be reported before it is full.
                        block_tokens = block_tokens.max(Some(blocks.block_tokens)).max(source.block_tokens);
                        source.block_tokens = block_tokens;
                    }
                    let root = self.root_of(&source.matching, blocks);
                    source.media.note(blocks, &self.media);
                    WorkerIngest::store(&mut source, index, worker, root, blocks);
                }
                CacheEvent::Removed(blocks) => WorkerIngest::remove(&mut source, index, worker, blocks),
                CacheEvent::Cleared => {
                    MutexGuard::unlocked(&mut source, || forget(index, worker));
                    let groups = source.groups.as_ref().map(|groups| groups.write().take());
                    drop(groups);
                    source.media = SeenMedia::default();
                }
            }
            MutexGuard::bump(&mut source);
        }
        block_tokens
    }

    /// Forgets the block size and the groups, and has media checked again: a restarted engine may have others. Known media
    /// stay in use, because the other engines of the family have them.
    pub fn emptied(&self, worker: WorkerId) {
        self.groups.close(worker);
        let source = self.sources.read().get(&worker).cloned();
        if let Some(source) = source {
            let mut source = source.lock();
            (source.block_tokens, source.followed, source.groups) = (None, None, None);
            source.media = SeenMedia::default();
            self.media.doubt();
        }
    }

    /// Media that appeared in a worker's events after a moment, as its family writes them. After moment 0: all that its
    /// cache may hold. None where some of them have been dropped.
    pub fn media_since(&self, worker: WorkerId, family: u64, moment: u64) -> Vec<MediumFacts> {
        let Some(source) = self.sources.read().get(&worker).cloned() else { return Vec::new() };
        let source = source.lock();
        let Alphabet::Bytes(vocabulary) = &source.matching.alphabet else { return Vec::new() };
        if source.matching.family().key() != family {
            return Vec::new();
        }
        let facts = |seen: SeenMedium| {
            let placeholder = vocabulary.bytes(seen.placeholder)?.into();
            Some(MediumFacts { hash: seen.hash, placeholder, tokens: seen.tokens })
        };
        source.media.since(moment).filter_map(facts).collect()
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
        matching.family().root(lora, blocks.salt.as_deref(), matching.unit())
    }

    /// The root of a request's prompt in a family. Requests name adapters like models. Any other name is the
    /// base model, because engines share one cache between all its names.
    pub fn root_for(&self, family: &Family, model: Option<&str>, salt: Option<&str>, unit: Unit) -> RootKey {
        let lora = model.filter(|model| self.loras.read().contains(*model));
        family.root(lora, salt, unit)
    }
}
