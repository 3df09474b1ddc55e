//! How much each tenant may ask for in a minute.

use std::collections::BTreeMap;

use warmroute_types::Micros;

use crate::Bucket;

/// Tenants whose buckets are kept. Full ones are forgotten first, which changes nothing; when all are in use, all are.
const TENANTS_MAX: usize = 65_536;

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
}

impl Rates {
    /// Takes a request of so many tokens from its tenant's buckets; nothing is taken where one lacks it.
    pub fn take(&mut self, tenant: u64, limits: Limits, tokens: u32, now: Micros) -> Result<(), Exceeded> {
        let Limits { requests_per_minute, tokens_per_minute } = limits;
        self.forget_if_many(now);
        let buckets = self.tenants.entry(tenant).or_insert_with(|| Buckets::full(limits, now));
        if buckets.limits != limits {
            *buckets = Buckets::full(limits, now);
        }
        let exceeded = |limit| move |retry_after_s| Exceeded { limit, retry_after_s };
        if requests_per_minute > 0 {
            buckets.requests.look(1, requests_per_minute, now).map_err(exceeded(Limit::Requests))?;
        }
        if tokens_per_minute > 0 {
            buckets.tokens.look(tokens, tokens_per_minute, now).map_err(exceeded(Limit::Tokens))?;
        }
        buckets.requests.take(1, requests_per_minute);
        buckets.tokens.take(tokens.into(), tokens_per_minute);
        Ok(())
    }

    /// It is known now how many tokens a request took.
    pub fn correct(&mut self, tenant: u64, thought: u32, took: u32) {
        if let Some(Buckets { limits, tokens, .. }) = self.tenants.get_mut(&tenant) {
            tokens.take(i64::from(took) - i64::from(thought), limits.tokens_per_minute);
        }
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

impl Buckets {
    fn full(limits: Limits, now: Micros) -> Buckets {
        Buckets {
            limits,
            requests: Bucket::full(limits.requests_per_minute, now),
            tokens: Bucket::full(limits.tokens_per_minute, now),
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

    const FEW_REQUESTS: Limits = Limits { requests_per_minute: 2, tokens_per_minute: 0 };
    const FEW_TOKENS: Limits = Limits { requests_per_minute: 0, tokens_per_minute: 600 };

    #[test]
    fn each_tenant_has_its_own_limit() {
        let mut rates = Rates::default();
        let mut ask = |tenant| rates.take(tenant, FEW_REQUESTS, 1_000_000, Micros::ZERO);
        assert_eq!((ask(1), ask(1), ask(2)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(ask(1), Err(Exceeded { limit: Limit::Requests, retry_after_s: 30 }));
    }

    #[test]
    fn what_an_answer_took_is_counted_when_it_is_known() {
        let mut rates = Rates::default();
        rates.take(1, FEW_TOKENS, 100, Micros::ZERO).unwrap();
        rates.correct(1, 100, 600);
        assert_eq!(
            rates.take(1, FEW_TOKENS, 100, Micros::ZERO),
            Err(Exceeded { limit: Limit::Tokens, retry_after_s: 10 })
        );
        assert_eq!(rates.take(1, FEW_TOKENS, 100, Micros::from_secs(10)), Ok(()));
    }

    #[test]
    fn there_is_an_end_to_the_tenants_that_are_remembered() {
        let mut rates = Rates::default();
        (0..200_000).for_each(|tenant| rates.take(tenant, FEW_REQUESTS, 1, Micros::ZERO).unwrap());
        assert!(rates.tenants.len() <= TENANTS_MAX);
    }

    #[test]
    fn a_limit_that_changes_begins_anew() {
        let mut rates = Rates::default();
        let mut ask = |limits| rates.take(1, limits, 600, Micros::ZERO);
        assert_eq!((ask(FEW_TOKENS).is_ok(), ask(FEW_TOKENS).is_ok()), (true, false));
        assert_eq!((ask(FEW_REQUESTS).is_ok(), ask(FEW_TOKENS).is_ok()), (true, true));
    }

    #[test]
    fn what_a_tenant_has_of_its_own_counts_and_the_rest_is_as_for_all() {
        assert_eq!(FEW_TOKENS.over(FEW_REQUESTS), Limits { requests_per_minute: 2, tokens_per_minute: 600 });
    }
}
