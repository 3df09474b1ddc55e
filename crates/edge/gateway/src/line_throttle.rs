//! Bounds on the lines that requests write into the process's log.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use warmroute_types::Micros;

/// Lines of one kind in one second. Clients without a key, or an engine that fails every request, could fill a disk
/// with more, and the log is written in place.
const LINES_PER_S: u64 = 20;

/// Bounds the lines of one kind in the process's log.
#[derive(Default)]
pub(crate) struct LineThrottle {
    /// The second that counts now, and the lines asked for in it.
    second: AtomicU64,
    asked: AtomicU64,
    /// Lines left out since the last one that was written.
    left_out: AtomicU64,
}

impl LineThrottle {
    /// Whether a line may be written now. Returns how many were left out before it.
    pub(crate) fn take(&self, now: Micros) -> Option<u64> {
        let second = now.0 / 1_000_000;
        if self.second.swap(second, Relaxed) != second {
            self.asked.store(0, Relaxed);
        }
        if self.asked.fetch_add(1, Relaxed) >= LINES_PER_S {
            self.left_out.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_those_left_out_are_counted() {
        let throttle = LineThrottle::default();
        let now = Micros::from_secs(100);
        let taken = (0..LINES_PER_S + 7).filter(|_| throttle.take(now).is_some()).count();
        assert_eq!(taken as u64, LINES_PER_S);
        assert_eq!(throttle.take(Micros::from_secs(101)), Some(7));
        assert_eq!(throttle.take(Micros::from_secs(101)), Some(0));
    }
}
