//! The rate at which requests end, from which the retry time follows.

use warmroute_types::Micros;

/// Weight of the last interval in the average.
const WEIGHT: f64 = 0.1;

/// The longest retry time, however slowly requests end: conditions change.
pub(crate) const RETRY_AFTER_S_MAX: u32 = 60;

/// The average time between two ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainRate {
    last: Option<Micros>,
    interval_s: Option<f64>,
}

impl DrainRate {
    /// Records the end of a request.
    pub fn ended(&mut self, now: Micros) {
        let since = self.last.map(|last| now.since(last).as_secs_f64());
        let before = self.interval_s;
        self.interval_s =
            since.map(|since| before.map_or(since, |mean| mean + WEIGHT * (since - mean))).or(before);
        self.last = Some(now);
    }

    /// Seconds until this many more requests will have ended, at least one.
    pub fn retry_after_s(&self, ahead: usize, now: Micros) -> u32 {
        // When requests stop ending, the average of better times says little.
        let silence_s = self.last.map_or(0.0, |last| now.since(last).as_secs_f64());
        let interval_s = self.interval_s.unwrap_or(0.0).max(silence_s);
        // A float beyond the type's range saturates.
        ((interval_s * ahead as f64).ceil() as u32).clamp(1, RETRY_AFTER_S_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_retry_time_follows_the_rate_at_which_requests_end() {
        let mut drain_rate = DrainRate::default();
        assert_eq!(drain_rate.retry_after_s(100, Micros::ZERO), 1, "nothing is known");
        (0..200).for_each(|i| drain_rate.ended(Micros::from_millis(100 * i)));
        let now = Micros::from_millis(100 * 199);
        assert_eq!(drain_rate.retry_after_s(50, now), 5, "ten a second");
        assert_eq!(drain_rate.retry_after_s(5_000, now), RETRY_AFTER_S_MAX);
        assert_eq!(
            drain_rate.retry_after_s(10, now + Micros::from_secs(3)),
            30,
            "nothing has ended for three seconds"
        );
    }
}
