//! The duration of a step, from what it computes.
//!
//! A step reads all weights once, multiplies them with every new token, and computes every new token's attention to
//! its context. The slower of the first two determines a small step's time (the roofline), so they join as a smooth
//! maximum; attention is added. Every parameter is positive, so the cost grows in every argument. Sequences with a
//! single token to compute are decodes; all others are prefills.
//!
//! Outside the measured table the cost continues in a straight line.

use warmroute_types::Micros;

/// Rows that the attention kernel processes at once: fewer new tokens read the context no faster. In the table 16 and
/// 64 new tokens cost the same for every context.
const TILE_TOKENS: u32 = 64;
/// New tokens at which attention over a long context reaches full speed; see [`PrefillCost::narrow`].
const NARROW_TOKENS: f64 = 2_048.0;
/// Cached tokens from which on a context counts; see [`PrefillCost::masked_ms`] and [`PrefillCost::reach_ms`]. The
/// table only shows that it is well below its first cached row, 1,024 tokens.
const MASKED_TOKENS: f64 = 256.0;
const REACH_TOKENS: f64 = 1_000.0;
/// The longest prefill in the table. Beyond it, quadratic terms continue along the tangent.
const TABLE_NEW_MAX: f64 = 8_192.0;

/// The step costs of one model on one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// Sequences that compute several tokens.
    pub prefill: PrefillCost,
    /// Sequences that compute one token.
    pub decode: DecodeCost,
}

/// Parameters of a prefill; see [`PrefillCost::ms`] for their combination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillCost {
    /// Reading the weights: the least cost of a prefill.
    pub floor_ms: f64,
    /// Multiplying one new token with the weights.
    pub token_ms: f64,
    /// Attention of one new token to one cached token, in a long prefill.
    pub context_ms: f64,
    /// How much more the same costs in a short prefill, as a share.
    pub narrow: f64,
    /// Attention between new tokens, per pair.
    pub square_ms: f64,
    /// The same, in addition, with a cached context: the kernel then masks instead of skipping.
    pub masked_ms: f64,
    /// Access to a cached context, once per step.
    pub reach_ms: f64,
}

/// Parameters of a decode step: `step + sequences x sequence + context tokens x context`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeCost {
    /// Reading the weights: an empty step.
    pub step_ms: f64,
    /// One more sequence in the batch.
    pub sequence_ms: f64,
    /// One more token of context to read, in any sequence.
    pub context_ms: f64,
}

/// The work of a step, summed over its sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    prefill_tokens: u64,
    context: f64,
    context_narrow: f64,
    square: f64,
    square_masked: f64,
    cached_tokens_max: u32,
    decodes: u32,
    decode_context_tokens: u64,
}

impl StepWork {
    /// A step that only decodes, with this much context in total.
    pub fn of_decodes(sequences: u32, context_tokens: u64) -> StepWork {
        StepWork { decodes: sequences, decode_context_tokens: context_tokens, ..StepWork::default() }
    }

    /// Adds a sequence that has `cached_tokens` of context and computes `new_tokens` more.
    pub fn add(&mut self, cached_tokens: u32, new_tokens: u32) {
        match new_tokens {
            0 => {}
            1 => self.add_decode(cached_tokens.saturating_add(1)),
            _ => self.add_prefill(cached_tokens, new_tokens),
        }
    }

    /// Adds a sequence that computes one token, the last of `context_tokens`.
    pub fn add_decode(&mut self, context_tokens: u32) {
        self.decodes += 1;
        self.decode_context_tokens += u64::from(context_tokens);
    }

