//! Rate limits: how much each tenant may use in a minute.
//!
//! The cost of an answer is known when it ends, and many may be in flight by then. So a request reserves what it may
//! use when it arrives, and returns the rest at its end. Requests that state the maximum length of their answers
//! never exceed the limit together.

use std::collections::BTreeMap;

use warmroute_types::Micros;

use crate::TokenBucket;
use crate::typical_answer::TypicalAnswer;

/// Most tenants whose buckets are kept. Full buckets are dropped first, which loses only the typical answer length;
/// when all are in use, all are dropped.
const TENANTS_MAX: usize = 65_536;

/// Tokens reserved at once when an answer becomes longer than expected.
const STEP_TOKENS: u32 = 64;

/// A request is charged at most this multiple of its expectation, or a minute's worth if that is more: an engine that
/// reports absurd usage must not block a key forever.
const CHARGE_FACTOR_MAX: u32 = 16;

/// A tenant's limits; 0 is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests a minute.
    pub requests_per_minute: u32,
    /// Tokens a minute, prompts and answers together.
    pub tokens_per_minute: u32,
}

/// The kind of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Requests a minute.
    Requests,
    /// Tokens a minute.
    Tokens,
}

/// A tenant exceeded a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// The exceeded limit.
    pub limit: Limit,
    /// When to retry.
    pub retry_after_s: u32,
}

/// The tokens that a request may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedTokens {
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Number of answers that it requests; 0 where no text is generated.
    pub answers: u32,
    /// The maximum length of one answer, if stated; otherwise the tenant's typical length counts.
    pub answer_max: Option<u32>,
}

/// The reservation of a request, until it is settled.
#[derive(Debug)]
#[must_use = "what is not settled is not given back"]
pub struct Reservation {
    tenant: u64,
    /// The id of its buckets: a tenant's buckets may be dropped, or replaced when its limits change.
    buckets: u64,
    tokens: u32,
    per_minute: u32,
    charge_max: u32,
    /// Whether the request did not state a maximum length. Answers with a stated maximum do not count as typical.
    is_guess: bool,
}

impl Limits {
    /// These limits, with the other's where one is not set.
    pub fn over(self, below: Limits) -> Limits {
        let or = |above: u32, below: u32| if above > 0 { above } else { below };
        Limits {
            requests_per_minute: or(self.requests_per_minute, below.requests_per_minute),
            tokens_per_minute: or(self.tokens_per_minute, below.tokens_per_minute),
        }
    }
}

/// All tenants' buckets. Each request passes its limits: tenants may differ, and limits may change.
#[derive(Debug, Default)]
pub struct RateLimiter {
    tenants: BTreeMap<u64, Buckets>,
    /// The last id given to buckets. Not every id is used.
    made: u64,
}

#[derive(Clone, Copy, Debug)]
struct Buckets {
    id: u64,
    limits: Limits,
    requests: TokenBucket,
    tokens: TokenBucket,
    typical_answer: TypicalAnswer,
}

impl RateLimiter {
    /// Reserves what a request may use of its tenant's limits. Takes nothing if any limit is exceeded.
    pub fn reserve(
        &mut self,
        tenant: u64,
        limits: Limits,
        expected: ExpectedTokens,
        now: Micros,
    ) -> Result<Reservation, Exceeded> {
        let Limits { requests_per_minute, tokens_per_minute } = limits;
        self.forget_if_many(now);
        self.made += 1;
        let full = Buckets::full(self.made, limits, now);
        let buckets = self.tenants.entry(tenant).or_insert(full);
        if buckets.limits != limits {
            *buckets = Buckets { typical_answer: buckets.typical_answer, ..full };
        }
        let expected_tokens = expected.tokens(buckets.typical_answer);
        // A request that may use more than the limit reserves all of it; the rest becomes a debt.
        let tokens = expected_tokens.min(tokens_per_minute);
        let exceeded = |limit| move |retry_after_s| Exceeded { limit, retry_after_s };
        if requests_per_minute > 0 {
            buckets.requests.check(1, requests_per_minute, now).map_err(exceeded(Limit::Requests))?;
        }
        if tokens_per_minute > 0 {
            buckets.tokens.check(tokens, tokens_per_minute, now).map_err(exceeded(Limit::Tokens))?;
        }
        buckets.requests.take(1, requests_per_minute);
        buckets.tokens.take(tokens.into(), tokens_per_minute);
        Ok(Reservation {
            tenant,
            buckets: buckets.id,
            tokens,
            per_minute: tokens_per_minute,
            charge_max: expected_tokens.max(tokens_per_minute).saturating_mul(CHARGE_FACTOR_MAX),
            is_guess: expected.answer_max.is_none(),
        })
    }

