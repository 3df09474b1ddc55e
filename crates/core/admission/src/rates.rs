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
    tokens: u32,
    per_minute: u32,
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
}

#[derive(Clone, Copy, Debug)]
struct Buckets {
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
        let buckets = self.tenants.entry(tenant).or_insert_with(|| Buckets::full(limits, now));
        if buckets.limits != limits {
            *buckets = Buckets { usual: buckets.usual, ..Buckets::full(limits, now) };
        }
        // One that may take more than there ever is needs all there is; what it takes beyond that is a debt.
        let tokens = expected.tokens(buckets.usual).min(tokens_per_minute);
        let exceeded = |limit| move |retry_after_s| Exceeded { limit, retry_after_s };
        if requests_per_minute > 0 {
            buckets.requests.look(1, requests_per_minute, now).map_err(exceeded(Limit::Requests))?;
        }
        if tokens_per_minute > 0 {
            buckets.tokens.look(tokens, tokens_per_minute, now).map_err(exceeded(Limit::Tokens))?;
        }
        buckets.requests.take(1, requests_per_minute);
        buckets.tokens.take(tokens.into(), tokens_per_minute);
        Ok(Reserved { tenant, tokens, per_minute: tokens_per_minute })
    }

    /// A request that is not over has taken so much: what is more than was set aside is taken now, so that those who come know of it.
    pub fn extend(&mut self, reserved: &mut Reserved, took: u32) {
        let more = took.saturating_sub(reserved.tokens).div_ceil(STEP_TOKENS).saturating_mul(STEP_TOKENS);
        if self.take(reserved, more.into()) {
            reserved.tokens = reserved.tokens.saturating_add(more);
        }
    }

    /// A request is over, and took so much: the rest is given back, or what is missing taken.
    pub fn settle(&mut self, reserved: &Reserved, took: u32) {
        self.take(reserved, i64::from(took) - i64::from(reserved.tokens));
    }

    /// One of its answers had so many tokens.
    pub fn learn(&mut self, reserved: &Reserved, tokens: u32) {
        self.tenants.get_mut(&reserved.tenant).into_iter().for_each(|buckets| buckets.usual.learn(tokens));
    }

    /// Takes from what it was set aside of. A bucket for other limits is another one, and owes it nothing.
    fn take(&mut self, of: &Reserved, tokens: i64) -> bool {
        let same = |buckets: &&mut Buckets| buckets.limits.tokens_per_minute == of.per_minute;
        let buckets = self.tenants.get_mut(&of.tenant).filter(same);
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
    fn full(limits: Limits, now: Micros) -> Buckets {
        Buckets {
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
    }

    #[test]
    fn what_a_tenant_has_of_its_own_counts_and_the_rest_is_as_for_all() {
        assert_eq!(FEW_TOKENS.over(FEW_REQUESTS), Limits { requests_per_minute: 2, tokens_per_minute: 600 });
    }

    /// Somebody who comes, the end of one who is there, or time.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Come { prompt: u32, answer_max: u32, answer: u32 },
        End(usize),
        Later { ms: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..100_u32, 0..500_u32, 0..500_u32).prop_map(|(prompt, answer_max, answer)| {
                Step::Come { prompt, answer_max, answer }
            }),
            3 => (0..8_usize).prop_map(Step::End),
            2 => (0..20_000_u64).prop_map(|ms| Step::Later { ms }),
        ]
    }

    /// What has been and will be taken by those who were let in, each time that one was; with how much there was.
    fn taken(steps: &[Step], of: impl Fn(u32, u32, u32) -> (Expected, u32)) -> Vec<(f64, f64)> {
        let (mut rates, mut now, mut spent) = (Rates::default(), Micros::ZERO, 0);
        let mut inside: Vec<(Reserved, u32)> = Vec::new();
        let mut seen = Vec::new();
        for step in steps {
            match *step {
                Step::Come { prompt, answer_max, answer } => {
                    let (expected, took) = of(prompt, answer_max, answer);
                    if let Ok(reserved) = rates.reserve(1, FEW_TOKENS, expected, now) {
                        inside.push((reserved, took));
                        let set_aside: u32 = inside.iter().map(|(reserved, _)| reserved.tokens()).sum();
                        let there_was = 600.0 * (1.0 + now.as_secs_f64() / 60.0);
                        seen.push((f64::from(spent + set_aside), there_was));
                    }
                }
                Step::End(n) if n < inside.len() => {
                    let (reserved, took) = inside.swap_remove(n);
                    rates.settle(&reserved, took);
                    spent += took;
                }
                Step::End(_) => {}
                Step::Later { ms } => now = now + Micros::from_millis(ms),
            }
        }
        seen
    }

    proptest! {
        /// However many are under way, those who keep to what they said take no more than there was: what they may take was set aside.
        #[test]
        fn parallel_requests_take_no_more_than_there_is(steps in prop::collection::vec(step(), 1..300)) {
            for (taken, there_was) in taken(&steps, |prompt, max, answer| (of(prompt, Some(max)), prompt + answer.min(max))) {
                prop_assert!(taken <= there_was + 1e-6, "{taken} of {there_was}");
            }
        }

        /// Answers of any length whose request did not say it: nobody is let in before all that was taken has come in again.
        #[test]
        fn what_was_not_foreseen_is_paid_before_anybody_is_let_in(steps in prop::collection::vec(step(), 1..300)) {
            for (taken, there_was) in taken(&steps, |prompt, _, answer| (of(prompt, None), prompt + 20 * answer)) {
                prop_assert!(taken <= there_was + 1e-6, "{taken} of {there_was}");
            }
        }
    }
}
