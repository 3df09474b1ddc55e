//! Exchanges engines' event streams with peers: events that only a peer receives, and replays that a peer lacks.
//!
//! ```text
//! router.take_streams ──▶ a batch, a position, a replay ──▶ the worker's feed
//!                    └──▶ a replay request ──▶ kept batches, or a snapshot of the feed and the index ──▶ send_replay
//! ```

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use warmroute_events::{
    Arrival, BatchId, FeedHandle, ReplayPart, ReportInbox, StreamPosition as FeedPosition, StreamSnapshot,
};
use warmroute_fleet::Worker;
use warmroute_peers::{
    BadMessage, RelayedBatch, RelayedBatchKind, StreamPosition, StreamRange, pack_events, unpack_events,
};
use warmroute_router::StreamNews;
use warmroute_types::RouterId;

use super::event_sink::{EventOrigin, RouterSink};

/// How often peers are told the positions of streams.
const POSITION_EVERY: Duration = Duration::from_millis(500);

/// Applies what peers send about streams to the feeds.
pub struct PeerStreams {
    sink: Arc<RouterSink>,
    inbox: Arc<ReportInbox>,
}

impl PeerStreams {
    pub fn new(sink: Arc<RouterSink>, inbox: Arc<ReportInbox>) -> PeerStreams {
        PeerStreams { sink, inbox }
    }

    /// Runs until dropped. `changed` signals that peers have sent something.
    pub async fn run(self, changed: Arc<Notify>) {
        let mut ticks = interval(POSITION_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let streams = Arc::new(self);
        streams.sink.follow_streams();
        loop {
            tokio::select! {
                () = changed.notified() => {}
                _ = ticks.tick() => streams.sink.set_positions(streams.positions()),
            }
            let news = streams.sink.take_streams();
            if !news.is_empty() {
                let streams = Arc::clone(&streams);
                // A whole cache takes milliseconds to encode or decode, too long for a thread that serves sockets.
                let applied = tokio::task::spawn_blocking(move || streams.apply_all(news));
                applied.await.expect("applying news does not panic");
            }
        }
    }

    fn apply_all(&self, news: Vec<(Arc<Worker>, StreamNews)>) {
        for (worker, news) in news {
            // A worker whose prompts cannot be compared yet requests a replay once they can.
            match self.feed_of(&worker) {
                Some(feed) => self.apply(&worker, &feed, news),
                None => self.decline(&worker, &news),
            }
        }
    }

    fn apply(&self, worker: &Worker, feed: &FeedHandle, news: StreamNews) {
        match news {
            StreamNews::Reported(router, report) => {
                self.sink.note_peer(&worker.address, router);
                // An unreadable batch leaves a gap, which the feed requests again.
                if let Ok(batch) = unpack_events(&report.bytes) {
                    feed.relayed(batch_id(&report), batch);
                }
            }
            StreamNews::Reached(router, StreamPosition { source, next, at_unix_ms, .. }) => {
                self.sink.note_peer(&worker.address, router);
                feed.reached(FeedPosition { source, next, at_unix_ms });
            }
            StreamNews::Asked(router, wanted) => self.answer(worker, feed, router, wanted),
            StreamNews::Replayed(reports) => {
                let parts: Result<Vec<ReplayPart>, BadMessage> = reports.iter().map(replay_part).collect();
                feed.replayed(parts.unwrap_or_default());
            }
        }
    }

    fn decline(&self, worker: &Worker, news: &StreamNews) {
        if let StreamNews::Asked(router, _) = news {
            self.sink.send_replay(*router, worker, &[]);
        }
    }

    fn answer(&self, worker: &Worker, feed: &FeedHandle, router: RouterId, wanted: StreamRange) {
        let known = || {
            let cache = || self.sink.snapshot(worker.id);
            let StreamSnapshot { source, seq, batch } =
                feed.snapshot(wanted.source, wanted.from_seq, cache)?;
            let bytes = pack_events(&batch);
            Some(vec![RelayedBatch {
                worker: worker.identity,
                source,
                seq,
                kind: RelayedBatchKind::Snapshot,
                bytes,
            }])
        };
        let reports = self.sink.kept_batches(wanted).or_else(known).unwrap_or_default();
        self.sink.send_replay(router, worker, &reports);
    }

    /// The feed of a worker that is followed here or described by reports.
    fn feed_of(&self, worker: &Worker) -> Option<Arc<FeedHandle>> {
        match self.sink.event_origin(&worker.address) {
            EventOrigin::Engine => self.sink.feed_of(&worker.address),
            EventOrigin::Reporter => self.inbox.feed(&worker.address).ok(),
            EventOrigin::Unaligned => None,
        }
    }

    fn positions(&self) -> Vec<StreamPosition> {
        let position = |worker: Arc<Worker>| {
            let feed = self.sink.feed_of(&worker.address).or_else(|| self.inbox.feed_of(&worker.address))?;
            let FeedPosition { source, next, at_unix_ms } = feed.position()?;
            Some(StreamPosition { worker: worker.identity, source, next, at_unix_ms })
        };
        self.sink.workers().into_iter().filter_map(position).collect()
    }
}

fn batch_id(report: &RelayedBatch) -> BatchId {
    let arrival = match report.kind {
        RelayedBatchKind::Restart => Arrival::Begins,
        RelayedBatchKind::Next | RelayedBatchKind::Snapshot => Arrival::Next,
    };
    BatchId { source: report.source, seq: report.seq, arrival }
}

fn replay_part(report: &RelayedBatch) -> Result<ReplayPart, BadMessage> {
    let batch = unpack_events(&report.bytes)?;
    Ok(match report.kind {
        RelayedBatchKind::Snapshot => {
            ReplayPart::Snapshot(StreamSnapshot { source: report.source, seq: report.seq, batch })
        }
        RelayedBatchKind::Next | RelayedBatchKind::Restart => ReplayPart::Batch(batch_id(report), batch),
    })
}
