//! Timeouts and limits of a feed.

use warmroute_types::Micros;

/// Limits of one feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most live batches that wait for a replay. Further ones are dropped; a later replay closes the gap that they
    /// leave.
    pub held_batches_max: usize,
    /// Most blocks in those batches.
    pub held_blocks_max: usize,
    /// Time without an event, while the engine works, after which the feed asks a replay whether there were any.
    pub silence_check_after: Micros,
    /// Time without an event, while the engine works, after which the feed counts as silent.
    pub silent_after: Micros,
    /// Answers that must have filled a block before a feed counts as silent; fewer may be chance.
    pub silent_answers_min: u32,
    /// Delay between a gap and the first attempt to rebuild the view from a replay. Each further attempt waits twice
    /// as long.
    pub rebuild_after: Micros,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            held_batches_max: 4_096,
            held_blocks_max: 1 << 18,
            silence_check_after: Micros::from_secs(2),
            silent_after: Micros::from_secs(10),
            silent_answers_min: 3,
            rebuild_after: Micros::from_secs(2),
        }
    }
}
