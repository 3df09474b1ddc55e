//! Metrics of the trace recorder.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use warmroute_record::{Counts, Recorder};

/// Collects the recorder's counters at each scrape.
#[derive(Debug)]
pub(super) struct RecordCollector(pub Arc<Recorder>);

impl Collector for RecordCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        encode_lines(&mut encoder, "record_lines", "Trace lines, by result", self.0.counts())
    }
}

/// Encodes counts of lines, by result.
pub(super) fn encode_lines(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counts: Counts,
) -> Result<(), std::fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    let results = [("written", counts.written), ("dropped", counts.dropped), ("failed", counts.failed)];
    for (result, count) in results {
        ConstCounter::new(count).encode(family.encode_family(&[("result", result)])?)?;
    }
    Ok(())
}
