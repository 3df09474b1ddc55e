//! Operations of requests that wait for the writer lock in place of the requests.
//!
//! A decision must not wait while an engine's events or a clear hold the lock. A request therefore leaves its
//! presumption here. The thread that holds the lock, or the next one that takes it, applies it. Until then lookups read
//! it here, so that the next request with the same prompt finds it at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use warmroute_types::Micros;

use crate::holder_id::HolderId;
use crate::node_uses::UseId;
use crate::operation::Prompt;
use crate::overlap::Overlaps;
use crate::root::RootKey;
use crate::span::{Reach, Span};

/// Operations for which there is room without an allocation: those of a thousand requests within one hold of the lock.
const RESERVED: usize = 1_024;

/// What a request changes.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Presume { id: UseId, prompt: PresumedPrompt },
    Confirm(UseId),
    Withdraw(UseId),
}

/// A prompt that is presumed on a holder.
#[derive(Clone, Debug)]
pub(crate) struct PresumedPrompt {
    pub holder: HolderId,
    pub root: RootKey,
    pub spans: Arc<Vec<Span>>,
    pub now: Micros,
}

impl PresumedPrompt {
    /// How far the holder will hold a prompt with these digests.
    fn reach(&self, digests: &[u64]) -> Reach {
        let sized = self.spans.iter().map_while(|span| Some((span.digest, span.size()?)));
        let common = sized.zip(digests).take_while(|((digest, _), other)| digest == *other);
        common.fold(Reach::default(), |reach, ((_, size), _)| reach.plus(size, 1))
    }
}

/// The operations that wait, in the order of arrival.
pub(crate) struct PendingOperations {
    queue: Mutex<VecDeque<Operation>>,
    /// The length of the queue, to be read without its lock.
    len: AtomicUsize,
}

impl PendingOperations {
    pub fn new() -> PendingOperations {
        PendingOperations { queue: Mutex::new(VecDeque::with_capacity(RESERVED)), len: AtomicUsize::new(0) }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Adds an operation. `make` runs under the queue's lock, so ids that it takes are in the queue's order.
    pub fn push<T>(&self, make: impl FnOnce() -> (T, Operation)) -> T {
        let mut queue = self.queue.lock();
        let (result, operation) = make();
        queue.push_back(operation);
        self.len.store(queue.len(), Ordering::Release);
        result
    }

    /// The oldest operation. It stays until [`PendingOperations::pop`], so that lookups find it here or in the tree.
    pub fn first(&self) -> Option<Operation> {
        if self.is_empty() { None } else { self.queue.lock().front().cloned() }
    }

    /// Removes the oldest operation, which has been applied. Only the holder of the writer lock calls this.
    pub fn pop(&self) {
        let mut queue = self.queue.lock();
        let applied = queue.pop_front();
        self.len.store(queue.len(), Ordering::Release);
        drop(queue);
        drop(applied);
    }

    /// Adds what waiting presumptions make holders hold of a prompt.
    pub fn find(&self, root: RootKey, prompt: Prompt<'_>, out: &mut Overlaps) {
        let Prompt::Chunks(digests) = prompt else { return };
        if self.is_empty() {
            return;
        }
        for operation in self.queue.lock().iter() {
            if let Operation::Presume { prompt, .. } = operation
                && prompt.root == root
            {
                let reach = prompt.reach(digests);
                if reach.spans > 0 {
                    out.report_pending(prompt.holder, reach);
                }
            }
        }
    }
}
