//! Limits of a listener: connections, and the time that clients may take.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use warmroute_wire::Acceptor;

use crate::silent_connections::SilentConnections;

/// The limits of a listener.
#[derive(Clone)]
pub(crate) struct ListenerLimits {
    pub(crate) slots: Arc<Semaphore>,
    /// Open connections.
    pub(crate) open: Gauge,
    /// The timeouts for a new connection. A function, because a reload may change them.
    pub(crate) timeouts: Arc<dyn Fn() -> ClientTimeouts + Send + Sync>,
    pub(crate) acceptor: Acceptor,
    pub(crate) silent: SilentConnections,
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
        let (timeouts, silent) = (Arc::new(timeouts), SilentConnections::default());
        ListenerLimits { slots, open: Gauge::default(), timeouts, acceptor, silent }
    }

    /// Waits for a free slot. A silent connection gives way if there is one; otherwise further connections wait in the
    /// kernel's accept queue at no cost.
    pub(crate) async fn acquire_slot(&self) -> ConnectionSlot {
        if self.slots.available_permits() == 0 {
            self.silent.evict_one();
        }
        let permit = Arc::clone(&self.slots).acquire_owned().await;
        self.open.inc();
        ConnectionSlot { _permit: permit.expect("the semaphore is never closed"), open: self.open.clone() }
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
