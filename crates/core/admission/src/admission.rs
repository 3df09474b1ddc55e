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

    /// What happens at a door behind which there are models, each with room for some.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Come {
            model: usize,
            tenant: u64,
            class: Class,
            cost: u32,
        },
        End(usize),
        Leave(usize),
        /// One that was let in finds no room after all.
        Return(usize),
        Room {
            model: usize,
            room: u32,
        },
        Limit(u32),
        Later(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let class = prop_oneof![Just(Class::High), Just(Class::Normal), Just(Class::Low)];
        prop_oneof![
            4 => (0..3_usize, 0..4_u64, class, 0..500_u32)
                .prop_map(|(model, tenant, class, cost)| Step::Come { model, tenant, class, cost }),
            3 => (0..8_usize).prop_map(Step::End),
            1 => (0..8_usize).prop_map(Step::Leave),
            1 => (0..8_usize).prop_map(Step::Return),
            1 => (0..3_usize, 0..4_u32).prop_map(|(model, room)| Step::Room { model, room }),
            1 => (0..6_u32).prop_map(Step::Limit),
            1 => (0..4_u64).prop_map(Step::Later),
        ]
    }

    #[derive(Clone, Copy, Debug)]
    struct Guest {
        model: usize,
        place: Place,
        deadline: Micros,
    }

    /// The door, and what a driver would know of those before it and behind it.
    struct House {
        door: Admission<usize>,
        room: [u32; 3],
        limit: u32,
        waiting: std::collections::BTreeMap<usize, Guest>,
        inside: Vec<(usize, Guest)>,
        now: Micros,
        guests: usize,
    }

    impl House {
        fn take(&mut self, step: Step) {
            match step {
                Step::Come { model, tenant, class, cost } => self.come(model, Ask { class, tenant, cost }),
                Step::End(n) if n < self.inside.len() => {
                    self.inside.swap_remove(n);
                    self.door.end(self.now);
                }
                Step::Return(n) if n < self.inside.len() => {
                    let (id, guest) = self.inside.swap_remove(n);
                    self.room[guest.model] = 0;
                    self.door.wait_again(guest.place, id, guest.deadline);
                    self.waiting.insert(id, guest);
                }
                Step::Leave(n) => {
                    let Some((&id, &guest)) = self.waiting.iter().nth(n) else { return };
                    self.waiting.remove(&id);
                    assert_eq!(self.door.leave(guest.place), Some(id), "he is still there to be taken out");
                }
                Step::Room { model, room } => self.room[model] = room,
                Step::Limit(limit) => {
                    self.limit = limit;
                    self.door.set_config(Config { running_max: limit, ..CONFIG });
                }
                Step::Later(s) => self.now = self.now + Micros::from_secs(s),
                _ => {}
            }
        }

        fn come(&mut self, model: usize, ask: Ask) {
            let (id, deadline) = (self.guests, self.now + CONFIG.wait_max);
            self.guests += 1;
            if let Some(place) = self.door.enter(ask, || self.room[model] > 0) {
                self.room[model] -= 1;
                self.inside.push((id, Guest { model, place, deadline }));
            } else if let Ok(place) = self.door.wait(ask, id, self.now) {
                self.waiting.insert(id, Guest { model, place, deadline });
            }
        }

        /// Lets in whoever may come, as a driver does after everything that happens.
        fn let_in(&mut self) {
            let (waiting, room, now) = (&mut self.waiting, &mut self.room, self.now);
            while let Some(id) = self.door.next(now, |id| room[waiting[id].model] > 0) {
                let guest = waiting.remove(&id).expect("nobody is let in twice");
                assert!(guest.deadline > now, "nobody is let in late");
                room[guest.model] -= 1;
                self.inside.push((id, guest));
            }
        }
    }

    const CONFIG: Config = Config { running_max: 3, waiting_max: 12, wait_max: Micros::from_secs(5) };

    proptest! {
        /// Whatever happens, nobody waits for whom there is room, and those inside are counted rightly: a wake-up that were lost
        /// or a place that were leaked would show.
        #[test]
        fn nobody_waits_for_whom_there_is_room(steps in prop::collection::vec(step(), 1..300)) {
            let mut house = House {
                door: Admission::new(CONFIG),
                room: [1; 3],
                limit: CONFIG.running_max,
                waiting: Default::default(),
                inside: Vec::new(),
                now: Micros::ZERO,
                guests: 0,
            };
            for step in steps {
                let inside = house.inside.len();
                house.take(step);
                house.let_in();
                prop_assert_eq!(house.door.running() as usize, house.inside.len());
                let is_full = house.limit > 0 && house.inside.len() >= house.limit as usize;
                // A limit that was lowered sends nobody away, but lets nobody in either.
                prop_assert!(house.limit == 0 || house.inside.len() <= inside.max(house.limit as usize));
                house.waiting.retain(|_, guest| guest.deadline > house.now);
                let waits_in_vain = |guest: &Guest| !is_full && house.room[guest.model] > 0;
                prop_assert!(!house.waiting.values().any(waits_in_vain), "{:?}", house.waiting);
            }
        }

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
