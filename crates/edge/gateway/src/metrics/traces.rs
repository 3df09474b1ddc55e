//! Metrics of OpenTelemetry traces.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use warmroute_otel::Tracer;

/// Collects the tracer's counters at each scrape.
#[derive(Debug)]
pub(super) struct TraceCollector(pub Arc<Tracer>);

impl Collector for TraceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counts = self.0.counts();
        let help = "Spans of OpenTelemetry traces, by result";
        let mut family = encoder.encode_descriptor("trace_spans", help, None, MetricType::Counter)?;
        let results = [
            ("sent", counts.sent),
            ("dropped", counts.dropped),
            ("failed", counts.failed),
            ("rejected", counts.rejected),
        ];
        for (result, count) in results {
            ConstCounter::new(count).encode(family.encode_family(&[("result", result)])?)?;
        }
        Ok(())
    }
}
