//! This router's own ledger: requests write to it, and the driver takes the changes every few milliseconds.
//!
//! Memory is bounded. If changes are not taken fast enough, the oldest prompts are dropped first: a booking
//! without its prompt still counts as load, and a missing prompt only costs a cache hit later.
//!
//! Every request locks this ledger, so it must never be held for long. Changes are moved out in one step, and
//! open assignments are copied in portions.

use std::collections::BTreeMap;

use crate::{Assignment, AssignmentEnd, BookingRecord, Ledger, StoredResponse, WorkerFinding, WorkerHealth};

/// Bytes of prompts that wait to be sent.
const PROMPT_BYTES_MAX: usize = 4 << 20;

/// Approximate size of a message; the last assignment may exceed it by its prompt.
const MESSAGE_BYTES: usize = 256 << 10;

/// Findings that are kept; above this the oldest are dropped.
const FINDINGS_MAX: usize = 4_096;

/// Stored responses that wait to be sent. Further ones are known to this router only.
const STORED_MAX: usize = 65_536;

/// Stored responses in one message.
const STORED_PER_MESSAGE: usize = 4_096;

/// Open assignments are copied in portions of this size.
const PORTION_MAX: usize = 256;

/// Upper bound for the bytes of an assignment without its prompt.
const ASSIGNMENT_BYTES: usize = 48;

/// This router's own ledger.
#[derive(Debug)]
pub struct OwnLedger {
    next: u64,
    /// The assignments that have not ended, by number.
    open: BTreeMap<u64, Assignment>,
    /// Findings about workers.
    findings: BTreeMap<u64, WorkerFinding>,
    /// Findings so far, about all workers. A finding that was dropped and comes back so gets a new version.
    finding_count: u64,
    clears: u32,
    /// Changes that have not been sent.
    pending: Ledger,
    prompt_bytes: usize,
    /// No pending assignment below this number has a prompt any more.
    prompts_dropped_below: u64,
    /// Prompts that were dropped before they were sent.
    pub dropped_prompts: u64,
}

impl Default for OwnLedger {
    fn default() -> OwnLedger {
        OwnLedger {
            next: 1,
            open: BTreeMap::new(),
            findings: BTreeMap::new(),
            finding_count: 0,
            clears: 0,
            pending: Ledger::default(),
            prompt_bytes: 0,
            prompts_dropped_below: 0,
            dropped_prompts: 0,
        }
    }
}

impl OwnLedger {
    /// Adds an assignment and returns its number.
    pub fn begin(&mut self, booking: BookingRecord) -> u64 {
        let number = self.next;
        self.next += 1;
        let assignment = Assignment::new(booking);
        self.prompt_bytes += assignment.prompt_bytes();
        // The copy serves peers that miss the batch.
        self.open.insert(number, assignment.clone());
        self.pending.assignments.insert(number, assignment);
        self.drop_oldest_prompts();
        number
    }

    /// The worker computed the prompt.
    pub fn mark_prefilled(&mut self, number: u64) {
        if let Some(assignment) = self.open.get_mut(&number) {
            assignment.is_prefilled = true;
            self.add_update(number, Assignment { is_prefilled: true, ..Assignment::default() });
        }
    }

    /// The assignment ended; a second end is ignored.
    pub fn end(&mut self, number: u64, end: AssignmentEnd) {
        if let Some(Assignment { is_prefilled, .. }) = self.open.remove(&number) {
            // The final report repeats that the prompt is prefilled, so it is complete without the earlier
            // ones.
            self.add_update(number, Assignment { is_prefilled, end: Some(end), ..Assignment::default() });
        }
    }

    /// Records a worker's health; only a change is sent.
    pub fn report_health(&mut self, worker: u64, health: WorkerHealth) {
        let known = self.findings.get(&worker).map_or(WorkerHealth::Healthy, |finding| finding.health);
        if known != health {
            self.change_finding(worker, |finding| finding.health = health);
        }
    }

    /// Records that a worker's cache is empty.
    pub fn report_cache_cleared(&mut self, worker: u64) {
        self.clears = self.clears.saturating_add(1);
        let clears = self.clears;
        self.change_finding(worker, |finding| finding.clears = clears);
    }

    /// Records where a response is stored.
    pub fn report_stored(&mut self, id: u128, stored: StoredResponse) {
        if self.pending.stored.len() < STORED_MAX {
            self.pending.stored.insert(id, stored);
        }
    }

    /// Reports workers that left the fleet as healthy, because no later finding would.
    pub fn retract_departed(&mut self, is_member: impl Fn(u64) -> bool) {
        let is_failing = |(_, finding): &(&u64, &WorkerFinding)| finding.health == WorkerHealth::Failing;
        let failing = self.findings.iter().filter(is_failing).map(|(&worker, _)| worker);
        let left: Vec<u64> = failing.filter(|&worker| !is_member(worker)).collect();
        left.into_iter().for_each(|worker| self.report_health(worker, WorkerHealth::Healthy));
    }