    /// Takes what a request in flight has used beyond its reservation, so that new requests see it.
    pub fn extend(&mut self, reserved: &mut Reservation, took: u32) {
        let took = took.min(reserved.charge_max);
        let more = took.saturating_sub(reserved.tokens).div_ceil(STEP_TOKENS).saturating_mul(STEP_TOKENS);
        if self.take(reserved, more.into()) {
            reserved.tokens = reserved.tokens.saturating_add(more);
        }
    }

    /// Settles a request at its end: returns the rest of the reservation, or takes what is missing.
    pub fn settle(&mut self, reserved: &Reservation, took: u32) {
        let charged = took.min(reserved.charge_max);
        self.take(reserved, i64::from(charged) - i64::from(reserved.tokens));
    }

    /// Learns the length of an answer, if no stated maximum cut it short.
    pub fn learn(&mut self, reserved: &Reservation, tokens: u32) {
        let buckets = self.tenants.get_mut(&reserved.tenant).filter(|_| reserved.is_guess);
        buckets.into_iter().for_each(|buckets| buckets.typical_answer.learn(tokens));
    }

    /// Takes from the buckets of the reservation. Newer buckets owe nothing, even with the same limits.
    fn take(&mut self, of: &Reservation, tokens: i64) -> bool {
        let buckets = self.tenants.get_mut(&of.tenant).filter(|buckets| buckets.id == of.buckets);
        buckets.map(|buckets| buckets.tokens.take(tokens, of.per_minute)).is_some()
    }

    fn forget_if_many(&mut self, now: Micros) {
        if self.tenants.len() >= TENANTS_MAX {
            self.tenants.retain(|_, buckets| !buckets.are_full(now));
        }
        if self.tenants.len() >= TENANTS_MAX {
            self.tenants.clear();
        }
    }
}

impl ExpectedTokens {
    fn tokens(self, typical_answer: TypicalAnswer) -> u32 {
        let answer = self.answer_max.unwrap_or_else(|| typical_answer.tokens());
        self.prompt.saturating_add(answer.saturating_mul(self.answers))
    }
}

impl Reservation {
    /// Reserved tokens.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Whether tokens are limited.
    pub fn is_limited(&self) -> bool {
        self.per_minute > 0
    }
}

impl Buckets {
    fn full(id: u64, limits: Limits, now: Micros) -> Buckets {
        Buckets {
            id,
            limits,
            requests: TokenBucket::full(limits.requests_per_minute, now),
            tokens: TokenBucket::full(limits.tokens_per_minute, now),
            typical_answer: TypicalAnswer::default(),
        }
    }

