//! Work promised to a worker, from the decision until it is over.

use std::fmt;
use std::sync::Arc;

use warmroute_types::{Delivery, Micros, WorkerId};

use crate::desk::Trial;
use crate::prefill_queue::Ticket;
use crate::{Fleet, ObservedPrompt, PrefillFeatures};

/// What one request costs its worker, as far as is known when it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Prompt tokens to compute: those not expected in the cache.
    pub prefill_tokens: u32,
    /// Prompt tokens in all: the context that every decode step will read.
    pub context_tokens: u32,
    /// What its prefill time is predicted from.
    pub features: PrefillFeatures,
    /// How its answer will come.
    pub delivery: Delivery,
}

/// A request's place on its worker's desk. Prefill leaves the desk at the first token, the rest at the end. Dropping
/// a booking ends it, whatever way its request took: that is the whole defence against leaked load.
pub struct Booking {
    fleet: Arc<Fleet>,
    worker: WorkerId,
    work: Work,
    ticket: Ticket,
    prefill: Prefill,
    /// Whether what the engine reported about the prompt has been learned from.
    report: Report,
    /// Where it finds out whether its worker has recovered.
    trial: Option<Trial>,
}

#[derive(PartialEq)]
enum Prefill {
    Pending,
    Done,
}

#[derive(PartialEq)]
enum Report {
    Pending,
    Made,
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
        let expected_ms = fleet.prefill_ms(worker, &work.features, now);
        let ticket = fleet.queue(worker).book(work.features, work.delivery, expected_ms, now);
        let (prefill, report) = (Prefill::Pending, Report::Pending);
        Booking { fleet: Arc::clone(fleet), worker, work, ticket, prefill, report, trial: None }
    }

    /// The expected prefill time of its prompt.
    pub fn expected_ms(&self, now: Micros) -> f32 {
        self.fleet.prefill_ms(self.worker, &self.work.features, now)
    }

    /// Whose desk it is on.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Whether its answer tells, now, if its worker has recovered.
    pub(crate) fn is_trial(&self) -> bool {
        self.trial.is_some_and(|trial| self.fleet.desk(self.worker).is_tried_by(trial))
    }

    /// The first token came: the prompt is computed. Further calls change nothing.
    pub fn first_token(&mut self, now: Micros) {
        if self.release_prefill() {
            self.fleet.first_token(self.worker, self.ticket, now);
        }
    }

    /// The engine reported how much of the prompt it found in its cache: the latency model learns what the rest took. Further calls
    /// change nothing.
    pub fn reported(&mut self, prompt: ObservedPrompt, now: Micros) {
        if self.report == Report::Pending {
            self.report = Report::Made;
            self.fleet.reported(self.worker, self.ticket, prompt, now);
        }
    }

    /// Another router has heard the first token: when that was is not known well enough to learn from.
    pub fn computed_elsewhere(&mut self, now: Micros) {
        if self.release_prefill() {
            self.fleet.queue(self.worker).done_elsewhere(self.ticket, now);
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
            self.fleet.queue(self.worker).release(self.ticket);
        }
        if self.report == Report::Pending {
            self.fleet.queue(self.worker).abandon(self.ticket);
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
