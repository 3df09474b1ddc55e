//! The wait for a response's first byte.
//!
//! A worker that hangs looks like one that computes a long prompt, so the time limit is minutes. Probes, however,
//! find an unreachable worker within seconds: its waiting requests are retried on another worker, if there is one and
//! the retry budget allows it. Otherwise they keep waiting, because the worker may only be slow to answer probes. A
//! worker that failed on other requests is waited for as long as it answers probes.
//!
//! An upload is given up in two more cases: the worker has taken none of it for the time limit, or for half a second while
//! it is unreachable. Nothing else would end the request: while an upload is held up, its client is not read, so a client
//! that leaves is not noticed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use warmroute_router::Vacancy;
use warmroute_types::WorkerId;

use crate::forwarding::Forwarding;
use crate::parsed_request::ParsedRequest;
use crate::upstream::UpstreamError;
use crate::upstream_body::UploadStatus;

/// How often a waiting request checks its worker.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// One request's wait for one worker.
pub(crate) struct FirstByteWait {
    request: Arc<ParsedRequest>,
    worker: WorkerId,
    began: Began,
    limit: Duration,
    /// Workers that a retry would avoid; `None` if the request cannot be retried.
    avoid: Option<Vec<WorkerId>>,
}

/// When the wait for the worker began.
pub(crate) enum Began {
    At(Instant),
    /// When the client has sent the last byte of its upload, or the worker has stopped reading it. Until then the client sets
    /// the pace.
    WithUpload(Arc<UploadStatus>),
}

impl Began {
    fn at(&self) -> Option<Instant> {
        match self {
            Began::At(at) => Some(*at),
            Began::WithUpload(status) => status.arrived_at().or(status.blocked_since()),
        }
    }

    /// Whether the worker has taken nothing of an upload for a while.
    fn is_held_up(&self) -> bool {
        let Began::WithUpload(status) = self else { return false };
        status.blocked_since().is_some_and(|since| since.elapsed() >= CHECK_INTERVAL)
    }
}

impl FirstByteWait {
    pub(crate) fn new(
        request: Arc<ParsedRequest>,
        worker: WorkerId,
        (began, limit): (Began, Duration),
        avoid: Option<Vec<WorkerId>>,
    ) -> FirstByteWait {
        FirstByteWait { request, worker, began, limit, avoid }
    }

    pub(crate) fn next_check(&self) -> Instant {
        let check = Instant::now() + CHECK_INTERVAL;
        self.until().map_or(check, |until| until.min(check))
    }

    fn until(&self) -> Option<Instant> {
        self.began.at().map(|began| began + self.limit)
    }

    /// Fails if the wait is over.
    pub(crate) fn check(&self, forwarding: &Forwarding) -> Result<(), UpstreamError> {
        if self.until().is_some_and(|until| Instant::now() >= until) {
            return Err(UpstreamError::FirstByteTimeout);
        }
        let may_leave = || self.began.is_held_up() || self.has_alternative(forwarding);
        match forwarding.router.inspect().is_unreachable(self.worker) && may_leave() {
            true => Err(UpstreamError::Unhealthy),
            false => Ok(()),
        }
    }

    fn has_alternative(&self, forwarding: &Forwarding) -> bool {
        let is_free = |avoid: &Vec<WorkerId>| {
            let usable = self.request.usable(avoid);
            forwarding.router.inspect().vacancy(self.request.model.as_deref(), usable) == Vacancy::Free
        };
        self.avoid.as_ref().is_some_and(is_free) && forwarding.retries.has_room(forwarding.clock.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_fleet::{Models, ProbeResult};
    use warmroute_policy::Standard;
    use warmroute_router::{Change, Router};
    use warmroute_types::{Address, Micros};

    use crate::forwarding::tests::forwarding;

    /// Adds a worker that has answered a probe, and then so many not.
    fn join(router: &Router<Standard>, url: &str, failures: usize) -> WorkerId {
        router.join(Address::new(url), Models::Any).unwrap();
        let workers = router.inspect().workers();
        let worker = &workers.iter().find(|view| view.worker.address.url == url).unwrap().worker;
        let failed = std::iter::repeat_n(ProbeResult::Failed, failures);
        for result in std::iter::once(ProbeResult::Answered).chain(failed) {
            router.apply(Change::Probed { worker: Arc::clone(worker), result, at: Micros::from_secs(1) });
        }
        worker.id
    }

    #[test]
    fn a_request_leaves_an_unreachable_worker_only_for_another_one() {
        let policy: Standard = "random".parse().unwrap();
        let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
        let dead = join(&router, "http://dead", 10);
        let forwarding = forwarding(Arc::clone(&router));
        let began = || (Began::At(Instant::now()), Duration::from_secs(60));
        let wait = |avoid| FirstByteWait::new(Arc::default(), dead, began(), avoid);
        assert!(wait(Some(vec![dead])).check(&forwarding).is_ok(), "it is the only one");
        join(&router, "http://ready", 0);
        assert!(wait(None).check(&forwarding).is_ok(), "the request cannot be sent again");
        let left = wait(Some(vec![dead])).check(&forwarding);
        assert!(matches!(left, Err(UpstreamError::Unhealthy)));
    }

    #[test]
    fn an_upload_is_given_up_where_its_worker_takes_none_of_it() {
        let policy: Standard = "random".parse().unwrap();
        let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
        let (dead, ready) = (join(&router, "http://dead", 10), join(&router, "http://ready", 0));
        let forwarding = forwarding(router);
        let after = |worker, blocked: Option<Duration>| {
            let status = UploadStatus::blocked_for(blocked);
            let began = (Began::WithUpload(Arc::new(status)), Duration::from_secs(60));
            FirstByteWait::new(Arc::default(), worker, began, None).check(&forwarding)
        };
        let second = Duration::from_secs(1);
        assert!(after(dead, None).is_ok(), "it still takes what comes");
        assert!(after(ready, Some(second)).is_ok(), "it may be busy");
        assert!(matches!(after(dead, Some(second)), Err(UpstreamError::Unhealthy)));
        assert!(matches!(after(ready, Some(60 * second)), Err(UpstreamError::FirstByteTimeout)));
    }
}
