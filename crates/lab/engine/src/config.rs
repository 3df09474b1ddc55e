//! The modelled engine: its model and GPU, and vLLM's limits.

use thiserror::Error;
use warmroute_types::Micros;

use crate::Profile;

/// The engine's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The model, which determines the cost of a step.
    pub profile: Profile,
    /// Tokens in a block.
    pub block_size: u32,
    /// Capacity of the cache in tokens; rounded down to whole blocks.
    pub kv_tokens: u64,
    /// The most tokens one step computes (`--max-num-batched-tokens`).
    pub step_tokens_max: u32,
    /// The most sequences in one step (`--max-num-seqs`).
    pub sequences_max: u32,
    /// Speed of the GPU in percent of the measured one, for mixed fleets.
    pub speed_percent: u32,
    /// Whether blocks of finished sequences can be hit.
    pub prefix_caching: PrefixCaching,
    /// Host memory for blocks that the GPU evicts.
    pub host: Option<Tier>,
    /// Tokens that a token of a second group of layers sees, itself included. Without it all layers have full attention.
    pub sliding_window: Option<u32>,
    /// Whether the last cached block of each prompt is computed again, as vLLM does with EAGLE or MTP drafts.
    pub recomputes_last_block: bool,
    /// Memory that several engines share, for blocks that the host evicts, or the GPU without a host memory.
    pub pool: Option<Tier>,
    /// Whether the engine reports the blocks that its cache stores and removes ([`Stored`](crate::Happened::Stored) and
    /// [`Removed`](crate::Happened::Removed)). A simulation that does not read them is faster without. Slower memories and
    /// sliding windows follow the cache by these events, so engines with either always report.
    pub reports_blocks: bool,
}

/// A slower memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Capacity in tokens; rounded down to whole blocks.
    pub tokens: u64,
    /// Bandwidth to the GPU.
    pub megabytes_per_s: u64,
    /// Time until the first byte.
    pub latency: Micros,
}

impl Tier {
    /// The time to fetch this many bytes.
    pub fn takes(&self, bytes: u64) -> Micros {
        self.latency + Micros(bytes / self.megabytes_per_s.max(1))
    }
}

/// Whether prompts are looked up in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixCaching {
    /// vLLM's default.
    On,
    /// Every prompt is computed from its first token; no block gets a name.
    Off,
}

/// Why a [`Config`] is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A limit is zero, so nothing could run.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The cache does not hold a single block.
    #[error("kv_tokens is {kv_tokens}, less than one block of {block_size}")]
    CacheTooSmall {
        /// Tokens that the cache holds.
        kv_tokens: u64,
        /// Tokens of a block.
        block_size: u32,
    },
    /// A sliding window cannot be combined with this.
    #[error("a sliding window cannot be combined with {0}")]
    SlidingWindow(&'static str),
    /// Blocks are counted in 32 bits.
    #[error("{0} blocks are more than the model can number")]
    TooManyBlocks(u64),
}

/// Larger block numbers mean "none".
const BLOCKS_MAX: u64 = u32::MAX as u64 - 1;

impl Config {
    /// vLLM's defaults for one H200 with this model, without slower memories, but for `sequences_max`: vLLM takes 1,024 with 70 GiB of
    /// memory and more, and 256 is the largest batch whose steps were measured. The cache is what 90 % of 141 GB leave beside the
    /// weights.
    pub fn for_profile(profile: Profile) -> Config {
        let kv_tokens = match profile {
            Profile::Llama3_2_3b => 1_050_000,
            Profile::Llama3_1_8b => 846_000,
        };
        Config {
            profile,
            block_size: 16,
            kv_tokens,
            step_tokens_max: 8_192,
            sequences_max: 256,
            speed_percent: 100,
            prefix_caching: PrefixCaching::On,
            host: None,
            pool: None,
            sliding_window: None,
            recomputes_last_block: false,
            reports_blocks: true,
        }
    }

    /// Checks that an engine with these limits can run.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (name, value) in [
            ("block_size", self.block_size),
            ("step_tokens_max", self.step_tokens_max),
            ("sequences_max", self.sequences_max),
            ("speed_percent", self.speed_percent),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero(name));
            }
        }
        if [self.host, self.pool].into_iter().flatten().any(|tier| tier.megabytes_per_s == 0) {
            return Err(ConfigError::Zero("the bandwidth of a memory"));
        }
        self.validate_window()?;
        let blocks = self.kv_tokens / u64::from(self.block_size);
        match blocks {
            0 => Err(ConfigError::CacheTooSmall { kv_tokens: self.kv_tokens, block_size: self.block_size }),
            1..=BLOCKS_MAX => Ok(()),
            _ => Err(ConfigError::TooManyBlocks(blocks)),
        }
    }

    fn validate_window(&self) -> Result<(), ConfigError> {
        match self.sliding_window {
            None => Ok(()),
            Some(0) => Err(ConfigError::Zero("sliding_window")),
            Some(_) if self.host.is_some() || self.pool.is_some() => {
                Err(ConfigError::SlidingWindow("slower memories"))
            }
            Some(_) if self.prefix_caching == PrefixCaching::Off => {
                Err(ConfigError::SlidingWindow("a cache without prefixes"))
            }
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_every_profile_are_valid() {
        for profile in Profile::ALL {
            assert_eq!(Config::for_profile(profile).validate(), Ok(()));
        }
    }

    #[test]
    fn limits_that_let_nothing_run_are_refused() {
        let config = Config::for_profile(Profile::Llama3_1_8b);
        let zero = Config { sequences_max: 0, ..config.clone() };
        assert_eq!(zero.validate(), Err(ConfigError::Zero("sequences_max")));
        let small = Config { kv_tokens: 15, ..config.clone() };
        assert_eq!(small.validate(), Err(ConfigError::CacheTooSmall { kv_tokens: 15, block_size: 16 }));
        let huge = Config { kv_tokens: u64::MAX, block_size: 1, ..config };
        assert_eq!(huge.validate(), Err(ConfigError::TooManyBlocks(u64::MAX)));
    }
}
