//! The state of one peer, built from its messages.

use std::collections::{BTreeMap, BTreeSet};

use warmroute_types::{Micros, RouterId};

use crate::peer_assignments::{BatchContext, PeerAssignments, Timeliness};
use crate::peer_workers::PeerWorkers;
use crate::received_batches::ReceivedBatches;
use crate::round_trip::RoundTripEstimate;
use crate::{Effect, Ledger, WorkerFinding, WorkerHealth};

/// Findings that are kept of one peer; above this the oldest are dropped.
const FINDINGS_MAX: usize = 4_096;

#[derive(Debug)]
pub(crate) struct Peer {
    id: RouterId,
    pub batches: ReceivedBatches,
    pub assignments: PeerAssignments,
    findings: BTreeMap<u64, WorkerFinding>,
    pub first_received: Micros,
    pub last_received: Micros,
    /// When the first of the missing batches was noticed.
    pub missing_since: Option<Micros>,
    /// The open query for the missing batches.
    pub batch_query: Option<u64>,
    /// Time that the peer takes to answer a query.
    pub answer_time: RoundTripEstimate,
    /// Time that the peer takes to answer a ping, and when the last ping was sent.
    pub ping_time: RoundTripEstimate,
    pub last_ping: Option<Micros>,
    /// Workers to which the peer sends requests.
    pub workers: PeerWorkers,
    /// The newest message version that the peer supports.
    pub protocol_version: u8,
}

/// Status of one peer, for lists and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer's id.
    pub id: RouterId,
    /// Time since its first message.
    pub known_for: Micros,
    /// Time since its last message.
    pub silent_for: Micros,
    /// Batches that it sent and that have not arrived.
    pub missing: u64,
    /// Time since batches have been missing; zero when none is.
    pub missing_for: Micros,
    /// Its open assignments, as far as known.
    pub open: usize,
    /// Workers that it reports as failing.
    pub failing: usize,
    /// Workers that it uses and that are not in the local fleet.
    pub unknown_workers: usize,
    /// Smoothed round trip of a ping; `None` before the first answer.
    pub round_trip: Option<Micros>,
    /// The newest message version that it supports.
    pub protocol_version: u8,
}

impl Peer {
    pub fn new(id: RouterId, now: Micros) -> Peer {
        Peer {
            id,
            batches: ReceivedBatches::default(),
            assignments: PeerAssignments::new(id),
            findings: BTreeMap::new(),
            first_received: now,
            last_received: now,
            missing_since: None,
            batch_query: None,
            answer_time: RoundTripEstimate::default(),
            ping_time: RoundTripEstimate::default(),
            last_ping: None,
            workers: PeerWorkers::default(),
            protocol_version: 0,
        }
    }

    /// Merges one batch; order and repetition do not matter. An empty batch is a heartbeat with the number of
    /// the last batch.
    pub fn apply_batch(
        &mut self,
        number: u64,
        updates: Ledger,
        timeliness: Timeliness,
        effects: &mut Vec<Effect>,
    ) {
        if updates.is_empty() {
            self.batches.start_after(number);
            self.batches.note_existing(number, updates.low_water);
        } else {
            self.batches.start_after(number.saturating_sub(1));
            if !self.batches.record(number, updates.low_water) {
                return;
            }
        }
        self.merge(updates, number, timeliness, effects);
    }

    /// Applies a state that replaces all batches up to `up_to`.
    pub fn apply_state(&mut self, up_to: u64, state: Ledger, effects: &mut Vec<Effect>) {
        self.assignments.end_all_except(&state, up_to, effects);
        let low_water = state.low_water;
        // The state does not say when a finding was made, so from a new peer it does not count as an event.
        self.merge(state, up_to, Timeliness::Late, effects);
        self.batches.settle(up_to, low_water);
        self.assignments.end_below(self.batches.low_water(), effects);
    }

    /// Stops waiting for batches up to this number.
    pub fn give_up_missing(&mut self, up_to: u64, effects: &mut Vec<Effect>) {
        self.batches.settle(up_to, 0);
        self.assignments.end_below(self.batches.low_water(), effects);
    }

