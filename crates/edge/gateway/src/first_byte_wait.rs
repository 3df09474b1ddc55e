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

use crate::gateway::Gateway;
use crate::parsed_request::ParsedRequest;
use crate::upstream::UpstreamError;

/// How often somebody who waits looks whether the worker is still well.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// One request's wait for one worker.
pub(crate) struct FirstByteWait {
    request: Arc<ParsedRequest>,
    worker: WorkerId,
    /// `None`: the body is still on its way from the client, for as long as that takes.
    until: Option<Instant>,
    /// Workers that failed before this one, which another try would avoid; `None` where there can be no other.
    avoid: Option<Vec<WorkerId>>,
}

impl FirstByteWait {
    pub(crate) fn new(
        request: Arc<ParsedRequest>,
        worker: WorkerId,
        first_byte: Option<Duration>,
        avoid: Option<Vec<WorkerId>>,
    ) -> FirstByteWait {
        FirstByteWait { request, worker, until: first_byte.map(|limit| Instant::now() + limit), avoid }
    }

    pub(crate) fn next_check(&self) -> Instant {
        let check = Instant::now() + CHECK_INTERVAL;
        self.until.map_or(check, |until| until.min(check))
    }

    /// Whether to wait on.
    pub(crate) fn check(&self, gateway: &Gateway) -> Result<(), UpstreamError> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Err(UpstreamError::FirstByteTimeout);
        }
        if gateway.router.is_unreachable(self.worker) && self.has_alternative(gateway) {
            return Err(UpstreamError::Unhealthy);
        }
        Ok(())
    }

    fn has_alternative(&self, gateway: &Gateway) -> bool {
        let is_free = |avoid: &Vec<WorkerId>| {
            gateway.router.vacancy(self.request.model.as_deref(), avoid) == Vacancy::Free
        };
        self.avoid.as_ref().is_some_and(is_free) && gateway.retries.has_room(gateway.now())
    }
}
