//! How much time has passed, whatever the clock says.
//!
//! Nobody's clock is compared with another's, but one that steps, stands still or runs backwards would make its own router wait for
//! ever, or take everybody for dead. So only what passes between two looks counts, and no more of it than a router that is well
//! lets pass; a look at the usual time counts as the usual time where the clock has not moved.

use warmroute_types::Micros;

/// Time that has passed since the first look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    last: Option<Micros>,
    ticked: Option<Micros>,
    passed: Micros,
    usual: Micros,
    most: Micros,
}

impl Clock {
    /// It is looked at every `usual`; more than `most` at once is a step.
    pub fn new(usual: Micros, most: Micros) -> Clock {
        Clock { last: None, ticked: None, passed: Micros::ZERO, usual, most }
    }

    /// The time now, at a moment that comes once in the usual time.
    pub fn tick(&mut self, now: Micros) -> Micros {
        if self.ticked.replace(now).is_some_and(|ticked| now <= ticked) {
            self.passed = self.passed + self.usual;
        }
        self.look(now)
    }

    /// The time now.
    pub fn look(&mut self, now: Micros) -> Micros {
        self.passed = self.read(now);
        self.last = Some(now);
        self.passed
    }

    /// The time when it was last looked at.
    pub fn passed(&self) -> Micros {
        self.passed
    }

    /// The time now, for those who only read.
    pub fn read(&self, now: Micros) -> Micros {
        let since = self.last.map_or(Micros::ZERO, |last| now.since(last));
        self.passed + since.min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_do_not_count_and_standing_still_does() {
        let mut clock = Clock::new(Micros(20), Micros(100));
        assert_eq!(clock.tick(Micros(1_000_000)), Micros::ZERO);
        assert_eq!(clock.tick(Micros(1_000_030)), Micros(30));
        assert_eq!(clock.tick(Micros(9_000_000)), Micros(130), "ahead");
        assert_eq!(clock.tick(Micros(5)), Micros(150), "back");
        assert_eq!((clock.tick(Micros(4)), clock.look(Micros(3))), (Micros(170), Micros(170)));
        assert_eq!((clock.tick(Micros(3)), clock.read(Micros(13))), (Micros(190), Micros(200)));
        assert_eq!((clock.look(Micros(23)), clock.tick(Micros(23))), (Micros(210), Micros(210)), "once");
    }
}
