//! The wait for an answer's first byte, and when to end it.
//!
//! A worker that hangs looks like one that computes a long prompt, so the limit must be minutes. But probes find out in
//! seconds that nobody is at home: a request that waits for such a worker is sent to another one, where there is one and
//! retries are left. Otherwise it waits on: the worker may only be slow to answer probes. One whose other requests failed is
//! waited for too, as long as it answers probes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use warmroute_router::Vacancy;
use warmroute_types::WorkerId;

use crate::asked::Asked;
use crate::gateway::Gateway;
use crate::upstream::Fault;

/// How often somebody who waits looks whether the worker is still well.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// One request's wait for one worker.
pub(crate) struct Wait {
    asked: Arc<Asked>,
    worker: WorkerId,
    /// `None`: the body is still on its way from the client, for as long as that takes.
    until: Option<Instant>,
    /// Workers that failed before this one, which another try would avoid; `None` where there can be no other.
    avoid: Option<Vec<WorkerId>>,
}

impl Wait {
    pub(crate) fn new(
        asked: Arc<Asked>,
        worker: WorkerId,
        first_byte: Option<Duration>,
        avoid: Option<Vec<WorkerId>>,
    ) -> Wait {
        Wait { asked, worker, until: first_byte.map(|limit| Instant::now() + limit), avoid }
    }

    pub(crate) fn next_look(&self) -> Instant {
        let look = Instant::now() + LOOK_EVERY;
        self.until.map_or(look, |until| until.min(look))
    }

    /// Whether to wait on.
    pub(crate) fn look(&self, gateway: &Gateway) -> Result<(), Fault> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Err(Fault::NoFirstByte);
        }
        if gateway.router.is_unreachable(self.worker) && self.has_other(gateway) {
            return Err(Fault::Forsaken);
        }
        Ok(())
    }

    fn has_other(&self, gateway: &Gateway) -> bool {
        let is_other = |avoid: &Vec<WorkerId>| {
            gateway.router.vacancy(self.asked.model.as_deref(), avoid) == Vacancy::Free
        };
        self.avoid.as_ref().is_some_and(is_other) && gateway.retries.has_room(gateway.now())
    }
}
