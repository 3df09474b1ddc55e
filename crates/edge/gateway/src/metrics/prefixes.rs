//! Metrics of what breaks prefixes.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use warmroute_prefixes::Cause;

use crate::prefix_observer::PrefixObserver;

/// Collects the counts at each scrape.
pub(super) struct PrefixCollector(pub Arc<PrefixObserver>);

impl std::fmt::Debug for PrefixCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrefixCollector")
    }
}

impl Collector for PrefixCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (compared, totals) = {
            let watch = self.0.watch().lock();
            (watch.compared(), watch.totals().collect::<Vec<(Cause, u64, u64)>>())
        };
        let help = "Prompts compared with an earlier one of their session, conversation or application";
        let compared = ConstCounter::new(compared);
        compared.encode(encoder.encode_descriptor("prefix_compared", help, None, MetricType::Counter)?)?;
        let help = "Prompts that were not compared, to bound the cost";
        let skipped = ConstCounter::new(self.0.skipped());
        skipped.encode(encoder.encode_descriptor("prefix_skipped", help, None, MetricType::Counter)?)?;
        let help = "Prompts that part from the earlier one before text that both have, by likely cause";
        let mut family = encoder.encode_descriptor("prefix_breaks", help, None, MetricType::Counter)?;
        for (cause, breaks, _) in &totals {
            ConstCounter::new(*breaks).encode(family.encode_family(&[("cause", cause.as_str())])?)?;
        }
        let help = "Estimated tokens of that text, which engines compute again";
        let mut family = encoder.encode_descriptor("prefix_lost_tokens", help, None, MetricType::Counter)?;
        for (cause, _, lost) in &totals {
            ConstCounter::new(*lost).encode(family.encode_family(&[("cause", cause.as_str())])?)?;
        }
        Ok(())
    }
}
