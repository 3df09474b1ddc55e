//! A value that every request reads and an operator now and then replaces.
//!
//! A request takes the value once, when it begins, and keeps it: nothing changes under it half-way. A lock for as long as a
//! pointer takes to copy is not seen beside a request, so there is no need for anything cleverer.

use std::sync::Arc;

use parking_lot::RwLock;

/// The value in force.
pub(crate) struct Current<T>(RwLock<Arc<T>>);

impl<T> Current<T> {
    pub(crate) fn new(value: T) -> Current<T> {
        Current(RwLock::new(Arc::new(value)))
    }

    pub(crate) fn load(&self) -> Arc<T> {
        Arc::clone(&self.0.read())
    }

    pub(crate) fn set(&self, value: T) {
        *self.0.write() = Arc::new(value);
    }
}
