//! A bound on the unfinished messages of several connections together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that connections may hold together. Clones share the count.
#[derive(Clone, Debug)]
pub struct ByteBudget {
    used: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl ByteBudget {
    /// A budget of so many bytes.
    pub fn new(bytes_max: usize) -> ByteBudget {
        ByteBudget { used: Arc::default(), bytes_max }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Changes one connection's share. False if all shares together exceed the budget.
    pub(crate) fn change(&self, from: usize, to: usize) -> bool {
        match to.checked_sub(from) {
            Some(more) => self.used.fetch_add(more, Ordering::Relaxed) + more <= self.bytes_max,
            None => {
                self.used.fetch_sub(from - to, Ordering::Relaxed);
                true
            }
        }
    }
}

impl PartialEq for ByteBudget {
    fn eq(&self, other: &ByteBudget) -> bool {
        Arc::ptr_eq(&self.used, &other.used)
    }
}

impl Eq for ByteBudget {}
