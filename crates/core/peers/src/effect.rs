//! Changes that a peer's message causes in this router.

use warmroute_admission::LimitMessage;
use warmroute_types::{Micros, RouterId};

use crate::{AssignmentEnd, BookingRecord, PromptDigests, StoredResponse};

/// A change to apply to worker loads and the index. The driver applies effects in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// A peer sent a request to a worker.
    Booked {
        /// The peer.
        router: RouterId,
        /// The peer's number for this assignment.
        assignment: u64,
        /// Worker, token counts and prompt digests.
        booking: BookingRecord,
    },
    /// The worker computed the prompt of a booked assignment, so its cache holds it.
    Prefilled {
        /// The peer.
        router: RouterId,
        /// The peer's number for this assignment.
        assignment: u64,
    },
    /// An assignment ended. Exactly one `Ended` follows each `Booked`, at the latest when the peer falls silent. A peer that
    /// speaks again books its open assignments again.
    Ended {
        /// The peer.
        router: RouterId,
        /// The peer's number for this assignment.
        assignment: u64,
        /// How it ended.
        end: AssignmentEnd,
        /// The prompt, set only for a stale prediction that still describes the worker's cache.
        prompt: Option<PromptDigests>,
    },
    /// A peer misses batches that are no longer retained. Answer with all open assignments:
    /// [`Peers::answer_ledger`](crate::Peers::answer_ledger).
    LedgerRequested {
        /// The peer.
        router: RouterId,
        /// The answer replaces all batches up to this number.
        up_to: u64,
        /// Every assignment below this number had ended by then.
        low_water: u64,
    },
    /// A peer requests the presumed contents of all caches. Answer with
    /// [`Peers::answer_snapshot`](crate::Peers::answer_snapshot).
    SnapshotRequested,
    /// A peer's presumed contents of all caches arrived.
    SnapshotReceived {
        /// As the peer encoded them.
        bytes: Vec<u8>,
        /// Upper bound of their age.
        age: Micros,
    },
    /// A worker stored a response for a client of a peer.
    ResponseStored {
        /// The hash of its identifier.
        id: u128,
        /// Its place and owner.
        stored: StoredResponse,
    },
    /// A peer asks or tells something about tenants' limits.
    LimitsReceived {
        /// The peer.
        router: RouterId,
        /// Its messages, in order.
        messages: Vec<LimitMessage>,
    },
    /// A peer found a worker's cache empty.
    CacheCleared {
        /// The worker's identity.
        worker: u64,
    },
}
