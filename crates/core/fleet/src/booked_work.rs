//! The expected cost of a request.

use warmroute_types::Delivery;

use crate::PrefillFeatures;

/// The expected cost of a request, known when it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BookedWork {
    /// Prompt tokens to compute: those not expected in the cache.
    pub prefill_tokens: u32,
    /// All prompt tokens: the context that every decode step reads.
    pub context_tokens: u32,
    /// The inputs of the prefill prediction.
    pub features: PrefillFeatures,
    /// Whether the answer streams.
    pub delivery: Delivery,
}
