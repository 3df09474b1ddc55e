//! The way from a request to the exporter: samples traces and queues spans without ever waiting.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::config::{CollectorConfig, ConfigError};
use crate::counts::{SpanCounters, SpanCounts};
use crate::exporter::Exporter;
use crate::{TraceId, TraceSpan};

/// Requests whose spans wait for the exporter: some seconds of a busy gateway, and about ten megabytes.
const QUEUE_MAX: usize = 2_048;

/// Samples traces and sends their spans to a collector.
#[derive(Debug)]
pub struct Tracer {
    queue: mpsc::Sender<Vec<TraceSpan>>,
    flushes: mpsc::Sender<oneshot::Sender<()>>,
    counters: Arc<SpanCounters>,
    /// New traces are sampled if the last 63 bits of their id are below it.
    threshold: u64,
}

impl Tracer {
    /// Starts the exporter, a task of the current runtime that ends with the tracer.
    pub fn start(config: CollectorConfig) -> Result<Tracer, ConfigError> {
        config.validate()?;
        let (queue, spans) = mpsc::channel(QUEUE_MAX);
        let (flushes, flush_requests) = mpsc::channel(1);
        let counters = Arc::new(SpanCounters::default());
        let threshold = threshold_of(config.sample_ratio);
        let (collector, path, sample_ratio) = (&config.base, &config.path, config.sample_ratio);
        tracing::info!(collector = format!("{collector}{path}"), sample_ratio, "traces are sent");
        tokio::spawn(Exporter::new(config, spans, flush_requests, Arc::clone(&counters)).run());
        Ok(Tracer { queue, flushes, counters, threshold })
    }

    /// Whether a trace that begins here is sampled. The answer follows from the id alone, so that all processes with the
    /// same ratio agree.
    pub fn samples(&self, TraceId(id): TraceId) -> bool {
        (id as u64) >> 1 < self.threshold
    }

    /// Queues a request's spans. They are dropped and counted if the queue is full.
    pub fn export(&self, spans: Vec<TraceSpan>) {
        let count = spans.len() as u64;
        if self.queue.try_send(spans).is_err() {
            self.counters.count_dropped(count);
        }
    }

    /// What became of the spans so far.
    pub fn counts(&self) -> SpanCounts {
        self.counters.read()
    }

    /// Sends what is queued, with one try, and returns when that is done or the time is over.
    pub async fn flush(&self, within: Duration) {
        let (done, is_done) = oneshot::channel();
        let flushing = async {
            if self.flushes.send(done).await.is_ok() {
                _ = is_done.await;
            }
        };
        if tokio::time::timeout(within, flushing).await.is_err() {
            tracing::warn!("the collector did not take the last traces within {within:?}");
        }
    }
}

/// The share of 63-bit numbers that are sampled.
fn threshold_of(ratio: f64) -> u64 {
    (ratio * (1_u64 << 63) as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(ratio: f64) -> Tracer {
        let (queue, _) = mpsc::channel(1);
        let (flushes, _) = mpsc::channel(1);
        Tracer { queue, flushes, counters: Arc::default(), threshold: threshold_of(ratio) }
    }

    #[test]
    fn the_ratio_is_the_share_of_ids_that_are_sampled() {
        for (ratio, expected) in [(0.0, 0), (0.25, 250), (1.0, 1_000)] {
            let tracer = tracer(ratio);
            // Evenly spread ids.
            let ids = (0..1_000_u128).map(|n| TraceId(n * (1 << 64) / 1_000 | 1));
            assert_eq!(ids.filter(|id| tracer.samples(*id)).count(), expected, "{ratio}");
        }
        assert!(tracer(1.0).samples(TraceId(u128::MAX)));
        assert!(!tracer(0.0).samples(TraceId(1 << 64)));
    }
}
