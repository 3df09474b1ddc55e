//! A token bucket.

use warmroute_types::Micros;

/// It refills at a rate per minute and holds one minute's worth.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    level: f64,
    at: Micros,
}

impl TokenBucket {
    /// A bucket with one minute's worth.
    pub fn full(per_minute: u32, now: Micros) -> TokenBucket {
        TokenBucket { level: per_minute.into(), at: now }
    }

    /// A bucket with this level, negative in debt.
    pub fn at_level(level: f64, now: Micros) -> TokenBucket {
        TokenBucket { level, at: now }
    }

    /// The level at this time.
    pub fn level(&self, per_minute: u32, now: Micros) -> f64 {
        let full = f64::from(per_minute);
        (self.level + full * now.since(self.at).as_secs_f64() / 60.0).min(full)
    }

    /// Whether there is enough; if not, the seconds until there is. An amount larger than the bucket may be taken
    /// when it is full, since it could never be otherwise.
    pub fn check(&mut self, amount: u32, per_minute: u32, now: Micros) -> Result<(), u32> {
        let full = f64::from(per_minute);
        self.level = self.level(per_minute, now);
        self.at = self.at.max(now);
        let missing = f64::from(amount).min(full) - self.level;
        if missing <= 0.0 { Ok(()) } else { Err(((missing * 60.0 / full).ceil() as u32).max(1)) }
    }

    /// Takes an amount, or returns a negative one. It may leave a debt, which is paid in full before anything else is
    /// taken: a bounded debt would favour tenants with many requests in flight. An unlimited bucket (0) takes
    /// nothing.
    pub fn take(&mut self, amount: i64, per_minute: u32) {
        if per_minute > 0 {
            self.level = (self.level - amount as f64).min(per_minute.into());
        }
    }

    /// Whether the bucket is full.
    pub fn is_full(&self, per_minute: u32, now: Micros) -> bool {
        self.level(per_minute, now) >= f64::from(per_minute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bucket_refills_over_time() {
        let mut token_bucket = TokenBucket::full(60, Micros::ZERO);
        for _ in 0..60 {
            assert_eq!(token_bucket.check(1, 60, Micros::ZERO), Ok(()));
            token_bucket.take(1, 60);
        }
        assert_eq!(token_bucket.check(5, 60, Micros::ZERO), Err(5));
        assert_eq!(token_bucket.check(5, 60, Micros::from_secs(5)), Ok(()));
        assert_eq!(
            token_bucket.check(1_000, 60, Micros::from_secs(60)),
            Ok(()),
            "more than it holds, when it is full"
        );
    }

    proptest! {
        /// In no period is more taken than the bucket held at its start and received during it.
        #[test]
        fn never_takes_more_than_the_bucket_received(steps in prop::collection::vec((1..50_u32, 0..5_000_u64), 1..200)) {
            const PER_MINUTE: u32 = 120;
            let (mut token_bucket, mut now, mut taken) = (TokenBucket::full(PER_MINUTE, Micros::ZERO), Micros::ZERO, 0_u64);
            for (amount, ms) in steps {
                now = now + Micros::from_millis(ms);
                if token_bucket.check(amount, PER_MINUTE, now).is_ok() {
                    token_bucket.take(amount.into(), PER_MINUTE);
                    taken += u64::from(amount);
                }
                prop_assert!(taken as f64 <= f64::from(PER_MINUTE) * (1.0 + now.as_secs_f64() / 60.0) + 1e-6);
            }
        }
    }
}
