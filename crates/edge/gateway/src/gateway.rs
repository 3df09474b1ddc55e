//! What all requests share.

use std::sync::Arc;
use std::time::Instant;

use warmroute_policy::Standard;
use warmroute_record::Recorder;
use warmroute_router::Router;
use warmroute_types::Micros;

use crate::alignments::{Alignments, ModelMatching};
use crate::metrics::Metrics;
use crate::upstream::Upstreams;
use crate::{Config, ConfigError};

/// The gateway: a router, connections to its workers, and counters.
pub struct Gateway {
    pub(crate) router: Arc<Router<Standard>>,
    pub(crate) config: Config,
    pub(crate) upstreams: Arc<Upstreams>,
    pub(crate) metrics: Metrics,
    pub(crate) alignments: Alignments,
    pub(crate) recorder: Option<Arc<Recorder>>,
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
        let metrics = Metrics::new(Arc::clone(&router), Arc::clone(&upstreams), recorder.clone());
        let (alignments, start) = (Alignments::default(), Instant::now());
        Ok(Arc::new(Gateway { router, config, upstreams, metrics, alignments, recorder, start }))
    }

    /// The routing core.
    pub fn router(&self) -> &Arc<Router<Standard>> {
        &self.router
    }

    /// The time that the router is told.
    pub fn now(&self) -> Micros {
        self.start.elapsed().into()
    }

    /// From now on this model's prompts are written as its engines write them; `None`: they cannot be.
    pub fn align(&self, model: &str, matching: Option<ModelMatching>) {
        self.alignments.set(model, matching);
    }

    /// Lets go of connections that nobody used for a while. Call it every few seconds.
    pub fn prune_connections(&self) {
        self.upstreams.prune();
    }
}
