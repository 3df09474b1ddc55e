//! Named groups of workers, such as the pods of one InferencePool. A request may be limited to a group.
//!
//! A group is read while a request waits and when it is routed, so a worker that joins the group later can take a
//! request that already waits, and a worker of another group cannot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;
use warmroute_types::{MAX_WORKERS, WorkerId};

/// Bits of a word.
const BITS: usize = 64;

/// A set of workers that changes while it is read.
#[derive(Debug)]
pub struct WorkerGroup {
    /// One bit for each worker index.
    words: Box<[AtomicU64]>,
    number: u64,
}

impl WorkerGroup {
    fn new(number: u64) -> WorkerGroup {
        WorkerGroup { words: (0..MAX_WORKERS.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect(), number }
    }

    /// Whether the worker belongs to the group.
    pub fn contains(&self, worker: WorkerId) -> bool {
        let (word, bit) = place_of(worker);
        self.words[word].load(Relaxed) & bit != 0
    }

    /// A number that no other group of this router has.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn set(&self, worker: WorkerId, is_member: bool) {
        let (word, bit) = place_of(worker);
        match is_member {
            true => self.words[word].fetch_or(bit, Relaxed),
            false => self.words[word].fetch_and(!bit, Relaxed),
        };
    }
}

fn place_of(worker: WorkerId) -> (usize, u64) {
    (worker.index() / BITS, 1 << (worker.index() % BITS))
}

/// Whether a request that is limited to a group, or to none, may use a worker.
pub(crate) fn allows(group: Option<&WorkerGroup>, worker: WorkerId) -> bool {
    group.is_none_or(|group| group.contains(worker))
}

/// All groups by name. Names come from the configuration, so they are few.
#[derive(Debug, Default)]
pub(crate) struct WorkerGroups(RwLock<BTreeMap<Box<str>, Arc<WorkerGroup>>>);

impl WorkerGroups {
    /// The group of this name, which is empty until a worker is in it.
    pub fn named(&self, name: &str) -> Arc<WorkerGroup> {
        if let Some(group) = self.0.read().get(name) {
            return Arc::clone(group);
        }
        let mut groups = self.0.write();
        let number = groups.len() as u64 + 1;
        Arc::clone(groups.entry(name.into()).or_insert_with(|| Arc::new(WorkerGroup::new(number))))
    }

    /// Puts a worker into the groups of these names, and takes it out of all others.
    pub fn assign(&self, worker: WorkerId, names: &[String]) {
        names.iter().for_each(|name| _ = self.named(name));
        for (name, group) in self.0.read().iter() {
            group.set(worker, names.iter().any(|wanted| **wanted == **name));
        }
    }

    /// The names of a worker's groups.
    pub fn names_of(&self, worker: WorkerId) -> Vec<Box<str>> {
        let groups = self.0.read();
        groups.iter().filter(|(_, group)| group.contains(worker)).map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_in_the_groups_that_were_named_last() {
        let groups = WorkerGroups::default();
        let (llama, qwen) = (groups.named("llama"), groups.named("qwen"));
        let (first, last) = (WorkerId(0), WorkerId(MAX_WORKERS as u16 - 1));
        for worker in [first, last] {
            groups.assign(worker, &["llama".to_owned()]);
            assert!(llama.contains(worker) && !qwen.contains(worker));
            assert_eq!(groups.names_of(worker), ["llama".into()]);
        }
        groups.assign(last, &["qwen".to_owned(), "new".to_owned()]);
        assert!(!llama.contains(last) && qwen.contains(last) && groups.named("new").contains(last));
        assert!(llama.contains(first) && !groups.named("new").contains(first));
        assert_ne!(llama.number(), qwen.number());
    }
}
