//! The lock around the writer. Operations that requests left behind are applied by the thread that holds it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, MutexGuard};

use crate::node_uses::UseId;
use crate::pending::{Operation, PendingOperations, PresumedPrompt};
use crate::presumed;
use crate::writer::Writer;

/// The writer, and the operations that wait for it.
pub(crate) struct WriterLock {
    writer: Mutex<Writer>,
    pub pending: PendingOperations,
    next_use: Arc<AtomicU64>,
}

impl WriterLock {
    pub fn new(writer: Writer) -> WriterLock {
        let next_use = writer.presumed.next_use();
        WriterLock { writer: Mutex::new(writer), pending: PendingOperations::new(), next_use }
    }

    /// Waits for the lock. Operations of requests that came before are applied first.
    pub fn lock(&self) -> WriterGuard<'_> {
        let mut guard = WriterGuard { lock: self, writer: Some(self.writer.lock()) };
        guard.apply_pending();
        guard
    }

    /// Queues a presumption and returns its id.
    pub fn presume(&self, prompt: PresumedPrompt) -> UseId {
        self.pending.push(|| {
            let id = presumed::take_id(&self.next_use, prompt.now);
            (id, Operation::Presume { id, prompt })
        })
    }

    /// Queues the end of a presumption.
    pub fn settle(&self, operation: Operation) {
        self.pending.push(|| ((), operation));
        self.apply_pending();
    }

    /// Applies the waiting operations, unless another thread holds the lock: that thread applies them.
    pub fn apply_pending(&self) {
        while !self.pending.is_empty()
            && let Some(writer) = self.writer.try_lock()
        {
            let mut guard = WriterGuard { lock: self, writer: Some(writer) };
            guard.apply_pending();
            // Its drop would begin here again.
            guard.writer = None;
        }
    }
}

/// The locked writer.
pub(crate) struct WriterGuard<'a> {
    lock: &'a WriterLock,
    /// `None` once released.
    writer: Option<MutexGuard<'a, Writer>>,
}

impl WriterGuard<'_> {
    /// Lets others that wait for the lock go first. A long operation calls this between its pieces.
    pub fn pass_on(&mut self) {
        self.apply_pending();
        self.writer.iter_mut().for_each(MutexGuard::bump);
    }

    fn apply_pending(&mut self) {
        while let Some(operation) = self.lock.pending.first() {
            self.apply(operation);
            self.lock.pending.pop();
        }
    }
}

impl Deref for WriterGuard<'_> {
    type Target = Writer;

    fn deref(&self) -> &Writer {
        self.writer.as_deref().expect("the writer is locked until the guard is dropped")
    }
}

impl DerefMut for WriterGuard<'_> {
    fn deref_mut(&mut self) -> &mut Writer {
        self.writer.as_deref_mut().expect("the writer is locked until the guard is dropped")
    }
}

impl Drop for WriterGuard<'_> {
    /// An operation may be queued between the last look and the release, so another look follows.
    fn drop(&mut self) {
        if self.writer.is_some() {
            self.apply_pending();
            self.writer = None;
            self.lock.apply_pending();
        }
    }
}
