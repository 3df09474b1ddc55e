//! Names told once more without their spans: the engine has put blocks that it stored before into another of its memories.
//!
//! Where the spans lie is known from the first time. A name stored again only counts once more, so that it is there until
//! it has left all memories.

use super::{Reported, Unnamed};
use crate::tree::Tree;

impl Reported {
    /// Counts each of these names once more. Returns how many the worker holds or has waiting; the others mean nothing.
    pub fn store_again(&mut self, tree: &Tree, worker: u16, names: &[u64]) -> usize {
        names.iter().filter(|&&name| self.count_again(tree, worker, name, 1)).count()
    }

    /// Counts a name so many times more; whether the worker knows it.
    pub fn count_again(&mut self, tree: &Tree, worker: u16, name: u64, times: u32) -> bool {
        if self.orphans.waits(worker) && self.orphans.store_again(worker, name, times) {
            return true;
        }
        let is_held = self.resolve(tree, worker, name, Unnamed::default()).is_some();
        if is_held {
            let twice = self.book(worker).twice.get_or_default(name);
            *twice = twice.saturating_add(times);
        }
        is_held
    }

    /// Whether the worker holds this name, or has it waiting.
    pub fn knows(&self, tree: &Tree, worker: u16, name: u64) -> bool {
        self.orphans.has(worker, name) || self.resolve(tree, worker, name, Unnamed::default()).is_some()
    }
}
