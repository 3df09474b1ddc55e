//! A circuit breaker that decides whether a worker gets requests. Pure; `now` is an argument.
//!
//! ```text
//!  closed ──failures in a row──▶ open ──probe answered, pause over──▶ half-open ──trial answered──▶ closed
//!     ▲                           │ ▲                                     │
//!     └── unreachable: answered ──┘ └────────────── a failure ────────────┘
//! ```
//!
//! Failures to connect and failed requests are counted apart, because different events refute them. A probe
//! shows whether a worker can be *reached*: an unreachable worker is used again after its first answered
//! probe. Only requests show whether it *serves*: an engine that answers probes while its requests fail gets
//! one trial request at a time. Client errors and backpressure are never reported to a breaker.

use warmroute_types::Micros;

/// How long a breaker stays open after failed requests. Short, because a failed trial costs its client only a
/// retry, and a recovered worker must be used again within two seconds.
pub const BREAKER_PAUSE: Micros = Micros::from_secs(1);

/// Which requests a breaker lets pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BreakerState {
    /// Requests pass.
    #[default]
    Closed,
    /// No request passes.
    Open(OpenReason),
    /// One trial request at a time passes.
    HalfOpen,
}

/// Why a breaker is open, which decides what closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenReason {
    /// Connections failed. The first answered probe closes the breaker.
    Unreachable,
    /// Requests failed. A probe answered after `until` allows a trial request.
    Failing {
        /// The end of the pause.
        until: Micros,
    },
}

/// One worker's breaker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Breaker {
    state: BreakerState,
    /// Consecutive failures to connect.
    unreached: u32,
    /// Consecutive failed requests.
    faults: u32,
    /// When an unreachable worker was last reached again.
    back_at: Micros,
    openings: u64,
}

impl BreakerState {
    /// The word used in `GET /workers`.
    pub fn as_str(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open(_) => "open",
            BreakerState::HalfOpen => "half_open",
        }
    }
}

impl Breaker {
    /// The current state.
    pub fn state(&self) -> BreakerState {
        self.state
    }

    /// Number of times the breaker has opened.
    pub fn openings(&self) -> u64 {
        self.openings
    }