    fn change_finding(&mut self, worker: u64, change: impl FnOnce(&mut WorkerFinding)) {
        self.finding_count += 1;
        let finding = self.findings.entry(worker).or_default();
        finding.version = self.finding_count;
        change(finding);
        self.pending.findings.insert(worker, *finding);
        Ledger::drop_oldest_findings(&mut self.findings, FINDINGS_MAX);
    }

    fn add_update(&mut self, number: u64, assignment: Assignment) {
        self.pending.assignments.entry(number).or_default().merge(assignment);
    }

    /// Drops the oldest prompts until the rest fits into the limit.
    fn drop_oldest_prompts(&mut self) {
        let mut assignments = self.pending.assignments.range_mut(self.prompts_dropped_below..);
        while self.prompt_bytes > PROMPT_BYTES_MAX
            && let Some((&number, assignment)) = assignments.next()
        {
            self.prompts_dropped_below = number + 1;
            self.prompt_bytes -= assignment.prompt_bytes();
            if assignment.drop_prompt() {
                self.dropped_prompts += 1;
                self.open.get_mut(&number).map(Assignment::drop_prompt);
            }
        }
    }

    /// Every assignment below this number has ended.
    fn low_water(&self) -> u64 {
        self.open.first_key_value().map_or(self.next, |(&number, _)| number)
    }

    /// Takes all changes that have not been sent.
    pub fn take_updates(&mut self) -> LedgerUpdates {
        self.prompt_bytes = 0;
        LedgerUpdates { low_water: self.low_water(), ledger: std::mem::take(&mut self.pending) }
    }

    /// A portion of the open assignments, after this number. The first portion (`None`) also holds the
    /// findings. Returns `None` at the end.
    pub fn open_after(&self, number: Option<u64>) -> Option<Ledger> {
        let after = number.map_or(0, |number| number.saturating_add(1));
        let assignments = self
            .open
            .range(after..)
            .take(PORTION_MAX)
            .map(|(&number, assignment)| (number, assignment.clone()));
        let portion = Ledger { assignments: assignments.collect(), ..Ledger::default() };
        match number {
            None => Some(Ledger { findings: self.findings.clone(), ..portion }),
            Some(_) => Some(portion).filter(|portion| !portion.is_empty()),
        }
    }

    /// Collects all open assignments from portions of [`OwnLedger::open_after`]. Requests may write between
    /// two portions; those changes are sent as usual.
    pub fn collect_open(mut open_after: impl FnMut(Option<u64>) -> Option<Ledger>) -> Ledger {
        let mut state = Ledger::default();
        let mut last = None;
        while let Some(mut portion) = open_after(last) {
            last = portion.assignments.last_key_value().map(|(&number, _)| number).or(last).or(Some(0));
            state.assignments.append(&mut portion.assignments);
            state.findings.append(&mut portion.findings);
        }
        state
    }

    /// Number of open assignments.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }
}

/// Changes that were taken out of a ledger, to be sent in batches.
#[derive(Debug, Default)]
pub struct LedgerUpdates {
    /// Every assignment below this number had ended when the changes were taken.
    low_water: u64,
    ledger: Ledger,
}

impl LedgerUpdates {
    /// The next batch of about one message; `None` when all changes are sent.
    pub(crate) fn next_batch(&mut self) -> Option<Ledger> {
        if self.ledger.is_empty() {
            return None;
        }
        let mut updates = Ledger { findings: std::mem::take(&mut self.ledger.findings), ..Ledger::default() };
        let stored = std::iter::from_fn(|| self.ledger.stored.pop_first());
        updates.stored.extend(stored.take(STORED_PER_MESSAGE));
        fill(&mut updates, std::iter::from_fn(|| self.ledger.assignments.pop_first()));
        // Assignments that are still to be sent must not count as ended.
        let unsent = self.ledger.assignments.first_key_value().map_or(u64::MAX, |(&number, _)| number);
        updates.low_water = self.low_water.min(unsent);
        Some(updates)
    }

    /// A batch without changes, with the low-water mark.
    pub(crate) fn empty_batch(&self) -> Ledger {
        Ledger { low_water: self.low_water, ..Ledger::default() }
    }
}

