//! When to request a replay again: one that failed, or one that rebuilds an uncertain view.
//!
//! A replay costs the engine thousands of batches, and one that repeats the same false events repairs nothing. So the
//! pause between attempts doubles up to ten minutes. A stream that regained trust meanwhile continues where it was,
//! until it has given no cause for the longest pause.

use warmroute_types::Micros;

/// The longest pause between two attempts.
const PAUSE_MAX: Micros = Micros::from_secs(600);

/// The next attempt, if one is planned, and the pause before it. `types::backoff` counts failures; a replay that succeeds and repairs
/// nothing doubles the pause too.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplaySchedule {
    due: Option<Micros>,
    pause: Micros,
    planned: Micros,
}

impl ReplaySchedule {
    /// Whether the next attempt is due.
    pub fn is_due(&self, now: Micros) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Plans the next attempt: after `first`, then after twice the last pause.
    pub fn plan(&mut self, first: Micros, now: Micros) {
        let is_long_ago = now.since(self.planned + self.pause) >= PAUSE_MAX;
        let pause = match self.pause {
            last if last == Micros::ZERO || is_long_ago => first,
            last => (last + last).min(PAUSE_MAX),
        };
        *self = ReplaySchedule { due: Some(now + pause), pause, planned: now };
    }

    /// Cancels the next attempt: it is no longer needed, or cannot succeed.
    pub fn cancel(&mut self) {
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Micros = Micros::from_secs(2);

    #[test]
    fn pauses_double_to_their_limit_and_start_over_after_a_quiet_time() {
        let (mut schedule, mut now, mut pauses) =
            (ReplaySchedule::default(), Micros::from_secs(7), Vec::new());
        for _ in 0..10 {
            let began = now;
            schedule.plan(FIRST, now);
            while !schedule.is_due(now) {
                now = now + Micros::from_secs(1);
            }
            schedule.cancel();
            pauses.push(now.since(began).0 / 1_000_000);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 512, 600]);
        assert!(!schedule.is_due(now + Micros::from_secs(10_000)));
        now = now + Micros::from_secs(1_200);
        schedule.plan(FIRST, now);
        assert!(schedule.is_due(now + FIRST));
    }
}
