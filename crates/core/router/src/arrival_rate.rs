//! How often requests arrive for one model.

use warmroute_types::Micros;

/// Arrivals this long ago count 1/e.
const MEMORY_MS: f32 = 10_000.0;

/// An exponentially fading count of arrivals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArrivalRate {
    per_ms: f32,
    /// How much of the memory has been filled since the first arrival, 0 to 1.
    filled: f32,
    at: Micros,
}

impl ArrivalRate {
    /// A request arrives.
    pub(crate) fn arrive(&mut self, now: Micros) {
        let passed_ms = if self.at == Micros::ZERO { 0.0 } else { now.since(self.at).as_millis_f64() as f32 };
        let kept = (-passed_ms / MEMORY_MS).exp();
        self.per_ms = self.per_ms * kept + 1.0 / MEMORY_MS;
        self.filled = 1.0 - (1.0 - self.filled) * kept;
        self.at = self.at.max(now);
    }

    /// Requests in a millisecond.
    pub(crate) fn per_ms(&self) -> f32 {
        // The first request is no rate, and of a few that come together none can be told.
        self.per_ms / self.filled.max(0.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_found_soon_and_followed() {
        let (mut rate, mut now) = (ArrivalRate::default(), Micros::from_secs(365));
        let mut arrive = |every_ms: u64, times: u32| {
            for _ in 0..times {
                now = now + Micros::from_millis(every_ms);
                rate.arrive(now);
            }
            rate.per_ms()
        };
        assert!((0.018..0.024).contains(&arrive(50, 60)), "after three seconds");
        assert!((0.019..0.021).contains(&arrive(50, 1_000)));
        assert!((0.004..0.006).contains(&arrive(200, 250)), "slower");
    }

    #[test]
    fn a_burst_at_the_start_is_bounded() {
        let mut rate = ArrivalRate::default();
        (0..10).for_each(|_| rate.arrive(Micros::from_secs(1)));
        assert!(rate.per_ms() <= 0.011, "{}", rate.per_ms());
    }
}
