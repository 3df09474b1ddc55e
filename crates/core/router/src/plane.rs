//! One engine, three answers: what it certainly holds, what it may hold, and what it holds in any of its memories.
//!
//! The index knows holders by number. A worker with events has three of them, so one walk gives all three answers:
//!
//! * *certain*: blocks of prompts. Their text, tokenized again, gives the same tokens.
//! * *hoped*: those, and what was stored while the engine decoded. Sampled tokens may not be what the same text
//!   tokenizes to, so a prompt that repeats an answer may or may not be a hit there. What feedback proves becomes certain.
//! * *tiers*: all of that, and what lies in slower memory. Only once an engine speaks of such; then it begins with all that
//!   is hoped. In how many memories a block lies is counted, in which is not.

use warmroute_types::{MAX_WORKERS, WorkerId};

/// Which answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plane {
    Certain = 0,
    Hoped = 1,
    Tiers = 2,
}

impl Plane {
    pub const ALL: [Plane; 3] = [Plane::Certain, Plane::Hoped, Plane::Tiers];

    /// The number under which the index knows this worker in this plane.
    pub fn of(self, worker: WorkerId) -> WorkerId {
        WorkerId(worker.0 + self as u16 * MAX_WORKERS as u16)
    }

    /// The worker and plane behind a number.
    pub fn split(holder: WorkerId) -> (WorkerId, Plane) {
        let plane = Plane::ALL[(holder.index() / MAX_WORKERS).min(2)];
        (WorkerId((holder.index() % MAX_WORKERS) as u16), plane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_apart() {
        for worker in [0, 1, 63, MAX_WORKERS as u16 - 1].map(WorkerId) {
            for plane in Plane::ALL {
                assert_eq!(Plane::split(plane.of(worker)), (worker, plane));
            }
        }
    }
}
