//! Engines' streams among several routers: what one hears and the others cannot.
//!
//! The router carries it between the conversation of routers and whoever drives the feeds; what a batch means is decided there, by the
//! same rules for all. Tokens do not leave this router: a batch is digested first, and taken here in that form, too.

use std::sync::Arc;

use warmroute_feed::{Arrival, BatchId};
use warmroute_fleet::Worker;
use warmroute_peers::{Effect, RelayedBatch, RelayedBatchKind, StreamPosition, StreamRange, pack_events};
use warmroute_policy::Policy;
use warmroute_types::{EventBatch, Micros, RouterId, WorkerId};

use super::Router;

/// News of one worker's stream, of another router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamNews {
    /// It has heard this.
    Reported(RouterId, RelayedBatch),
    /// It has heard all up to there.
    Reached(RouterId, StreamPosition),
    /// It lacks this.
    Asked(RouterId, StreamRange),
    /// What was asked for; nothing where nobody had it.
    Replayed(Vec<RelayedBatch>),
}

impl<P: Policy> Router<P> {
    /// Whether this router is one of several, as far as it was told.
    pub fn is_sharing(&self) -> bool {
        self.sharing.get().is_some()
    }

    /// Whether other routers are heard.
    pub fn has_peers(&self) -> bool {
        self.sharing.get().is_some_and(|sharing| sharing.peer_state().peers.ids().next().is_some())
    }

    /// Whether this router comes before all others. Only one of them should do what only one can.
    pub fn is_first(&self) -> bool {
        self.sharing.get().is_none_or(|sharing| sharing.rank() == 0)
    }

    /// Makes of a worker's batch what may be passed on, in its place too. `None`: nothing is to be.
    pub fn digest(&self, worker: WorkerId, batch: &mut EventBatch) -> Option<Arc<[u8]>> {
        self.sharing.get()?;
        let is_read = self.reported.digest(self.index.digester(), worker, batch);
        is_read.then(|| pack_events(batch))
    }

    /// Passes a worker's batch on to the others.
    pub fn relay(&self, worker: &Worker, numbered: BatchId, bytes: Arc<[u8]>) {
        let BatchId { source, seq, arrival } = numbered;
        let kind = match arrival {
            Arrival::Next => RelayedBatchKind::Next,
            Arrival::Begins => RelayedBatchKind::Restart,
        };
        let report = RelayedBatch { worker: worker.identity, source, seq, kind, bytes };
        if let Some(sharing) = self.sharing.get() {
            sharing.peer_state().peers.relay(report);
        }
    }

    /// How far streams were heard here without a hole: all that are passed on.
    pub fn set_reaches(&self, reaches: Vec<StreamPosition>) {
        if let Some(sharing) = self.sharing.get() {
            sharing.peer_state().peers.set_positions(reaches);
        }
    }

    /// A worker's stream is missing something, which that router may have. False where there is nobody to request.
    pub fn want(
        &self,
        worker: &Worker,
        (source, from_seq): (u64, u64),
        of: Option<RouterId>,
        now: Micros,
    ) -> bool {
        let wanted = StreamRange { worker: worker.identity, source, from_seq };
        self.sharing.get().is_some_and(|sharing| sharing.peer_state().peers.request_replay(wanted, of, now))
    }

    /// It has come by another way.
    pub fn call_off(&self, worker: &Worker) {
        if let Some(sharing) = self.sharing.get() {
            sharing.peer_state().peers.cancel_replay(worker.identity);
        }
    }

    /// The batches that another router wants, where they are still there.
    pub fn kept(&self, wanted: StreamRange) -> Option<Vec<RelayedBatch>> {
        self.sharing.get()?.peer_state().peers.retained(wanted)
    }

    /// All that is known of a worker's cache by its events.
    pub fn known(&self, worker: WorkerId) -> Option<Arc<[u8]>> {
        self.reported.known(&self.index, worker)
    }

    /// Tells another router what it wants; nothing: it is to request somebody else.
    pub fn tell_replay(&self, to: RouterId, worker: &Worker, reports: &[RelayedBatch]) {
        if let Some(sharing) = self.sharing.get() {
            sharing.peer_state().peers.answer_replay(to, worker.identity, reports);
        }
    }

    /// From now on somebody comes for what others say of streams.
    pub fn follow_streams(&self) {
        if let Some(sharing) = self.sharing.get() {
            sharing.peer_state().relay_inbox.is_followed = true;
        }
    }

    /// What others have said of streams since the last time, for whoever drives their feeds. That of workers who are not here means
    /// nothing; who asks for it is told at once to request another.
    pub fn take_streams(&self) -> Vec<(Arc<Worker>, StreamNews)> {
        let Some(sharing) = self.sharing.get() else { return Vec::new() };
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
