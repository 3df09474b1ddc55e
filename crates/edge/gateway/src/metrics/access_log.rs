//! Metrics of the access log.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use warmroute_record::AccessLog;

use super::record::encode_lines;

/// Collects the access log's counters at each scrape.
#[derive(Debug)]
pub(super) struct AccessLogCollector(pub Arc<AccessLog>);

impl Collector for AccessLogCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        encode_lines(&mut encoder, "access_log_lines", "Access log lines, by result", self.0.counts())
    }
}
