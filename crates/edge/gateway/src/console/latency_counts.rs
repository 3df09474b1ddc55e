//! Counts of latencies in logarithmic buckets: a page merges them over any window and reads percentiles from them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use warmroute_types::Micros;

/// Buckets for each doubling of time. The page's `bucketMs` must agree.
const PER_OCTAVE: f64 = 4.0;

/// The upper end of the first bucket, in microseconds.
const FIRST_US: f64 = 100.0;

/// Buckets up to 100 µs × 2^(95/4), 23 minutes. The last one takes all above.
const BUCKETS: usize = 96;

/// Counts by bucket.
pub(crate) struct LatencyCounts([AtomicU32; BUCKETS]);

impl Default for LatencyCounts {
    fn default() -> LatencyCounts {
        LatencyCounts([const { AtomicU32::new(0) }; BUCKETS])
    }
}

impl LatencyCounts {
    pub(super) fn count(&self, latency: Micros) {
        self.0[bucket(latency)].fetch_add(1, Relaxed);
    }

    /// The counts since the last call: (bucket, count) where there are any.
    pub(super) fn take(&self) -> Vec<(usize, u32)> {
        let counts = self.0.iter().map(|count| count.swap(0, Relaxed)).enumerate();
        counts.filter(|&(_, count)| count > 0).collect()
    }
}

fn bucket(latency: Micros) -> usize {
    let octaves = (latency.0 as f64 / FIRST_US).max(1.0).log2();
    ((octaves * PER_OCTAVE).ceil() as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_grow_by_a_fourth_of_an_octave_and_the_last_takes_the_rest() {
        let counts = LatencyCounts::default();
        for us in [0, 100, 101, 200, 201, 100_000, u64::MAX] {
            counts.count(Micros(us));
        }
        assert_eq!(counts.take(), [(0, 2), (1, 1), (4, 1), (5, 1), (40, 1), (95, 1)]);
        assert_eq!(counts.take(), []);
    }
}
