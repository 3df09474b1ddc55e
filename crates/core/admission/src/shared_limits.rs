//! Limits of tenants that hold across all routers that share.
//!
//! Each tenant has a home, one of the routers, which counts for all of them. A request on another router asks the home
//! and waits for the answer, so the limits hold exactly, however clients spread their requests:
//!
//! ```text
//! request ──▶ router B ── Ask ──▶ home: RateLimiter     B copies what the home decides, and the levels that it
//!                    ◀── Answer ──                      announces: when the home is lost, the next home goes on
//!         end ──▶    ── Settle ──▶                      with them, and a router that is cut off goes on alone
//! ```
//!
//! Shares of a limit for each router, moved by demand, were considered: they need no wait, but the last parts of a
//! small limit lie where no request comes, and a burst on one router meets a part of the limit only.
//!
//! A home that does not answer in time is not asked again until it is heard; until then the router decides from its
//! copy. Twice a second each router lists the requests that a home should count, which repairs lost messages. Where
//! concurrent requests are limited, each ask repeats the tenant's latest ends, so that a request is not refused because the
//! message that freed its place was lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use warmroute_types::{Micros, RouterId, To};

use crate::home::home_of;
use crate::limit_message::held_lists;
use crate::rate_limiter::LevelMerge;
use crate::{
    Exceeded, ExpectedTokens, HeldLease, Lease, LeaseDecision, LeaseRequest, Limit, LimitMessage, Limits,
    RateLimiter, Reservation,
};

/// A home that has not answered for this long is not asked any more.
const ANSWER_TIMEOUT: Micros = Micros::from_secs(1);

/// A home that did not answer is not asked for this long, unless a late answer comes.
const SILENCE_MIN: Micros = Micros::from_secs(5);

/// An ask without an answer is repeated after this time.
const REPEAT_INTERVAL: Micros = Micros::from_millis(200);

/// A home announces changed levels at this interval.
const LEVEL_INTERVAL: Micros = Micros::from_millis(100);

/// Routers list the requests that homes should count at this interval.
const HELD_INTERVAL: Micros = Micros::from_millis(500);

/// Latest ends of a tenant that its asks repeat.
const ENDS_REPEATED: usize = 16;

/// Ended and refused requests of other routers are remembered for this long; copies of their asks arrive within it.
const OVER_KEPT: Micros = Micros::from_secs(3);

/// Requests that wait for an answer. Further ones are refused.
const PENDING_MAX: usize = 16_384;

/// Requests of other routers that this one counts. Further ones are refused.
const GRANTED_MAX: usize = 1 << 20;

/// The limits of all tenants. `W` wakes a request that waits for an answer.
#[derive(Debug)]
pub struct SharedLimits<W> {
    me: RouterId,
    others: BTreeSet<RouterId>,
    /// Homes that did not answer in time, until they are heard.
    silent: BTreeMap<RouterId, Micros>,
    /// Of the tenants whose home this is, what counts; of others a copy.
    rates: RateLimiter,
    next_id: u64,
    pending: BTreeMap<u64, Pending<W>>,
    /// This router's running requests.
    held: BTreeMap<u64, HeldLease>,
    /// Other routers' running requests that this one counts.
    granted: BTreeMap<(RouterId, u64), (u64, Reservation)>,
    /// Other routers' requests that ended or were refused, and when: a late copy of an ask gets the same answer.
    over: BTreeMap<(RouterId, u64), (Micros, Option<Exceeded>)>,
    /// The latest messages to homes that free places, by tenant, and when they were first sent.
    ends: BTreeMap<u64, VecDeque<(Micros, LimitMessage)>>,
    /// When [`SharedLimits::ask`] or [`SharedLimits::tick`] was last called.
    now: Micros,
    /// Tenants whose level changed since it was announced.
    changed: BTreeSet<u64>,
    levels_sent: Micros,
    held_sent: Micros,
    outbox: Vec<(To, LimitMessage)>,
}

/// A request that waits for its home's answer.
#[derive(Debug)]
struct Pending<W> {
    home: RouterId,
    tenant: u64,
    limits: Limits,
    expected: ExpectedTokens,
    asked: Micros,
    sent: Micros,
    waker: W,
}

