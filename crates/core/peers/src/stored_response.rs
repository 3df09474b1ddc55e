//! Where a response or conversation is stored, as routers tell each other.

/// The place of an object that an engine stores for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredResponse {
    /// A hash of the tenant whose request made it; 0 without API keys.
    pub owner: u64,
    /// The worker's identity: a hash of its address, the same on every router.
    pub worker: u64,
}
