//! Decides which addresses to dial, and when. Pure: time and randomness are arguments.
//!
//! Addresses come from the operator's list, resolved, and from other routers by gossip. An address is not
//! dialed while the router that last answered there is connected, whichever side dialed. This router's own
//! address is not dialed either.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use warmroute_types::{RouterId, backoff};

use crate::mesh::config::MeshTimings;

/// Limits what gossip can add; real fleets are smaller.
const ENTRIES_MAX: usize = 1_024;

/// Result of dialing an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialOutcome {
    /// This router answered.
    Connected(RouterId),
    /// No router is reachable there, or not yet.
    Unreachable,
    /// The connection or the handshake failed.
    Failed,
    /// The router refused permanently, for example because of its secret.
    Refused,
}

/// Whether to report a result to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// A problem to report.
    Problem,
    /// Expected, or likely to resolve by itself.
    Expected,
}

#[derive(Debug)]
struct DialEntry {
    /// Entries of the operator's list that resolve to this address.
    listed_by: BTreeSet<usize>,
    /// The router that gossip reports at this address.
    member: Option<RouterId>,
    /// Until when an address is dialed that neither the list nor gossip names any more.
    remembered_until: Option<Instant>,
    /// The router that last answered.
    last_router: Option<RouterId>,
    /// The router said goodbye, so it is expected to be unreachable.
    has_left: bool,
    /// When the address was added.
    since: Instant,
    failures: u32,
    due: Instant,
    dialing: bool,
}

/// All known addresses.
#[derive(Debug)]
pub(crate) struct DialSchedule {
    entries: BTreeMap<String, DialEntry>,
    timings: MeshTimings,
}

impl DialSchedule {
    pub(crate) fn new(timings: MeshTimings) -> DialSchedule {
        DialSchedule { entries: BTreeMap::new(), timings }
    }

    /// Sets the addresses that one entry of the operator's list resolves to.
    pub(crate) fn set_listed(&mut self, entry: usize, addresses: Vec<String>, now: Instant) {
        self.entries.values_mut().for_each(|known| _ = known.listed_by.remove(&entry));
        for address in addresses {
            if let Some(known) = self.entry(address, now) {
                known.listed_by.insert(entry);
            }
        }
        self.remove_unused(now);
    }

    /// Gossip reports a router.
    pub(crate) fn add_member(&mut self, router: RouterId, address: String, now: Instant) {
        if let Some(known) = self.entry(address, now) {
            known.member = Some(router);
            known.remembered_until = None;
            known.has_left = false;
        }
    }

    /// Gossip reports that router disconnected. Its address is remembered for a while, because the network may
    /// be partitioned.
    pub(crate) fn remove_member(&mut self, router: RouterId, now: Instant) {
        let until = now + self.timings.remember;
        for entry in self.entries.values_mut().filter(|entry| entry.member == Some(router)) {
            entry.member = None;
            entry.remembered_until = Some(until);
        }
        self.remove_unused(now);
    }

    /// A connection was lost: the router is dialed again at once, without regard to earlier failures.
    pub(crate) fn connection_lost(&mut self, router: RouterId, now: Instant, random: u64) {
        let due = now + backoff::pause(1, self.timings.redial, random);
        let is_of_router =
            |entry: &&mut DialEntry| entry.last_router == Some(router) || entry.member == Some(router);
        for entry in self.entries.values_mut().filter(is_of_router) {
            entry.failures = 0;
            entry.due = due;
        }
    }

    /// A router said goodbye. Its address is forgotten unless it is listed, because a successor may start
    /// there.
    pub(crate) fn router_left(&mut self, router: RouterId, now: Instant) {
        let is_of_router =
            |entry: &&mut DialEntry| entry.last_router == Some(router) || entry.member == Some(router);
        for entry in self.entries.values_mut().filter(is_of_router) {
            entry.member = entry.member.filter(|member| *member != router);
            entry.last_router = entry.last_router.filter(|last_router| *last_router != router);
            entry.remembered_until = None;
            entry.has_left = true;
            // The process needs a moment to end.
            entry.due = now + self.timings.redial;
        }
        self.remove_unused(now);
    }

    /// Addresses to dial now. Each counts as being dialed until [`DialSchedule::record_outcome`].
    pub(crate) fn take_due(&mut self, now: Instant, connected: impl Fn(RouterId) -> bool) -> Vec<String> {
        self.remove_unused(now);
        let is_due = |entry: &DialEntry| entry.due <= now && entry.should_dial(&connected);
        let due = self.entries.iter_mut().filter(|(_, entry)| is_due(entry));
        let due = due.map(|(address, entry)| {
            entry.dialing = true;
            address.clone()
        });
        due.collect()
    }

