//! The link to peer routers: the transport, once one is set, and the reports that arrive over it.

use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc;
use warmroute_peers::Envelope;

use crate::peer_transport::{PeerTransport, TransportStats};
use crate::response_report::PickReport;

/// Reports that wait to be applied: about a second of a busy picker's.
const REPORTS_MAX: usize = 4_096;

/// The link to peer routers. Without a transport everything sent is dropped.
#[derive(Default)]
pub(crate) struct PeerLink {
    transport: OnceLock<Arc<dyn PeerTransport>>,
    /// Takes other pickers' reports, once the endpoint picker runs.
    reports: OnceLock<mpsc::Sender<PickReport>>,
}

impl PeerLink {
    /// Sets the transport. Later calls have no effect.
    pub(crate) fn set_transport(&self, transport: Arc<dyn PeerTransport>) {
        _ = self.transport.set(transport);
    }

    /// Tells the transport that a routing event should reach peer routers soon.
    pub(crate) fn notify(&self) {
        self.transport.get().into_iter().for_each(|transport| transport.notify());
    }

    /// Sends a message. It may be lost.
    pub(crate) fn send(&self, envelope: Envelope) {
        if let Some(transport) = self.transport.get() {
            transport.send(envelope);
        }
    }

    /// The transport's statistics.
    pub(crate) fn stats(&self) -> Option<TransportStats> {
        self.transport.get().map(|transport| transport.stats())
    }

    /// Takes a peer's report about a request that this router has routed.
    pub(crate) fn receive_report(&self, message: &[u8]) {
        if let (Some(report), Some(reports)) = (PickReport::decode(message), self.reports.get()) {
            // A full queue drops the report, as the transport does. The pick then ends without it.
            _ = reports.try_send(report);
        }
    }

    /// Peers' reports from now on. `None` after the first call.
    pub(crate) fn pick_reports(&self) -> Option<mpsc::Receiver<PickReport>> {
        let (reports, received) = mpsc::channel(REPORTS_MAX);
        self.reports.set(reports).ok().map(|()| received)
    }
}
