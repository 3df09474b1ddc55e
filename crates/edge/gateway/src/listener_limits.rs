//! What a listener allows: so many connections, and so much time for a head and for taking the answer.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use warmroute_wire::Acceptor;

/// What a listener allows.
#[derive(Clone)]
pub(crate) struct ListenerLimits {
    pub(crate) slots: Arc<Semaphore>,
    /// How many are open.
    pub(crate) open: Gauge,
    /// How long a client that has just connected may take.
    pub(crate) timeouts: Arc<dyn Fn() -> ClientTimeouts + Send + Sync>,
    pub(crate) acceptor: Acceptor,
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientTimeouts {
    /// To send its request's head, or to begin with its next one.
    pub(crate) head: Duration,
    /// To take any of what it is sent.
    pub(crate) write_stall: Duration,
}

impl ListenerLimits {
    pub(crate) fn new(
        connections_max: usize,
        acceptor: Acceptor,
        timeouts: impl Fn() -> ClientTimeouts + Send + Sync + 'static,
    ) -> ListenerLimits {
        let slots = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
        ListenerLimits { slots, open: Gauge::default(), timeouts: Arc::new(timeouts), acceptor }
    }

    /// Waits until another connection may be accepted. Those that are not wait in the kernel's queue, which costs us nothing.
    pub(crate) async fn acquire_slot(&self) -> ConnectionSlot {
        let permit = Arc::clone(&self.slots).acquire_owned().await;
        self.open.inc();
        ConnectionSlot { _permit: permit.expect("the semaphore is never closed"), open: self.open.clone() }
    }
}

/// One connection's place; given back when dropped.
pub(crate) struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.open.dec();
    }
}