impl<W> Default for SharedLimits<W> {
    fn default() -> SharedLimits<W> {
        SharedLimits {
            me: RouterId(0),
            others: BTreeSet::new(),
            silent: BTreeMap::new(),
            rates: RateLimiter::default(),
            next_id: 1,
            pending: BTreeMap::new(),
            held: BTreeMap::new(),
            granted: BTreeMap::new(),
            over: BTreeMap::new(),
            ends: BTreeMap::new(),
            now: Micros::ZERO,
            changed: BTreeSet::new(),
            levels_sent: Micros::ZERO,
            held_sent: Micros::ZERO,
            outbox: Vec::new(),
        }
    }
}

impl<W> SharedLimits<W> {
    /// Asks for a request. Without other routers, and at the tenant's home, it is decided at once.
    pub fn ask(
        &mut self,
        tenant: u64,
        limits: Limits,
        expected: ExpectedTokens,
        waker: W,
        now: Micros,
    ) -> LeaseRequest {
        let id = self.next_id;
        self.next_id += 1;
        self.now = now;
        let home = self.home(tenant);
        if home == self.me || self.silent.contains_key(&home) {
            return LeaseRequest::Decided(self.decide(id, tenant, limits, expected, now));
        }
        if self.pending.len() >= PENDING_MAX {
            return LeaseRequest::Decided(Err(Exceeded { limit: Limit::Requests, retry_after_s: 1 }));
        }
        self.pending.insert(id, Pending { home, tenant, limits, expected, asked: now, sent: now, waker });
        self.send_ask(id);
        LeaseRequest::Pending(id)
    }

    /// Stops waiting for an answer. A late one is returned to the home.
    pub fn cancel(&mut self, id: u64) {
        self.pending.remove(&id);
    }

    /// Takes what a running request has used beyond its reservation, so that new requests see it.
    pub fn extend(&mut self, lease: &mut Lease, took: u32) {
        let before = lease.tokens();
        self.rates.extend(&mut lease.reservation, took);
        let Some(held) = self.held.get_mut(&lease.id).filter(|_| lease.tokens() > before) else { return };
        held.tokens = lease.tokens();
        let tenant = held.tenant;
        self.report(tenant, LimitMessage::Extend { id: lease.id, tokens: took });
    }

    /// Settles a request at its end.
    pub fn settle(&mut self, lease: &Lease, took: u32) {
        self.rates.settle(&lease.reservation, took);
        if let Some(held) = self.held.remove(&lease.id) {
            self.report_end(&held, LimitMessage::Settle { id: lease.id, tokens: took });
        }
    }

    /// Gives everything back, because the request has not run.
    pub fn give_back(&mut self, lease: &Lease) {
        self.rates.cancel(&lease.reservation);
        if let Some(held) = self.held.remove(&lease.id) {
            self.report_end(&held, LimitMessage::Return { id: lease.id });
        }
    }

    /// Learns the length of an answer, for later requests that state none.
    pub fn learn(&mut self, lease: &Lease, tokens: u32) {
        self.rates.learn(&lease.reservation, tokens);
    }

    /// Sets this router's id and the other routers that share. Returns decisions for requests whose home was lost.
    pub fn set_members(
        &mut self,
        me: RouterId,
        others: BTreeSet<RouterId>,
        now: Micros,
    ) -> Vec<LeaseDecision<W>> {
        if (me, &others) == (self.me, &self.others) {
            return Vec::new();
        }
        let active: Vec<(u64, RouterId)> =
            self.rates.active(now).map(|tenant| (tenant, self.home(tenant))).collect();
        self.me = me;
        self.others = others;
        self.silent.retain(|router, _| self.others.contains(router));
        if self.others.is_empty() {
            self.changed.clear();
        }
        for (tenant, before) in active {
            let home = self.home(tenant);
            if home != before && home != me {
                self.send_level(To::One(home), tenant, now);
            }
        }
        self.release_lost();
        self.send_held(now);
        self.ask_new_homes(now)
    }

    /// Whether a router is among those that share.
    pub fn has_member(&self, router: RouterId) -> bool {
        self.others.contains(&router)
    }

