//! What is known of workers' event streams, written when somebody asks.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use warmroute_fleet::WorkerView;
use warmroute_policy::Standard;
use warmroute_router::{FeedReport, Router};
use warmroute_types::CacheView;

/// One count of a stream: its name and help, and how it is read.
type FeedCount = (&'static str, &'static str, fn(&FeedReport) -> Option<u64>);

const FEED_COUNTS: [FeedCount; 15] = [
    ("feed_batches", "Batches of events that arrived, live or replayed", |f| Some(f.stream?.batches)),
    ("feed_gaps", "Times that a stream's sequence jumped", |f| Some(f.stream?.gaps)),
    ("feed_lost_batches", "Batches that no replay brought back", |f| Some(f.stream?.lost)),
    ("feed_replays", "Replays that were asked for", |f| Some(f.stream?.replays)),
    ("feed_restarts", "Times that an engine turned out to be a new process", |f| Some(f.stream?.restarts)),
    ("feed_unheard", "Batches that did not come live and were found by asking for a replay", |f| {
        Some(f.stream?.missed_live)
    }),
    ("feed_duplicates", "Batches that were known already", |f| Some(f.stream?.duplicates)),
    ("feed_unreadable_events", "Events that could not be read", |f| Some(f.stream?.unreadable)),
    ("feed_blocks_stored", "Reported blocks that entered the index", |f| Some(f.ingested.stored)),
    ("feed_blocks_removed", "Blocks that engines evicted", |f| Some(f.ingested.removed)),
    ("feed_blocks_offloaded", "Blocks stored in slower memory", |f| Some(f.ingested.offloaded)),
    ("feed_blocks_unknown", "Blocks evicted, or told by name, that nobody knew", |f| {
        Some(f.ingested.unknown)
    }),
    ("feed_blocks_parked", "Blocks that had to wait for their parent", |f| Some(f.ingested.parked)),
    ("feed_blocks_refused", "Blocks for which the index had no room", |f| Some(f.ingested.refused)),
    ("feed_foreign_events", "Events with tokens that the model does not have", |f| Some(f.ingested.foreign)),
];

const VIEWS: [CacheView; 3] = [CacheView::Presumed, CacheView::Uncertain, CacheView::Reported];

pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    router: &Router<Standard>,
    views: &[WorkerView],
) -> Result<(), std::fmt::Error> {
    encode_views(encoder, views)?;
    let reports: Vec<_> = views.iter().map(|view| router.feed_report(view.worker.id)).collect();
    let help = "How long the last batch was under way, by both clocks";
    let mut family = encoder.encode_descriptor("feed_lag_seconds", help, None, MetricType::Gauge)?;
    for (view, report) in views.iter().zip(&reports) {
        if let Some(stream) = report.and_then(|report| report.stream) {
            ConstGauge::new(stream.lag_s)
                .encode(family.encode_family(&[("worker", &*view.worker.label)])?)?;
        }
    }
    for (name, help, read) in FEED_COUNTS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (view, report) in views.iter().zip(&reports) {
            if let Some(count) = report.as_ref().and_then(read) {
                let labels = [("worker", &*view.worker.label)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

fn encode_views(encoder: &mut DescriptorEncoder<'_>, views: &[WorkerView]) -> Result<(), std::fmt::Error> {
    let help = "1 for the way in which the worker's cache is known";
    let mut family = encoder.encode_descriptor("worker_view", help, None, MetricType::Gauge)?;
    for view in views {
        for known in VIEWS {
            let labels = [("worker", &*view.worker.label), ("view", known.as_str())];
            ConstGauge::new(i64::from(known == view.desk.view)).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "How far a worker's events have turned out true, 0 to 1";
    let mut family = encoder.encode_descriptor("worker_trust", help, None, MetricType::Gauge)?;
    for view in views.iter().filter(|view| view.desk.view != CacheView::Presumed) {
        let labels = [("worker", &*view.worker.label)];
        ConstGauge::new(f64::from(view.desk.trust)).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
