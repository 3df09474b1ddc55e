//! Work assigned to a worker, from the decision until the request ends.

use std::fmt;
use std::sync::Arc;

use warmroute_types::{Delivery, Micros, WorkerId};

use crate::booked_work::BookedWork;
use crate::prefill_queue::Ticket;
use crate::worker_load::Trial;
use crate::{AnswerProgress, Fleet, ObservedPrompt, Worker};

/// A request's share of its worker's load. The prefill is released at the first token, the rest at the end.
/// Dropping a booking releases it on every path, which prevents leaked load.
pub struct Booking {
    fleet: Arc<Fleet>,
    worker: WorkerId,
    work: BookedWork,
    ticket: Ticket,
    prefill: Prefill,
    first_token_at: Option<Micros>,
    /// Whether the engine's cached-token count has been learned from.
    report: Report,
    /// The trial, if this request tests a recovering worker.
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
    /// Adds `work` to the worker's load. Starts the trial of a recovering worker.
    pub fn make(fleet: &Arc<Fleet>, worker: WorkerId, work: BookedWork, now: Micros) -> Booking {
        let mut booking = Booking::of_peer(fleet, worker, work, now);
        booking.trial = fleet.change(worker).load.begin_trial();
        booking
    }

    /// Adds work that a peer sent to the worker. Never starts a trial.
    pub fn of_peer(fleet: &Arc<Fleet>, worker: WorkerId, work: BookedWork, now: Micros) -> Booking {
        let change = fleet.change(worker);
        change.load.book(work);
        let expected_ms = fleet.prefill_ms(worker, &work.features, now);
        let ticket = change.queue.book(work.features, work.delivery, expected_ms, now);
        let (prefill, report) = (Prefill::Pending, Report::Pending);
        Booking {
            fleet: Arc::clone(fleet),
            worker,
            work,
            ticket,
            prefill,
            first_token_at: None,
            report,
            trial: None,
        }
    }

    /// The expected prefill time of its prompt.
    pub fn expected_ms(&self, now: Micros) -> f32 {
        self.fleet.prefill_ms(self.worker, &self.work.features, now)
    }

    /// The worker that has the booking.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Records an answer of the request's worker.
    pub fn answered(&self, worker: &Worker, answer: AnswerProgress) {
        self.fleet.answered(worker, self.is_trial(), answer);
    }

    /// Whether this request is the trial in flight.
    fn is_trial(&self) -> bool {
        self.trial.is_some_and(|trial| self.fleet.load(self.worker).is_current_trial(trial))
    }

    /// Records the first token, which ends the prefill. Further calls have no effect.
    pub fn first_token(&mut self, now: Micros) {
        if self.release_prefill() {
            self.first_token_at = Some(now);
            self.fleet.first_token(self.worker, self.ticket, now);
        }
    }

    /// Records the end of an answer: how long it has kept its place. One that is not streamed began to when its first token was
    /// expected.
    pub fn ended(&mut self, expected_first_token: Micros, now: Micros) {
        let is_whole = self.work.delivery == Delivery::Whole;
        let first_token = self.first_token_at.take().or(is_whole.then_some(expected_first_token));
        first_token.into_iter().for_each(|first| self.fleet.learn_answer(self.worker, first, now));
    }

    /// Records the engine's cached-token count, from which the latency model learns. Further calls have no
    /// effect.
    pub fn reported(&mut self, prompt: ObservedPrompt, now: Micros) {
        if self.report == Report::Pending {
            self.report = Report::Made;
            self.fleet.reported(self.worker, self.ticket, prompt, now);
        }
    }

    /// Records a first token at a peer. Its time is not precise enough to learn from.
    pub fn first_token_at_peer(&mut self, now: Micros) {
        if self.release_prefill() {
            self.fleet.change(self.worker).queue.done_elsewhere(self.ticket, now);
        }
    }

    /// Removes the prefill from the load; false if it was removed before.
    fn release_prefill(&mut self) -> bool {
        let is_pending = self.prefill == Prefill::Pending;
        if is_pending {
            self.prefill = Prefill::Done;
            self.fleet.change(self.worker).load.release_prefill(self.work);
        }
        is_pending
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        let is_pending = self.release_prefill();
        let change = self.fleet.change(self.worker);
        if is_pending {
            change.queue.release(self.ticket);
        }
        if self.report == Report::Pending {
            change.queue.abandon(self.ticket);
        }
        if let Some(trial) = self.trial {
            change.load.end_trial(trial);
        }
        change.load.release_request(self.work);
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
