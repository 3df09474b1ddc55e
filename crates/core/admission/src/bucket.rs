//! A bucket that fills by itself, and from which is taken what was used.

use warmroute_types::Micros;

/// So much a minute, and a minute's worth at once.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    level: f64,
    at: Micros,
}

impl Bucket {
    /// A full one.
    pub fn full(per_minute: u32, now: Micros) -> Bucket {
        Bucket { level: per_minute.into(), at: now }
    }

    /// Whether there is enough; if not, the seconds until there is. More than the bucket holds may be taken when it is full, or it
    /// could never be.
    pub fn look(&mut self, amount: u32, per_minute: u32, now: Micros) -> Result<(), u32> {
        let full = f64::from(per_minute);
        self.level = (self.level + full * now.since(self.at).as_secs_f64() / 60.0).min(full);
        self.at = self.at.max(now);
        let missing = f64::from(amount).min(full) - self.level;
        if missing <= 0.0 { Ok(()) } else { Err(((missing * 60.0 / full).ceil() as u32).max(1)) }
    }

    /// Takes so much, or gives it back. It may leave a debt, all of which is paid before anything else is taken: a debt with an end
    /// would be a gift to whoever has many requests under way. Of one that limits nothing (0) nothing is taken: it would never be paid.
    pub fn take(&mut self, amount: i64, per_minute: u32) {
        if per_minute > 0 {
            self.level = (self.level - amount as f64).min(per_minute.into());
        }
    }

    /// Whether it is as good as new.
    pub fn is_full(&self, per_minute: u32, now: Micros) -> bool {
        let full = f64::from(per_minute);
        self.level + full * now.since(self.at).as_secs_f64() / 60.0 >= full
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_missing_comes_with_time() {
        let mut bucket = Bucket::full(60, Micros::ZERO);
        for _ in 0..60 {
            assert_eq!(bucket.look(1, 60, Micros::ZERO), Ok(()));
            bucket.take(1, 60);
        }
        assert_eq!(bucket.look(5, 60, Micros::ZERO), Err(5));
        assert_eq!(bucket.look(5, 60, Micros::from_secs(5)), Ok(()));
        assert_eq!(
            bucket.look(1_000, 60, Micros::from_secs(60)),
            Ok(()),
            "more than it holds, when it is full"
        );
    }

    proptest! {
        /// In no stretch of time is more taken than what was in it and what came into it.
        #[test]
        fn no_more_is_taken_than_there_is(steps in prop::collection::vec((1..50_u32, 0..5_000_u64), 1..200)) {
            const PER_MINUTE: u32 = 120;
            let (mut bucket, mut now, mut taken) = (Bucket::full(PER_MINUTE, Micros::ZERO), Micros::ZERO, 0_u64);
            for (amount, ms) in steps {
                now = now + Micros::from_millis(ms);
                if bucket.look(amount, PER_MINUTE, now).is_ok() {
                    bucket.take(amount.into(), PER_MINUTE);
                    taken += u64::from(amount);
                }
                prop_assert!(taken as f64 <= f64::from(PER_MINUTE) * (1.0 + now.as_secs_f64() / 60.0) + 1e-6);
            }
        }
    }
}
