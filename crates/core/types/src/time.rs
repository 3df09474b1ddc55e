//! Time as a number, so that the core needs no clock.
//!
//! The gateway counts from its start with the system's monotonic clock, the lab counts virtual time. Two threads may
//! read their clock in one order and reach the router in the other, so "earlier minus later" is zero and never a
//! panic.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point in time or a duration, in microseconds. Points count from the driver's own start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// No duration, and the driver's start.
    pub const ZERO: Micros = Micros(0);

    /// Whole milliseconds; saturates.
    pub const fn from_millis(ms: u64) -> Micros {
        Micros(ms.saturating_mul(1_000))
    }

    /// Milliseconds with a fraction; negative and non-finite values are zero.
    pub fn from_millis_f64(ms: f64) -> Micros {
        Micros((ms * 1_000.0).round() as u64)
    }

    /// Whole seconds; saturates.
    pub const fn from_secs(s: u64) -> Micros {
        Micros(s.saturating_mul(1_000_000))
    }

    /// The duration since `earlier`; zero when time seems to have stepped back.
    pub fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// In milliseconds, for reports.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1_000.0
    }

    /// In seconds, for metrics.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1_000_000.0
    }
}

impl Add for Micros {
    type Output = Micros;

    fn add(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }
}

impl From<Duration> for Micros {
    fn from(duration: Duration) -> Micros {
        Micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(micros: Micros) -> Duration {
        Duration::from_micros(micros.0)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.as_millis_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_steps_back_gives_zero() {
        assert_eq!(Micros(5).since(Micros(9)), Micros::ZERO);
        assert_eq!(Micros(9).since(Micros(5)), Micros(4));
    }

    #[test]
    fn conversions_saturate() {
        assert_eq!(Micros::from_secs(u64::MAX), Micros(u64::MAX));
        assert_eq!(Micros::from_millis(u64::MAX), Micros(u64::MAX));
    }

    #[test]
    fn invalid_milliseconds_become_zero() {
        assert_eq!(Micros::from_millis_f64(f64::NAN), Micros::ZERO);
        assert_eq!(Micros::from_millis_f64(-3.0), Micros::ZERO);
        assert_eq!(Micros::from_millis_f64(1.5), Micros(1_500));
    }
}