    /// Adds a prompt, or a chunk of one.
    pub fn add_prefill(&mut self, cached_tokens: u32, new_tokens: u32) {
        let cached = f64::from(cached_tokens);
        let rows = f64::from(new_tokens.max(TILE_TOKENS));
        let square = square_or_tangent(f64::from(new_tokens));
        self.prefill_tokens += u64::from(new_tokens);
        self.context += cached * rows;
        self.context_narrow += cached * rows * NARROW_TOKENS / (NARROW_TOKENS + rows);
        self.square += square;
        self.square_masked += square * cached / (cached + MASKED_TOKENS);
        self.cached_tokens_max = self.cached_tokens_max.max(cached_tokens);
    }
}

impl StepCost {
    /// The cost on a GPU with this percentage of the measured one's speed.
    pub fn at_speed(&self, percent: u32) -> StepCost {
        if percent == 100 {
            return *self;
        }
        let slower = 100.0 / f64::from(percent);
        let PrefillCost { floor_ms, token_ms, context_ms, narrow, square_ms, masked_ms, reach_ms } =
            self.prefill;
        let DecodeCost { step_ms, sequence_ms, context_ms: read_ms } = self.decode;
        StepCost {
            prefill: PrefillCost {
                floor_ms: floor_ms * slower,
                token_ms: token_ms * slower,
                context_ms: context_ms * slower,
                narrow,
                square_ms: square_ms * slower,
                masked_ms: masked_ms * slower,
                reach_ms: reach_ms * slower,
            },
            decode: DecodeCost {
                step_ms: step_ms * slower,
                sequence_ms: sequence_ms * slower,
                context_ms: read_ms * slower,
            },
        }
    }

    /// The duration of a single prompt: `new_tokens` after `cached_tokens`, in steps of at most `step_tokens_max`.
    pub fn of_prompt(&self, cached_tokens: u32, new_tokens: u32, step_tokens_max: u32) -> Micros {
        let (mut takes, mut done) = (Micros::ZERO, 0);
        while done < new_tokens {
            let chunk = (new_tokens - done).min(step_tokens_max.max(1));
            let mut work = StepWork::default();
            work.add_prefill(cached_tokens + done, chunk);
            takes = takes + self.of(&work);
            done += chunk;
        }
        takes
    }

    /// How long the step takes, at least a microsecond.
    ///
    /// A mixed step is *assumed* to cost its prefill plus its decode minus an empty step: the weights are read once,
    /// and neither part hides behind the other. The table has no mixed steps to check this against.
    pub fn of(&self, work: &StepWork) -> Micros {
        let prefill_ms = match work.prefill_tokens {
            0 => self.decode.step_ms,
            _ => self.prefill.ms(work),
        };
        let decode_ms = self.decode.ms(work);
        Micros::from_millis_f64(prefill_ms + decode_ms - self.decode.step_ms).max(Micros(1))
    }
}

impl PrefillCost {
    /// Milliseconds for the prefills of a step. Several in one step share the weights; their tokens and their
    /// attention add up.
    pub fn ms(&self, work: &StepWork) -> f64 {
        let compute_ms = self.token_ms * work.prefill_tokens as f64;
        let weights_ms = (self.floor_ms * self.floor_ms + compute_ms * compute_ms).sqrt();
        let context_ms = self.context_ms * (work.context + self.narrow * work.context_narrow);
        let square_ms = self.square_ms * work.square + self.masked_ms * work.square_masked;
        let cached = f64::from(work.cached_tokens_max);
        weights_ms + context_ms + square_ms + self.reach_ms * cached / (cached + REACH_TOKENS)
    }
}

impl DecodeCost {
    /// Milliseconds for the decodes of a step.
    pub fn ms(&self, work: &StepWork) -> f64 {
        let sequences_ms = self.sequence_ms * f64::from(work.decodes);
        self.step_ms + sequences_ms + self.context_ms * work.decode_context_tokens as f64
    }
}