    /// Takes a message of another router. Returns decisions for requests that waited.
    pub fn receive(
        &mut self,
        from: RouterId,
        message: LimitMessage,
        now: Micros,
    ) -> Option<LeaseDecision<W>> {
        // Other messages of a home that does not answer say little: it may be slow, or the asks do not reach it.
        let is_answer = matches!(message, LimitMessage::Answer { .. });
        if self.silent.get(&from).is_some_and(|&since| is_answer || now.since(since) >= SILENCE_MIN) {
            self.silent.remove(&from);
        }
        match message {
            LimitMessage::Ask { id, tenant, limits, tokens } => {
                let answered = self.over.get(&(from, id)).map(|(_, refused)| *refused);
                let refused =
                    answered.unwrap_or_else(|| self.grant((from, id), tenant, limits, tokens, now).err());
                if refused.is_some() {
                    self.over.insert((from, id), (now, refused));
                }
                self.outbox.push((To::One(from), LimitMessage::Answer { id, refused }));
            }
            LimitMessage::Answer { id, refused } => return self.accept_answer(from, id, refused, now),
            LimitMessage::Extend { id, tokens } => {
                if let Some((tenant, reservation)) = self.granted.get_mut(&(from, id)) {
                    self.rates.extend(reservation, tokens);
                    let tenant = *tenant;
                    self.note_change(tenant);
                }
            }
            LimitMessage::Settle { id, tokens } => {
                if let Some((tenant, reservation)) = self.granted.remove(&(from, id)) {
                    self.rates.settle(&reservation, tokens);
                    self.note_change(tenant);
                    self.over.insert((from, id), (now, None));
                }
            }
            LimitMessage::Return { id } => {
                if let Some((tenant, reservation)) = self.granted.remove(&(from, id)) {
                    self.rates.cancel(&reservation);
                    self.note_change(tenant);
                    self.over.insert((from, id), (now, None));
                }
            }
            LimitMessage::Held { first, last, leases, pending } => {
                self.reconcile(from, (first, last), &leases, &pending, now);
            }
            LimitMessage::Level { tenant, level } => match self.home(tenant) {
                home if home == self.me => self.rates.set_level(tenant, level, LevelMerge::Lower, now),
                home if home == from => self.rates.set_level(tenant, level, LevelMerge::Replace, now),
                _ => {}
            },
        }
        None
    }

    /// Sends what is due. Returns decisions for requests whose home did not answer in time.
    pub fn tick(&mut self, now: Micros) -> Vec<LeaseDecision<W>> {
        self.now = now;
        let late = |one: &Pending<W>| now.since(one.asked) >= ANSWER_TIMEOUT;
        let expired: Vec<(u64, Pending<W>)> = self.pending.extract_if(.., |_, one| late(one)).collect();
        self.silent.extend(expired.iter().map(|(_, one)| (one.home, now)));
        let is_due = |one: &Pending<W>| now.since(one.sent) >= REPEAT_INTERVAL;
        let repeated: Vec<u64> =
            self.pending.iter().filter(|(_, one)| is_due(one)).map(|(&id, _)| id).collect();
        for id in repeated {
            self.pending.get_mut(&id).into_iter().for_each(|one| one.sent = now);
            self.send_ask(id);
        }
        if now.since(self.levels_sent) >= LEVEL_INTERVAL {
            self.announce_levels(now);
        }
        if now.since(self.held_sent) >= HELD_INTERVAL {
            self.send_held(now);
            self.over.retain(|_, (at, _)| now.since(*at) < OVER_KEPT);
            self.forget_ends(now);
        }
        expired.into_iter().map(|(id, one)| self.decide_pending(id, one, now)).collect()
    }

    /// Forgets ends that lists of held requests have told since.
    fn forget_ends(&mut self, now: Micros) {
        self.ends.retain(|_, ends| {
            ends.retain(|(at, _)| now.since(*at) < OVER_KEPT);
            !ends.is_empty()
        });
    }

    /// Messages to send.
    pub fn take_messages(&mut self) -> Vec<(To, LimitMessage)> {
        std::mem::take(&mut self.outbox)
    }

