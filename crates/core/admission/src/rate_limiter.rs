//! Rate limits: how much each tenant may use in a minute, and how many of its requests may run at once.
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
    /// Requests a minute; a minute's worth may come at once.
    pub requests_per_minute: u32,
    /// Tokens a minute, prompts and answers together.
    pub tokens_per_minute: u32,
    /// Requests in flight at once, waiting ones included.
    pub concurrent: u32,
}

/// The kind of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Requests a minute.
    Requests,
    /// Tokens a minute.
    Tokens,
    /// Requests in flight at once.
    Concurrent,
}

/// When a client that has too many requests in flight should retry: nothing is known about their ends.
const CONCURRENT_RETRY_S: u32 = 1;

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
    /// The limits of a minute.
    fn rates(self) -> Limits {
        Limits { concurrent: 0, ..self }
    }

    /// These limits, with the other's where one is not set.
    pub fn over(self, below: Limits) -> Limits {
        let or = |above: u32, below: u32| if above > 0 { above } else { below };
        Limits {
            requests_per_minute: or(self.requests_per_minute, below.requests_per_minute),
            tokens_per_minute: or(self.tokens_per_minute, below.tokens_per_minute),
            concurrent: or(self.concurrent, below.concurrent),
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
    /// The limits in whose units the levels are: the last ones that were not 0. A limit that is lifted for a while and
    /// set again finds its bucket as it would be, not full.
    rates: Limits,
    requests: TokenBucket,
    tokens: TokenBucket,
    /// Reservations that are not settled.
    running: u32,
    typical_answer: TypicalAnswer,
}

/// What is left of a tenant's limits: the levels of its buckets, negative in debt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantLevel {
    /// The limits that the levels belong to.
    pub limits: Limits,
    /// Requests that may start now.
    pub requests: f64,
    /// Tokens that may be reserved now.
    pub tokens: f64,
}