/// Moves assignments into a batch until it is as large as a message.
fn fill(ledger: &mut Ledger, assignments: impl Iterator<Item = (u64, Assignment)>) {
    let mut bytes = 0;
    for (number, assignment) in assignments {
        bytes += ASSIGNMENT_BYTES + assignment.prompt_bytes();
        ledger.assignments.insert(number, assignment);
        if bytes >= MESSAGE_BYTES {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PromptDigests;
    use warmroute_types::Delivery;

    fn booking(chunks: usize) -> BookingRecord {
        let prompt = PromptDigests {
            root: 1,
            chunk_bytes: 256,
            chunk_tokens: 64,
            digests: vec![7; chunks].into(),
            is_unrendered: false,
        };
        BookingRecord {
            worker: 1,
            prompt_tokens: 64 * chunks as u32,
            cached_tokens: 0,
            restorable_tokens: 0,
            delivery: Delivery::Streamed,
            prompt: Some(prompt),
        }
    }

    #[test]
    fn changes_between_two_batches_are_merged_into_one() {
        let mut own = OwnLedger::default();
        let (short, long) = (own.begin(booking(1)), own.begin(booking(2)));
        own.mark_prefilled(short);
        own.end(short, AssignmentEnd::Answered);
        let updates = own.take_updates().next_batch().unwrap();
        assert_eq!(updates.low_water, long, "the short assignment has ended");
        let sent = &updates.assignments[&short];
        assert!(sent.booking.is_some() && sent.is_prefilled && sent.end == Some(AssignmentEnd::Answered));
        assert_eq!(own.take_updates().next_batch(), None);
        own.end(long, AssignmentEnd::Abandoned);
        own.end(long, AssignmentEnd::Answered);
        let updates = own.take_updates().next_batch().unwrap();
        assert_eq!(
            (updates.low_water, updates.assignments[&long].end),
            (long + 1, Some(AssignmentEnd::Abandoned)),
            "it ends once"
        );
        assert_eq!(own.open_count(), 0);
    }

    #[test]
    fn a_full_ledger_drops_the_oldest_prompts_but_no_booking() {
        let mut own = OwnLedger::default();
        let many = PROMPT_BYTES_MAX / (8 * 2_048) + 100;
        (0..many).for_each(|_| _ = own.begin(booking(2_048)));
        assert_eq!(own.dropped_prompts, 100);
        let mut sent = Ledger::default();
        let mut messages = 0;
        let mut all = own.take_updates();
        while let Some(updates) = all.next_batch() {
            assert!(
                updates.assignments.values().map(Assignment::prompt_bytes).sum::<usize>()
                    < MESSAGE_BYTES + 8 * 2_049
            );
            assert!(
                updates.low_water <= *updates.assignments.first_key_value().unwrap().0,
                "no unsent assignment counts as ended"
            );
            sent.merge(updates);
            messages += 1;
        }
        assert!(messages > 10, "{messages}");
        let with_prompt = |assignment: &&Assignment| assignment.prompt_bytes() > 0;
        let prompts = sent.assignments.values().filter(with_prompt).count();
        assert_eq!((sent.assignments.len(), prompts), (many, many - 100));
        assert!(
            sent.assignments.values().take(100).all(|assignment| assignment.prompt_bytes() == 0),
            "the oldest ones"
        );
        assert_eq!(own.prompt_bytes, 0);
    }

    #[test]
    fn stored_responses_are_sent_once_in_messages_of_bounded_size() {
        let (mut own, stored) = (OwnLedger::default(), StoredResponse { owner: 1, worker: 2 });
        let many = 2 * STORED_PER_MESSAGE as u128 + 1;
        (0..many).for_each(|id| own.report_stored(id, stored));
        let mut updates = own.take_updates();
        let sent: Vec<usize> =
            std::iter::from_fn(|| updates.next_batch()).map(|batch| batch.stored.len()).collect();
        assert_eq!(sent, [STORED_PER_MESSAGE, STORED_PER_MESSAGE, 1]);
        assert_eq!(own.take_updates().next_batch(), None);
        (0..STORED_MAX as u128 + 9).for_each(|id| own.report_stored(id, stored));
        assert_eq!(own.pending.stored.len(), STORED_MAX);
    }

    #[test]
    fn only_changed_findings_are_sent() {
        let mut own = OwnLedger::default();
        own.report_health(1, WorkerHealth::Healthy);
        assert_eq!(own.take_updates().next_batch(), None);
        own.report_health(1, WorkerHealth::Failing);
        own.report_health(1, WorkerHealth::Failing);
        own.report_cache_cleared(1);
        let finding = own.take_updates().next_batch().unwrap().findings[&1];
        assert_eq!(finding, WorkerFinding { version: 2, health: WorkerHealth::Failing, clears: 1 });
    }

    #[test]
    fn findings_about_a_departed_worker_are_retracted_and_made_again_when_it_returns() {
        let mut own = OwnLedger::default();
        own.report_health(1, WorkerHealth::Failing);
        own.report_health(2, WorkerHealth::Failing);
        let first = own.take_updates().next_batch().unwrap().findings[&1];
        own.retract_departed(|worker| worker == 2);
        own.retract_departed(|worker| worker == 2);
        let updates = own.take_updates().next_batch().unwrap().findings;
        assert_eq!(
            (updates.len(), updates[&1].health),
            (1, WorkerHealth::Healthy),
            "once, and only for the departed worker"
        );
        assert!(updates[&1].version > first.version);
        (10..10 + FINDINGS_MAX as u64).for_each(|worker| own.report_health(worker, WorkerHealth::Failing));
        assert!((FINDINGS_MAX / 2..=FINDINGS_MAX).contains(&own.findings.len()));
        own.report_health(1, WorkerHealth::Failing);
        assert!(
            own.take_updates().next_batch().unwrap().findings[&1].version > updates[&1].version,
            "although the finding was dropped"
        );
    }
}
