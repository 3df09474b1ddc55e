//! Whether a worker gets requests: a circuit breaker over what was seen of it. Pure; `now` is an argument.
//!
//! ```text
//!  closed ──failures in a row──▶ open ──probe answered, pause over──▶ half-open ──trial answered──▶ closed
//!     ▲                           │ ▲                                     │
//!     └── unreachable: answered ──┘ └────────────── a failure ────────────┘
//! ```
//!
//! Two rows are kept apart, because they are refuted by different things. Whether a worker can be *reached*, a probe tells as
//! well as a request; one that could not be reached is used again after the first probe it answers. Whether it *serves*, only
//! requests tell: an engine that answers probes while its requests break is tried with one request at a time. Client errors
//! and backpressure are not told to a breaker at all.

use warmroute_types::Micros;

/// How long a breaker that requests opened stays open. Short, because a trial costs its client only the retry, and a worker
/// that serves again is to be used again within two seconds.
pub const PAUSE: Micros = Micros::from_secs(1);

/// Where a breaker stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Position {
    /// Requests go through.
    #[default]
    Closed,
    /// None does.
    Open(Open),
    /// One at a time does.
    HalfOpen,
}

/// Why a breaker is open, which decides what ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// Nobody could connect: until somebody can.
    Unreachable,
    /// Requests failed: a probe that is answered from this moment on lets one try again.
    Failing {
        /// The end of the pause.
        until: Micros,
    },
}

/// One worker's breaker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Breaker {
    position: Position,
    /// Times in a row that it could not be reached.
    unreached: u32,
    /// Requests in a row that it failed.
    faults: u32,
    openings: u64,
}

impl Position {
    /// The word used in `GET /workers`.
    pub fn as_str(self) -> &'static str {
        match self {
            Position::Closed => "closed",
            Position::Open(_) => "open",
            Position::HalfOpen => "half_open",
        }
    }
}

impl Breaker {
    /// Where it stands.
    pub fn position(&self) -> Position {
        self.position
    }

    /// How often it has opened.
    pub fn openings(&self) -> u64 {
        self.openings
    }