/// How a level that another router reports changes the known one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LevelMerge {
    /// It replaces the known level.
    Replace,
    /// The lower one counts.
    Lower,
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
        let buckets = self.buckets(tenant, limits, now);
        let expected_tokens = expected.tokens(buckets.typical_answer);
        buckets.check(expected_tokens, now)?;
        Ok(self.reserve_unchecked(tenant, limits, expected, now))
    }

    /// Reserves without asking whether there is enough: another router has decided.
    pub(crate) fn reserve_unchecked(
        &mut self,
        tenant: u64,
        limits: Limits,
        expected: ExpectedTokens,
        now: Micros,
    ) -> Reservation {
        let buckets = self.buckets(tenant, limits, now);
        let expected_tokens = expected.tokens(buckets.typical_answer);
        // A request that may use more than the limit reserves all of it; the rest becomes a debt.
        let tokens = expected_tokens.min(limits.tokens_per_minute);
        buckets.requests.take(1, limits.requests_per_minute);
        buckets.tokens.take(tokens.into(), limits.tokens_per_minute);
        let reservation = buckets.run(tenant, tokens, expected_tokens);
        Reservation { is_guess: expected.answer_max.is_none(), ..reservation }
    }

    /// Counts a request as running whose use is already in the levels.
    pub(crate) fn hold(&mut self, tenant: u64, limits: Limits, tokens: u32, now: Micros) -> Reservation {
        self.buckets(tenant, limits, now).run(tenant, tokens, tokens)
    }

    /// The tokens that a request is expected to use.
    pub(crate) fn expected_tokens(&self, tenant: u64, expected: ExpectedTokens) -> u32 {
        let known = self.tenants.get(&tenant).map(|buckets| buckets.typical_answer);
        expected.tokens(known.unwrap_or_default())
    }

    /// Changes a tenant's limits to those of another router and keeps the parts that are used. Two routers with
    /// different limits for a tenant must not fill its buckets by taking turns.
    pub(crate) fn follow_limits(&mut self, tenant: u64, limits: Limits, now: Micros) {
        let Some(buckets) = self.tenants.get_mut(&tenant).filter(|buckets| buckets.limits != limits) else {
            return;
        };
        let (before, after) = (buckets.rates, limits.over(buckets.rates));
        let scaled = |bucket: TokenBucket, before: u32, after: u32| {
            let level = match before {
                0 => f64::from(after),
                _ => bucket.level(before, now) * f64::from(after) / f64::from(before),
            };
            TokenBucket::at_level(level, now)
        };
        buckets.requests = scaled(buckets.requests, before.requests_per_minute, after.requests_per_minute);
        buckets.tokens = scaled(buckets.tokens, before.tokens_per_minute, after.tokens_per_minute);
        (buckets.limits, buckets.rates) = (limits, after);
    }

    /// What is left of a tenant's limits; `None` if nothing is known to be used.
    pub fn level(&self, tenant: u64, now: Micros) -> Option<TenantLevel> {
        self.tenants.get(&tenant).map(|buckets| buckets.level(now))
    }

    /// Sets or lowers what is left of a tenant's limits, as another router reports it.
    pub(crate) fn set_level(&mut self, tenant: u64, reported: TenantLevel, merge: LevelMerge, now: Micros) {
        self.follow_limits(tenant, reported.limits, now);
        let buckets = self.buckets(tenant, reported.limits, now);
        let known = buckets.level(now);
        let merge_into = |bucket: &mut TokenBucket, known: f64, reported: f64, limit: u32| {
            let level = match merge {
                LevelMerge::Replace => reported,
                LevelMerge::Lower => known.min(reported),
            };
            // The level of what is not limited says nothing.
            if limit > 0 {
                *bucket = TokenBucket::at_level(level, now);
            }
        };
        let Limits { requests_per_minute, tokens_per_minute, .. } = reported.limits;
        merge_into(&mut buckets.requests, known.requests, reported.requests, requests_per_minute);
        merge_into(&mut buckets.tokens, known.tokens, reported.tokens, tokens_per_minute);
    }

    /// Tenants that have used something of their limits.
    pub(crate) fn active(&self, now: Micros) -> impl Iterator<Item = u64> {
        self.tenants.iter().filter(move |(_, buckets)| !buckets.are_full(now)).map(|(&tenant, _)| tenant)
    }

    /// Reservations of a tenant that are not settled.
    pub fn running(&self, tenant: u64) -> u32 {
        self.tenants.get(&tenant).map_or(0, |buckets| buckets.running)
    }

    /// The tenant's buckets: full ones if they are new or the rates have changed.
    fn buckets(&mut self, tenant: u64, limits: Limits, now: Micros) -> &mut Buckets {
        self.forget_if_many(now);
        self.made += 1;
        let full = Buckets::full(self.made, limits, now);
        let buckets = self.tenants.entry(tenant).or_insert(full);
        if buckets.limits.rates() == limits.rates() {
            // Requests of one tenant may differ in how many may run beside them.
            buckets.limits = limits;
        } else {
            *buckets = Buckets { typical_answer: buckets.typical_answer, running: buckets.running, ..full };
        }
        buckets
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
        if let Some(buckets) = self.tenants.get_mut(&reserved.tenant) {
            buckets.running = buckets.running.saturating_sub(1);
        }
    }

    /// Returns everything, because the request has not run.
    pub(crate) fn cancel(&mut self, reserved: &Reservation) {
        self.settle(reserved, 0);
        let buckets = self.tenants.get_mut(&reserved.tenant).filter(|buckets| buckets.id == reserved.buckets);
        buckets.into_iter().for_each(|buckets| {
            buckets.requests.take(-1, buckets.limits.requests_per_minute);
        });
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
            rates: limits,
            requests: TokenBucket::full(limits.requests_per_minute, now),
            tokens: TokenBucket::full(limits.tokens_per_minute, now),
            running: 0,
            typical_answer: TypicalAnswer::default(),
        }
    }

    /// Whether a request that may use this many tokens exceeds a limit.
    fn check(&mut self, expected_tokens: u32, now: Micros) -> Result<(), Exceeded> {
        let Limits { requests_per_minute, tokens_per_minute, concurrent } = self.limits;
        let exceeded = |limit| move |retry_after_s| Exceeded { limit, retry_after_s };
        if concurrent > 0 && self.running >= concurrent {
            return Err(Exceeded { limit: Limit::Concurrent, retry_after_s: CONCURRENT_RETRY_S });
        }
        if requests_per_minute > 0 {
            self.requests.check(1, requests_per_minute, now).map_err(exceeded(Limit::Requests))?;
        }
        // A request that uses no tokens need not wait until a debt is paid.
        if tokens_per_minute > 0 && expected_tokens > 0 {
            let tokens = expected_tokens.min(tokens_per_minute);
            self.tokens.check(tokens, tokens_per_minute, now).map_err(exceeded(Limit::Tokens))?;
        }
        Ok(())
    }

    /// Counts a request as running.
    fn run(&mut self, tenant: u64, tokens: u32, expected_tokens: u32) -> Reservation {
        self.running += 1;
        let per_minute = self.limits.tokens_per_minute;
        let charge_max = expected_tokens.max(per_minute).saturating_mul(CHARGE_FACTOR_MAX);
        Reservation { tenant, buckets: self.id, tokens, per_minute, charge_max, is_guess: false }
    }

    fn level(&self, now: Micros) -> TenantLevel {
        TenantLevel {
            limits: self.limits,
            requests: self.requests.level(self.limits.requests_per_minute, now),
            tokens: self.tokens.level(self.limits.tokens_per_minute, now),
        }
    }

    fn are_full(&self, now: Micros) -> bool {
        self.running == 0
            && self.requests.is_full(self.rates.requests_per_minute, now)
            && self.tokens.is_full(self.rates.tokens_per_minute, now)
    }
}

#[cfg(test)]
mod tests;
