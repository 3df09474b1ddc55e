//! Models with measured step times, and the fitted parameters.
//!
//! Measured on one NVIDIA H200 with PyTorch 2.11 and CUDA graphs: bf16, random weights (step times do not
//! depend on their values), median of 7. The tables are in `profiles/`; the parameters below are the output
//! of
//!
//! ```text
//! cargo run --release -p warmroute-engine --example fit
//! ```
//!
//! A test of that example fails if the two differ. It also prints the error of each point under a fit without
//! that point: at most 10 %.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::{DecodeCost, PrefillCost, StepCost};

/// A model with measured step times on one NVIDIA H200.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Llama 3.2 3B in bf16.
    Llama3_2_3b,
    /// Llama 3.1 8B in bf16.
    Llama3_1_8b,
}

/// Error of an unknown profile name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown profile {0:?}: known are llama-3.2-3b and llama-3.1-8b")]
pub struct UnknownProfile(pub String);

impl Profile {
    /// All profiles.
    pub const ALL: [Profile; 2] = [Profile::Llama3_2_3b, Profile::Llama3_1_8b];

    /// Name in flags and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Profile::Llama3_2_3b => "llama-3.2-3b",
            Profile::Llama3_1_8b => "llama-3.1-8b",
        }
    }

    /// KV bytes per token: keys and values in bf16 for every layer (28 and 32), with 8 KV heads of 128.
    pub fn kv_token_bytes(self) -> u64 {
        match self {
            Profile::Llama3_2_3b => 114_688,
            Profile::Llama3_1_8b => 131_072,
        }
    }

    /// Step cost of this model.
    pub fn cost(self) -> &'static StepCost {
        match self {
            Profile::Llama3_2_3b => &LLAMA_3_2_3B,
            Profile::Llama3_1_8b => &LLAMA_3_1_8B,
        }
    }
}

const LLAMA_3_2_3B: StepCost = StepCost {
    prefill: PrefillCost {
        floor_ms: 2.950_24,
        token_ms: 1.060_45e-2,
        context_ms: 1.018_75e-6,
        narrow: 0.211_330,
        square_ms: 2.578_90e-7,
        masked_ms: 3.057_77e-7,
        reach_ms: 0.181_841,
    },
    decode: DecodeCost { step_ms: 2.749_31, sequence_ms: 3.794_86e-3, context_ms: 2.529_80e-5 },
};

const LLAMA_3_1_8B: StepCost = StepCost {
    prefill: PrefillCost {
        floor_ms: 5.354_38,
        token_ms: 2.379_05e-2,
        context_ms: 1.543_36e-6,
        narrow: 4.814_97e-2,
        square_ms: 5.136_62e-7,
        masked_ms: 4.469_25e-7,
        reach_ms: 0.718_659,
    },
    decode: DecodeCost { step_ms: 4.932_22, sequence_ms: 9.990_44e-3, context_ms: 2.900_30e-5 },
};

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Profile, UnknownProfile> {
        let known = Profile::ALL.into_iter().find(|profile| profile.as_str() == name);
        known.ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_parses_only_its_own_name() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        assert_eq!("gpt-2".parse::<Profile>(), Err(UnknownProfile("gpt-2".to_owned())));
    }

    #[test]
    fn a_prefill_never_undercuts_an_empty_step() {
        for profile in Profile::ALL {
            assert!(profile.cost().prefill.floor_ms > profile.cost().decode.step_ms, "{profile}");
        }
    }
}
