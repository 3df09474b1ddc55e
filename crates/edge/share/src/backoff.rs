//! How long to wait before the next try.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(50);

/// After so many failures in a row, somewhere between half of the pause and all of it: routers that lost the same server at the
/// same moment must not all come back at the same moment.
pub(crate) fn pause(failures: u32, longest: Duration, chance: u64) -> Duration {
    let full = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest);
    jittered(full, chance)
}

/// Between half of it and all of it.
pub(crate) fn jittered(full: Duration, chance: u64) -> Duration {
    let half = full / 2;
    half + half.mul_f64((chance % 1_024) as f64 / 1_023.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest_and_are_never_the_same_for_all() {
        let longest = Duration::from_secs(1);
        assert_eq!(pause(1, longest, 1_023), FIRST);
        assert_eq!(pause(3, longest, 1_023), FIRST * 4);
        assert_eq!(pause(40, longest, 1_023), longest);
        assert_eq!(pause(40, longest, 0), longest / 2);
    }
}
