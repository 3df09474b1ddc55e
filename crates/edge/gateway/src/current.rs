//! A value that requests read and operators replace, such as the settings.
//!
//! A request loads the value once, when it arrives, and keeps it, so nothing changes in the middle of a request. The
//! lock is held only while a pointer is copied, which costs nothing next to a request.

use std::sync::Arc;

use parking_lot::RwLock;

/// A replaceable value.
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