    fn are_full(&self, now: Micros) -> bool {
        self.requests.is_full(self.limits.requests_per_minute, now)
            && self.tokens.is_full(self.limits.tokens_per_minute, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FEW_REQUESTS: Limits = Limits { requests_per_minute: 2, tokens_per_minute: 0 };
    const FEW_TOKENS: Limits = Limits { requests_per_minute: 0, tokens_per_minute: 600 };

    fn of(prompt: u32, answer_max: Option<u32>) -> ExpectedTokens {
        ExpectedTokens { prompt, answers: 1, answer_max }
    }

    #[test]
    fn each_tenant_has_its_own_limit() {
        let mut rate_limiter = RateLimiter::default();
        let mut request =
            |tenant| rate_limiter.reserve(tenant, FEW_REQUESTS, of(1_000_000, None), Micros::ZERO).err();
        assert_eq!((request(1), request(1), request(2)), (None, None, None));
        assert_eq!(request(1), Some(Exceeded { limit: Limit::Requests, retry_after_s: 30 }));
    }

    #[test]
    fn the_maximum_is_reserved_and_the_unused_rest_returned() {
        let mut rate_limiter = RateLimiter::default();
        let request = |rate_limiter: &mut RateLimiter| {
            rate_limiter.reserve(1, FEW_TOKENS, of(100, Some(200)), Micros::ZERO)
        };
        let (one, two) = (request(&mut rate_limiter).unwrap(), request(&mut rate_limiter).unwrap());
        assert_eq!((one.tokens(), two.tokens()), (300, 300));
        assert_eq!(request(&mut rate_limiter).unwrap_err().retry_after_s, 30);
        rate_limiter.settle(&one, 110);
        assert!(request(&mut rate_limiter).is_err(), "190 were given back");
        rate_limiter.settle(&two, 110);
        assert!(request(&mut rate_limiter).is_ok());
    }

    #[test]
    fn without_a_stated_maximum_the_typical_length_is_reserved() {
        let mut rate_limiter = RateLimiter::default();
        let reserve = |rate_limiter: &mut RateLimiter, expected| {
            let reserved = rate_limiter.reserve(1, FEW_TOKENS, expected, Micros::ZERO).unwrap();
            rate_limiter.settle(&reserved, 0);
            reserved
        };
        let first = reserve(&mut rate_limiter, of(10, None));
        assert_eq!(first.tokens(), 522);
        (0..50).for_each(|_| rate_limiter.learn(&first, 20));
        assert_eq!(reserve(&mut rate_limiter, of(10, None)).tokens(), 31);
        assert_eq!(
            reserve(&mut rate_limiter, ExpectedTokens { answers: 3, ..of(10, None) }).tokens(),
            10 + 3 * 21
        );
        assert_eq!(reserve(&mut rate_limiter, ExpectedTokens { answers: 0, ..of(10, None) }).tokens(), 10);
        assert_eq!(
            reserve(&mut rate_limiter, of(10, Some(u32::MAX))).tokens(),
            600,
            "no more than there ever is"
        );
    }

    #[test]
    fn an_answer_longer_than_expected_takes_more_while_it_streams() {
        let mut rate_limiter = RateLimiter::default();
        let mut long = rate_limiter.reserve(1, FEW_TOKENS, of(0, Some(100)), Micros::ZERO).unwrap();
        rate_limiter.extend(&mut long, 100);
        assert_eq!(long.tokens(), 100);
        rate_limiter.extend(&mut long, 501);
        assert_eq!(long.tokens(), 100 + 7 * STEP_TOKENS);
        assert!(rate_limiter.reserve(1, FEW_TOKENS, of(0, Some(100)), Micros::ZERO).is_err());
        rate_limiter.settle(&long, 501);
        assert!(
            rate_limiter.reserve(1, FEW_TOKENS, of(0, Some(99)), Micros::ZERO).is_ok(),
            "of the last step the rest"
        );
    }

    #[test]
    fn the_number_of_tenants_is_bounded() {
        let mut rate_limiter = RateLimiter::default();
        (0..200_000).for_each(|tenant| {
            _ = rate_limiter.reserve(tenant, FEW_REQUESTS, of(1, None), Micros::ZERO).unwrap();
        });
        assert!(rate_limiter.tenants.len() <= TENANTS_MAX);
    }

    /// Each tenant of the flood takes something and returns it, so it is dropped, and the tenant in debt is not.
    #[test]
    fn a_tenant_in_debt_survives_a_flood_of_others() {
        let mut rate_limiter = RateLimiter::default();
        let debtor = rate_limiter.reserve(0, FEW_TOKENS, of(0, None), Micros::ZERO).unwrap();
        rate_limiter.settle(&debtor, 5_000);
        (1..=2 * TENANTS_MAX as u64).for_each(|tenant| {
            let reserved = rate_limiter.reserve(tenant, FEW_TOKENS, of(1, None), Micros::ZERO).unwrap();
            rate_limiter.settle(&reserved, 0);
        });
        assert!(rate_limiter.tenants.len() <= TENANTS_MAX);
        assert!(rate_limiter.reserve(0, FEW_TOKENS, of(0, Some(1)), Micros::ZERO).is_err());
    }

    #[test]
    fn capped_answers_do_not_count_as_typical() {
        let mut rate_limiter = RateLimiter::default();
        let reserve = |rate_limiter: &mut RateLimiter, max| {
            let reserved = rate_limiter.reserve(1, FEW_TOKENS, of(0, max), Micros::ZERO).unwrap();
            rate_limiter.settle(&reserved, 0);
            reserved
        };
        let capped = reserve(&mut rate_limiter, Some(1));
        (0..50).for_each(|_| rate_limiter.learn(&capped, 1));
        assert_eq!(reserve(&mut rate_limiter, None).tokens(), 512, "as before");
    }

    #[test]
    fn absurd_usage_does_not_block_a_key_forever() {
        // The larger of the expectation and a minute's worth counts.
        for (prompt, worst_s) in [(1, 16 * 60), (6_000, 16 * 600)] {
            let mut rate_limiter = RateLimiter::default();
            let mut lied = rate_limiter.reserve(1, FEW_TOKENS, of(prompt, Some(0)), Micros::ZERO).unwrap();
            rate_limiter.extend(&mut lied, u32::MAX);
            rate_limiter.settle(&lied, u32::MAX);
            let exceeded = rate_limiter.reserve(1, FEW_TOKENS, of(0, Some(0)), Micros::ZERO).unwrap_err();
            assert_eq!(exceeded.retry_after_s, worst_s - 60, "a minute's worth was there");
        }
    }

    #[test]
    fn a_changed_limit_starts_over_without_debt() {
        let mut rate_limiter = RateLimiter::default();
        let request = |rate_limiter: &mut RateLimiter, limits| {
            rate_limiter.reserve(1, limits, of(600, Some(0)), Micros::ZERO)
        };
        let before = request(&mut rate_limiter, FEW_TOKENS).unwrap();
        assert!(request(&mut rate_limiter, FEW_TOKENS).is_err());
        let other = Limits { tokens_per_minute: 700, ..FEW_TOKENS };
        assert!(request(&mut rate_limiter, other).is_ok());
        rate_limiter.settle(&before, 0);
        assert!(request(&mut rate_limiter, other).is_err(), "it was set aside of another limit");
        let again = request(&mut rate_limiter, FEW_TOKENS).unwrap();
        rate_limiter.settle(&before, 0);
        assert!(
            request(&mut rate_limiter, FEW_TOKENS).is_err(),
            "it was set aside before that, though of the same limit"
        );
        rate_limiter.settle(&again, 0);
        assert!(request(&mut rate_limiter, FEW_TOKENS).is_ok());
    }

    #[test]
    fn a_tenants_own_limits_override_the_defaults() {
        assert_eq!(FEW_TOKENS.over(FEW_REQUESTS), Limits { requests_per_minute: 2, tokens_per_minute: 600 });
    }

    /// A request arrives; a request in flight continues, teaches or ends; time passes; limits change.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Come { prompt: u32, answer_max: u32, answer: u32 },
        Stream { n: usize, percent: u32 },
        Learn { n: usize, tokens: u32 },
        End(usize),
        Later { ms: u64 },
        Limit { per_minute: u32 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..100_u32, 0..500_u32, 0..500_u32).prop_map(|(prompt, answer_max, answer)| {
                Step::Come { prompt, answer_max, answer }
            }),
            4 => (0..8_usize, 0..=100_u32).prop_map(|(n, percent)| Step::Stream { n, percent }),
            2 => (0..8_usize, 0..500_u32).prop_map(|(n, tokens)| Step::Learn { n, tokens }),
            6 => (0..8_usize).prop_map(Step::End),
            4 => (0..20_000_u64).prop_map(|ms| Step::Later { ms }),
            1 => prop_oneof![Just(600), Just(700)].prop_map(|per_minute| Step::Limit { per_minute }),
        ]
    }

