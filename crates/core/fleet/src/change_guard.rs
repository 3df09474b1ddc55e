//! A change of a worker's load or queue, after which copies of them are out of date.

use std::sync::atomic::{AtomicU64, Ordering::Release};

use crate::prefill_queue::PrefillQueue;
use crate::worker_load::WorkerLoad;

/// A worker's load and queue, to be changed. Increments the worker's version when it is dropped.
pub(crate) struct ChangeGuard<'a> {
    pub load: &'a WorkerLoad,
    pub queue: &'a PrefillQueue,
    pub version: &'a AtomicU64,
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        // After the change: a reader of the new version must see it.
        self.version.fetch_add(1, Release);
    }
}
