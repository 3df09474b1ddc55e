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

/// All tenants' buckets.
#[derive(Debug)]
pub struct Rates {
    limits: Limits,
    tenants: BTreeMap<u64, Buckets>,
}

#[derive(Clone, Copy, Debug)]
struct Buckets {
    requests: Bucket,
    tokens: Bucket,
}

impl Rates {
    /// Buckets for these limits; `None` where there is none.
    pub fn new(limits: Limits) -> Option<Rates> {
        (limits != Limits::default()).then_some(Rates { limits, tenants: BTreeMap::new() })
    }

    /// Takes a request of so many tokens from its tenant's buckets; nothing is taken where one lacks it.
    pub fn take(&mut self, tenant: u64, tokens: u32, now: Micros) -> Result<(), Exceeded> {
        self.forget_if_many(now);
        let Limits { requests_per_minute, tokens_per_minute } = self.limits;
        let buckets = self.tenants.entry(tenant).or_insert_with(|| Buckets {
            requests: Bucket::full(requests_per_minute, now),
            tokens: Bucket::full(tokens_per_minute, now),
        });
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
        if let Some(buckets) = self.tenants.get_mut(&tenant) {
            buckets.tokens.take(i64::from(took) - i64::from(thought), self.limits.tokens_per_minute);
        }
    }

    fn forget_if_many(&mut self, now: Micros) {
        let Limits { requests_per_minute, tokens_per_minute } = self.limits;
        if self.tenants.len() >= TENANTS_MAX {
            self.tenants.retain(|_, buckets| {
                !(buckets.requests.is_full(requests_per_minute, now)
                    && buckets.tokens.is_full(tokens_per_minute, now))
            });
        }
        if self.tenants.len() >= TENANTS_MAX {
            self.tenants.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(requests_per_minute: u32, tokens_per_minute: u32) -> Rates {
        Rates::new(Limits { requests_per_minute, tokens_per_minute }).unwrap()
    }

    #[test]
    fn each_tenant_has_its_own_limit() {
        let mut rates = rates(2, 0);
        let mut ask = |tenant| rates.take(tenant, 1_000_000, Micros::ZERO);
        assert_eq!((ask(1), ask(1), ask(2)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(ask(1), Err(Exceeded { limit: Limit::Requests, retry_after_s: 30 }));
    }

    #[test]
    fn what_an_answer_took_is_counted_when_it_is_known() {
        let mut rates = rates(0, 600);
        rates.take(1, 100, Micros::ZERO).unwrap();
        rates.correct(1, 100, 600);
        assert_eq!(
            rates.take(1, 100, Micros::ZERO),
            Err(Exceeded { limit: Limit::Tokens, retry_after_s: 10 })
        );
        assert_eq!(rates.take(1, 100, Micros::from_secs(10)), Ok(()));
    }

    #[test]
    fn there_is_an_end_to_the_tenants_that_are_remembered() {
        let mut rates = rates(1, 0);
        (0..200_000).for_each(|tenant| rates.take(tenant, 1, Micros::ZERO).unwrap());
        assert!(rates.tenants.len() <= TENANTS_MAX);
    }
}
