//! Relays engines' event streams between routers, for engines that only one router can hear.
//!
//! The router passes batches between peers and the feeds' driver, which interprets them by the same rules for
//! all. Tokens never leave this router: batches are digested first and applied here in that form too.

use std::sync::Arc;

use warmroute_feed::{Arrival, BatchId};
use warmroute_fleet::Worker;
use warmroute_peers::{Effect, RelayedBatch, RelayedBatchKind, StreamPosition, StreamRange, pack_events};
use warmroute_policy::Policy;
use warmroute_types::{EventBatch, Micros, RouterId, WorkerId};

use super::Peering;

/// A peer's update about one worker's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamNews {
    /// The peer received this batch.
    Reported(RouterId, RelayedBatch),
    /// The peer has everything up to this position.
    Reached(RouterId, StreamPosition),
    /// The peer requests this range.
    Asked(RouterId, StreamRange),
    /// Requested batches; empty if no peer had them.
    Replayed(Vec<RelayedBatch>),
}

impl<P: Policy> Peering<'_, P> {
    /// Whether sharing with peers is on.
    pub fn is_sharing(&self) -> bool {
        self.router.sharing.get().is_some()
    }

    /// Whether any peer is connected.
    pub fn has_peers(&self) -> bool {
        self.router.sharing.get().is_some_and(|sharing| sharing.peer_state().peers.ids().next().is_some())
    }

    /// Whether this router has the lowest id. Tasks for exactly one router go to it.
    pub fn is_first(&self) -> bool {
        self.router.sharing.get().is_none_or(|sharing| sharing.rank() == 0)
    }

    /// Digests a worker's batch in place for relaying. `None` if nothing is to be relayed.
    pub fn digest(&self, worker: WorkerId, batch: &mut EventBatch) -> Option<Arc<[u8]>> {
        self.router.sharing.get()?;
        let is_read = self.router.reported.digest(self.router.index.digester(), worker, batch);
        is_read.then(|| pack_events(batch))
    }

    /// Relays a worker's batch to the peers.
    pub fn relay(&self, worker: &Worker, numbered: BatchId, bytes: Arc<[u8]>) {
        let BatchId { source, seq, arrival } = numbered;
        let kind = match arrival {
            Arrival::Next => RelayedBatchKind::Next,
            Arrival::Begins => RelayedBatchKind::Restart,
        };
        let report = RelayedBatch { worker: worker.identity, source, seq, kind, bytes };
        if let Some(sharing) = self.router.sharing.get() {
            sharing.peer_state().peers.relay(report);
        }
    }

    /// Sets the positions up to which relayed streams are complete here.
    pub fn set_positions(&self, reaches: Vec<StreamPosition>) {
        if let Some(sharing) = self.router.sharing.get() {
            sharing.peer_state().peers.set_positions(reaches);
        }
    }

    /// Requests a missing range of a stream. False if there is no peer to ask.
    pub fn request_replay(
        &self,
        worker: &Worker,
        (source, from_seq): (u64, u64),
        of: Option<RouterId>,
        now: Micros,
    ) -> bool {
        let wanted = StreamRange { worker: worker.identity, source, from_seq };
        self.router
            .sharing
            .get()
            .is_some_and(|sharing| sharing.peer_state().peers.request_replay(wanted, of, now))
    }

    /// Cancels the request: the range arrived another way.
    pub fn cancel_replay(&self, worker: &Worker) {
        if let Some(sharing) = self.router.sharing.get() {
            sharing.peer_state().peers.cancel_replay(worker.identity);
        }
    }

    /// The requested batches, if still retained.
    pub fn retained(&self, wanted: StreamRange) -> Option<Vec<RelayedBatch>> {
        self.router.sharing.get()?.peer_state().peers.retained(wanted)
    }

    /// The worker's reported cache in packed form.
    pub fn holdings(&self, worker: WorkerId) -> Option<Arc<[u8]>> {
        self.router.reported.known(&self.router.index, worker)
    }

    /// Answers a peer's replay request; empty means that it should ask another peer.
    pub fn answer_replay(&self, to: RouterId, worker: &Worker, reports: &[RelayedBatch]) {
        if let Some(sharing) = self.router.sharing.get() {
            sharing.peer_state().peers.answer_replay(to, worker.identity, reports);
        }
    }

    /// Enables queueing of stream updates for the feeds' driver.
    pub fn follow_streams(&self) {
        if let Some(sharing) = self.router.sharing.get() {
            sharing.peer_state().relay_inbox.is_followed = true;
        }
    }

    /// Takes the stream updates since the last call. Drops those of unknown workers and refuses requests for
    /// them at once.
    pub fn take_streams(&self) -> Vec<(Arc<Worker>, StreamNews)> {
        let Some(sharing) = self.router.sharing.get() else { return Vec::new() };
        let mut heard = sharing.peer_state();
        let news = heard.relay_inbox.take();
        let of = |news: Effect| {
            let (identity, news) = stream_news(news)?;
            let worker = sharing.worker(identity);
            if let (None, StreamNews::Asked(router, _)) = (&worker, &news) {
                heard.peers.answer_replay(*router, identity, &[]);
            }
            Some((worker?, news))
        };
        news.into_iter().filter_map(of).collect()
    }
}

fn stream_news(news: Effect) -> Option<(u64, StreamNews)> {
    Some(match news {
        Effect::BatchRelayed { router, batch: report } => {
            (report.worker, StreamNews::Reported(router, report))
        }
        Effect::PositionReported { router, position: reach } => {
            (reach.worker, StreamNews::Reached(router, reach))
        }
        Effect::ReplayRequested { router, range: wanted } => {
            (wanted.worker, StreamNews::Asked(router, wanted))
        }
        Effect::ReplayReceived { worker, batches: reports } => (worker, StreamNews::Replayed(reports)),
        _ => return None,
    })
}
