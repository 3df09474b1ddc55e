//! Other routers' part in engines' streams: what they hear for us, and what we know that they lack.
//!
//! ```text
//! router.take_streams ──▶ a batch, how far, an answer ──▶ the worker's desk ──▶ its feed
//!                    └──▶ a question ──▶ the last batches, or all that the desk's feed and the index know ──▶ tell_replay
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

use super::ear::{Ear, Spoken};

/// How often it is told how far streams were heard.
const REACH_EVERY: Duration = Duration::from_millis(500);

/// Brings what other routers say of streams to their feeds.
pub struct Siblings {
    ear: Arc<Ear>,
    inbox: Arc<ReportInbox>,
}

impl Siblings {
    pub fn new(ear: Arc<Ear>, inbox: Arc<ReportInbox>) -> Siblings {
        Siblings { ear, inbox }
    }

    /// Until dropped; `said` tells when there may be something.
    pub async fn run(self, said: Arc<Notify>) {
        let mut ticks = interval(REACH_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let siblings = Arc::new(self);
        siblings.ear.follow_streams();
        loop {
            tokio::select! {
                () = said.notified() => {}
                _ = ticks.tick() => siblings.ear.set_reaches(siblings.reaches()),
            }
            let news = siblings.ear.take_streams();
            if !news.is_empty() {
                let siblings = Arc::clone(&siblings);
                // A whole cache takes milliseconds to write or to read: not on a thread that serves sockets.
                let taken = tokio::task::spawn_blocking(move || siblings.take_all(news));
                taken.await.expect("taking news does not panic");
            }
        }
    }

    fn take_all(&self, news: Vec<(Arc<Worker>, StreamNews)>) {
        for (worker, news) in news {
            // One whose prompts cannot be compared yet is asked about when they can.
            match self.desk_of(&worker) {
                Some(desk) => self.take(&worker, &desk, news),
                None => self.refuse(&worker, &news),
            }
        }
    }

    fn take(&self, worker: &Worker, desk: &FeedHandle, news: StreamNews) {
        match news {
            StreamNews::Reported(router, report) => {
                self.ear.told_by(&worker.address, router);
                // What cannot be read leaves a gap, and that is asked for.
                if let Ok(batch) = unpack_events(&report.bytes) {
                    desk.relayed(numbered(&report), batch);
                }
            }
            StreamNews::Reached(router, StreamPosition { source, next, at_unix_ms, .. }) => {
                self.ear.told_by(&worker.address, router);
                desk.reached(FeedPosition { source, next, at_unix_ms });
            }
            StreamNews::Asked(router, wanted) => self.answer(worker, desk, router, wanted),
            StreamNews::Replayed(reports) => {
                let told: Result<Vec<ReplayPart>, BadMessage> = reports.iter().map(told).collect();
                desk.replayed(told.unwrap_or_default());
            }
        }
    }

    fn refuse(&self, worker: &Worker, news: &StreamNews) {
        if let StreamNews::Asked(router, _) = news {
            self.ear.tell_replay(*router, worker, &[]);
        }
    }

    fn answer(&self, worker: &Worker, desk: &FeedHandle, router: RouterId, wanted: StreamRange) {
        let known = || {
            let cache = || self.ear.known(worker.id);
            let StreamSnapshot { source, seq, batch } =
                desk.snapshot(wanted.source, wanted.from_seq, cache)?;
            let bytes = pack_events(&batch);
            Some(vec![RelayedBatch {
                worker: worker.identity,
                source,
                seq,
                kind: RelayedBatchKind::Snapshot,
                bytes,
            }])
        };
        let reports = self.ear.kept(wanted).or_else(known).unwrap_or_default();
        self.ear.tell_replay(router, worker, &reports);
    }

    /// The feed of a worker that is followed here, or for which reporters may speak.
    fn desk_of(&self, worker: &Worker) -> Option<Arc<FeedHandle>> {
        match self.ear.spoken(&worker.address) {
            Spoken::ByItself => self.ear.desk_of(&worker.address),
            Spoken::ByReporter => self.inbox.feed(&worker.address).ok(),
            Spoken::NotUnderstood => None,
        }
    }

    fn reaches(&self) -> Vec<StreamPosition> {
        let reach = |worker: Arc<Worker>| {
            let desk = self.ear.desk_of(&worker.address).or_else(|| self.inbox.feed_of(&worker.address))?;
            let FeedPosition { source, next, at_unix_ms } = desk.position()?;
            Some(StreamPosition { worker: worker.identity, source, next, at_unix_ms })
        };
        self.ear.workers().into_iter().filter_map(reach).collect()
    }
}

fn numbered(report: &RelayedBatch) -> BatchId {
    let arrival = match report.kind {
        RelayedBatchKind::Restart => Arrival::Begins,
        RelayedBatchKind::Next | RelayedBatchKind::Snapshot => Arrival::Next,
    };
    BatchId { source: report.source, seq: report.seq, arrival }
}

fn told(report: &RelayedBatch) -> Result<ReplayPart, BadMessage> {
    let batch = unpack_events(&report.bytes)?;
    Ok(match report.kind {
        RelayedBatchKind::Snapshot => {
            ReplayPart::Snapshot(StreamSnapshot { source: report.source, seq: report.seq, batch })
        }
        RelayedBatchKind::Next | RelayedBatchKind::Restart => ReplayPart::Batch(numbered(report), batch),
    })
}
