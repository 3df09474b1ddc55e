//! Estimate of the time that a peer takes to answer.
//!
//! A query carries the sender's time and the answer repeats it. So every answer is a measurement, also of a
//! repeated query, and clocks of two routers are never compared.

use warmroute_types::Micros;

/// Shortest time before a query is repeated.
const RETRY_MIN: Micros = Micros::from_millis(100);

/// Longest time before a query is repeated. Above it, losses could not be repaired within two seconds.
const RETRY_MAX: Micros = Micros::from_millis(1_500);

/// Smoothed time between a query and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundTripEstimate {
    /// Smoothed time and its variation, as in TCP (RFC 6298).
    smoothed: Option<Micros>,
    variation: Micros,
}

impl RoundTripEstimate {
    /// Adds a measurement.
    pub fn record(&mut self, took: Micros) {
        let took = took.min(RETRY_MAX);
        let Some(smoothed) = self.smoothed else {
            (self.smoothed, self.variation) = (Some(took), Micros(took.0 / 2));
            return;
        };
        self.variation = Micros((3 * self.variation.0 + smoothed.0.abs_diff(took.0)) / 4);
        self.smoothed = Some(Micros((7 * smoothed.0 + took.0) / 8));
    }

    /// `None` before the first measurement.
    pub fn smoothed(&self) -> Option<Micros> {
        self.smoothed
    }

    /// Time to wait before a query is repeated, after this many failures. `types::backoff` starts at a constant; this wait starts
    /// at the measured time of an answer, and is the same for the same measurements.
    pub fn retry_after(&self, failures: u32) -> Micros {
        let once = self.smoothed.map_or(RETRY_MIN, |smoothed| smoothed + Micros(4 * self.variation.0));
        Micros(once.max(RETRY_MIN).0 << failures.min(8)).min(RETRY_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_time_follows_the_measurements_and_doubles_after_failures() {
        let mut estimate = RoundTripEstimate::default();
        let failures = [0, 1, 2, 3, 4, 60].map(|times| estimate.retry_after(times).0 / 1_000);
        assert_eq!(failures, [100, 200, 400, 800, 1_500, 1_500]);
        (0..40).for_each(|_| estimate.record(Micros::from_millis(300)));
        assert_eq!(estimate.smoothed(), Some(Micros::from_millis(300)));
        assert!((300..320).contains(&(estimate.retry_after(0).0 / 1_000)), "no variation");
        estimate.record(Micros::from_millis(600));
        assert!(estimate.retry_after(0) > Micros::from_millis(600), "variation");
        (0..60).for_each(|_| estimate.record(Micros::from_millis(1)));
        assert_eq!(estimate.retry_after(0), RETRY_MIN);
    }
}
