//! Metrics of the workers' KV event feeds.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use warmroute_fleet::WorkerView;
use warmroute_policy::Standard;
use warmroute_router::{FeedReport, Router};
use warmroute_types::CacheView;

/// A counter of a feed: name, help, and how to read it.
type FeedCount = (&'static str, &'static str, fn(&FeedReport) -> Option<u64>);

const FEED_COUNTS: [FeedCount; 15] = [
    ("feed_batches", "Event batches received, live or replayed", |f| Some(f.stream?.batches)),
    ("feed_gaps", "Gaps in a feed's sequence numbers", |f| Some(f.stream?.gaps)),
    ("feed_lost_batches", "Batches lost for good", |f| Some(f.stream?.lost)),
    ("feed_replays", "Replays requested", |f| Some(f.stream?.replays)),
    ("feed_restarts", "Engine restarts noticed", |f| Some(f.stream?.restarts)),
    ("feed_missed_live", "Batches that did not arrive live and were found by a replay", |f| {
        Some(f.stream?.missed_live)
    }),
    ("feed_duplicates", "Batches received twice", |f| Some(f.stream?.duplicates)),
    ("feed_unreadable_events", "Events that could not be read", |f| Some(f.stream?.unreadable)),
    ("feed_blocks_stored", "Reported blocks that entered the index", |f| Some(f.ingested.stored)),
    ("feed_blocks_removed", "Blocks that engines evicted", |f| Some(f.ingested.removed)),
    ("feed_blocks_offloaded", "Blocks stored in slower memory tiers", |f| Some(f.ingested.offloaded)),
    ("feed_blocks_unknown", "Blocks evicted or referenced that the index does not know", |f| {
        Some(f.ingested.unknown)
    }),
    ("feed_blocks_parked", "Blocks stored before their parent", |f| Some(f.ingested.parked)),
    ("feed_blocks_refused", "Blocks refused because the index was full", |f| Some(f.ingested.refused)),
    ("feed_foreign_events", "Events with token ids that the model does not have", |f| {
        Some(f.ingested.foreign)
    }),
];

const VIEWS: [CacheView; 3] = [CacheView::Presumed, CacheView::Uncertain, CacheView::Reported];

pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    router: &Router<Standard>,
    views: &[WorkerView],
) -> Result<(), std::fmt::Error> {
    encode_views(encoder, views)?;
    let reports: Vec<_> = views.iter().map(|view| router.inspect().feed_report(view.worker.id)).collect();
    let help = "Delay of the last batch, by the clocks of both machines";
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
    let help = "1 for the worker's current cache view";
    let mut family = encoder.encode_descriptor("worker_view", help, None, MetricType::Gauge)?;
    for view in views {
        for known in VIEWS {
            let labels = [("worker", &*view.worker.label), ("view", known.as_str())];
            ConstGauge::new(i64::from(known == view.load.view)).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Trust in a worker's events, 0 to 1";
    let mut family = encoder.encode_descriptor("worker_trust", help, None, MetricType::Gauge)?;
    for view in views.iter().filter(|view| view.load.view != CacheView::Presumed) {
        let labels = [("worker", &*view.worker.label)];
        ConstGauge::new(f64::from(view.load.trust)).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