    /// Whether an answer would change anything.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.position == Position::HalfOpen || self.unreached + self.faults > 0
    }

    /// A probe was answered. It says nothing about requests that failed.
    pub fn reached(&mut self, now: Micros) {
        self.unreached = 0;
        self.position = match self.position {
            Position::Open(Open::Unreachable) => {
                // Whoever was away and is back is another process, most likely.
                self.faults = 0;
                Position::Closed
            }
            Position::Open(Open::Failing { until }) if now >= until => Position::HalfOpen,
            position => position,
        };
    }

    /// Nobody could connect, or a probe was not answered.
    pub fn unreached(&mut self, failures_max: u32) {
        self.unreached = self.unreached.saturating_add(1);
        match self.position {
            Position::Closed if self.unreached < failures_max => {}
            Position::Open(_) => self.position = Position::Open(Open::Unreachable),
            Position::Closed | Position::HalfOpen => self.open(Open::Unreachable),
        }
    }

    /// It took a request and failed it.
    pub fn fault(&mut self, now: Micros, failures_max: u32) {
        self.faults = self.faults.saturating_add(1);
        match self.position {
            Position::Closed if self.faults < failures_max => {}
            // Of requests that were under way; whatever opened it knows better.
            Position::Open(_) => {}
            Position::Closed | Position::HalfOpen => self.open(Open::Failing { until: now + PAUSE }),
        }
    }

    /// A request's first token came. A trial has shown that the worker serves; but only an end shows that it does not break
    /// off, so the next fault opens the breaker again.
    pub fn began(&mut self, failures_max: u32) {
        if self.position == Position::HalfOpen {
            *self = Breaker {
                faults: failures_max.saturating_sub(1),
                openings: self.openings,
                ..Breaker::default()
            };
        }
    }

    /// A request was answered to its end. To an open breaker that says nothing: it was long under way.
    pub fn answered(&mut self) {
        if !matches!(self.position, Position::Open(_)) {
            *self = Breaker { openings: self.openings, ..Breaker::default() };
        }
    }

    fn open(&mut self, why: Open) {
        self.position = Position::Open(why);
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
        assert!(matches!(breaker.position(), Position::Open(Open::Failing { .. })));
        breaker.reached(Micros::from_secs(10));
        assert!(matches!(breaker.position(), Position::Open(_)), "a probe says nothing about requests");
        breaker.answered();
        assert!(
            matches!(breaker.position(), Position::Open(_)),
            "nor does an answer that was long under way"
        );
        breaker.reached(Micros::from_secs(11));
        assert_eq!(breaker.position(), Position::HalfOpen);
        breaker.answered();
        assert_eq!((breaker.position(), breaker.openings()), (Position::Closed, 1));
    }

    #[test]
    fn a_trial_that_fails_opens_it_again() {
        let mut breaker = failing();
        breaker.reached(Micros::from_secs(11));
        breaker.fault(Micros::from_secs(12), MAX);
        assert_eq!(breaker.position(), Position::Open(Open::Failing { until: Micros::from_secs(13) }));
        assert_eq!(breaker.openings(), 2);
    }

    #[test]
    fn a_trial_that_breaks_off_after_its_first_token_opens_it_again() {
        let mut breaker = failing();
        breaker.reached(Micros::from_secs(11));
        breaker.began(MAX);
        assert_eq!(breaker.position(), Position::Closed);
        breaker.fault(Micros::from_secs(12), MAX);
        assert!(matches!(breaker.position(), Position::Open(_)));
    }

    #[test]
    fn one_that_could_not_be_reached_needs_no_trial() {
        let mut breaker = Breaker::default();
        (0..MAX).for_each(|_| breaker.unreached(MAX));
        assert_eq!(breaker.position(), Position::Open(Open::Unreachable));
        breaker.reached(Micros::ZERO);
        assert_eq!(breaker.position(), Position::Closed);
    }

    #[test]
    fn one_that_failed_and_then_died_is_another_when_it_is_back() {
        let mut breaker = failing();
        breaker.unreached(MAX);
        breaker.reached(Micros::from_secs(10));
        assert_eq!(breaker.position(), Position::Closed);
        breaker.fault(Micros::from_secs(10), MAX);
        assert_eq!(breaker.position(), Position::Closed, "its row begins anew");
    }

    #[test]
    fn probes_that_are_answered_do_not_hide_requests_that_fail() {
        let mut breaker = Breaker::default();
        for second in 0..u64::from(MAX) {
            breaker.reached(Micros::from_secs(second));
            breaker.fault(Micros::from_secs(second), MAX);
        }
        assert!(matches!(breaker.position(), Position::Open(_)));
    }

    #[derive(Clone, Copy, Debug)]
    enum Sign {
        Reached,
        Unreached,
        Fault,
        Began,
        Answered,
    }

    fn sign() -> impl Strategy<Value = Sign> {
        prop_oneof![
            Just(Sign::Reached),
            Just(Sign::Unreached),
            Just(Sign::Fault),
            Just(Sign::Began),
            Just(Sign::Answered)
        ]
    }

    fn show(breaker: &mut Breaker, sign: Sign, now: Micros) {
        match sign {
            Sign::Reached => breaker.reached(now),
            Sign::Unreached => breaker.unreached(MAX),
            Sign::Fault => breaker.fault(now, MAX),
            Sign::Began => breaker.began(MAX),
            Sign::Answered => breaker.answered(),
        }
    }

    proptest! {
        /// Only failures open it; whatever happened, a worker that serves is used again within the pause and one probe.
        #[test]
        fn only_failures_open_it_and_it_never_stays_open(steps in prop::collection::vec((sign(), 0..900_u64), 0..200)) {
            let (mut breaker, mut now) = (Breaker::default(), Micros::ZERO);
            for (sign, ms) in steps {
                now = now + Micros::from_millis(ms);
                let before = breaker;
                show(&mut breaker, sign, now);
                let has_opened = breaker.openings() > before.openings();
                prop_assert_eq!(has_opened, matches!(breaker.position(), Position::Open(_)) && !matches!(before.position(), Position::Open(_)));
                prop_assert!(!has_opened || matches!(sign, Sign::Unreached | Sign::Fault));
            }
            breaker.reached(now + PAUSE);
            breaker.answered();
            prop_assert_eq!(breaker.position(), Position::Closed);
        }

        /// A row that an answer ends before it is full never opens it.
        #[test]
        fn rows_that_end_in_time_never_open_it(rows in prop::collection::vec((0..MAX, 0..MAX), 0..100)) {
            let mut breaker = Breaker::default();
            for (faults, unreached) in rows {
                (0..faults).for_each(|_| breaker.fault(Micros::ZERO, MAX));
                (0..unreached).for_each(|_| breaker.unreached(MAX));
                breaker.answered();
            }
            prop_assert_eq!((breaker.position(), breaker.openings()), (Position::Closed, 0));
        }
    }
}
