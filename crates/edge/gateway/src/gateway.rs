//! What all requests share.

use std::sync::Arc;
use std::time::Instant;

use warmroute_policy::Standard;
use warmroute_router::Router;
use warmroute_types::Micros;

use crate::metrics::Metrics;
use crate::upstream::Upstreams;
use crate::{Config, ConfigError};

/// The gateway: a router, connections to its workers, and counters.
pub struct Gateway {
    pub(crate) router: Arc<Router<Standard>>,
    pub(crate) config: Config,
    pub(crate) upstreams: Arc<Upstreams>,
    pub(crate) metrics: Metrics,
    start: Instant,
}

impl Gateway {
    /// A gateway over a router whose workers come and go by [`Router::apply`].
    pub fn new(router: Arc<Router<Standard>>, config: Config) -> Result<Arc<Gateway>, ConfigError> {
        config.validate()?;
        let upstreams = Arc::new(Upstreams::new(&config));
        let metrics = Metrics::new(Arc::clone(&router), Arc::clone(&upstreams));
        Ok(Arc::new(Gateway { router, config, upstreams, metrics, start: Instant::now() }))
    }

    /// The routing core.
    pub fn router(&self) -> &Arc<Router<Standard>> {
        &self.router
    }

    /// The time that the router is told.
    pub fn now(&self) -> Micros {
        self.start.elapsed().into()
    }

    /// Lets go of connections that nobody used for a while. Call it every few seconds.
    pub fn prune_connections(&self) {
        self.upstreams.prune();
    }
}