    /// The limits as this router knows them.
    pub fn rates(&self) -> &RateLimiter {
        &self.rates
    }

    fn home(&self, tenant: u64) -> RouterId {
        home_of(tenant, self.me, self.others.iter().copied())
    }

    /// Decides alone.
    fn decide(
        &mut self,
        id: u64,
        tenant: u64,
        limits: Limits,
        expected: ExpectedTokens,
        now: Micros,
    ) -> Result<Lease, Exceeded> {
        self.follow_limits(tenant, limits, now);
        let reservation = self.rates.reserve(tenant, limits, expected, now)?;
        Ok(self.lease(id, tenant, limits, reservation))
    }

    /// Keeps what is used of a tenant's limits when another router states other limits.
    fn follow_limits(&mut self, tenant: u64, limits: Limits, now: Micros) {
        if !self.others.is_empty() {
            self.rates.follow_limits(tenant, limits, now);
        }
    }

    fn decide_pending(&mut self, id: u64, one: Pending<W>, now: Micros) -> LeaseDecision<W> {
        (one.waker, self.decide(id, one.tenant, one.limits, one.expected, now))
    }

    fn lease(&mut self, id: u64, tenant: u64, limits: Limits, reservation: Reservation) -> Lease {
        self.held.insert(id, HeldLease { id, tenant, limits, tokens: reservation.tokens() });
        self.note_change(tenant);
        Lease { id, reservation }
    }

    /// Decides about another router's request; a repeated ask gets the same answer.
    fn grant(
        &mut self,
        key: (RouterId, u64),
        tenant: u64,
        limits: Limits,
        tokens: u32,
        now: Micros,
    ) -> Result<(), Exceeded> {
        if self.granted.contains_key(&key) {
            return Ok(());
        }
        if self.granted.len() >= GRANTED_MAX {
            return Err(Exceeded { limit: Limit::Requests, retry_after_s: 1 });
        }
        self.rates.follow_limits(tenant, limits, now);
        let expected = ExpectedTokens { prompt: tokens, answers: 0, answer_max: Some(0) };
        let reservation = self.rates.reserve(tenant, limits, expected, now)?;
        self.granted.insert(key, (tenant, reservation));
        self.note_change(tenant);
        Ok(())
    }

    fn accept_answer(
        &mut self,
        from: RouterId,
        id: u64,
        refused: Option<Exceeded>,
        now: Micros,
    ) -> Option<LeaseDecision<W>> {
        let Some(one) = self.pending.remove(&id) else {
            if refused.is_none() && !self.held.contains_key(&id) {
                self.outbox.push((To::One(from), LimitMessage::Return { id }));
            }
            return None;
        };
        let decision = match refused {
            Some(exceeded) => Err(exceeded),
            None => {
                self.follow_limits(one.tenant, one.limits, now);
                let reservation = self.rates.reserve_unchecked(one.tenant, one.limits, one.expected, now);
                Ok(self.lease(id, one.tenant, one.limits, reservation))
            }
        };
        Some((one.waker, decision))
    }

    /// Notes that a tenant's level is to be announced, if there are routers to tell.
    fn note_change(&mut self, tenant: u64) {
        if !self.others.is_empty() {
            self.changed.insert(tenant);
        }
    }

    /// Tells the tenant's home, or notes that the level is to be announced.
    fn report(&mut self, tenant: u64, message: LimitMessage) {
        let home = self.home(tenant);
        if home == self.me {
            self.note_change(tenant);
        } else {
            self.outbox.push((To::One(home), message));
        }
    }

    /// Reports that a request has freed its place.
    fn report_end(&mut self, held: &HeldLease, end: LimitMessage) {
        if held.limits.concurrent > 0 && self.home(held.tenant) != self.me {
            let ends = self.ends.entry(held.tenant).or_default();
            ends.truncate(ENDS_REPEATED - 1);
            ends.push_front((self.now, end.clone()));
        }
        self.report(held.tenant, end);
    }

