//! Conversion between engine time and wall time.
//!
//! Engine time runs at a rate: the configured speed, less when the engine is slowed, zero when it hangs. A change of
//! rate sets a new anchor, so engine time never jumps.

use std::time::Duration;

use tokio::time::Instant;
use warmroute_types::Micros;

/// The present state of engine time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    wall: Instant,
    engine: Micros,
    /// Engine seconds per wall second.
    rate: f64,
}

impl Clock {
    /// Starts engine time at zero now.
    pub(crate) fn start(wall: Instant, rate: f64) -> Clock {
        Clock { wall, engine: Micros::ZERO, rate }
    }

    /// Engine time at this moment.
    pub(crate) fn now(&self, wall: Instant) -> Micros {
        let passed_us = wall.saturating_duration_since(self.wall).as_secs_f64() * 1e6 * self.rate;
        self.engine + Micros(passed_us as u64)
    }

    /// The wall time of an engine time; `None` when time stands still. Times more than a year away count as a year
    /// away.
    pub(crate) fn wall_at(&self, engine: Micros) -> Option<Instant> {
        let ahead_s = engine.since(self.engine).as_secs_f64() / self.rate;
        (self.rate > 0.0).then(|| self.wall + Duration::from_secs_f64(ahead_s.min(YEAR_S)))
    }

    /// Changes the rate from now on.
    pub(crate) fn set_rate(&mut self, wall: Instant, rate: f64) {
        *self = Clock { wall, engine: self.now(wall), rate };
    }

    /// Sets engine time. Used when the host was too slow: the lost time is not made up for.
    pub(crate) fn set(&mut self, wall: Instant, engine: Micros) {
        *self = Clock { wall, engine, ..*self };
    }
}

const YEAR_S: f64 = 365.0 * 86_400.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn after(clock: &Clock, ms: u64) -> Instant {
        clock.wall + Duration::from_millis(ms)
    }

    #[test]
    fn engine_time_runs_at_its_rate() {
        let clock = Clock::start(Instant::now(), 10.0);
        assert_eq!(clock.now(after(&clock, 5)), Micros::from_millis(50));
        assert_eq!(clock.wall_at(Micros::from_millis(50)), Some(after(&clock, 5)));
    }

    #[test]
    fn a_new_rate_does_not_move_the_present() {
        let mut clock = Clock::start(Instant::now(), 10.0);
        let later = after(&clock, 5);
        clock.set_rate(later, 1.0);
        assert_eq!(clock.now(later), Micros::from_millis(50));
        assert_eq!(clock.now(after(&clock, 5)), Micros::from_millis(55));
    }

    #[test]
    fn time_that_stands_still_never_reaches_the_future() {
        let mut clock = Clock::start(Instant::now(), 1.0);
        clock.set_rate(clock.wall, 0.0);
        assert_eq!(clock.wall_at(Micros(1)), None);
        assert_eq!(clock.now(after(&clock, 1_000)), Micros::ZERO);
    }
}