fn square_or_tangent(new_tokens: f64) -> f64 {
    let inside = new_tokens.min(TABLE_NEW_MAX);
    inside * (2.0 * new_tokens - inside)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Profile;

    fn cost_us(profile: Profile, sequences: &[(u32, u32)]) -> u64 {
        let mut work = StepWork::default();
        for &(cached, new) in sequences {
            work.add(cached, new);
        }
        profile.cost().of(&work).0
    }

    #[test]
    fn a_mixed_step_costs_prefill_plus_decode_minus_an_empty_step() {
        for profile in Profile::ALL {
            let empty = cost_us(profile, &[]);
            let prefill = cost_us(profile, &[(1_024, 512)]);
            let decode = cost_us(profile, &[(2_047, 1), (8_191, 1)]);
            let mixed = cost_us(profile, &[(1_024, 512), (2_047, 1), (8_191, 1)]);
            assert!(mixed.abs_diff(prefill + decode - empty) <= 2, "rounding apart");
        }
    }

    #[test]
    fn a_long_prompt_takes_what_its_chunks_take() {
        let cost = Profile::Llama3_1_8b.cost();
        let chunks = [(1_000, 8_192), (9_192, 8_192), (17_384, 616)];
        let sum: u64 = chunks.iter().map(|&chunk| cost_us(Profile::Llama3_1_8b, &[chunk])).sum();
        assert_eq!(cost.of_prompt(1_000, 17_000, 8_192), Micros(sum));
        assert_eq!(cost.of_prompt(1_000, 0, 8_192), Micros::ZERO);
    }

    #[test]
    fn half_the_speed_takes_twice_as_long() {
        let mut work = StepWork::default();
        [(0, 700), (4_000, 300), (2_000, 1)].iter().for_each(|&(cached, new)| work.add(cached, new));
        for profile in Profile::ALL {
            let (full, half) = (profile.cost().of(&work), profile.cost().at_speed(50).of(&work));
            assert!(half.0.abs_diff(2 * full.0) <= 1, "{full} {half}");
        }
    }

    #[test]
    fn beyond_the_table_the_cost_goes_on_in_a_straight_line() {
        for profile in Profile::ALL {
            let steps = |at: [(u32, u32); 3]| at.map(|sequence| cost_us(profile, &[sequence]) as f64);
            for [near, middle, far] in [
                steps([(65_536, 512), (131_072, 512), (196_608, 512)]),
                steps([(0, 16_384), (0, 32_768), (0, 49_152)]),
                steps([(65_536, 1), (131_072, 1), (196_608, 1)]),
            ] {
                let (first, second) = (middle - near, far - middle);
                assert!((first / second - 1.0).abs() < 0.02, "{profile}: {first} then {second}");
            }
        }
    }

    #[test]
    fn two_prefills_in_one_step_share_the_weights() {
        for profile in Profile::ALL {
            let (one, both) = (cost_us(profile, &[(0, 64)]), cost_us(profile, &[(0, 64), (0, 64)]));
            assert!(both < one + one / 4, "both fit under the floor: {one} {both}");
            let joined = cost_us(profile, &[(0, 4_096), (0, 4_096)]);
            assert!(joined < cost_us(profile, &[(0, 8_192)]), "they do not look at each other");
        }
    }

    proptest! {
        #[test]
        fn nothing_gets_cheaper_for_being_longer(
            sequences in prop::collection::vec((0_u32..200_000, 2_u32..20_000), 1..5),
            decodes in prop::collection::vec((0_u32..200_000, 1_u32..2), 0..5),
            more in 0_u32..5_000,
        ) {
            for profile in Profile::ALL {
                let all: Vec<_> = sequences.iter().chain(&decodes).copied().collect();
                let cost = cost_us(profile, &all);
                for place in 0..all.len() {
                    let mut longer = all.clone();
                    longer[place].0 += more;
                    prop_assert!(cost_us(profile, &longer) >= cost);
                    if all[place].1 > 1 {
                        longer[place].1 += more;
                        prop_assert!(cost_us(profile, &longer) >= cost);
                    }
                    longer.remove(place);
                    prop_assert!(cost_us(profile, &longer) <= cost_us(profile, &all));
                }
            }
        }
    }
}
