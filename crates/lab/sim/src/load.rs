//! Load of each worker over time, in a bounded number of samples.

use warmroute_types::Micros;

/// Maximum number of samples. At the limit every other sample is dropped and the interval doubles.
const SAMPLES_MAX: usize = 512;
const INTERVAL_FIRST: Micros = Micros(100_000);

/// Requests in flight per worker, at even intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadSeries {
    /// Time between samples.
    pub interval: Micros,
    /// One row per sample, one number per worker.
    pub samples: Vec<Vec<u32>>,
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
    pub fn take(&mut self, in_flight: impl Iterator<Item = u32>) {
        self.samples.push(in_flight.collect());
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
        for sample in 0..10_000 {
            let due = series.due();
            series.take([sample].into_iter());
            assert!(series.due() > due && series.samples.len() < SAMPLES_MAX);
        }
        assert!(series.samples.len() >= SAMPLES_MAX / 2);
        assert!(series.samples.windows(2).all(|pair| pair[0][0] < pair[1][0]), "in order");
    }
}