    /// Whether an answer would change the breaker.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.state == BreakerState::HalfOpen || self.unreached + self.faults > 0
    }

    /// Records an answered probe. It says nothing about failed requests.
    pub fn reached(&mut self, now: Micros) {
        self.unreached = 0;
        self.state = match self.state {
            BreakerState::Open(OpenReason::Unreachable) => {
                // The engine was probably restarted.
                (self.faults, self.back_at) = (0, now);
                BreakerState::Closed
            }
            BreakerState::Open(OpenReason::Failing { until }) if now >= until => BreakerState::HalfOpen,
            state => state,
        };
    }

    /// Records a failed connection or probe.
    pub fn unreached(&mut self, failures_max: u32) {
        self.unreached = self.unreached.saturating_add(1);
        match self.state {
            BreakerState::Closed if self.unreached < failures_max => {}
            BreakerState::Open(_) => self.state = BreakerState::Open(OpenReason::Unreachable),
            BreakerState::Closed | BreakerState::HalfOpen => self.open(OpenReason::Unreachable),
        }
    }

    /// Records a request that failed at this time. Some are reported late, when another worker has answered: what failed before the
    /// worker was reached again says nothing about it now.
    pub fn fault(&mut self, at: Micros, failures_max: u32) {
        if at < self.back_at {
            return;
        }
        self.faults = self.faults.saturating_add(1);
        match self.state {
            BreakerState::Closed if self.faults < failures_max => {}
            // Requests sent before the breaker opened: the reason that opened it stands.
            BreakerState::Open(_) => {}
            BreakerState::Closed | BreakerState::HalfOpen => {
                self.open(OpenReason::Failing { until: at + BREAKER_PAUSE })
            }
        }
    }

    /// Records a first token. A trial has shown that the worker serves, but not that it completes answers, so
    /// the next fault opens the breaker again.
    pub fn began(&mut self, failures_max: u32) {
        if self.state == BreakerState::HalfOpen {
            (self.state, self.unreached) = (BreakerState::Closed, 0);
            self.faults = failures_max.saturating_sub(1);
        }
    }

    /// Records a completed answer. It does not close an open breaker: the request was sent before it opened.
    pub fn answered(&mut self) {
        if !matches!(self.state, BreakerState::Open(_)) {
            (self.state, self.unreached, self.faults) = (BreakerState::Closed, 0, 0);
        }
    }

    fn open(&mut self, why: OpenReason) {
        self.state = BreakerState::Open(why);
        self.openings += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: u32 = 3;

    /// A breaker that three faults opened at second 10.
    fn failing() -> Breaker {
        let mut breaker = Breaker::default();
        (0..MAX).for_each(|_| breaker.fault(Micros::from_secs(10), MAX));
        breaker
    }

    #[test]
    fn faults_in_a_row_open_it_and_a_trial_closes_it() {
        let mut breaker = failing();
        assert!(matches!(breaker.state(), BreakerState::Open(OpenReason::Failing { .. })));
        breaker.reached(Micros::from_secs(10));
        assert!(matches!(breaker.state(), BreakerState::Open(_)), "a probe says nothing about requests");
        breaker.answered();
        assert!(
            matches!(breaker.state(), BreakerState::Open(_)),
            "nor does an answer that was long under way"
        );
        breaker.reached(Micros::from_secs(11));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        breaker.answered();
        assert_eq!((breaker.state(), breaker.openings()), (BreakerState::Closed, 1));
    }

    #[test]
    fn a_trial_that_fails_opens_it_again() {
        let mut breaker = failing();
        breaker.reached(Micros::from_secs(11));
        breaker.fault(Micros::from_secs(12), MAX);
        assert_eq!(breaker.state(), BreakerState::Open(OpenReason::Failing { until: Micros::from_secs(13) }));
        assert_eq!(breaker.openings(), 2);
    }

    #[test]
    fn a_trial_that_breaks_off_after_its_first_token_opens_it_again() {
        let mut breaker = failing();
        breaker.reached(Micros::from_secs(11));
        breaker.began(MAX);
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.fault(Micros::from_secs(12), MAX);
        assert!(matches!(breaker.state(), BreakerState::Open(_)));
    }

    #[test]
    fn an_unreachable_worker_needs_no_trial() {
        let mut breaker = Breaker::default();
        (0..MAX).for_each(|_| breaker.unreached(MAX));
        assert_eq!(breaker.state(), BreakerState::Open(OpenReason::Unreachable));
        breaker.reached(Micros::ZERO);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_worker_that_failed_and_then_died_starts_without_failures() {
        let mut breaker = failing();
        breaker.unreached(MAX);
        breaker.reached(Micros::from_secs(10));
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.fault(Micros::from_secs(10), MAX);
        assert_eq!(breaker.state(), BreakerState::Closed, "its row begins anew");
    }

    #[test]
    fn requests_that_failed_before_a_restart_do_not_count_against_the_new_engine() {
        let mut breaker = Breaker::default();
        (0..MAX).for_each(|_| breaker.unreached(MAX));
        breaker.reached(Micros::from_secs(13));
        breaker.answered();
        (0..9).for_each(|_| breaker.fault(Micros::from_secs(10), MAX));
        assert_eq!((breaker.state(), breaker.awaits_answer()), (BreakerState::Closed, false));
        (0..MAX).for_each(|_| breaker.fault(Micros::from_secs(14), MAX));
        assert!(matches!(breaker.state(), BreakerState::Open(_)), "later ones do");
    }

    #[test]
    fn probes_that_are_answered_do_not_hide_requests_that_fail() {
        let mut breaker = Breaker::default();
        for second in 0..u64::from(MAX) {
            breaker.reached(Micros::from_secs(second));
            breaker.fault(Micros::from_secs(second), MAX);
        }
        assert!(matches!(breaker.state(), BreakerState::Open(_)));
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Reached,
        Unreached,
        Fault,
        Began,
        Answered,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Reached),
            Just(Event::Unreached),
            Just(Event::Fault),
            Just(Event::Began),
            Just(Event::Answered)
        ]
    }

    fn apply(breaker: &mut Breaker, event: Event, now: Micros) {
        match event {
            Event::Reached => breaker.reached(now),
            Event::Unreached => breaker.unreached(MAX),
            Event::Fault => breaker.fault(now, MAX),
            Event::Began => breaker.began(MAX),
            Event::Answered => breaker.answered(),
        }
    }

    proptest! {
        /// Only failures open it. After any history, a worker that serves is used again after the pause and
        /// one probe.
        #[test]
        fn only_failures_open_it_and_it_never_stays_open(steps in prop::collection::vec((event(), 0..900_u64), 0..200)) {
            let (mut breaker, mut now) = (Breaker::default(), Micros::ZERO);
            for (event, ms) in steps {
                now = now + Micros::from_millis(ms);
                let before = breaker;
                apply(&mut breaker, event, now);
                let has_opened = breaker.openings() > before.openings();
                prop_assert_eq!(has_opened, matches!(breaker.state(), BreakerState::Open(_)) && !matches!(before.state(), BreakerState::Open(_)));
                prop_assert!(!has_opened || matches!(event, Event::Unreached | Event::Fault));
            }
            breaker.reached(now + BREAKER_PAUSE);
            breaker.answered();
            prop_assert_eq!(breaker.state(), BreakerState::Closed);
        }

        /// A row of failures that an answer ends before it is full never opens it.
        #[test]
        fn failures_below_the_limit_never_open_it(rows in prop::collection::vec((0..MAX, 0..MAX), 0..100)) {
            let mut breaker = Breaker::default();
            for (faults, unreached) in rows {
                (0..faults).for_each(|_| breaker.fault(Micros::ZERO, MAX));
                (0..unreached).for_each(|_| breaker.unreached(MAX));
                breaker.answered();
            }
            prop_assert_eq!((breaker.state(), breaker.openings()), (BreakerState::Closed, 0));
        }
    }
}
