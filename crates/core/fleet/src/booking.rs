//! Work promised to a worker, from the decision until it is over.

use std::fmt;
use std::sync::Arc;

use warmroute_types::{Delivery, Micros, WorkerId};

use crate::desk::Trial;
use crate::pace::Turn;
use crate::{Effort, Fleet};

/// What one request costs its worker, as far as is known when it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Prompt tokens to compute: those not expected in the cache.
    pub prefill_tokens: u32,
    /// Prompt tokens in all: the context that every decode step will read.
    pub context_tokens: u32,
    /// What its prompt's time is expected from.
    pub effort: Effort,
    /// How its answer will come.
    pub delivery: Delivery,
}

/// A request's place on its worker's desk. Prefill leaves the desk at the first token, the rest at the end. Dropping
/// a booking ends it, whatever way its request took: that is the whole defence against leaked load.
pub struct Booking {
    fleet: Arc<Fleet>,
    worker: WorkerId,
    work: Work,
    turn: Turn,
    prefill: Prefill,
    /// Where it finds out whether its worker has recovered.
    trial: Option<Trial>,
}

#[derive(PartialEq)]
enum Prefill {
    Pending,
    Done,
}

impl Booking {
    /// Puts `work` on the worker's desk.
    pub fn make(fleet: &Arc<Fleet>, worker: WorkerId, work: Work, now: Micros) -> Booking {
        let mut booking = Booking::elsewhere(fleet, worker, work, now);
        booking.trial = fleet.desk(worker).begin_trial();
        booking
    }

    /// The same for work that another router has sent there. It tries nobody.
    pub fn elsewhere(fleet: &Arc<Fleet>, worker: WorkerId, work: Work, now: Micros) -> Booking {
        fleet.desk(worker).book(work);
        let expected_ms = fleet.prefill_ms(worker, &work.effort);
        let turn = fleet.pace(worker).book(work.effort, work.delivery, expected_ms, now);
        Booking { fleet: Arc::clone(fleet), worker, work, turn, prefill: Prefill::Pending, trial: None }
    }

    /// What its prompt was, and still is, expected to take.
    pub fn expected_ms(&self) -> f32 {
        self.fleet.prefill_ms(self.worker, &self.work.effort)
    }

    /// Whose desk it is on.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Whether its answer tells, now, if its worker has recovered.
    pub(crate) fn is_trial(&self) -> bool {
        self.trial.is_some_and(|trial| self.fleet.desk(self.worker).is_tried_by(trial))
    }

    /// The first token came: the prompt has been computed, and its worker's pace is learned from it. Saying it twice changes
    /// nothing.
    pub fn first_token(&mut self, now: Micros) {
        if self.release_prefill() {
            let batch = self.fleet.pace(self.worker).first_token(self.turn, now);
            batch.iter().for_each(|batch| self.fleet.learn_pace(self.worker, batch));
        }
    }

    /// Another router has heard the first token: when that was is not known well enough to learn from.
    pub fn computed_elsewhere(&mut self, now: Micros) {
        if self.release_prefill() {
            self.fleet.pace(self.worker).done_elsewhere(self.turn, now);
        }
    }

    /// Takes the prompt from the desk; false if that was done before.
    fn release_prefill(&mut self) -> bool {
        let is_pending = self.prefill == Prefill::Pending;
        if is_pending {
            self.prefill = Prefill::Done;
            self.fleet.desk(self.worker).release_prefill(self.work);
        }
        is_pending
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        if self.release_prefill() {
            self.fleet.pace(self.worker).release(self.turn);
        }
        if let Some(trial) = self.trial {
            self.fleet.desk(self.worker).end_trial(trial);
        }
        self.fleet.desk(self.worker).release_request(self.work);
    }
}

impl fmt::Debug for Booking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Booking")
            .field("worker", &self.worker)
            .field("work", &self.work)
            .finish_non_exhaustive()
    }
}
