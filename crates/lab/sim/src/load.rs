//! State of each worker over time, in a bounded number of samples.

use warmroute_types::Micros;

/// Maximum number of samples. At the limit every other sample is dropped and the interval doubles.
const SAMPLES_MAX: usize = 512;
const INTERVAL_FIRST: Micros = Micros(100_000);

/// One worker at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerSample {
    /// Requests sent to it that have not ended.
    pub in_flight: u32,
    /// Requests in the engine's queue.
    pub waiting: u32,
    /// Share of the KV cache that running requests hold, from 0 to 1.
    pub kv_use: f32,
    /// Prompt tokens looked up in its cache since its start.
    pub looked_up_tokens: u64,
    /// Prompt tokens found in its cache since its start.
    pub hit_tokens: u64,
}

/// State of all workers at even intervals.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadSeries {
    /// Time between samples.
    pub interval: Micros,
    /// One row per sample, one entry per worker.
    pub samples: Vec<Vec<WorkerSample>>,
}

impl Default for LoadSeries {
    fn default() -> LoadSeries {
        LoadSeries { interval: INTERVAL_FIRST, samples: Vec::new() }
    }
}

impl LoadSeries {
    /// Time of the next sample.
    pub fn due(&self) -> Micros {
        Micros(self.interval.0 * self.samples.len() as u64)
    }

    /// Adds a sample.
    pub fn take(&mut self, workers: impl Iterator<Item = WorkerSample>) {
        self.samples.push(workers.collect());
        if self.samples.len() == SAMPLES_MAX {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.interval = Micros(self.interval.0 * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_has_no_more_samples_than_a_short_one() {
        let mut series = LoadSeries::default();
        for in_flight in 0..10_000 {
            let due = series.due();
            series.take([WorkerSample { in_flight, ..WorkerSample::default() }].into_iter());
            assert!(series.due() > due && series.samples.len() < SAMPLES_MAX);
        }
        assert!(series.samples.len() >= SAMPLES_MAX / 2);
        assert!(
            series.samples.windows(2).all(|pair| pair[0][0].in_flight < pair[1][0].in_flight),
            "in order"
        );
    }
}
