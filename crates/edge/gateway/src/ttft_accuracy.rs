//! Accuracy of predicted times to first token (TTFT), for each worker.
//!
//! Sums show whether a worker is slower or faster than predicted. The histogram of observed over predicted TTFT shows
//! the errors of single predictions, which sums hide.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::metrics::histogram::Histogram;
use warmroute_types::Micros;

/// Histogram buckets of observed over predicted TTFT, finer around 1.
const RATIOS: [f64; 11] = [0.25, 0.5, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0];

/// Predicted and observed TTFT of one worker. Clones share the counts.
#[derive(Clone)]
pub(crate) struct TtftAccuracy {
    sums: Arc<Sums>,
    pub(crate) ratio: Histogram,
}

#[derive(Default)]
struct Sums {
    predicted_us: AtomicU64,
    observed_us: AtomicU64,
}

impl Default for TtftAccuracy {
    fn default() -> TtftAccuracy {
        TtftAccuracy { sums: Arc::default(), ratio: Histogram::new(RATIOS) }
    }
}

impl TtftAccuracy {
    pub(crate) fn count(&self, predicted_ms: f32, observed: Micros) {
        // At least 1 µs: division by zero would spoil the histogram's sum for good.
        let predicted_us = (f64::from(predicted_ms) * 1e3).max(1.0);
        self.sums.predicted_us.fetch_add(predicted_us as u64, Relaxed);
        self.sums.observed_us.fetch_add(observed.0, Relaxed);
        self.ratio.observe(observed.0 as f64 / predicted_us);
    }

    pub(crate) fn predicted(&self) -> Micros {
        Micros(self.sums.predicted_us.load(Relaxed))
    }

    pub(crate) fn observed(&self) -> Micros {
        Micros(self.sums.observed_us.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_are_summed_and_a_prediction_of_zero_is_harmless() {
        let accuracy = TtftAccuracy::default();
        accuracy.count(2.0, Micros(3_000));
        accuracy.count(0.0, Micros(5));
        assert_eq!((accuracy.predicted(), accuracy.observed()), (Micros(2_001), Micros(3_005)));
    }
}
