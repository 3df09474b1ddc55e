//! Metrics of predicted and observed times to first token.

use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use warmroute_fleet::Worker;
use warmroute_types::Micros;

use crate::ttft_accuracy::TtftAccuracy;

/// A sum of times: name, help, and how to read it.
type Sum = (&'static str, &'static str, fn(&TtftAccuracy) -> Micros);

const SUMS: [Sum; 2] = [
    (
        "predicted_ttft_seconds",
        "Streamed responses: sum of the predicted times to first token",
        TtftAccuracy::predicted,
    ),
    (
        "observed_ttft_seconds",
        "The same responses: sum of the times from the decision to the first token",
        TtftAccuracy::observed,
    ),
];

pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    workers: &[(&Arc<Worker>, TtftAccuracy)],
) -> Result<(), std::fmt::Error> {
    for (name, help, read) in SUMS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (worker, accuracy) in workers {
            let labels = [("worker", &*worker.label)];
            ConstCounter::new(read(accuracy).as_secs_f64()).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Streamed responses: observed over predicted time to first token";
    let mut family = encoder.encode_descriptor("ttft_prediction_ratio", help, None, MetricType::Histogram)?;
    for (worker, accuracy) in workers {
        accuracy.ratio.encode(family.encode_family(&[("worker", &*worker.label)])?)?;
    }
    Ok(())
}
