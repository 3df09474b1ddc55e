//! How much each tenant may ask for in a minute.
//!
//! What an answer takes is known when it is over, and many may be under way by then. So a request sets aside what it may take when it
//! comes, and gives back what it did not. Of requests that say how long their answers may be, no more is ever under way than there was.

use std::collections::BTreeMap;

use warmroute_types::Micros;

use crate::Bucket;
use crate::usual::Usual;

/// Tenants whose buckets are kept. Full ones are forgotten first, which changes nothing but what is usual; when all are in use, all are.
const TENANTS_MAX: usize = 65_536;

/// What is set aside at once when an answer turns out longer than was thought.
const STEP_TOKENS: u32 = 64;

/// A request is charged no more than so many times what it was expected to take, or what comes in in a minute if that is more: an engine that
/// tells nonsense about its usage would shut a key out for good.
const CHARGE_FACTOR_MAX: u32 = 16;

/// What a tenant may ask for; 0 is as much as it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests a minute.
    pub requests_per_minute: u32,
    /// Tokens a minute, prompts and answers together.
    pub tokens_per_minute: u32,
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Requests a minute.
    Requests,
    /// Tokens a minute.
    Tokens,
}

/// A tenant has asked for too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// Of what.
    pub limit: Limit,
    /// When to come back.
    pub retry_after_s: u32,
}

/// What a request may take, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Its prompt.
    pub prompt: u32,
    /// How many answers it wants; 0 of one that is answered by no text.
    pub answers: u32,
    /// The most that one may have, if it says so; otherwise what is usual for its tenant is.
    pub answer_max: Option<u32>,
}

/// What was set aside for a request, until it is settled.
#[derive(Debug)]
#[must_use = "what is not settled is not given back"]
pub struct Reserved {
    tenant: u64,
    /// Of which buckets: a tenant's may be forgotten, or replaced by others for other limits.
    buckets: u64,
    tokens: u32,
    per_minute: u32,
    charge_max: u32,
    /// Whether it did not say how long its answers may be. What those take that do is what they may, and not what is usual.
    is_guess: bool,
}

impl Limits {
    /// These limits, and where they say nothing, the other's.
    pub fn over(self, below: Limits) -> Limits {
        let or = |above: u32, below: u32| if above > 0 { above } else { below };
        Limits {
            requests_per_minute: or(self.requests_per_minute, below.requests_per_minute),
            tokens_per_minute: or(self.tokens_per_minute, below.tokens_per_minute),
        }
    }
}

/// All tenants' buckets. What flows into them is said with every request: tenants may differ, and limits may change.
#[derive(Debug, Default)]
pub struct Rates {
    tenants: BTreeMap<u64, Buckets>,
    /// The last number that was given to buckets. Not every one is used.
    made: u64,
}

#[derive(Clone, Copy, Debug)]
struct Buckets {
    id: u64,
    limits: Limits,
    requests: Bucket,
    tokens: Bucket,
    usual: Usual,
}

impl Rates {
    /// Sets aside what a request may take of its tenant's; nothing is taken where anything is lacking.
    pub fn reserve(
        &mut self,
        tenant: u64,
        limits: Limits,
        expected: Expected,
        now: Micros,
    ) -> Result<Reserved, Exceeded> {
        let Limits { requests_per_minute, tokens_per_minute } = limits;
        self.forget_if_many(now);
        self.made += 1;
        let full = Buckets::full(self.made, limits, now);
        let buckets = self.tenants.entry(tenant).or_insert(full);
        if buckets.limits != limits {
            *buckets = Buckets { usual: buckets.usual, ..full };
        }
        let expected_tokens = expected.tokens(buckets.usual);
        // One that may take more than there ever is needs all there is; what it takes beyond that is a debt.
        let tokens = expected_tokens.min(tokens_per_minute);
        let exceeded = |limit| move |retry_after_s| Exceeded { limit, retry_after_s };
        if requests_per_minute > 0 {
            buckets.requests.look(1, requests_per_minute, now).map_err(exceeded(Limit::Requests))?;
        }
        if tokens_per_minute > 0 {
            buckets.tokens.look(tokens, tokens_per_minute, now).map_err(exceeded(Limit::Tokens))?;
        }
        buckets.requests.take(1, requests_per_minute);
        buckets.tokens.take(tokens.into(), tokens_per_minute);
        Ok(Reserved {
            tenant,
            buckets: buckets.id,
            tokens,
            per_minute: tokens_per_minute,
            charge_max: expected_tokens.max(tokens_per_minute).saturating_mul(CHARGE_FACTOR_MAX),
            is_guess: expected.answer_max.is_none(),
        })
    }