    /// When [`DialSchedule::take_due`] has something to return.
    pub(crate) fn next_due(&self, connected: impl Fn(RouterId) -> bool) -> Option<Instant> {
        self.entries.values().filter(|entry| entry.should_dial(&connected)).map(|entry| entry.due).min()
    }

    /// Records the result of a dial.
    pub(crate) fn record_outcome(
        &mut self,
        address: &str,
        outcome: DialOutcome,
        now: Instant,
        random: u64,
    ) -> Severity {
        let timings = self.timings;
        let Some(entry) = self.entries.get_mut(address) else { return Severity::Expected };
        entry.dialing = false;
        let severity = entry.severity(outcome, timings.settle, now);
        match outcome {
            DialOutcome::Connected(router) => {
                entry.last_router = Some(router);
                entry.has_left = false;
                entry.failures = 0;
                entry.due = now + backoff::pause(1, timings.redial, random);
            }
            DialOutcome::Unreachable | DialOutcome::Failed => {
                entry.failures = entry.failures.saturating_add(1);
                entry.due = now + backoff::pause(entry.failures, timings.redial, random);
            }
            DialOutcome::Refused => entry.due = now + backoff::jittered(timings.refused, random),
        }
        severity
    }

    fn entry(&mut self, address: String, now: Instant) -> Option<&mut DialEntry> {
        if self.entries.len() >= ENTRIES_MAX && !self.entries.contains_key(&address) {
            return None;
        }
        Some(self.entries.entry(address).or_insert_with(|| DialEntry::new(now)))
    }

    fn remove_unused(&mut self, now: Instant) {
        self.entries.retain(|_, entry| entry.is_used(now) || entry.dialing);
    }
}

impl DialEntry {
    fn new(now: Instant) -> DialEntry {
        DialEntry {
            listed_by: BTreeSet::new(),
            member: None,
            remembered_until: None,
            last_router: None,
            has_left: false,
            since: now,
            failures: 0,
            due: now,
            dialing: false,
        }
    }

    fn is_used(&self, now: Instant) -> bool {
        !self.listed_by.is_empty()
            || self.member.is_some()
            || self.remembered_until.is_some_and(|until| now < until)
    }

    /// An unreachable router is not a problem if it left, or if it may still be starting.
    fn severity(&self, outcome: DialOutcome, settle: Duration, now: Instant) -> Severity {
        let is_new = self.last_router.is_none() && now.duration_since(self.since) < settle;
        match outcome {
            DialOutcome::Connected(_) => Severity::Expected,
            DialOutcome::Unreachable if self.has_left || is_new => Severity::Expected,
            DialOutcome::Unreachable | DialOutcome::Failed | DialOutcome::Refused => Severity::Problem,
        }
    }

