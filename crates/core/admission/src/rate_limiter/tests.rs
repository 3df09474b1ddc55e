use super::*;
use proptest::prelude::*;

const FEW_REQUESTS: Limits = Limits { requests_per_minute: 2, tokens_per_minute: 0, concurrent: 0 };
const FEW_TOKENS: Limits = Limits { requests_per_minute: 0, tokens_per_minute: 600, concurrent: 0 };

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
        let exceeded = rate_limiter.reserve(1, FEW_TOKENS, of(1, Some(0)), Micros::ZERO).unwrap_err();
        assert_eq!(exceeded.retry_after_s, worst_s - 60 + 1, "a minute's worth was there, and one is wanted");
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
    let both = Limits { requests_per_minute: 2, tokens_per_minute: 600, concurrent: 0 };
    assert_eq!(FEW_TOKENS.over(FEW_REQUESTS), both);
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
        Simulation { rate_limiter: RateLimiter::default(), limits, filled, now, spent: 0, inside: Vec::new() }
    }

    /// The tokens that admitted requests have used and will use, if this step admits one that takes tokens, and the tokens
    /// that were available.
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
        // A request that uses no tokens need not wait until a debt is paid.
        let takes_tokens = reserved.tokens() > 0;
        self.inside.push((reserved, took, since));
        let current = self.inside.iter().filter(|(.., filled)| *filled == since);
        let set_aside: u32 = current.map(|(reserved, ..)| reserved.tokens()).sum();
        let minutes = 1.0 + self.now.since(since).as_secs_f64() / 60.0;
        let there_was = f64::from(self.limits.tokens_per_minute) * minutes;
        takes_tokens.then_some((f64::from(self.spent + set_aside), there_was))
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

#[test]
fn a_limit_that_is_lifted_and_set_again_does_not_fill_the_bucket() {
    let now = Micros::from_secs(5);
    let limits = Limits { requests_per_minute: 60, tokens_per_minute: 6_000, concurrent: 0 };
    let unlimited = Limits::default();
    let mut rate_limiter = RateLimiter::default();
    for _ in 0..60 {
        _ = rate_limiter.reserve(1, limits, of(100, Some(0)), now).unwrap();
    }
    // Routers with different limits take turns.
    for _ in 0..3 {
        rate_limiter.follow_limits(1, unlimited, now);
        _ = rate_limiter.reserve(1, unlimited, of(100, Some(0)), now).unwrap();
        rate_limiter.follow_limits(1, limits, now);
        assert!(rate_limiter.reserve(1, limits, of(100, Some(0)), now).is_err(), "it is used up");
    }
    let level = TenantLevel { limits: unlimited, requests: 0.0, tokens: 0.0 };
    rate_limiter.set_level(1, level, LevelMerge::Replace, now);
    let later = now + Micros::from_secs(30);
    rate_limiter.follow_limits(1, limits, later);
    let level = rate_limiter.level(1, later).unwrap();
    assert_eq!((level.requests, level.tokens), (30.0, 3_000.0), "half a minute's worth has come back");
    rate_limiter.follow_limits(1, Limits { tokens_per_minute: 600, ..unlimited }, later);
    assert_eq!(rate_limiter.level(1, later).unwrap().tokens, 300.0, "scaled");
}

#[test]
fn another_number_of_concurrent_requests_leaves_the_rates_as_they_are() {
    let mut limiter = RateLimiter::default();
    let limits = |concurrent| Limits { requests_per_minute: 4, tokens_per_minute: 100, concurrent };
    let nothing = ExpectedTokens { prompt: 0, answers: 0, answer_max: Some(0) };
    let mut reserve =
        |concurrent, expected| limiter.reserve(1, limits(concurrent), expected, Micros::ZERO).map(drop);
    let some = ExpectedTokens { prompt: 100, answers: 0, answer_max: None };
    assert_eq!(reserve(1, some), Ok(()));
    let refused = |limit, retry_after_s| Err(Exceeded { limit, retry_after_s });
    assert_eq!(reserve(1, nothing), refused(Limit::Concurrent, 1));
    assert_eq!(reserve(4, ExpectedTokens { prompt: 1, ..nothing }), refused(Limit::Tokens, 1));
    assert_eq!(reserve(2, nothing), Ok(()), "without tokens none need be left");
    assert_eq!((reserve(3, nothing), reserve(4, nothing)), (Ok(()), Ok(())));
    assert_eq!(reserve(9, nothing), refused(Limit::Requests, 15), "four a minute, however many at once");
}
