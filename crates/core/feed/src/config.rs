//! How patient a feed is, and how much it holds.

use warmroute_types::Micros;

/// Bounds of one feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The most live batches that wait for a replay. Those beyond are let go; the gap they leave is asked for later.
    pub held_batches_max: usize,
    /// The most blocks in them.
    pub held_blocks_max: usize,
    /// After this long without an event, although the engine worked, a replay is asked whether there were any.
    pub hush_after: Micros,
    /// After this long without an event, although the engine worked, the feed counts as silent.
    pub silent_after: Micros,
    /// So many answers that must have filled a block make a silence; fewer may be chance.
    pub silent_answers_min: u32,
    /// How long after a hole the first attempt to rebuild the view from a replay comes; each next one waits twice as long.
    pub rebuild_after: Micros,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            held_batches_max: 4_096,
            held_blocks_max: 1 << 18,
            hush_after: Micros::from_secs(2),
            silent_after: Micros::from_secs(10),
            silent_answers_min: 3,
            rebuild_after: Micros::from_secs(2),
        }
    }
}
