//! A clock that survives steps of the system clock.
//!
//! Routers never compare clocks, but a clock that steps, stops or runs backwards could make its own router
//! wait forever or suspend all peers. So only the time between two readings counts, limited to `step_max`. If
//! the clock has not advanced at a regular tick, the tick counts as one interval.

use warmroute_types::Micros;

/// Time elapsed since the first reading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    last: Option<Micros>,
    last_tick: Option<Micros>,
    elapsed: Micros,
    interval: Micros,
    step_max: Micros,
}

impl Clock {
    /// `interval` is the least time between two ticks; a larger change than `step_max` is a step of the
    /// clock.
    pub fn new(interval: Micros, step_max: Micros) -> Clock {
        Clock { last: None, last_tick: None, elapsed: Micros::ZERO, interval, step_max }
    }

    /// Advances at a regular tick and returns the elapsed time.
    pub fn tick(&mut self, now: Micros) -> Micros {
        if self.last_tick.replace(now).is_some_and(|last| now <= last) {
            self.elapsed = self.elapsed + self.interval;
        }
        self.advance(now)
    }

    /// Advances and returns the elapsed time.
    pub fn advance(&mut self, now: Micros) -> Micros {
        self.elapsed = self.read(now);
        self.last = Some(now);
        self.elapsed
    }

    /// The elapsed time at the last reading.
    pub fn elapsed(&self) -> Micros {
        self.elapsed
    }

    /// The elapsed time without advancing.
    pub fn read(&self, now: Micros) -> Micros {
        let since = self.last.map_or(Micros::ZERO, |last| now.since(last));
        self.elapsed + since.min(self.step_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_steps_are_ignored_and_a_stopped_clock_advances_by_ticks() {
        let mut clock = Clock::new(Micros(20), Micros(100));
        assert_eq!(clock.tick(Micros(1_000_000)), Micros::ZERO);
        assert_eq!(clock.tick(Micros(1_000_030)), Micros(30));
        assert_eq!(clock.tick(Micros(9_000_000)), Micros(130), "ahead");
        assert_eq!(clock.tick(Micros(5)), Micros(150), "back");
        assert_eq!((clock.tick(Micros(4)), clock.advance(Micros(3))), (Micros(170), Micros(170)));
        assert_eq!((clock.tick(Micros(3)), clock.read(Micros(13))), (Micros(190), Micros(200)));
        assert_eq!((clock.advance(Micros(23)), clock.tick(Micros(23))), (Micros(210), Micros(210)), "once");
    }
}