    fn merge(&mut self, updates: Ledger, batch: u64, timeliness: Timeliness, effects: &mut Vec<Effect>) {
        let context = BatchContext { timeliness, batch, low_water: self.batches.low_water() };
        for (number, assignment) in updates.assignments {
            assignment
                .booking
                .iter()
                .for_each(|booking| self.workers.record(booking.worker, self.last_received));
            self.assignments.merge(number, assignment, context, effects);
        }
        self.assignments.end_below(self.batches.low_water(), effects);
        updates
            .findings
            .into_iter()
            .for_each(|(worker, finding)| self.apply_finding(worker, finding, effects));
        Ledger::drop_oldest_findings(&mut self.findings, FINDINGS_MAX);
        let stored = updates.stored.into_iter();
        effects.extend(stored.map(|(id, stored)| Effect::ResponseStored { id, stored }));
    }

    /// Ends all assignments, because the peer is silent.
    pub fn suspend(&mut self, effects: &mut Vec<Effect>) {
        self.missing_since = None;
        self.assignments.suspend(effects);
    }

    /// Books the open assignments again, because the peer speaks again.
    pub fn resume(&mut self, effects: &mut Vec<Effect>) {
        self.assignments.resume(effects);
    }

    /// Remembers since when batches have been missing. Returns the batch query to cancel when none is
    /// missing.
    pub fn track_gaps(&mut self, now: Micros) -> Option<u64> {
        if self.batches.missing() > 0 {
            self.missing_since.get_or_insert(now);
            return None;
        }
        self.missing_since = None;
        self.batch_query.take()
    }

    fn apply_finding(&mut self, worker: u64, finding: WorkerFinding, effects: &mut Vec<Effect>) {
        // A finding from before the two met does not clear a cache now.
        let is_first = self.batches.lacks_history() && !self.findings.contains_key(&worker);
        let known = self.findings.entry(worker).or_default();
        if finding.version <= known.version {
            return;
        }
        if finding.clears > known.clears && !is_first {
            effects.push(Effect::CacheCleared { worker });
        }
        *known = finding;
    }

    /// Members of the fleet that the peer reports as failing. A peer that reports more than half of them is
    /// probably cut off itself, so its reports are ignored.
    pub fn failing_workers<'a>(&'a self, members: &'a BTreeSet<u64>) -> impl Iterator<Item = u64> + 'a {
        let is_failing = |(worker, finding): &(&u64, &WorkerFinding)| {
            finding.health == WorkerHealth::Failing && members.contains(worker)
        };
        let is_trusted = 2 * self.findings.iter().filter(is_failing).count() <= members.len();
        self.findings.iter().filter(move |one| is_trusted && is_failing(one)).map(|(&worker, _)| worker)
    }

