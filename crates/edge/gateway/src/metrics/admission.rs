//! Metrics of the admission gate.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use warmroute_admission::Class;

use crate::admission_gate::AdmissionGate;

/// Collects the admission metrics at each scrape.
pub(super) struct AdmissionCollector(pub Arc<AdmissionGate>);

impl std::fmt::Debug for AdmissionCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdmissionCollector")
    }
}

impl Collector for AdmissionCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (running, waiting) = self.0.counts();
        let help = "Admitted requests that have not ended";
        let family = encoder.encode_descriptor("requests_running", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(running)).encode(family)?;
        let help = "Requests in the admission queue";
        let mut family = encoder.encode_descriptor("queue_waiting", help, None, MetricType::Gauge)?;
        for (class, waiting) in Class::ALL.into_iter().zip(waiting) {
            ConstGauge::new(waiting as i64).encode(family.encode_family(&[("priority", class.as_str())])?)?;
        }
        let help = "Requests that wait because no worker was ready when they came";
        let family = encoder.encode_descriptor("requests_awaiting_worker", help, None, MetricType::Gauge)?;
        ConstGauge::new(self.0.awaiting_worker() as i64).encode(family)?;
        let help = "Time in the admission queue of requests that had to wait";
        let family = encoder.encode_descriptor("queue_wait_seconds", help, None, MetricType::Histogram)?;
        self.0.queue_waits_s.encode(family)
    }
}
