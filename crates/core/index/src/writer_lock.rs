//! The lock around the writer. Operations that requests left behind are applied by the thread that holds it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, MutexGuard};

use crate::node_uses::UseId;
use crate::pending::{Operation, PendingOperations, PresumedPrompt};
use crate::presumed;
use crate::writer::Writer;

/// Operations that a request applies at most, its own and others'. More wait for the next one. Otherwise a request that takes
/// the lock would apply all that other threads add meanwhile.
const OPERATIONS_A_TURN: usize = 8;

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

    /// Applies the operations that wait longest, unless another thread holds the lock: that thread applies them. Lookups read
    /// those that are left.
    pub fn apply_pending(&self) {
        let mut turn = OPERATIONS_A_TURN;
        while turn > 0
            && !self.pending.is_empty()
            && let Some(writer) = self.writer.try_lock()
        {
            let mut guard = WriterGuard { lock: self, writer: Some(writer) };
            while turn > 0 && guard.apply_first() {
                turn -= 1;
            }
            // Its drop would apply all others.
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
        while self.apply_first() {}
    }

    /// Applies the operation that waits longest. Returns whether there was one.
    fn apply_first(&mut self) -> bool {
        let Some(operation) = self.lock.pending.first() else { return false };
        self.apply(operation);
        self.lock.pending.pop();
        true
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

#[cfg(test)]
mod tests {
    use warmroute_types::Micros;

    use super::*;
    use crate::children::Children;
    use crate::config::Config;
    use crate::holder_bits::HolderBits;
    use crate::holder_id::HolderId;
    use crate::root::{Namespace, RootKey, Source};
    use crate::span::Span;
    use crate::table_hash::TableHash;

    fn prompt(digest: u64) -> PresumedPrompt {
        let namespace = Namespace { model: "m", lora: None, salt: None, cut: 0, source: Source::Presumed };
        let spans = Arc::new(vec![Span { digest, bytes: 4, tokens: 1 }]);
        PresumedPrompt { holder: HolderId(0), root: RootKey::of(&namespace), spans, now: Micros(1) }
    }

    #[test]
    fn a_request_applies_some_of_the_operations_that_wait_and_a_holder_of_the_lock_all() {
        let config = Config::default();
        let children = Arc::new(Children::new(TableHash::new(config.table_seed)));
        let lock = WriterLock::new(Writer::new(children, Arc::new(HolderBits::new()), &config));
        let waiting = 3 * OPERATIONS_A_TURN + 1;
        (0..waiting as u64).for_each(|digest| _ = lock.presume(prompt(digest)));
        lock.apply_pending();
        assert_eq!(lock.pending.len(), waiting - OPERATIONS_A_TURN);
        drop(lock.lock());
        assert!(lock.pending.is_empty());
    }
}
