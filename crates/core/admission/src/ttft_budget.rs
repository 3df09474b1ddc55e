//! A budget for the time to first token: what cannot meet it is refused at once.

use warmroute_types::Micros;

use crate::Class;
use crate::drain_rate::RETRY_AFTER_S_MAX;

/// The budget of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtftBudget {
    /// The request's priority.
    pub class: Class,
    /// The time that its first token may take.
    pub budget: Micros,
    /// When the first token must have come.
    pub due: Micros,
}

/// A request whose first token is expected too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLate {
    /// From the start of the budget to the expected first token.
    pub expected: Micros,
    /// Up to when it would have been accepted.
    pub accepted: Micros,
    /// When to retry: when the work ahead will have shrunk by the excess.
    pub retry_after_s: u32,
}

impl TtftBudget {
    /// A budget that begins now.
    pub fn new(class: Class, budget: Micros, now: Micros) -> TtftBudget {
        TtftBudget { class, budget, due: now + budget }
    }

    /// Refuses a request whose first token is expected too late, when it has this long to go from now on.
    pub fn check(&self, expected_ttft: Micros, now: Micros) -> Result<(), TooLate> {
        let spent = (now + self.budget).since(self.due);
        let expected = Micros(spent.0.saturating_add(expected_ttft.0));
        let accepted = Micros((self.budget.0 as f64 * share(self.class)) as u64);
        match expected.since(accepted) {
            Micros::ZERO => Ok(()),
            late => Err(TooLate { expected, accepted, retry_after_s: retry_after_s(late) }),
        }
    }

    /// When the request must have been admitted, if its first token then takes this long.
    pub fn admission_due(&self, expected_ttft: Micros) -> Micros {
        Micros(self.due.0.saturating_sub(expected_ttft.0))
    }
}

/// The share of its budget up to which a class is accepted. Without a queue this sheds the lowest class first: when
/// workers fill, it meets its bound before the others do. The rest is what predictions may be wrong by.
fn share(class: Class) -> f64 {
    match class {
        Class::High => 0.9,
        Class::Normal => 0.8,
        Class::Low => 0.5,
    }
}

/// Whole seconds, rounded up.
pub(crate) fn retry_after_s(late: Micros) -> u32 {
    late.0.div_ceil(1_000_000).clamp(1, RETRY_AFTER_S_MAX.into()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn budget(class: Class) -> TtftBudget {
        TtftBudget::new(class, Micros::from_millis(1_000), Micros::from_millis(10_000))
    }

    #[test]
    fn lower_classes_meet_their_bound_first() {
        let now = Micros::from_millis(10_000);
        let accepts = |class, ms| budget(class).check(Micros::from_millis(ms), now).is_ok();
        for (ms, accepted) in [(400, [true; 3]), (600, [true, true, false]), (850, [true, false, false])] {
            assert_eq!(Class::ALL.map(|class| accepts(class, ms)), accepted, "{ms} ms");
        }
        assert!(!accepts(Class::High, 1_000));
    }

    #[test]
    fn time_spent_waiting_counts_and_the_retry_time_is_the_excess() {
        let late = budget(Class::High).check(Micros::from_millis(4_000), Micros::from_millis(10_500));
        let expected = Micros::from_millis(4_500);
        let late = late.unwrap_err();
        assert_eq!((late.expected, late.retry_after_s), (expected, 4), "3.6 s too late");
    }

    proptest! {
        /// What is accepted is expected in time, and what a class is refused every lower class is refused.
        #[test]
        fn the_accepted_are_in_time(budget_ms in 1..10_000_u64, waited_ms in 0..10_000_u64, ttft_ms in 0..10_000_u64) {
            let (start, waited) = (Micros::from_secs(9), Micros::from_millis(waited_ms));
            let ttft = Micros::from_millis(ttft_ms);
            let accepts = Class::ALL.map(|class| {
                let budget = TtftBudget::new(class, Micros::from_millis(budget_ms), start);
                let is_accepted = budget.check(ttft, start + waited).is_ok();
                assert!(!is_accepted || start + waited + ttft <= budget.due);
                is_accepted
            });
            prop_assert!(accepts.is_sorted_by(|higher, lower| higher >= lower));
        }
    }
}
