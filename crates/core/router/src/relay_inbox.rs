//! A bounded queue of peers' stream updates for the feeds' driver.
//!
//! Without a driver nothing is kept, and replay requests are refused at once. When the driver is too slow,
//! the oldest update is dropped and counted; a dropped batch is requested again, and a dropped answer counts
//! as empty.

use std::collections::{BTreeSet, VecDeque};

use warmroute_peers::{Effect, RelayedBatch};

/// Maximum number of queued updates.
const NEWS_MAX: usize = 1 << 14;

/// Maximum bytes of queued updates. A single larger answer is accepted alone.
const BYTES_MAX: usize = 32 << 20;

/// Approximate bytes of an update without its batches.
const NEWS_BYTES: usize = 64;

/// Queued stream updates.
#[derive(Debug, Default)]
pub(crate) struct RelayInbox {
    /// Whether a driver takes the updates.
    pub is_followed: bool,
    news: VecDeque<Effect>,
    bytes: usize,
    /// Workers whose answers were dropped. Their feeds wait for an answer, even an empty one.
    unanswered: BTreeSet<u64>,
    /// Updates dropped before they were taken.
    pub dropped: u64,
}

impl RelayInbox {
    pub fn push(&mut self, news: Effect) {
        if let Effect::ReplayReceived { worker, .. } = news {
            self.unanswered.remove(&worker);
        }
        self.bytes += weight(&news);
        self.news.push_back(news);
        while (self.bytes > BYTES_MAX || self.news.len() > NEWS_MAX) && self.news.len() > 1 {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.news.pop_front() else { return };
        self.bytes -= weight(&oldest);
        self.dropped += 1;
        if let Effect::ReplayReceived { worker, .. } = oldest {
            self.unanswered.insert(worker);
        }
    }

    pub fn take(&mut self) -> VecDeque<Effect> {
        self.bytes = 0;
        let unanswered = std::mem::take(&mut self.unanswered).into_iter();
        let mut news = std::mem::take(&mut self.news);
        news.extend(unanswered.map(|worker| Effect::ReplayReceived { worker, batches: Vec::new() }));
        news
    }
}

fn weight(news: &Effect) -> usize {
    let bytes = |report: &RelayedBatch| report.bytes.len() + NEWS_BYTES;
    NEWS_BYTES
        + match news {
            Effect::BatchRelayed { batch: report, .. } => bytes(report),
            Effect::ReplayReceived { batches: reports, .. } => reports.iter().map(bytes).sum(),
            _ => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_peers::RelayedBatchKind;
    use warmroute_types::RouterId;

    fn report(seq: u64, bytes: usize) -> RelayedBatch {
        RelayedBatch { worker: 1, source: 2, seq, kind: RelayedBatchKind::Next, bytes: vec![0; bytes].into() }
    }

    #[test]
    fn too_much_drops_the_oldest_and_counts_it_and_no_answer_is_left_out() {
        let mut streams = RelayInbox::default();
        streams.push(Effect::ReplayReceived { worker: 1, batches: vec![report(0, BYTES_MAX / 2)] });
        let reported = |seq| Effect::BatchRelayed { router: RouterId(3), batch: report(seq, BYTES_MAX / 8) };
        (1..=6).for_each(|seq| streams.push(reported(seq)));
        assert!(streams.bytes <= BYTES_MAX);
        assert_eq!(streams.dropped, 1);
        let news = streams.take();
        assert_eq!(news.len(), 7);
        assert!(news.contains(&Effect::ReplayReceived { worker: 1, batches: Vec::new() }));
        assert_eq!((streams.bytes, streams.take().len()), (0, 0));
        streams.push(Effect::ReplayReceived { worker: 1, batches: vec![report(0, 2 * BYTES_MAX)] });
        assert_eq!(streams.take().len(), 1, "one alone is taken, however large");
        streams.push(Effect::ReplayReceived { worker: 1, batches: Vec::new() });
        (1..=2 * NEWS_MAX as u64).for_each(|seq| {
            streams.push(Effect::BatchRelayed { router: RouterId(3), batch: report(seq, 0) })
        });
        let news = streams.take();
        assert!(
            news.contains(&Effect::ReplayReceived { worker: 1, batches: Vec::new() }),
            "nothing is an answer, too"
        );
        (0..2 * NEWS_MAX as u64)
            .for_each(|worker| streams.push(Effect::ReplayReceived { worker, batches: Vec::new() }));
        assert_eq!(streams.take().len(), 2 * NEWS_MAX, "as many as request");
    }
}
