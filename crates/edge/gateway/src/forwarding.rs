//! The parts that forward an admitted request: the router that chooses the worker, the connections, the retries, and the
//! observers of its progress.

use std::sync::Arc;

use warmroute_fleet::RetryBudget;
use warmroute_policy::Standard;
use warmroute_router::Router;

use crate::admission_gate::AdmissionGate;
use crate::clock::Clock;
use crate::observers::Observers;
use crate::peer_link::PeerLink;
use crate::upstream::Upstreams;

/// The parts of the gateway that attempts and responses hold until they end.
pub(crate) struct Forwarding {
    pub router: Arc<Router<Standard>>,
    pub clock: Clock,
    /// Receives every routing event.
    pub peers: Arc<PeerLink>,
    pub upstreams: Arc<Upstreams>,
    /// Retries that all requests share.
    pub retries: RetryBudget,
    /// Keeps the limits of responses that are computed in the background, until an attempt sees their end.
    pub gate: Arc<AdmissionGate>,
    pub observers: Observers,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Config;
    use crate::current::Current;
    use crate::line_throttle::LineThrottle;
    use crate::metrics::Metrics;

    /// What attempts of this router's requests hold, without peers.
    pub(crate) fn forwarding(router: Arc<Router<Standard>>) -> Arc<Forwarding> {
        let (clock, peers) = (Clock::start(), Arc::<PeerLink>::default());
        let settings = Arc::new(Current::new(Config::default()));
        let upstreams = Arc::new(Upstreams::new(&settings.load()));
        let gate = AdmissionGate::new(Arc::clone(&router), settings, clock, Arc::clone(&peers));
        let metrics = Metrics::new(Arc::clone(&router), Arc::clone(&upstreams), None);
        let (history, console, prefixes) = Default::default();
        let observers = Observers {
            metrics,
            history,
            console,
            prefixes,
            recorder: None,
            worker_errors: LineThrottle::default(),
        };
        let (retries, gate) = (RetryBudget::default(), Arc::new(gate));
        Arc::new(Forwarding { router, clock, peers, upstreams, retries, gate, observers })
    }
}
