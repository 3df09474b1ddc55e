//! Work promised to a worker, from the decision until it is over.

use std::fmt;
use std::sync::Arc;

use warmroute_types::WorkerId;

use crate::Fleet;

/// What one request costs its worker, as far as is known when it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Prompt tokens to compute: those not expected in the cache.
    pub prefill_tokens: u32,
    /// Prompt tokens in all: the context that every decode step will read.
    pub context_tokens: u32,
}

/// A request's place on its worker's desk. Prefill leaves the desk at the first token, the rest at the end. Dropping
/// a booking ends it, whatever way its request took: that is the whole defence against leaked load.
pub struct Booking {
    fleet: Arc<Fleet>,
    worker: WorkerId,
    work: Work,
    prefill: Prefill,
}

#[derive(PartialEq)]
enum Prefill {
    Pending,
    Done,
}

impl Booking {
    /// Puts `work` on the worker's desk.
    pub fn make(fleet: &Arc<Fleet>, worker: WorkerId, work: Work) -> Booking {
        fleet.desk(worker).book(work);
        Booking { fleet: Arc::clone(fleet), worker, work, prefill: Prefill::Pending }
    }

    /// Whose desk it is on.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// The first token came: the prompt has been computed. Saying it twice changes nothing.
    pub fn first_token(&mut self) {
        if self.prefill == Prefill::Pending {
            self.prefill = Prefill::Done;
            self.fleet.desk(self.worker).release_prefill(self.work);
        }
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.first_token();
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
