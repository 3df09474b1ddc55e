//! How often a waiting request is admitted, from which the wait of a new one follows.
//!
//! Only times in which requests wait count: the rate of an idle fleet says nothing about a full one. Where predictions
//! refuse every request, none waits and nothing would be learned. So a refused request counts as if it had waited: until
//! the next request ends. And an estimate is forgotten when it was not confirmed for a while.

use warmroute_types::Micros;

/// Weight of an interval in the mean.
const WEIGHT: f64 = 0.1;

/// Weight of the time that a refused request would have waited. It is large: the refusal was wrong if the time is short.
const REFUSED_WEIGHT: f64 = 0.5;

/// An estimate is forgotten after this time, and after this many of its intervals, whichever is longer.
const KEPT: Micros = Micros::from_secs(10);
const KEPT_INTERVALS: u64 = 8;

/// A request that is first in its queue and is admitted within this time did not wait.
const AT_ONCE: Micros = Micros::from_millis(1);

/// The mean time between two admissions while requests wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdmissionRate {
    interval: Option<Micros>,
    /// When the mean was last confirmed.
    learned: Micros,
    next: Next,
}

/// What the time until the next admission says.
#[derive(Clone, Copy, Debug, Default)]
enum Next {
    /// Nothing yet: no request waits.
    #[default]
    Unknown,
    /// A request has been first in the queue since then.
    First { since: Micros },
    /// Requests waited when another was admitted.
    Further { since: Micros },
    /// A request was refused, and no other waits.
    Refused { since: Micros },
}

impl AdmissionRate {
    /// A request begins to wait, as the only one.
    pub(crate) fn begin(&mut self, now: Micros) {
        self.next = Next::First { since: now };
    }

    /// A request is refused while no other waits.
    pub(crate) fn refuse(&mut self, now: Micros) {
        if !matches!(self.next, Next::Refused { .. }) {
            self.next = Next::Refused { since: now };
        }
    }

    /// A waiting request is admitted. `waiting`: whether others still wait.
    pub(crate) fn admit(&mut self, now: Micros, waiting: bool) {
        match self.next {
            Next::First { since } if now.since(since) < AT_ONCE => {}
            Next::First { since } | Next::Further { since } => self.learn(now.since(since), WEIGHT, now),
            Next::Unknown | Next::Refused { .. } => {}
        }
        self.next = if waiting { Next::Further { since: now } } else { Next::Unknown };
    }

    /// A request ends: there is room for one that does not wait.
    pub(crate) fn end(&mut self, now: Micros) {
        if let Next::Refused { since } = self.next {
            self.learn(now.since(since), REFUSED_WEIGHT, now);
            self.next = Next::Unknown;
        }
    }

    /// All requests that waited have left.
    pub(crate) fn idle(&mut self) {
        if !matches!(self.next, Next::Refused { .. }) {
            self.next = Next::Unknown;
        }
    }

    /// The mean time between two admissions, if known.
    pub(crate) fn interval(&self, now: Micros) -> Option<Micros> {
        let interval = self.interval?;
        // When admissions stop, the mean of better times says little.
        let silence = match self.next {
            Next::First { since } | Next::Further { since } => now.since(since),
            Next::Unknown | Next::Refused { .. } => Micros::ZERO,
        };
        let is_old = now.since(self.learned) > KEPT.max(Micros(interval.0.saturating_mul(KEPT_INTERVALS)));
        (!is_old).then_some(interval.max(silence))
    }

    /// Whether nothing would be lost without it.
    pub(crate) fn is_forgotten(&self, now: Micros) -> bool {
        self.interval(now).is_none() && now.since(self.learned) > KEPT
    }

    fn learn(&mut self, interval: Micros, weight: f64, now: Micros) {
        let mean = match self.interval(now).and(self.interval) {
            Some(mean) => mean.0 as f64 + weight * (interval.0 as f64 - mean.0 as f64),
            None => interval.0 as f64,
        };
        (self.interval, self.learned) = (Some(Micros(mean as u64)), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Micros {
        Micros::from_millis(ms)
    }

    #[test]
    fn only_times_in_which_requests_wait_count() {
        let mut rate = AdmissionRate::default();
        rate.admit(ms(5_000), false);
        rate.admit(ms(9_000), false);
        assert_eq!(rate.interval(ms(9_000)), None);
        rate.begin(ms(10_000));
        rate.admit(ms(10_000), false);
        assert_eq!(rate.interval(ms(10_000)), None, "it did not wait");
        rate.begin(ms(10_000));
        (1..=50).for_each(|n| rate.admit(ms(10_000 + 20 * n), n < 50));
        assert_eq!(rate.interval(ms(11_000)), Some(ms(20)));
        assert_eq!(rate.interval(ms(20_000)), Some(ms(20)), "nothing waits, so silence says nothing");
        assert_eq!(rate.interval(ms(22_000)), None, "forgotten");
    }

    #[test]
    fn when_admissions_stop_the_mean_says_little() {
        let mut rate = AdmissionRate::default();
        rate.begin(ms(0));
        (1..=50).for_each(|n| rate.admit(ms(20 * n), true));
        assert_eq!(rate.interval(ms(1_500)), Some(ms(500)));
        rate.idle();
        assert_eq!(rate.interval(ms(1_500)), Some(ms(20)), "nothing waits any more");
    }

    #[test]
    fn a_slow_time_does_not_refuse_for_ever() {
        let mut rate = AdmissionRate::default();
        rate.begin(ms(0));
        (1..=4).for_each(|n| rate.admit(ms(3_000 * n), n < 4));
        let mut now = ms(12_000);
        assert_eq!(rate.interval(now), Some(ms(3_000)));
        // Requests end every 80 ms now, and each that comes in between is refused.
        for _ in 0..2 {
            rate.refuse(now);
            rate.refuse(now + ms(10));
            now = now + ms(80);
            rate.end(now);
        }
        assert!(rate.interval(now).unwrap() < ms(900), "{:?}", rate.interval(now));
    }
}