    fn send_ask(&mut self, id: u64) {
        let Some(Pending { home, tenant, limits, expected, .. }) = self.pending.get(&id) else { return };
        let ends = self.ends.get(tenant).into_iter().flatten().rev();
        self.outbox.extend(ends.map(|(_, end)| (To::One(*home), end.clone())));
        let tokens = self.rates.expected_tokens(*tenant, *expected);
        let ask = LimitMessage::Ask { id, tenant: *tenant, limits: *limits, tokens };
        self.outbox.push((To::One(*home), ask));
    }

    fn send_level(&mut self, to: To, tenant: u64, now: Micros) {
        let level = self.rates.level(tenant, now);
        self.outbox.extend(level.map(|level| (to, LimitMessage::Level { tenant, level })));
    }

    fn announce_levels(&mut self, now: Micros) {
        self.levels_sent = now;
        let changed = std::mem::take(&mut self.changed);
        if self.others.is_empty() {
            return;
        }
        for tenant in changed.into_iter().filter(|tenant| self.home(*tenant) == self.me).collect::<Vec<_>>() {
            self.send_level(To::Everyone, tenant, now);
        }
    }

    /// Lists to every other router the requests that it should count.
    fn send_held(&mut self, now: Micros) {
        self.held_sent = now;
        for home in self.others.iter().copied().collect::<Vec<_>>() {
            let leases: Vec<HeldLease> =
                self.held.values().filter(|one| self.home(one.tenant) == home).copied().collect();
            let pending = self.pending.iter().filter(|(_, one)| one.home == home).map(|(&id, _)| id);
            let pending: Vec<u64> = pending.collect();
            let lists = held_lists(leases, &pending, self.next_id - 1);
            self.outbox.extend(lists.into_iter().map(|list| (To::One(home), list)));
        }
    }

    /// Counts the requests in the list, and stops counting others of that router in its range.
    fn reconcile(
        &mut self,
        from: RouterId,
        (first, last): (u64, u64),
        leases: &[HeldLease],
        pending: &[u64],
        now: Micros,
    ) {
        if first > last {
            return;
        }
        let listed: BTreeSet<u64> = leases.iter().map(|one| one.id).chain(pending.iter().copied()).collect();
        let range = (from, first)..=(from, last);
        let ended: Vec<(u64, Reservation)> =
            self.granted.extract_if(range, |key, _| !listed.contains(&key.1)).map(|(_, one)| one).collect();
        ended.iter().for_each(|(_, reservation)| self.rates.settle(reservation, reservation.tokens()));
        for one in leases.iter().filter(|one| self.home(one.tenant) == self.me).collect::<Vec<_>>() {
            let key = (from, one.id);
            if self.granted.len() < GRANTED_MAX && !self.granted.contains_key(&key) {
                self.rates.follow_limits(one.tenant, one.limits, now);
                let reservation = self.rates.hold(one.tenant, one.limits, one.tokens, now);
                self.granted.insert(key, (one.tenant, reservation));
            }
        }
    }

    /// Stops counting requests of routers that left, and those that another home counts now.
    fn release_lost(&mut self) {
        let (me, others) = (self.me, &self.others);
        let is_lost = |router: RouterId, tenant: u64| {
            !others.contains(&router) || home_of(tenant, me, others.iter().copied()) != me
        };
        let lost: Vec<(u64, Reservation)> =
            self.granted.extract_if(.., |key, one| is_lost(key.0, one.0)).map(|(_, one)| one).collect();
        lost.iter().for_each(|(_, reservation)| self.rates.settle(reservation, reservation.tokens()));
    }

    /// Asks the new homes of waiting requests.
    fn ask_new_homes(&mut self, now: Micros) -> Vec<LeaseDecision<W>> {
        let homes: Vec<(u64, RouterId)> =
            self.pending.iter().map(|(&id, one)| (id, self.home(one.tenant))).collect();
        let mut decided = Vec::new();
        for (id, home) in homes {
            if home == self.me {
                let one = self.pending.remove(&id);
                decided.extend(one.map(|one| self.decide_pending(id, one, now)));
            } else if let Some(one) = self.pending.get_mut(&id).filter(|one| one.home != home) {
                (one.home, one.asked, one.sent) = (home, now, now);
                self.send_ask(id);
            }
        }
        decided
    }
}

#[cfg(test)]
mod tests;
