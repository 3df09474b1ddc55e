//! What all requests share.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use http::HeaderMap;
use warmroute_fleet::RetryBudget;
use warmroute_policy::Standard;
use warmroute_record::Recorder;
use warmroute_router::{Matching, Router};
use warmroute_types::{Address, Micros};

use crate::alignments::{Alignments, TooManyFamilies, Writing};
use crate::carrier::{Carried, Carrier};
use crate::current::Current;
use crate::door::Door;
use crate::history::History;
use crate::keys::{Keys, Tenant};
use crate::metrics::{Metrics, Reload};
use crate::reasons::Reasons;
use crate::refusal::Refusal;
use crate::upstream::Upstreams;
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
    pub(crate) reasons: Reasons,
    pub(crate) history: History,
    pub(crate) retries: RetryBudget,
    pub(crate) door: Arc<Door>,
    /// What carries messages to other routers, where there are any.
    carrier: Arc<OnceLock<Arc<dyn Carrier>>>,
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
        let door = Arc::new(Door::new(&config.door));
        let keys = Arc::new(Current::new(None));
        let mut metrics = Metrics::new(Arc::clone(&router), Arc::clone(&upstreams), recorder.clone());
        metrics.watch(&door, &keys);
        let (alignments, reasons, history, retries, carrier) = Default::default();
        let start = Instant::now();
        metrics.watch_peers(&router, &carrier, start);
        Ok(Arc::new(Gateway {
            router,
            config: Current::new(config),
            keys,
            upstreams,
            metrics,
            alignments,
            recorder,
            reasons,
            history,
            retries,
            door,
            carrier,
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
        self.door.set_config(&config.door);
        self.config.set(config);
        // There may be room now for those who wait.
        (0..self.door.waiting()).for_each(|_| self.let_in());
        Ok(())
    }

    /// From now on only these keys let somebody in; `None`: whoever comes may. Those who are in stay.
    pub fn set_keys(&self, keys: Option<Keys>) {
        let before = self.keys.load();
        self.keys.set(keys.map(|keys| match &*before {
            Some(before) => keys.inherit(before),
            None => keys,
        }));
    }

    /// Counts an attempt to put other settings in force.
    pub fn count_reload(&self, outcome: Reload) {
        self.metrics.reloaded(outcome);
    }

    /// Whose request this is; `None` where nobody is asked for a key.
    pub(crate) fn owner(&self, headers: &HeaderMap) -> Result<Option<Arc<Tenant>>, Refusal> {
        let keys = self.keys.load();
        let Some(keys) = &*keys else { return Ok(None) };
        let tenant = keys.owner(headers).ok_or(Refusal::Unauthorized)?;
        tenant.requests.inc();
        Ok(Some(Arc::clone(tenant)))
    }

    /// Shows what carries messages to other routers. Once.
    pub fn set_carrier(&self, carrier: Arc<dyn Carrier>) {
        _ = self.carrier.set(carrier);
    }

    /// Something was sent to a worker, or computed by it: the other routers should know soon.
    pub(crate) fn has_news(&self) {
        self.carrier.get().into_iter().for_each(|carrier| carrier.has_news());
    }

    pub(crate) fn carried(&self) -> Option<Carried> {
        self.carrier.get().map(|carrier| carrier.carried())
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
    pub fn align(&self, engine: &str, writing: Writing) -> Result<Matching, TooManyFamilies> {
        self.alignments.join(engine, writing)
    }

    /// They are not any more, unless other engines write alike.
    pub fn unalign(&self, engine: &str) {
        self.alignments.leave(engine);
    }

    /// Why a worker's cache is known no better than it is, for `GET /workers`; `None`: there is nothing to say.
    pub fn explain(&self, worker: &Address, why: Option<String>) {
        self.reasons.set(worker, why);
    }

    /// Lets the next request in that waits, should there be room for it. Those that end do that too; call it now and then for
    /// workers that have come or recovered.
    pub fn let_in(&self) {
        self.door.let_in(self);
    }

    /// Lets go of connections that nobody used for a while. Call it every few seconds.
    pub fn prune_connections(&self) {
        self.upstreams.prune();
    }
}
