//! The index's bounds. Everything it keeps has one.

use thiserror::Error;
use warmroute_types::{Micros, WorkerId};

use crate::digest::Hash;

/// What bounds an index.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes in all. Beyond them presumed spans go, oldest first, and then new reported ones are refused.
    pub budget_bytes: usize,
    /// Spans that may wait for an unknown parent. The group that has waited longest leaves first.
    pub orphans_max: usize,
    /// How long a presumed span is believed after its last use.
    pub presumed_ttl: Micros,
    /// Tokens that a worker is presumed to hold, where nobody has said what it can.
    pub presumed_tokens: u64,
    /// What digests spans.
    pub hash: Hash,
    /// Seed of the digests of a walk over bytes: one per process, so that nobody can aim at a collision.
    pub seed: u64,
}

impl Default for Config {
    /// Two gigabytes hold some 60 million reported spans; the rest is what an engine on one GPU of 80 GB does.
    fn default() -> Config {
        Config {
            budget_bytes: 2 << 30,
            orphans_max: 1 << 16,
            presumed_ttl: Micros::from_secs(1_800),
            presumed_tokens: 500_000,
            hash: Hash::Xxh3,
            seed: 0,
        }
    }
}

/// The smallest budget that makes sense: an empty index with its tables.
pub const BUDGET_BYTES_MIN: usize = 1 << 16;

impl Config {
    /// Whether the bounds make sense.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.budget_bytes < BUDGET_BYTES_MIN {
            return Err(ConfigError::BudgetTooSmall(self.budget_bytes));
        }
        if self.presumed_ttl == Micros::ZERO {
            return Err(ConfigError::NoTimeToLive);
        }
        Ok(())
    }
}

/// Bounds that make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Nothing would fit.
    #[error("an index of {0} bytes holds nothing; give it at least {BUDGET_BYTES_MIN}")]
    BudgetTooSmall(usize),
    /// Everything would be forgotten at once.
    #[error("a time to live of zero forgets everything at once")]
    NoTimeToLive,
}

/// What an index refuses to do. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IndexError {
    /// A worker beyond [`SEATS_MAX`](crate::SEATS_MAX).
    #[error("worker {0} is beyond the last seat")]
    NoSuchSeat(WorkerId),
    /// Reported spans under a presumed root, or the other way round, or something that only the other source can do.
    #[error("that root belongs to the other source")]
    OtherSource,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_nonsense_is_not() {
        assert_eq!(Config::default().validate(), Ok(()));
        let small = Config { budget_bytes: 10, ..Config::default() };
        assert_eq!(small.validate(), Err(ConfigError::BudgetTooSmall(10)));
        let hasty = Config { presumed_ttl: Micros::ZERO, ..Config::default() };
        assert_eq!(hasty.validate(), Err(ConfigError::NoTimeToLive));
    }
}