    pub fn status(&self, now: Micros) -> PeerStatus {
        PeerStatus {
            id: self.id,
            known_for: now.since(self.first_received),
            silent_for: now.since(self.last_received),
            missing: self.batches.missing(),
            missing_for: self.missing_since.map_or(Micros::ZERO, |since| now.since(since)),
            open: self.assignments.open_count(),
            failing: self.findings.values().filter(|finding| finding.health == WorkerHealth::Failing).count(),
            unknown_workers: self.workers.count_unknown(now),
            round_trip: self.ping_time.smoothed(),
            protocol_version: self.protocol_version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Assignment, AssignmentEnd, BookingRecord, OwnLedger};
    use proptest::prelude::*;
    use warmroute_types::Delivery;

    fn booking(worker: u64) -> BookingRecord {
        BookingRecord {
            worker,
            prompt_tokens: 10,
            cached_tokens: 0,
            restorable_tokens: 0,
            delivery: Delivery::Streamed,
            prompt: None,
        }
    }

    fn updates(low_water: u64, assignments: &[(u64, Assignment)]) -> Ledger {
        Ledger { low_water, assignments: assignments.iter().cloned().collect(), ..Ledger::default() }
    }

    /// Applies the next batch.
    fn merge(peer: &mut Peer, ledger: Ledger) -> Vec<Effect> {
        let number = (1..).find(|&number| peer.batches.clone().record(number, 0)).unwrap();
        apply(peer, number, ledger)
    }

    /// A peer that was followed from its first batch.
    fn new_peer() -> Peer {
        let mut peer = Peer::new(RouterId(9), Micros::ZERO);
        peer.batches.start_after(0);
        peer
    }

    fn apply(peer: &mut Peer, number: u64, ledger: Ledger) -> Vec<Effect> {
        let mut effects = Vec::new();
        peer.apply_batch(number, ledger, Timeliness::Live, &mut effects);
        effects
    }

    /// The outcome of an assignment: worker, whether it was prefilled, how it ended.
    type Outcome = (u64, bool, Option<AssignmentEnd>);

    /// Outcomes after these batches in this order. Each assignment is booked once and ends at most once.
    fn outcomes(batches: &[(u64, Ledger)]) -> BTreeMap<u64, Outcome> {
        let mut peer = new_peer();
        let mut assignments = BTreeMap::<u64, Outcome>::new();
        for effect in batches.iter().flat_map(|(number, updates)| apply(&mut peer, *number, updates.clone()))
        {
            match effect {
                Effect::Booked { assignment, booking, .. } => {
                    assert!(
                        assignments.insert(assignment, (booking.worker, false, None)).is_none(),
                        "booked twice"
                    );
                }
                Effect::Prefilled { assignment, .. } => {
                    let one = assignments.get_mut(&assignment).unwrap();
                    assert!(!std::mem::replace(&mut one.1, true) && one.2.is_none(), "prefilled twice");
                }
                Effect::Ended { assignment, end, .. } => {
                    assert_eq!(assignments.get_mut(&assignment).unwrap().2.replace(end), None, "ended twice");
                }
                _ => {}
            }
        }
        assignments
    }

    /// Batches and heartbeats that a router could send.
    fn batches() -> impl Strategy<Value = Vec<(u64, Ledger)>> {
        proptest::collection::vec((0_u8..8, any::<usize>()), 1..80).prop_map(|steps| {
            let (mut own, mut open, mut sent) = (OwnLedger::default(), Vec::new(), Vec::new());
            let mut number = 0;
            for (step, pick) in steps.into_iter().chain([(7, 0)]) {
                match step {
                    0..=2 => open.push(own.begin(booking(pick as u64 % 5))),
                    3 if !open.is_empty() => own.mark_prefilled(open[pick % open.len()]),
                    4 | 5 if !open.is_empty() => {
                        let end = [
                            AssignmentEnd::Abandoned,
                            AssignmentEnd::Answered,
                            AssignmentEnd::Stale { found_chunks: 2 },
                        ][pick % 3];
                        own.end(open.swap_remove(pick % open.len()), end);
                    }
                    6 | 7 => {
                        let mut updates = own.take_updates();
                        sent.extend(std::iter::from_fn(|| updates.next_batch()).map(|updates| {
                            number += 1;
                            (number, updates)
                        }));
                        sent.push((number, updates.empty_batch()));
                    }
                    _ => {}
                }
            }
            sent
        })
    }

    proptest! {
        /// Applying batches is a fold, so independence of order also covers independence of grouping.
        #[test]
        fn outcomes_do_not_depend_on_the_order_of_batches(
            (sent, shuffled) in batches().prop_flat_map(|sent| (Just(sent.clone()), Just(sent).prop_shuffle())),
        ) {
            prop_assert_eq!(outcomes(&shuffled), outcomes(&sent));
        }

        #[test]
        fn outcomes_do_not_depend_on_repeated_batches(
            (sent, twice) in batches().prop_flat_map(|sent| {
                let twice = [sent.clone(), sent.clone()].concat();
                (Just(sent), Just(twice).prop_shuffle())
            }),
        ) {
            prop_assert_eq!(outcomes(&twice), outcomes(&sent));
        }
    }

    #[test]
    fn a_late_batch_does_not_change_how_an_assignment_ended() {
        let router = RouterId(9);
        let mut peer = new_peer();
        let end = Assignment { end: Some(AssignmentEnd::Answered), ..Assignment::default() };
        assert_eq!(apply(&mut peer, 2, updates(1, &[(1, end)])), [], "its booking has not arrived");
        let other = Assignment::new(booking(6));
        assert_eq!(
            apply(&mut peer, 3, updates(2, &[(2, other)])).len(),
            1,
            "its low-water mark ends the first assignment"
        );
        let late = apply(&mut peer, 1, updates(1, &[(1, Assignment::new(booking(5)))]));
        let closed = Effect::Ended { router, assignment: 1, end: AssignmentEnd::Answered, prompt: None };
        assert_eq!(late, [Effect::Booked { router, assignment: 1, booking: booking(5) }, closed]);
    }

    #[test]
    fn a_suspended_peer_has_no_bookings_until_it_resumes() {
        let mut peer = new_peer();
        let assignments = [1, u64::MAX].map(|number| (number, Assignment::new(booking(5))));
        merge(&mut peer, updates(1, &assignments));
        let mut effects = Vec::new();
        peer.suspend(&mut effects);
        assert_eq!(effects.len(), 2);
        let mut again = Vec::new();
        peer.resume(&mut again);
        assert_eq!((again.len(), peer.assignments.open_count()), (2, 2), "it was only cut off");
    }

    #[test]
    fn effects_are_in_order_although_reports_are_not() {
        let router = RouterId(9);
        let mut peer = new_peer();
        let end = Assignment { end: Some(AssignmentEnd::Answered), ..Assignment::default() };
        assert_eq!(merge(&mut peer, updates(1, &[(1, end)])), [], "its booking has not arrived");
        let begun = Assignment::new(booking(5));
        let effects = merge(&mut peer, updates(1, &[(1, begun.clone())]));
        let closed = Effect::Ended { router, assignment: 1, end: AssignmentEnd::Answered, prompt: None };
        assert_eq!(effects, [Effect::Booked { router, assignment: 1, booking: booking(5) }, closed]);
        assert_eq!(merge(&mut peer, updates(1, &[(1, begun.clone())])), [], "again");
        assert_eq!(
            merge(&mut peer, updates(3, &[(2, begun)])).last(),
            Some(&Effect::Ended { router, assignment: 2, end: AssignmentEnd::Abandoned, prompt: None })
        );
        assert_eq!(peer.assignments.open_count(), 0);
    }

    #[test]
    fn a_peer_that_reports_most_workers_as_failing_is_ignored() {
        let mut peer = new_peer();
        let failing = |version| WorkerFinding { version, health: WorkerHealth::Failing, clears: 0 };
        let findings = |workers: std::ops::Range<u64>| Ledger {
            findings: workers.map(|worker| (worker, failing(1))).collect(),
            ..Ledger::default()
        };
        let members: BTreeSet<u64> = (0..8).collect();
        merge(&mut peer, findings(0..2));
        assert_eq!(peer.failing_workers(&members).count(), 2);
        merge(&mut peer, findings(100..200));
        assert_eq!(peer.failing_workers(&members).count(), 2, "workers outside the fleet do not count");
        merge(&mut peer, findings(0..6));
        assert_eq!(peer.failing_workers(&members).count(), 0);
    }

    #[test]
    fn a_peer_with_many_findings_is_still_used() {
        let mut peer = new_peer();
        let count = FINDINGS_MAX as u64 + 9;
        let found = |worker| WorkerFinding { version: worker, health: WorkerHealth::Failing, clears: 0 };
        let findings = (1..=count).map(|worker| (worker, found(worker))).collect();
        merge(&mut peer, Ledger { findings, ..Ledger::default() });
        assert!(peer.findings.len() <= FINDINGS_MAX);
        assert_eq!(
            peer.failing_workers(&(count..count + 4).collect()).count(),
            1,
            "the newest finding is kept"
        );
    }
}
