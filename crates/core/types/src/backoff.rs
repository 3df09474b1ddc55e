//! Pauses between attempts to connect.

use std::time::Duration;

/// Pause after the first failure.
const FIRST: Duration = Duration::from_millis(50);

/// The pause after this many failures: it doubles with each, up to `max_pause`, with jitter, so that connections that
/// were lost together do not all return at once.
pub fn pause(failures: u32, max_pause: Duration, random: u64) -> Duration {
    let full = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(max_pause);
    jittered(full, random)
}

/// A random time between half of `full` and `full`.
pub fn jittered(full: Duration, random: u64) -> Duration {
    let half = full / 2;
    half + half.mul_f64((random % 1_024) as f64 / 1_023.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit_with_jitter() {
        let max_pause = Duration::from_secs(1);
        assert_eq!(pause(1, max_pause, 1_023), FIRST);
        assert_eq!(pause(3, max_pause, 1_023), FIRST * 4);
        assert_eq!(pause(40, max_pause, 1_023), max_pause);
        assert_eq!(pause(40, max_pause, 0), max_pause / 2);
    }
}
