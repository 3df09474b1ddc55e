//! The pause before a connection is tried again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const FIRST: Duration = Duration::from_millis(50);
const MAX: Duration = Duration::from_secs(5);

/// Doubles from 50 ms to 5 s. Each pause is shortened by up to half at random, so that a fleet that lost its network
/// does not reconnect all at once.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    random: u64,
}

impl Backoff {
    /// Seeded by the clock and by the caller's identity.
    pub fn new(who: u64) -> Backoff {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        Backoff { next: FIRST, random: who ^ u64::from(nanos) | 1 }
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.next = FIRST;
    }

    /// The pause before the next try.
    pub fn pause(&mut self) -> Duration {
        let whole = self.next;
        self.next = (self.next * 2).min(MAX);
        // Xorshift: a seed that is not zero never becomes zero.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        whole.mul_f64(0.5 + (self.random % 1_000) as f64 / 2_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_seconds_and_never_more_than_halve() {
        let mut backoff = Backoff::new(7);
        for n in 0..12 {
            let whole = (FIRST * 2u32.pow(n)).min(MAX);
            let pause = backoff.pause();
            assert!(pause >= whole / 2 && pause <= whole, "{n}: {pause:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= FIRST);
    }
}
