//! Prefill that the fleet had done before: prompt blocks that an engine computes although some engine, the same
//! one or another, has computed them already.
//!
//! Round robin repeats a prefix once per engine, and every eviction repeats it once more. One cache of unlimited
//! size repeats nothing.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use warmroute_engine::BlockName;

use crate::directory::AlreadyHashed;
use crate::random::mix;

/// One in this many block names is counted, so that a million prompts fit into memory.
const SAMPLED: u64 = 16;

/// The hash of a block's name, if the block is in the sample. The same block is in it for every engine. Names of
/// one page differ in their last bits only, so they are mixed first.
pub fn sampled_hash(name: BlockName) -> Option<u64> {
    let hash = mix(name.0);
    (hash >> 32).is_multiple_of(SAMPLED).then_some(hash)
}

/// The sampled blocks of one request: position in its chain, and hash.
pub type Trail = Vec<(u32, u64)>;

/// Writes the sampled blocks of a chain into `trail`, which is reused.
pub fn sample(chain: &[BlockName], trail: &mut Trail) {
    trail.clear();
    let numbered = (0_u32..).zip(chain.iter().copied());
    trail.extend(numbered.filter_map(|(at, name)| Some((at, sampled_hash(name)?))));
}

/// Blocks that the fleet has computed so far.
#[derive(Debug, Default)]
pub struct RepeatedPrefill {
    computed_before: HashSet<u64, BuildHasherDefault<AlreadyHashed>>,
    computed: u64,
    repeated: u64,
}

impl RepeatedPrefill {
    /// Counts the prompt blocks that an engine computes: those after its cached ones.
    pub fn prefill(&mut self, trail: &Trail, cached_blocks: u32, prompt_blocks: u32) {
        for &(_, hash) in trail.iter().filter(|(at, _)| (cached_blocks..prompt_blocks).contains(at)) {
            self.computed += 1;
            self.repeated += u64::from(!self.computed_before.insert(hash));
        }
    }

    /// Records the blocks of an answer. Computing them again as part of a later prompt is a repetition.
    pub fn answered(&mut self, trail: &Trail, prompt_blocks: u32) {
        let answer = trail.iter().filter(|(at, _)| *at >= prompt_blocks);
        self.computed_before.extend(answer.map(|(_, hash)| *hash));
    }

    /// Share of the computed prompt blocks that had been computed before, from 0 to 1.
    pub fn ratio(&self) -> f64 {
        if self.computed == 0 { 0.0 } else { self.repeated as f64 / self.computed as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_repeated_from_its_second_computation_on() {
        let chain: Vec<BlockName> = (0..3_200).map(|block| BlockName(mix(block))).collect();
        let (mut trail, mut prefill) = (Trail::new(), RepeatedPrefill::default());
        sample(&chain, &mut trail);
        assert!((150..=250).contains(&trail.len()), "one in sixteen: {}", trail.len());
        assert_eq!(prefill.ratio(), 0.0);
        prefill.prefill(&trail, 0, 1_600);
        assert_eq!(prefill.ratio(), 0.0, "the first time");
        prefill.prefill(&trail, 0, 1_600);
        assert_eq!(prefill.ratio(), 0.5, "on another engine");
        prefill.prefill(&trail, 1_600, 1_600);
        assert_eq!(prefill.ratio(), 0.5, "a hit computes nothing");
        prefill.answered(&trail, 1_600);
        prefill.prefill(&trail, 1_600, 3_200);
        assert!(prefill.ratio() > 0.6, "an answer that another engine computes as a prompt");
    }
}
