//! Limits of a listener: connections, and the time that clients may take.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use warmroute_wire::Acceptor;

use crate::open_connections::OpenConnections;

/// How often a full listener looks for a connection that gives way.
const EVICT_EVERY: Duration = Duration::from_millis(20);

/// How often the log says that all slots are in use.
const LOG_FULL_EVERY: Duration = Duration::from_secs(10);

/// The limits of a listener.
#[derive(Clone)]
pub(crate) struct ListenerLimits {
    pub(crate) slots: Arc<Semaphore>,
    /// Open connections.
    pub(crate) open: Gauge,
    /// The timeouts for a new connection. A function, because a reload may change them.
    pub(crate) timeouts: Arc<dyn Fn() -> ClientTimeouts + Send + Sync>,
    pub(crate) acceptor: Acceptor,
    pub(crate) connections: OpenConnections,
    /// When the log last said that all slots are in use.
    pub(crate) full_logged: Arc<Mutex<Option<Instant>>>,
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientTimeouts {
    /// To send a request head, or to start its next request.
    pub(crate) head: Duration,
    /// To read any part of its response.
    pub(crate) write_stall: Duration,
}

impl ListenerLimits {
    pub(crate) fn new(
        connections_max: usize,
        acceptor: Acceptor,
        timeouts: impl Fn() -> ClientTimeouts + Send + Sync + 'static,
    ) -> ListenerLimits {
        let slots = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
        let (timeouts, connections) = (Arc::new(timeouts), OpenConnections::default());
        let (open, full_logged) = Default::default();
        ListenerLimits { slots, open, timeouts, acceptor, connections, full_logged }
    }

    /// Waits for a free slot. A connection that is silent or between two requests gives way if there is one; otherwise
    /// further connections wait in the kernel's accept queue at no cost.
    pub(crate) async fn acquire_slot(&self) -> ConnectionSlot {
        let permit = loop {
            if self.slots.available_permits() == 0 && !self.connections.evict() {
                self.log_full();
            }
            // A connection may become idle later.
            let acquired = Arc::clone(&self.slots).acquire_owned();
            if let Ok(permit) = tokio::time::timeout(EVICT_EVERY, acquired).await {
                break permit;
            }
        };
        self.open.inc();
        ConnectionSlot { _permit: permit.expect("the semaphore is never closed"), open: self.open.clone() }
    }

    fn log_full(&self) {
        let mut logged = self.full_logged.lock();
        if logged.is_none_or(|at| at.elapsed() > LOG_FULL_EVERY) {
            *logged = Some(Instant::now());
            let connections = self.open.get();
            tracing::warn!(
                connections,
                "all client connections are in use; further clients wait to be accepted"
            );
        }
    }
}

/// One connection's slot. Dropping it frees the slot.
pub(crate) struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.open.dec();
    }
}
