//! What every index is asked to do.

use crate::stream::{Remove, Store};

pub trait Rival {
    fn name(&self) -> &'static str;
    fn store(&mut self, store: &Store);
    fn remove(&mut self, remove: &Remove);
    /// How many workers hold anything of the prompt, and the sum of their blocks.
    fn find(&mut self, prompt: &[u64]) -> (usize, u64);
    /// Waits until everything is applied; CPU nanoseconds spent on other threads so far.
    fn drain(&mut self) -> u64 {
        0
    }
}
