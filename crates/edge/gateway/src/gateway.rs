//! What all requests share.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use http::HeaderMap;
use warmroute_fleet::RetryBudget;
use warmroute_policy::Standard;
use warmroute_record::Recorder;
use warmroute_router::{Matching, Router};
use warmroute_types::{Address, Micros};

use crate::admission_gate::AdmissionGate;
use crate::alignments::{Alignments, PromptFormat, TooManyFamilies};
use crate::current::Current;
use crate::history::History;
use crate::keys::{Keys, Tenant};
use crate::metrics::{Metrics, Reload};
use crate::peer_transport::{PeerTransport, TransportStats};
use crate::refusal::Refusal;
use crate::upstream::Upstreams;
use crate::view_reasons::ViewReasons;
use crate::{Config, ConfigError};

/// What time it is at the start. What is remembered from before happened earlier, and times are not below zero.
const EPOCH: Micros = Micros::from_secs(365 * 86_400);

/// The gateway: a router, connections to its workers, and counters.
pub struct Gateway {
    pub(crate) router: Arc<Router<Standard>>,
    config: Current<Config>,
    /// `None`: whoever comes may come in.
    keys: Arc<Current<Option<Keys>>>,
    pub(crate) upstreams: Arc<Upstreams>,
    pub(crate) metrics: Metrics,
    pub(crate) alignments: Alignments,
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) view_reasons: ViewReasons,
    pub(crate) history: History,
    pub(crate) retries: RetryBudget,
    pub(crate) admission_gate: Arc<AdmissionGate>,
    /// What carries messages to other routers, where there are any.
    transport: Arc<OnceLock<Arc<dyn PeerTransport>>>,
    start: Instant,
}

impl Gateway {
    /// A gateway over a router whose workers come and go by [`Router::apply`]. What it serves is recorded where there is a
    /// recorder.
    pub fn new(
        router: Arc<Router<Standard>>,
        config: Config,
        recorder: Option<Recorder>,
    ) -> Result<Arc<Gateway>, ConfigError> {
        config.validate()?;
        let recorder = recorder.map(Arc::new);
        let upstreams = Arc::new(Upstreams::new(&config));
        let admission_gate = Arc::new(AdmissionGate::new(&config.admission));
        let keys = Arc::new(Current::new(None));
        let mut metrics = Metrics::new(Arc::clone(&router), Arc::clone(&upstreams), recorder.clone());
        metrics.watch_admission(&admission_gate, &keys);
        let (alignments, view_reasons, history, retries, transport) = Default::default();
        let start = Instant::now();
        metrics.watch_peers(&router, &transport, start);
        Ok(Arc::new(Gateway {
            router,
            config: Current::new(config),
            keys,
            upstreams,
            metrics,
            alignments,
            recorder,
            view_reasons,
            history,
            retries,
            admission_gate,
            transport,
            start,
        }))
    }

    /// The routing core.
    pub fn router(&self) -> &Arc<Router<Standard>> {
        &self.router
    }

    /// The settings in force. A request takes them once.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.config.load()
    }

    /// Other settings, from the next request on. Those under way keep what they began with.
    pub fn set_config(&self, config: Config) -> Result<(), ConfigError> {
        config.validate()?;
        self.admission_gate.set_config(&config.admission);
        self.config.set(config);
        // There may be room now for those who wait.
        (0..self.admission_gate.waiting()).for_each(|_| self.admit_next());
        Ok(())
    }

    /// From now on only these keys let somebody in; `None`: whoever comes may. Those who are in stay.
    pub fn set_keys(&self, keys: Option<Keys>) {
        let before = self.keys.load();
        self.keys.set(keys.map(|keys| match &*before {
            Some(before) => keys.with_counts_of(before),
            None => keys,
        }));
    }

    /// Counts an attempt to put other settings in force.
    pub fn count_reload(&self, outcome: Reload) {
        self.metrics.count_reload(outcome);
    }

    /// Whose request this is; `None` where nobody is asked for a key.
    pub(crate) fn authenticate(&self, headers: &HeaderMap) -> Result<Option<Arc<Tenant>>, Refusal> {
        let keys = self.keys.load();
        let Some(keys) = &*keys else { return Ok(None) };
        let tenant = keys.tenant_of(headers).ok_or(Refusal::Unauthorized)?;
        tenant.requests.inc();
        Ok(Some(Arc::clone(tenant)))
    }

    /// Shows what carries messages to other routers. Once.
    pub fn set_peer_transport(&self, transport: Arc<dyn PeerTransport>) {
        _ = self.transport.set(transport);
    }

    /// Something was sent to a worker, or computed by it: the other routers should know soon.
    pub(crate) fn notify_peers(&self) {
        self.transport.get().into_iter().for_each(|transport| transport.notify());
    }

    pub(crate) fn transport_stats(&self) -> Option<TransportStats> {
        self.transport.get().map(|transport| transport.stats())
    }

    /// How many requests that fail may still be sent again, beyond those that always may: for [`Gateway::inherit_retries`].
    pub fn retries_left(&self) -> u64 {
        self.retries.left(self.now())
    }

    /// Another process's clients come here from now on, and it had so many left.
    pub fn inherit_retries(&self, left: u64) {
        self.retries.inherit(self.now(), left);
    }

    /// How long after the start that was.
    pub(crate) fn since_start(&self, at: Micros) -> Micros {
        at.since(EPOCH)
    }

    /// The time that the router is told.
    pub fn now(&self) -> Micros {
        EPOCH + self.start.elapsed().into()
    }

    /// From now on prompts for this engine's models are written as it writes them, too; how its events are to be read.
    pub fn align(&self, engine: &str, format: PromptFormat) -> Result<Matching, TooManyFamilies> {
        self.alignments.join(engine, format)
    }

    /// They are not any more, unless other engines write alike.
    pub fn unalign(&self, engine: &str) {
        self.alignments.leave(engine);
    }

    /// Why a worker's cache is known no better than it is, for `GET /workers`; `None`: there is nothing to say.
    pub fn set_view_reason(&self, worker: &Address, why: Option<String>) {
        self.view_reasons.set(worker, why);
    }

    /// Lets the next request in that waits, should there be room for it. Those that end do that too; call it now and then for
    /// workers that have come or recovered.
    pub fn admit_next(&self) {
        self.admission_gate.admit_next(self);
    }

    /// Lets go of connections that nobody used for a while. Call it every few seconds.
    pub fn prune_connections(&self) {
        self.upstreams.prune();
    }
}
