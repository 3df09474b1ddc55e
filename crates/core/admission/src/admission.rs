//! The door: so many requests at once, the next ones wait, the rest is told when to come back.

use warmroute_types::Micros;

use crate::{Ask, Class, Drain, Place, Queue};

/// What the door allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Requests that may be under way at once; 0 is as many as like.
    pub running_max: u32,
    /// Requests that may wait.
    pub waiting_max: usize,
    /// How long one may wait.
    pub wait_max: Micros,
}

/// There is no room, not even to wait.
#[derive(Debug)]
pub struct Refused {
    /// When to come back.
    pub retry_after_s: u32,
}

/// Who is in, and who waits. `T` is what the driver needs to wake somebody.
#[derive(Debug)]
pub struct Admission<T> {
    config: Config,
    running: u32,
    queue: Queue<T>,
    drain: Drain,
}

impl<T> Admission<T> {
    /// Nobody is there.
    pub fn new(config: Config) -> Admission<T> {
        Admission { config, running: 0, queue: Queue::new(config.waiting_max), drain: Drain::default() }
    }

    /// Other limits from now on. Who is in stays in, who waits keeps his deadline.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
        self.queue.set_len_max(config.waiting_max);
    }

    /// Lets a request in at once, if nobody waits and there is room.
    pub fn enter(&mut self, ask: Ask, has_room: impl FnOnce() -> bool) -> Option<Place> {
        if !self.queue.is_empty() || !self.has_room() || !has_room() {
            return None;
        }
        self.running += 1;
        Some(self.queue.pass(ask))
    }

    /// Lets a request wait. Whoever calls this calls [`Admission::next`] after it: there may be room for this one and not for those
    /// before it.
    pub fn wait(&mut self, ask: Ask, item: T, now: Micros) -> Result<Place, Refused> {
        let pushed = self.queue.push(ask, now + self.config.wait_max, item);
        pushed.map_err(|_| Refused { retry_after_s: self.retry_after_s(now) })
    }

    /// One that was let in found no room after all: it waits again where it stood.
    pub fn wait_again(&mut self, place: Place, item: T, deadline: Micros) {
        self.running = self.running.saturating_sub(1);
        self.queue.wait_at(place, deadline, item);
    }

    /// One gave up waiting; `None` if it has been let in meanwhile.
    pub fn leave(&mut self, place: Place) -> Option<T> {
        self.queue.remove(place)
    }

    /// One has ended.
    pub fn end(&mut self, now: Micros) {
        self.running = self.running.saturating_sub(1);
        self.drain.ended(now);
    }

    /// Lets the next one in for whom there is room.
    pub fn next(&mut self, now: Micros, has_room: impl FnMut(&T) -> bool) -> Option<T> {
        if self.queue.is_empty() || !self.has_room() {
            return None;
        }
        let next = self.queue.pop(now, has_room)?;
        self.running += 1;
        Some(next)
    }

    /// It is known now what a request cost.
    pub fn correct(&mut self, place: Place, cost: u32) {
        self.queue.correct(place, cost);
    }

    /// When somebody who is sent away should come back: when those who wait will have been let in, as fast as requests end.
    pub fn retry_after_s(&self, now: Micros) -> u32 {
        self.drain.retry_after_s(self.queue.len() + 1, now)
    }

    /// Requests under way.
    pub fn running(&self) -> u32 {
        self.running
    }

    /// Requests of a class that wait.
    pub fn waiting(&self, class: Class) -> usize {
        self.queue.len_of(class)
    }

    fn has_room(&self) -> bool {
        self.config.running_max == 0 || self.running < self.config.running_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ASK: Ask = Ask { class: Class::Normal, tenant: 1, cost: 10 };

    fn door(running_max: u32, waiting_max: usize) -> Admission<usize> {
        Admission::new(Config { running_max, waiting_max, wait_max: Micros::from_secs(5) })
    }

    #[test]
    fn beyond_the_limit_requests_wait_and_beyond_that_they_are_sent_away() {
        let mut door = door(2, 1);
        assert!(door.enter(ASK, || true).is_some() && door.enter(ASK, || true).is_some());
        assert!(door.enter(ASK, || true).is_none(), "two are in");
        door.wait(ASK, 3, Micros::ZERO).unwrap();
        assert_eq!(door.wait(ASK, 4, Micros::ZERO).unwrap_err().retry_after_s, 1);
        assert_eq!(door.next(Micros::ZERO, |_| true), None);
        door.end(Micros::ZERO);
        assert_eq!(door.next(Micros::ZERO, |_| true), Some(3));
        assert_eq!(door.running(), 2);
    }

    #[test]
    fn nobody_who_comes_goes_before_those_who_wait() {
        let mut door = door(1, 5);
        door.enter(ASK, || true).unwrap();
        door.wait(ASK, 2, Micros::ZERO).unwrap();
        door.end(Micros::ZERO);
        assert!(door.enter(ASK, || true).is_none());
        assert_eq!(door.next(Micros::ZERO, |_| true), Some(2));
    }

    #[test]
    fn nobody_is_let_in_after_his_time() {
        let mut door = door(1, 5);
        door.enter(ASK, || true).unwrap();
        door.wait(ASK, 2, Micros::ZERO).unwrap();
        door.end(Micros::from_secs(6));
        assert_eq!(door.next(Micros::from_secs(6), |_| true), None);
        assert_eq!((door.waiting(Class::Normal), door.running()), (0, 0));
    }

    proptest! {
        /// Never more than may be are under way, and as soon as one ends who may wait comes in.
        #[test]
        fn the_limit_holds_and_no_room_is_left_unused(steps in prop::collection::vec(0..3_u8, 1..300), max in 1..6_u32) {
            let mut door = door(max, 8);
            for step in steps {
                match step {
                    0 if door.enter(ASK, || true).is_none() => _ = door.wait(ASK, 0, Micros::ZERO),
                    1 if door.running() > 0 => door.end(Micros::ZERO),
                    _ => {}
                }
                while door.next(Micros::ZERO, |_| true).is_some() {}
                prop_assert!(door.running() <= max);
                prop_assert!(door.waiting(Class::Normal) == 0 || door.running() == max);
            }
        }
    }
}
