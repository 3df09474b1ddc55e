//! What routers tell each other about tenants' limits.

use crate::{Exceeded, Limits, TenantLevel};

/// A message about limits. Lost, repeated and late ones do little harm: an ask is repeated until it is answered, and
/// [`LimitMessage::Held`] corrects the rest.
#[derive(Clone, Debug, PartialEq)]
pub enum LimitMessage {
    /// May a request run? To the tenant's home.
    Ask {
        /// The sender's number for this request.
        id: u64,
        /// The tenant, as a hash that is the same on all routers.
        tenant: u64,
        /// The tenant's limits, as the sender has them.
        limits: Limits,
        /// Tokens that the request may use.
        tokens: u32,
    },
    /// The answer to an ask.
    Answer {
        /// The number of the ask.
        id: u64,
        /// The limit that the request exceeds; `None` if it may run.
        refused: Option<Exceeded>,
    },
    /// A running request has used this many tokens, more than it had reserved.
    Extend {
        /// Its number.
        id: u64,
        /// Tokens used so far.
        tokens: u32,
    },
    /// A request has ended and used this many tokens.
    Settle {
        /// Its number.
        id: u64,
        /// Tokens used.
        tokens: u32,
    },
    /// A request that was granted has not run, because its client or its patience has gone.
    Return {
        /// Its number.
        id: u64,
    },
    /// All requests of the sender that the receiver should count, with numbers in a range. What the receiver counts
    /// beyond that has ended.
    Held {
        /// The first number of the range.
        first: u64,
        /// The last number of the range.
        last: u64,
        /// Running requests.
        leases: Vec<HeldLease>,
        /// Numbers of requests that wait for an answer.
        pending: Vec<u64>,
    },
    /// What is left of a tenant's limits. From its home to everyone, and to the next home.
    Level {
        /// Number of the tenant, the same on every router.
        tenant: u64,
        /// What is left.
        level: TenantLevel,
    },
}

/// A running request in [`LimitMessage::Held`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// The sender's number for the request.
    pub id: u64,
    /// Number of the tenant, the same on every router.
    pub tenant: u64,
    /// The tenant's limits.
    pub limits: Limits,
    /// Tokens that it has reserved.
    pub tokens: u32,
}

/// Requests in one list, which must fit into a message.
const HELD_MAX: usize = 4_096;

/// Lists of bounded size that together cover all numbers up to `last`.
pub(crate) fn held_lists(leases: Vec<HeldLease>, pending: &[u64], last: u64) -> Vec<LimitMessage> {
    let mut lists = Vec::new();
    let (mut first, mut rest) = (0, leases.as_slice());
    loop {
        let (some, more) = rest.split_at(rest.len().min(HELD_MAX));
        let end = more.first().map_or(last, |next| next.id - 1);
        let pending = pending.iter().copied().filter(|id| (first..=end).contains(id)).collect();
        lists.push(LimitMessage::Held { first, last: end, leases: some.to_vec(), pending });
        if more.is_empty() {
            return lists;
        }
        (first, rest) = (end + 1, more);
    }
}
