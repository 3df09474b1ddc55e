//! The group caches of all workers that have several groups. Most fleets have none, and pay one atomic load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use warmroute_index::{Overlap, Reach, Recording, TableHash, Trail};
use warmroute_types::WorkerId;

use crate::group_cache::GroupCache;

/// A worker's group cache, shared between its ingest and decisions.
pub(crate) type SharedGroupCache = Arc<RwLock<GroupCache>>;

/// Group caches by worker.
#[derive(Default)]
pub(crate) struct GroupTable {
    caches: RwLock<BTreeMap<WorkerId, SharedGroupCache>>,
    count: AtomicUsize,
}

impl GroupTable {
    /// Whether lookups must record their trails.
    pub fn recording(&self) -> Recording {
        if self.count.load(Ordering::Acquire) == 0 { Recording::Off } else { Recording::On }
    }

    /// Opens a worker's group cache.
    pub fn open(&self, worker: WorkerId, followed: u16, hash: TableHash) -> SharedGroupCache {
        let cache = Arc::new(RwLock::new(GroupCache::new(followed, hash)));
        let mut caches = self.caches.write();
        caches.insert(worker, Arc::clone(&cache));
        self.count.store(caches.len(), Ordering::Release);
        cache
    }

    /// Drops a worker's group cache.
    pub fn close(&self, worker: WorkerId) {
        if self.recording() == Recording::Off {
            return;
        }
        let mut caches = self.caches.write();
        let former = caches.remove(&worker);
        self.count.store(caches.len(), Ordering::Release);
        drop(caches);
        drop(former);
    }

    /// Bytes of all group caches, about.
    pub fn bytes(&self) -> usize {
        // A cache that is being written would hold up those who open others.
        let caches: Vec<SharedGroupCache> = self.caches.read().values().cloned().collect();
        caches.iter().map(|cache| cache.read().bytes()).sum()
    }

    /// How far of an overlap all groups of the worker can serve; `None` for a worker with one group.
    pub fn usable(
        &self,
        worker: WorkerId,
        overlap: &Overlap,
        trail: &Trail,
        prompt_bytes: u32,
    ) -> Option<Reach> {
        let caches = self.caches.read();
        let cache = caches.get(&worker)?;
        let usable = cache.read().usable(trail, overlap.place, prompt_bytes);
        Some(usable)
    }
}
