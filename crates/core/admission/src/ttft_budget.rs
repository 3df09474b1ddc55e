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

/// The time that a request's first token is expected to take from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedWait {
    /// Until the work before it on its worker is done.
    pub ahead: Micros,
    /// Its own work: what it takes on an idle worker.
    pub own: Micros,
}

impl ExpectedWait {
    /// The whole time.
    pub fn total(self) -> Micros {
        Micros(self.ahead.0.saturating_add(self.own.0))
    }
}

/// A request whose first token is expected too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLate {
    /// From the start of the budget to the expected first token.
    pub expected: Micros,
    /// Up to when it would have been accepted: its own work and a share of the time besides.
    pub accepted: Micros,
    /// When to retry: when the work ahead will have shrunk by the excess.
    pub retry_after_s: u32,
}

impl TtftBudget {
    /// A budget that begins now.
    pub fn new(class: Class, budget: Micros, now: Micros) -> TtftBudget {
        TtftBudget { class, budget, due: now + budget }
    }

    /// Refuses a request whose first token is expected too late. The time that it has waited and its own work must fit into
    /// the budget, and the work ahead into the class's share of the rest.
    pub fn check(&self, expected: ExpectedWait, now: Micros) -> Result<(), TooLate> {
        let spent = (now + self.budget).since(self.due);
        let certain = spent.0.saturating_add(expected.own.0);
        let usable = (self.budget.0 as f64 * USABLE_SHARE) as u64;
        let for_others = usable.saturating_sub(certain) as f64 * share(self.class);
        let accepted = Micros(usable.min(certain) + for_others as u64);
        let expected = Micros(certain.saturating_add(expected.ahead.0));
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

/// The share of a budget that may be used. The rest is what predictions may be wrong by on an idle worker.
const USABLE_SHARE: f64 = 0.95;

/// The share of the time besides its own work that a class may wait for work ahead. Without a queue this sheds the lowest
/// class first: when workers fill, it meets its bound before the others do. The rest is what predictions of that work may be
/// wrong by. A worker without work ahead accepts every class alike: refusing would bring no other request forward.
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

    /// A request whose own work takes a tenth of the second.
    fn behind(ahead_ms: u64) -> ExpectedWait {
        ExpectedWait { ahead: Micros::from_millis(ahead_ms), own: Micros::from_millis(100) }
    }

    #[test]
    fn lower_classes_meet_their_bound_first() {
        let now = Micros::from_millis(10_000);
        let accepts = |class, ms| budget(class).check(behind(ms), now).is_ok();
        for (ms, accepted) in [(400, [true; 3]), (600, [true, true, false]), (720, [true, false, false])] {
            assert_eq!(Class::ALL.map(|class| accepts(class, ms)), accepted, "{ms} ms");
        }
        assert!(!accepts(Class::High, 900));
    }

    #[test]
    fn time_spent_waiting_counts_and_the_retry_time_is_the_excess() {
        let late = budget(Class::High).check(behind(4_000), Micros::from_millis(10_500)).unwrap_err();
        let (expected, accepted) = (Micros::from_millis(4_600), Micros::from_millis(915));
        assert_eq!((late.expected, late.accepted, late.retry_after_s), (expected, accepted, 4), "3.7 s late");
    }

    proptest! {
        /// What is accepted is expected in time, and what a class is refused every lower class is refused.
        #[test]
        fn the_accepted_are_in_time(
            budget_ms in 1..10_000_u64, waited_ms in 0..10_000_u64, ahead_ms in 0..10_000_u64, own_ms in 0..10_000_u64,
        ) {
            let (start, waited) = (Micros::from_secs(9), Micros::from_millis(waited_ms));
            let expected = ExpectedWait { ahead: Micros::from_millis(ahead_ms), own: Micros::from_millis(own_ms) };
            let accepts = Class::ALL.map(|class| {
                let budget = TtftBudget::new(class, Micros::from_millis(budget_ms), start);
                let is_accepted = budget.check(expected, start + waited).is_ok();
                assert!(!is_accepted || start + waited + expected.total() <= budget.due);
                is_accepted
            });
            prop_assert!(accepts.is_sorted_by(|higher, lower| higher >= lower));
        }

        /// Without work ahead no class is refused what is expected in time with a small margin.
        #[test]
        fn an_idle_worker_accepts_every_class(budget_ms in 1..10_000_u64, share in 0.0..0.94_f64) {
            let own = Micros((budget_ms as f64 * share * 1e3) as u64);
            for class in Class::ALL {
                let budget = TtftBudget::new(class, Micros::from_millis(budget_ms), Micros::ZERO);
                let expected = ExpectedWait { ahead: Micros::ZERO, own };
                prop_assert_eq!(budget.check(expected, Micros::ZERO), Ok(()), "{:?}", class);
            }
        }
    }
}