    /// A request that is not over has taken so much: what is more than was set aside is taken now, so that those who come know of it.
    pub fn extend(&mut self, reserved: &mut Reserved, took: u32) {
        let took = took.min(reserved.charge_max);
        let more = took.saturating_sub(reserved.tokens).div_ceil(STEP_TOKENS).saturating_mul(STEP_TOKENS);
        if self.take(reserved, more.into()) {
            reserved.tokens = reserved.tokens.saturating_add(more);
        }
    }

    /// A request is over, and took so much: the rest is given back, or what is missing taken.
    pub fn settle(&mut self, reserved: &Reserved, took: u32) {
        let charged = took.min(reserved.charge_max);
        self.take(reserved, i64::from(charged) - i64::from(reserved.tokens));
    }

    /// One of its answers had so many tokens. That tells what is usual where nothing kept it from having more.
    pub fn learn(&mut self, reserved: &Reserved, tokens: u32) {
        let buckets = self.tenants.get_mut(&reserved.tenant).filter(|_| reserved.is_guess);
        buckets.into_iter().for_each(|buckets| buckets.usual.learn(tokens));
    }

    /// Takes from what it was set aside of. Any other buckets owe it nothing, be they for the same limits again.
    fn take(&mut self, of: &Reserved, tokens: i64) -> bool {
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

impl Expected {
    fn tokens(self, usual: Usual) -> u32 {
        let answer = self.answer_max.unwrap_or_else(|| usual.tokens());
        self.prompt.saturating_add(answer.saturating_mul(self.answers))
    }
}

impl Reserved {
    /// How many tokens.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Whether tokens are limited at all.
    pub fn is_limited(&self) -> bool {
        self.per_minute > 0
    }
}

impl Buckets {
    fn full(id: u64, limits: Limits, now: Micros) -> Buckets {
        Buckets {
            id,
            limits,
            requests: Bucket::full(limits.requests_per_minute, now),
            tokens: Bucket::full(limits.tokens_per_minute, now),
            usual: Usual::default(),
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

    fn of(prompt: u32, answer_max: Option<u32>) -> Expected {
        Expected { prompt, answers: 1, answer_max }
    }

    #[test]
    fn each_tenant_has_its_own_limit() {
        let mut rates = Rates::default();
        let mut ask = |tenant| rates.reserve(tenant, FEW_REQUESTS, of(1_000_000, None), Micros::ZERO).err();
        assert_eq!((ask(1), ask(1), ask(2)), (None, None, None));
        assert_eq!(ask(1), Some(Exceeded { limit: Limit::Requests, retry_after_s: 30 }));
    }

    #[test]
    fn what_answers_may_take_is_set_aside_and_given_back_when_it_is_not_taken() {
        let mut rates = Rates::default();
        let ask = |rates: &mut Rates| rates.reserve(1, FEW_TOKENS, of(100, Some(200)), Micros::ZERO);
        let (one, two) = (ask(&mut rates).unwrap(), ask(&mut rates).unwrap());
        assert_eq!((one.tokens(), two.tokens()), (300, 300));
        assert_eq!(ask(&mut rates).unwrap_err().retry_after_s, 30);
        rates.settle(&one, 110);
        assert!(ask(&mut rates).is_err(), "190 were given back");
        rates.settle(&two, 110);
        assert!(ask(&mut rates).is_ok());
    }

    #[test]
    fn who_does_not_say_how_long_an_answer_may_be_is_expected_to_take_what_is_usual() {
        let mut rates = Rates::default();
        let reserve = |rates: &mut Rates, expected| {
            let reserved = rates.reserve(1, FEW_TOKENS, expected, Micros::ZERO).unwrap();
            rates.settle(&reserved, 0);
            reserved
        };
        let first = reserve(&mut rates, of(10, None));
        assert_eq!(first.tokens(), 522);
        (0..50).for_each(|_| rates.learn(&first, 20));
        assert_eq!(reserve(&mut rates, of(10, None)).tokens(), 31);
        assert_eq!(reserve(&mut rates, Expected { answers: 3, ..of(10, None) }).tokens(), 10 + 3 * 21);
        assert_eq!(reserve(&mut rates, Expected { answers: 0, ..of(10, None) }).tokens(), 10);
        assert_eq!(reserve(&mut rates, of(10, Some(u32::MAX))).tokens(), 600, "no more than there ever is");
    }

    #[test]
    fn an_answer_that_is_longer_than_was_thought_takes_more_while_it_comes() {
        let mut rates = Rates::default();
        let mut long = rates.reserve(1, FEW_TOKENS, of(0, Some(100)), Micros::ZERO).unwrap();
        rates.extend(&mut long, 100);
        assert_eq!(long.tokens(), 100);
        rates.extend(&mut long, 501);
        assert_eq!(long.tokens(), 100 + 7 * STEP_TOKENS);
        assert!(rates.reserve(1, FEW_TOKENS, of(0, Some(100)), Micros::ZERO).is_err());
        rates.settle(&long, 501);
        assert!(
            rates.reserve(1, FEW_TOKENS, of(0, Some(99)), Micros::ZERO).is_ok(),
            "of the last step the rest"
        );
    }

    #[test]
    fn there_is_an_end_to_the_tenants_that_are_remembered() {
        let mut rates = Rates::default();
        (0..200_000).for_each(|tenant| {
            _ = rates.reserve(tenant, FEW_REQUESTS, of(1, None), Micros::ZERO).unwrap();
        });
        assert!(rates.tenants.len() <= TENANTS_MAX);
    }

    /// Each of the flood takes something and gives it back, so it is forgotten, and not whoever owes something.
    #[test]
    fn one_in_debt_is_remembered_however_many_others_come() {
        let mut rates = Rates::default();
        let debtor = rates.reserve(0, FEW_TOKENS, of(0, None), Micros::ZERO).unwrap();
        rates.settle(&debtor, 5_000);
        (1..=2 * TENANTS_MAX as u64).for_each(|tenant| {
            let reserved = rates.reserve(tenant, FEW_TOKENS, of(1, None), Micros::ZERO).unwrap();
            rates.settle(&reserved, 0);
        });
        assert!(rates.tenants.len() <= TENANTS_MAX);
        assert!(rates.reserve(0, FEW_TOKENS, of(0, Some(1)), Micros::ZERO).is_err());
    }

    #[test]
    fn answers_that_were_not_allowed_to_be_longer_tell_nothing_about_what_is_usual() {
        let mut rates = Rates::default();
        let reserve = |rates: &mut Rates, max| {
            let reserved = rates.reserve(1, FEW_TOKENS, of(0, max), Micros::ZERO).unwrap();
            rates.settle(&reserved, 0);
            reserved
        };
        let capped = reserve(&mut rates, Some(1));
        (0..50).for_each(|_| rates.learn(&capped, 1));
        assert_eq!(reserve(&mut rates, None).tokens(), 512, "as before");
    }

    #[test]
    fn an_engine_that_tells_nonsense_shuts_nobody_out_for_good() {
        // What it was expected to take, or a minute's worth: the larger of the two counts.
        for (prompt, worst_s) in [(1, 16 * 60), (6_000, 16 * 600)] {
            let mut rates = Rates::default();
            let mut lied = rates.reserve(1, FEW_TOKENS, of(prompt, Some(0)), Micros::ZERO).unwrap();
            rates.extend(&mut lied, u32::MAX);
            rates.settle(&lied, u32::MAX);
            let exceeded = rates.reserve(1, FEW_TOKENS, of(0, Some(0)), Micros::ZERO).unwrap_err();
            assert_eq!(exceeded.retry_after_s, worst_s - 60, "a minute's worth was there");
        }
    }

    #[test]
    fn a_limit_that_changes_begins_anew_and_owes_nothing_from_before() {
        let mut rates = Rates::default();
        let ask = |rates: &mut Rates, limits| rates.reserve(1, limits, of(600, Some(0)), Micros::ZERO);
        let before = ask(&mut rates, FEW_TOKENS).unwrap();
        assert!(ask(&mut rates, FEW_TOKENS).is_err());
        let other = Limits { tokens_per_minute: 700, ..FEW_TOKENS };
        assert!(ask(&mut rates, other).is_ok());
        rates.settle(&before, 0);
        assert!(ask(&mut rates, other).is_err(), "it was set aside of another limit");
        let again = ask(&mut rates, FEW_TOKENS).unwrap();
        rates.settle(&before, 0);
        assert!(
            ask(&mut rates, FEW_TOKENS).is_err(),
            "it was set aside before that, though of the same limit"
        );
        rates.settle(&again, 0);
        assert!(ask(&mut rates, FEW_TOKENS).is_ok());
    }

    #[test]
    fn what_a_tenant_has_of_its_own_counts_and_the_rest_is_as_for_all() {
        assert_eq!(FEW_TOKENS.over(FEW_REQUESTS), Limits { requests_per_minute: 2, tokens_per_minute: 600 });
    }

    /// Somebody who comes; how one who is there goes on, is learned from or ends; time; and other limits.
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

    /// What is said of a request when it comes, and what it will have taken when it ends.
    type Request = fn(u32, u32, u32) -> (Expected, u32);

    /// One tenant, and what was taken of its tokens since they were last limited otherwise.
    struct Played {
        rates: Rates,
        limits: Limits,
        /// For which limits there are buckets, and since when.
        filled: (Limits, Micros),
        now: Micros,
        spent: u32,
        /// With what they will have taken, and when their buckets were filled.
        inside: Vec<(Reserved, u32, Micros)>,
    }

    impl Played {
        fn new() -> Played {
            let (limits, now) = (FEW_TOKENS, Micros::ZERO);
            let filled = (limits, now);
            Played { rates: Rates::default(), limits, filled, now, spent: 0, inside: Vec::new() }
        }

        /// What has been and will be taken by those who were let in, if this lets one in; with how much there was.
        fn play(&mut self, step: Step, request: Request) -> Option<(f64, f64)> {
            match step {
                Step::Come { prompt, answer_max, answer } => {
                    return self.come(request(prompt, answer_max, answer));
                }
                Step::Stream { n, percent } => {
                    if let Some((reserved, took, _)) = self.inside.get_mut(n) {
                        self.rates.extend(reserved, *took * percent / 100);
                    }
                }
                Step::Learn { n, tokens } => {
                    self.inside
                        .get(n)
                        .into_iter()
                        .for_each(|(reserved, ..)| self.rates.learn(reserved, tokens));
                }
                Step::End(n) if n < self.inside.len() => {
                    let (reserved, took, filled) = self.inside.swap_remove(n);
                    self.rates.settle(&reserved, took);
                    self.spent += if filled == self.filled.1 { took } else { 0 };
                }
                Step::End(_) => {}
                Step::Later { ms } => self.now = self.now + Micros::from_millis(ms),
                // Never two at one time, or what was filled for one could not be told from what was for the other.
                Step::Limit { per_minute } => {
                    self.now = self.now + Micros(1);
                    self.limits.tokens_per_minute = per_minute;
                }
            }
            None
        }

        fn come(&mut self, (expected, took): (Expected, u32)) -> Option<(f64, f64)> {
            if self.filled.0 != self.limits {
                (self.filled, self.spent) = ((self.limits, self.now), 0);
            }
            let reserved = self.rates.reserve(1, self.limits, expected, self.now).ok()?;
            let since = self.filled.1;
            self.inside.push((reserved, took, since));
            let current = self.inside.iter().filter(|(.., filled)| *filled == since);
            let set_aside: u32 = current.map(|(reserved, ..)| reserved.tokens()).sum();
            let minutes = 1.0 + self.now.since(since).as_secs_f64() / 60.0;
            Some((f64::from(self.spent + set_aside), f64::from(self.limits.tokens_per_minute) * minutes))
        }
    }

    fn taken(steps: &[Step], request: Request) -> Vec<(f64, f64)> {
        let mut played = Played::new();
        steps.iter().filter_map(|step| played.play(*step, request)).collect()
    }

    proptest! {
        /// However many are under way, those who keep to what they said take no more than there was: what they may take was set aside.
        #[test]
        fn parallel_requests_take_no_more_than_there_is(steps in prop::collection::vec(step(), 1..300)) {
            for (taken, there_was) in taken(&steps, |prompt, max, answer| (of(prompt, Some(max)), prompt + answer.min(max))) {
                prop_assert!(taken <= there_was + 1e-6, "{taken} of {there_was}");
            }
        }

        /// Answers whose request did not say how long they may be: nobody is let in before all that was taken has come in again. Of any
        /// length, up to the most that one is charged.
        #[test]
        fn what_was_not_foreseen_is_paid_before_anybody_is_let_in(steps in prop::collection::vec(step(), 1..300)) {
            for (taken, there_was) in taken(&steps, |prompt, _, answer| (of(prompt, None), prompt + 15 * answer)) {
                prop_assert!(taken <= there_was + 1e-6, "{taken} of {there_was}");
            }
        }
    }
}