    /// The stated expectation of a request, and its real use.
    type Request = fn(u32, u32, u32) -> (ExpectedTokens, u32);

    /// One tenant, and the tokens taken since its limits last changed.
    struct Simulation {
        rate_limiter: RateLimiter,
        limits: Limits,
        /// The limits of the present buckets, and when they were filled.
        filled: (Limits, Micros),
        now: Micros,
        spent: u32,
        /// Requests in flight, with their final use and the time when their buckets were filled.
        inside: Vec<(Reservation, u32, Micros)>,
    }

    impl Simulation {
        fn new() -> Simulation {
            let (limits, now) = (FEW_TOKENS, Micros::ZERO);
            let filled = (limits, now);
            Simulation {
                rate_limiter: RateLimiter::default(),
                limits,
                filled,
                now,
                spent: 0,
                inside: Vec::new(),
            }
        }

        /// The tokens that admitted requests have used and will use, if this step admits one, and the tokens that
        /// were available.
        fn play(&mut self, step: Step, request: Request) -> Option<(f64, f64)> {
            match step {
                Step::Come { prompt, answer_max, answer } => {
                    return self.arrive(request(prompt, answer_max, answer));
                }
                Step::Stream { n, percent } => {
                    if let Some((reserved, took, _)) = self.inside.get_mut(n) {
                        self.rate_limiter.extend(reserved, *took * percent / 100);
                    }
                }
                Step::Learn { n, tokens } => {
                    self.inside
                        .get(n)
                        .into_iter()
                        .for_each(|(reserved, ..)| self.rate_limiter.learn(reserved, tokens));
                }
                Step::End(n) if n < self.inside.len() => {
                    let (reserved, took, filled) = self.inside.swap_remove(n);
                    self.rate_limiter.settle(&reserved, took);
                    self.spent += if filled == self.filled.1 { took } else { 0 };
                }
                Step::End(_) => {}
                Step::Later { ms } => self.now = self.now + Micros::from_millis(ms),
                // Never twice at one time, or two fillings could not be told apart.
                Step::Limit { per_minute } => {
                    self.now = self.now + Micros(1);
                    self.limits.tokens_per_minute = per_minute;
                }
            }
            None
        }

