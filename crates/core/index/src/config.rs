//! The index's limits. Everything that the index keeps has one.

use thiserror::Error;
use warmroute_types::{AT_LEAST_1, BadSetting, Micros, check_settings};

use crate::digest::Hash;
use crate::holder_id::HolderId;

/// Limits of an index.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes in total. At the limit the index evicts presumed spans, oldest first, and then refuses new reported
    /// spans.
    pub budget_bytes: usize,
    /// Most spans that may wait for an unknown parent. At the limit the group that has waited longest is dropped.
    pub orphans_max: usize,
    /// How long a presumed span counts as cached after its last use.
    pub presumed_ttl: Micros,
    /// Cache capacity of a holder in tokens, until [`Index::set_capacity`](crate::Index::set_capacity) states
    /// another.
    pub presumed_tokens: u64,
    /// The hash that digests spans.
    pub hash: Hash,
    /// Seed of the digests, one per process, so that an attacker cannot construct collisions. Routers that share, and
    /// processes that take over saved state, use the same one.
    pub seed: u64,
    /// Seed of the tables' hash function, one per process and never saved or shared: nothing outside the process
    /// depends on it. Without it, an engine could choose names that all collide.
    pub table_seed: u64,
}

impl Default for Config {
    /// Two gigabytes hold some 60 million reported spans. The capacity is that of an engine on one 80 GB GPU.
    fn default() -> Config {
        Config {
            budget_bytes: 2 << 30,
            orphans_max: 1 << 16,
            presumed_ttl: Micros::from_secs(1_800),
            presumed_tokens: 500_000,
            hash: Hash::Xxh3,
            seed: 0,
            table_seed: 0,
        }
    }
}

/// The smallest useful budget, 64 KiB: an empty index with its tables.
const BUDGET_BYTES_MIN: usize = 1 << 16;

impl Config {
    /// Checks that the limits are usable.
    pub fn validate(&self) -> Result<(), BadSetting> {
        check_settings(&[
            ("max-tree-size", self.budget_bytes >= BUDGET_BYTES_MIN, "must be at least 64KiB"),
            ("presumed-ttl-secs", self.presumed_ttl > Micros::ZERO, AT_LEAST_1),
            ("worker-kv-tokens", self.presumed_tokens > 0, AT_LEAST_1),
        ])
    }
}

/// Why the index refused a call. A refused call changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IndexError {
    /// The holder's id is not below [`HOLDERS_MAX`](crate::HOLDERS_MAX).
    #[error("holder id {0} is not below the index's limit of {max}", max = crate::HOLDERS_MAX)]
    HolderIdTooLarge(HolderId),
    /// Reported spans under a presumed root, presumed spans under a reported root, or an operation of the other
    /// source.
    #[error("the root belongs to the other source: reported and presumed spans never share a root")]
    OtherSource,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_unusable_limits_are_rejected() {
        assert_eq!(Config::default().validate(), Ok(()));
        let refused = |config: Config| config.validate().unwrap_err().option;
        assert_eq!(refused(Config { budget_bytes: 10, ..Config::default() }), "max-tree-size");
        assert_eq!(refused(Config { presumed_ttl: Micros::ZERO, ..Config::default() }), "presumed-ttl-secs");
        assert_eq!(refused(Config { presumed_tokens: 0, ..Config::default() }), "worker-kv-tokens");
    }
}
