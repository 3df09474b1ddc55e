//! Saturation: the work ahead of a new prompt, by model, for autoscaling.
//!
//! A worker counts for each model that it serves. Workers that take no requests do not count: their queues are not where
//! the next prompt waits. Requests in the admission queue are not on a worker yet and are counted there.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use warmroute_fleet::{Models, WorkerView};
use warmroute_policy::Standard;
use warmroute_router::Router;
use warmroute_types::Micros;

use crate::clock::Clock;

/// The model label of workers that serve any model, or have not listed theirs yet.
const ANY_MODEL: &str = "any";

/// One model's workers that take requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Saturation {
    workers: u32,
    work_ahead_s: f64,
}

impl Saturation {
    fn add(&mut self, queue_ms: Option<f32>) {
        if let Some(queue_ms) = queue_ms {
            self.workers += 1;
            self.work_ahead_s += f64::from(queue_ms) / 1e3;
        }
    }

    /// The mean over workers; none without a worker.
    fn mean_s(&self) -> Option<f64> {
        (self.workers > 0).then(|| self.work_ahead_s / f64::from(self.workers))
    }
}

/// A gauge of each model: name, help, and how to read it.
type SaturationGauge = (&'static str, &'static str, fn(&Saturation) -> Option<f64>);

const GAUGES: [SaturationGauge; 3] = [
    (
        "saturation_seconds",
        "Seconds of prefill work ahead of a new prompt, on average over the model's workers",
        |s| s.mean_s(),
    ),
    (
        "work_ahead_seconds",
        "Seconds of prefill work ahead of a new prompt, summed over the model's workers",
        |s| Some(s.work_ahead_s),
    ),
    ("workers_ready", "Workers of the model that take requests", |s| Some(s.workers.into())),
];

/// Collects the models' saturation at each scrape.
pub(super) struct SaturationCollector {
    pub router: Arc<Router<Standard>>,
    pub clock: Clock,
}

impl std::fmt::Debug for SaturationCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SaturationCollector")
    }
}

impl Collector for SaturationCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let views = self.router.inspect().workers();
        let now = self.clock.now();
        let models = by_model(&self.router, &views, now);
        for (name, help, read) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (model, saturation) in &models {
                if let Some(value) = read(saturation) {
                    ConstGauge::new(value).encode(family.encode_family(&[("model", *model)])?)?;
                }
            }
        }
        Ok(())
    }
}

fn by_model<'a>(
    router: &Router<Standard>,
    views: &'a [WorkerView],
    now: Micros,
) -> BTreeMap<&'a str, Saturation> {
    let mut models: BTreeMap<&str, Saturation> = BTreeMap::new();
    for view in views {
        let takes = view.load.takes_requests();
        let queue_ms = takes.then(|| router.inspect().latency(view.worker.id, now).queue_ms);
        match &view.models {
            Models::Named(names) => {
                names.iter().for_each(|name| models.entry(name.as_ref()).or_default().add(queue_ms));
            }
            Models::Any | Models::Unknown => models.entry(ANY_MODEL).or_default().add(queue_ms),
        }
    }
    models
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_workers_that_take_requests_count_and_none_has_no_mean() {
        let mut saturation = Saturation::default();
        assert_eq!(saturation.mean_s(), None);
        [Some(500.0), None, Some(1_500.0)].into_iter().for_each(|queue_ms| saturation.add(queue_ms));
        assert_eq!((saturation.workers, saturation.mean_s()), (2, Some(1.0)));
    }
}