    fn should_dial(&self, connected: impl Fn(RouterId) -> bool) -> bool {
        !self.dialing && !self.last_router.is_some_and(&connected) && !self.member.is_some_and(&connected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE_CONNECTED: fn(RouterId) -> bool = |_| false;
    const IDLE: Duration = Duration::from_secs(3_600);

    fn schedule() -> (DialSchedule, Instant) {
        (DialSchedule::new(MeshTimings::default()), Instant::now())
    }

    #[test]
    fn an_address_is_dialed_once_at_a_time_with_growing_pauses() {
        let (mut schedule, now) = schedule();
        schedule.set_listed(0, vec![String::from("a:1")], now);
        assert_eq!(schedule.take_due(now, NONE_CONNECTED), ["a:1"]);
        assert!(schedule.take_due(now, NONE_CONNECTED).is_empty(), "it is being dialed");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            schedule.record_outcome("a:1", DialOutcome::Failed, now, 1_023);
            pauses.push(schedule.next_due(NONE_CONNECTED).unwrap() - now);
            schedule.entries.get_mut("a:1").unwrap().dialing = true;
        }
        assert!(pauses.is_sorted() && pauses[0] < pauses[3], "{pauses:?}");
        assert_eq!(pauses[7], schedule.timings.redial);
    }

    #[test]
    fn a_connected_router_is_dialed_only_after_it_is_lost() {
        let (mut schedule, now) = schedule();
        schedule.set_listed(0, vec![String::from("a:1")], now);
        schedule.take_due(now, NONE_CONNECTED);
        schedule.record_outcome("a:1", DialOutcome::Connected(RouterId(7)), now, 0);
        let later = now + IDLE;
        assert!(schedule.take_due(later, |router| router == RouterId(7)).is_empty());
        assert_eq!(schedule.next_due(|router| router == RouterId(7)), None);
        schedule.connection_lost(RouterId(7), later, 1_023);
        assert!(schedule.next_due(NONE_CONNECTED).unwrap() - later < Duration::from_millis(100));
        assert_eq!(schedule.take_due(later + schedule.timings.redial, NONE_CONNECTED), ["a:1"]);
    }

    #[test]
    fn a_refusal_is_followed_by_a_long_pause() {
        let (mut schedule, now) = schedule();
        schedule.set_listed(0, vec![String::from("a:1")], now);
        schedule.take_due(now, NONE_CONNECTED);
        schedule.record_outcome("a:1", DialOutcome::Refused, now, 0);
        assert_eq!(schedule.next_due(NONE_CONNECTED).unwrap() - now, schedule.timings.refused / 2);
    }

    #[test]
    fn only_current_addresses_of_a_name_are_dialed_and_lost_members_remembered() {
        let (mut schedule, now) = schedule();
        schedule.set_listed(0, vec![String::from("a:1"), String::from("b:1")], now);
        schedule.set_listed(0, vec![String::from("b:1")], now);
        schedule.add_member(RouterId(3), String::from("c:1"), now);
        assert_eq!(schedule.take_due(now, NONE_CONNECTED), ["b:1", "c:1"]);
        schedule.remove_member(RouterId(3), now);
        schedule.record_outcome("c:1", DialOutcome::Failed, now, 0);
        assert_eq!(
            schedule.take_due(now + schedule.timings.redial, NONE_CONNECTED),
            ["c:1"],
            "the network may be partitioned"
        );
        schedule.record_outcome("c:1", DialOutcome::Failed, now, 0);
        schedule.take_due(now + schedule.timings.remember, NONE_CONNECTED);
        assert_eq!(schedule.entries.keys().collect::<Vec<_>>(), ["b:1"]);
    }

    #[test]
    fn a_router_that_left_is_forgotten_or_expected_to_be_unreachable() {
        let (mut schedule, now) = schedule();
        schedule.set_listed(0, vec![String::from("a:1")], now);
        for (router, address) in [(1, "a:1"), (2, "b:1")] {
            schedule.add_member(RouterId(router), String::from(address), now);
            schedule.take_due(now, NONE_CONNECTED);
            schedule.record_outcome(address, DialOutcome::Connected(RouterId(router)), now, 0);
            schedule.router_left(RouterId(router), now);
        }
        assert_eq!(schedule.entries.keys().collect::<Vec<_>>(), ["a:1"]);
        let later = now + schedule.timings.settle * 2;
        assert_eq!(schedule.take_due(later, NONE_CONNECTED), ["a:1"], "a successor may start there");
        assert_eq!(schedule.record_outcome("a:1", DialOutcome::Unreachable, later, 0), Severity::Expected);
        assert_eq!(
            schedule.record_outcome("a:1", DialOutcome::Failed, later, 0),
            Severity::Problem,
            "an unknown service answers"
        );
        schedule.record_outcome("a:1", DialOutcome::Connected(RouterId(3)), later, 0);
        assert_eq!(
            schedule.record_outcome("a:1", DialOutcome::Unreachable, later, 0),
            Severity::Problem,
            "router 3 did not say goodbye"
        );
        schedule.router_left(RouterId(3), later);
        schedule.add_member(RouterId(4), String::from("a:1"), later);
        assert_eq!(
            schedule.record_outcome("a:1", DialOutcome::Unreachable, later, 0),
            Severity::Problem,
            "router 4, known by gossip, did not say goodbye"
        );
    }

    #[test]
    fn an_unreachable_router_is_no_problem_at_first() {
        let (mut schedule, now) = schedule();
        schedule.set_listed(0, vec![String::from("a:1")], now);
        assert_eq!(schedule.record_outcome("a:1", DialOutcome::Unreachable, now, 0), Severity::Expected);
        assert_eq!(schedule.record_outcome("a:1", DialOutcome::Refused, now, 0), Severity::Problem);
        assert_eq!(
            schedule.record_outcome("a:1", DialOutcome::Unreachable, now + schedule.timings.settle, 0),
            Severity::Problem
        );
    }

    #[test]
    fn gossip_cannot_grow_the_schedule_without_limit() {
        let (mut schedule, now) = schedule();
        (0..ENTRIES_MAX as u64 * 2).for_each(|n| schedule.add_member(RouterId(n), format!("a:{n}"), now));
        assert_eq!(schedule.entries.len(), ENTRIES_MAX);
    }
}
