//! What a listener allows: so many connections, and so much time for a head and for taking the answer.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use warmroute_wire::Acceptor;

/// What a listener allows.
#[derive(Clone)]
pub(crate) struct Allowance {
    pub(crate) places: Arc<Semaphore>,
    /// How many are open.
    pub(crate) open: Gauge,
    /// How long a client that has just connected may take.
    pub(crate) times: Arc<dyn Fn() -> Times + Send + Sync>,
    pub(crate) acceptor: Acceptor,
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// To send its request's head, or to begin with its next one.
    pub(crate) head: Duration,
    /// To take any of what it is sent.
    pub(crate) unread: Duration,
}

impl Allowance {
    pub(crate) fn new(
        connections_max: usize,
        acceptor: Acceptor,
        times: impl Fn() -> Times + Send + Sync + 'static,
    ) -> Allowance {
        let places = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
        Allowance { places, open: Gauge::default(), times: Arc::new(times), acceptor }
    }

    /// Waits until another connection may be accepted. Those that are not wait in the kernel's queue, which costs us nothing.
    pub(crate) async fn place(&self) -> Place {
        let permit = Arc::clone(&self.places).acquire_owned().await;
        self.open.inc();
        Place { _permit: permit.expect("the semaphore is never closed"), open: self.open.clone() }
    }
}

/// One connection's place; given back when dropped.
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.dec();
    }
}