        fn arrive(&mut self, (expected, took): (ExpectedTokens, u32)) -> Option<(f64, f64)> {
            if self.filled.0 != self.limits {
                (self.filled, self.spent) = ((self.limits, self.now), 0);
            }
            let reserved = self.rate_limiter.reserve(1, self.limits, expected, self.now).ok()?;
            let since = self.filled.1;
            self.inside.push((reserved, took, since));
            let current = self.inside.iter().filter(|(.., filled)| *filled == since);
            let set_aside: u32 = current.map(|(reserved, ..)| reserved.tokens()).sum();
            let minutes = 1.0 + self.now.since(since).as_secs_f64() / 60.0;
            Some((f64::from(self.spent + set_aside), f64::from(self.limits.tokens_per_minute) * minutes))
        }
    }

    fn taken(steps: &[Step], request: Request) -> Vec<(f64, f64)> {
        let mut played = Simulation::new();
        steps.iter().filter_map(|step| played.play(*step, request)).collect()
    }

    proptest! {
        /// Requests that keep to their stated maximum use no more than was available, however many are in flight:
        /// their use was reserved.
        #[test]
        fn parallel_requests_stay_within_the_limit(steps in prop::collection::vec(step(), 1..300)) {
            for (taken, there_was) in taken(&steps, |prompt, max, answer| (of(prompt, Some(max)), prompt + answer.min(max))) {
                prop_assert!(taken <= there_was + 1e-6, "{taken} of {there_was}");
            }
        }

        /// For requests without a stated maximum: none is admitted before everything used has been refilled, up to
        /// the most that one is charged.
        #[test]
        fn unforeseen_use_is_repaid_before_the_next_admission(steps in prop::collection::vec(step(), 1..300)) {
            for (taken, there_was) in taken(&steps, |prompt, _, answer| (of(prompt, None), prompt + 15 * answer)) {
                prop_assert!(taken <= there_was + 1e-6, "{taken} of {there_was}");
            }
        }
    }
}
