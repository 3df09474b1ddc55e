//! A peer's assignments, as far as they are known.
//!
//! Reports of an assignment arrive in any order and any number of times; each step becomes one effect, in
//! order. Bookings are kept while an assignment is open: when the peer falls silent its assignments end, and
//! when it speaks again they are booked again.

use std::collections::BTreeMap;

use warmroute_types::RouterId;

use crate::{Assignment, AssignmentEnd, BookingRecord, Effect, Ledger, PromptDigests};

/// Assignments that are kept of one peer; above this the oldest count as ended.
const ASSIGNMENTS_MAX: usize = 1 << 16;

/// Bytes of prompts that are kept of one peer. Above this the oldest are dropped, and a stale prediction for
/// them is not corrected here.
const PROMPT_BYTES_MAX: usize = 8 << 20;

/// Whether a report arrives as it happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Timeliness {
    /// Sent when it happened.
    #[default]
    Live,
    /// Sent as an answer to a query. The worker may have received other requests since, so the prompt must
    /// not be removed from its cache view.
    Late,
}

/// The batch that carries a report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchContext {
    pub timeliness: Timeliness,
    /// Number of the batch, or the last number that a state replaces.
    pub batch: u64,
    /// Every assignment below this number has ended.
    pub low_water: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    is_booked: bool,
    is_prefilled: bool,
    end: Option<AssignmentEnd>,
}

impl Stage {
    fn merged(self, report: &Assignment) -> Stage {
        Stage {
            is_booked: self.is_booked || report.booking.is_some(),
            is_prefilled: self.is_prefilled || report.is_prefilled,
            end: self.end.max(report.end),
        }
    }

    /// Whether all effects of this assignment have been pushed.
    fn is_finished(self) -> bool {
        self.is_booked && self.end.is_some()
    }

    fn is_open(self) -> bool {
        self.is_booked && self.end.is_none()
    }
}

#[derive(Debug, Default)]
struct KnownAssignment {
    stage: Stage,
    /// The booking, while the assignment is open.
    booking: Option<BookingRecord>,
    /// The batch that carried the booking.
    context: BatchContext,
}

impl KnownAssignment {
    fn prompt_bytes(&self) -> usize {
        let prompt = self.booking.as_ref().and_then(|booking| booking.prompt.as_ref());
        prompt.map_or(0, |prompt| size_of_val(&*prompt.digests))
    }

    fn take_prompt(&mut self) -> Option<PromptDigests> {
        self.booking.as_mut().and_then(|booking| booking.prompt.take())
    }
}

/// All known assignments of one peer.
#[derive(Debug)]
pub(crate) struct PeerAssignments {
    router: RouterId,
    known: BTreeMap<u64, KnownAssignment>,
    prompt_bytes: usize,
    /// No assignment below this number has a prompt any more.
    prompts_dropped_below: u64,
    /// Prompts that were dropped to save memory.
    pub dropped_prompts: u64,
}

impl PeerAssignments {
    pub fn new(router: RouterId) -> PeerAssignments {
        PeerAssignments {
            router,
            known: BTreeMap::new(),
            prompt_bytes: 0,
            prompts_dropped_below: 0,
            dropped_prompts: 0,
        }
    }

    /// Merges one report and pushes the effects that follow from it.
    pub fn merge(
        &mut self,
        number: u64,
        assignment: Assignment,
        context: BatchContext,
        effects: &mut Vec<Effect>,
    ) {
        let router = self.router;
        // An assignment below the low-water mark has ended, but its prompt is in a cache, so it is still
        // booked and ended.
        let end = (number < context.low_water).then_some(AssignmentEnd::Abandoned);
        let unknown =
            || KnownAssignment { stage: Stage { end, ..Stage::default() }, ..KnownAssignment::default() };
        let known = self.known.entry(number).or_insert_with(unknown);
        let was = known.stage;
        let is = was.merged(&assignment);
        let booking = assignment.booking.filter(|_| !was.is_booked);
        known.stage = is;
        if let Some(booking) = booking {
            (known.booking, known.context) = (Some(booking.clone()), context);
            self.prompt_bytes += known.prompt_bytes();
            self.prompts_dropped_below = self.prompts_dropped_below.min(number);
            effects.push(Effect::Booked { router, assignment: number, booking });
        }
        // Steps that were reported before the booking take effect together with it.
        let is_new =
            |is_known: bool, was_known: bool| is.is_booked && is_known && !(was.is_booked && was_known);
        if is_new(is.is_prefilled, was.is_prefilled) && !was.is_finished() {
            effects.push(Effect::Prefilled { router, assignment: number });
        }
        if let Some(end) = is.end.filter(|_| is_new(true, was.end.is_some())) {
            self.prompt_bytes -= known.prompt_bytes();
            let is_correction =
                matches!(end, AssignmentEnd::Stale { .. }) && known.context.timeliness == Timeliness::Live;
            let prompt = known.booking.take().and_then(|booking| booking.prompt).filter(|_| is_correction);
            effects.push(Effect::Ended { router, assignment: number, end, prompt });
        }
        self.drop_oldest_prompts();
    }

    /// Ends all open assignments below this number as abandoned. Ends the oldest if there are too many.
    pub fn end_below(&mut self, number: u64, effects: &mut Vec<Effect>) {
        let open = self.known.split_off(&number);
        let ended = std::mem::replace(&mut self.known, open);
        self.prompt_bytes -= ended.values().map(KnownAssignment::prompt_bytes).sum::<usize>();
        effects.extend(ended.iter().filter(|(_, known)| known.stage.is_open()).map(self.abandoned()));
        if self.known.len() > ASSIGNMENTS_MAX
            && let Some((&number, _)) = self.known.iter().nth(self.known.len() - ASSIGNMENTS_MAX)
        {
            self.end_below(number, effects);
        }
    }

    /// Ends the assignments that are reported up to batch `up_to` and missing in this state.
    pub fn end_all_except(&mut self, state: &Ledger, up_to: u64, effects: &mut Vec<Effect>) {
        let abandoned = self.abandoned();
        for (number, known) in &mut self.known {
            let has_ended = known.context.batch <= up_to && !state.assignments.contains_key(number);
            if has_ended && known.stage.is_open() {
                self.prompt_bytes -= known.prompt_bytes();
                (known.stage.end, known.booking) = (Some(AssignmentEnd::Abandoned), None);
                effects.push(abandoned((number, known)));
            }
        }
    }

    /// Ends all open assignments while the peer is silent.
    pub fn suspend(&mut self, effects: &mut Vec<Effect>) {
        let abandoned = self.abandoned();
        for (number, known) in self.known.iter_mut().filter(|(_, known)| known.stage.is_open()) {
            effects.push(abandoned((number, known)));
            // A prefilled prompt is already presumed in the cache, and later reports must not remove it.
            if known.stage.is_prefilled {
                self.prompt_bytes -= known.prompt_bytes();
                known.take_prompt();
            }
            known.context.timeliness = Timeliness::Late;
        }
    }

    /// Books all open assignments again, because the peer speaks again.
    pub fn resume(&self, effects: &mut Vec<Effect>) {
        for (&assignment, known) in &self.known {
            if let Some(booking) = known.booking.clone() {
                effects.push(Effect::Booked { router: self.router, assignment, booking });
                let prefilled = Effect::Prefilled { router: self.router, assignment };
                effects.extend(known.stage.is_prefilled.then_some(prefilled));
            }
        }
    }

    fn abandoned(&self) -> impl Fn((&u64, &KnownAssignment)) -> Effect + use<> {
        let router = self.router;
        move |(&assignment, _)| Effect::Ended {
            router,
            assignment,
            end: AssignmentEnd::Abandoned,
            prompt: None,
        }
    }

    /// Drops the oldest prompts until the rest fits into the limit.
    fn drop_oldest_prompts(&mut self) {
        let mut assignments = self.known.range_mut(self.prompts_dropped_below..);
        while self.prompt_bytes > PROMPT_BYTES_MAX
            && let Some((&number, known)) = assignments.next()
        {
            self.prompts_dropped_below = number.saturating_add(1);
            self.prompt_bytes -= known.prompt_bytes();
            self.dropped_prompts += u64::from(known.take_prompt().is_some());
        }
    }

    /// Number of open assignments.
    pub fn open_count(&self) -> usize {
        self.known.values().filter(|known| known.stage.is_open()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::Delivery;

    const ROUTER: RouterId = RouterId(9);

    fn new_assignment(chunks: usize) -> Assignment {
        let prompt = PromptDigests {
            root: 1,
            chunk_bytes: 256,
            chunk_tokens: 64,
            digests: vec![7; chunks].into(),
            is_unrendered: false,
        };
        Assignment::new(BookingRecord {
            worker: 5,
            prompt_tokens: 10,
            cached_tokens: 0,
            restorable_tokens: 0,
            delivery: Delivery::Streamed,
            prompt: Some(prompt),
        })
    }

    fn found() -> Assignment {
        Assignment {
            is_prefilled: true,
            end: Some(AssignmentEnd::Stale { found_chunks: 1 }),
            ..Assignment::default()
        }
    }

    fn merge(
        assignments: &mut PeerAssignments,
        number: u64,
        assignment: Assignment,
        timeliness: Timeliness,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        assignments.merge(
            number,
            assignment,
            BatchContext { timeliness, batch: number, low_water: 0 },
            &mut effects,
        );
        effects
    }

    fn has_prompt(effects: &[Effect]) -> bool {
        matches!(
            effects.last(),
            Some(Effect::Ended { prompt: Some(_), end: AssignmentEnd::Stale { .. }, .. })
        )
    }

    #[test]
    fn the_oldest_prompts_are_dropped_and_counted_above_the_limit() {
        let mut assignments = PeerAssignments::new(ROUTER);
        let many = PROMPT_BYTES_MAX as u64 / (8 * 2_048) + 100;
        (1..=many)
            .for_each(|number| _ = merge(&mut assignments, number, new_assignment(2_048), Timeliness::Live));
        assert!(assignments.prompt_bytes <= PROMPT_BYTES_MAX);
        assert_eq!((assignments.dropped_prompts, assignments.open_count() as u64), (100, many));
        assert!(!has_prompt(&merge(&mut assignments, 100, found(), Timeliness::Live)));
        assert!(
            has_prompt(&merge(&mut assignments, 101, found(), Timeliness::Live)),
            "newer prompts are kept"
        );
        assignments.end_below(u64::MAX, &mut Vec::new());
        assert_eq!((assignments.prompt_bytes, assignments.open_count()), (0, 0));
    }

    #[test]
    fn a_stale_prediction_of_a_late_booking_corrects_nothing() {
        let mut assignments = PeerAssignments::new(ROUTER);
        merge(&mut assignments, 1, new_assignment(4), Timeliness::Late);
        merge(&mut assignments, 2, new_assignment(4), Timeliness::Live);
        merge(&mut assignments, 3, new_assignment(4), Timeliness::Live);
        assert!(
            !has_prompt(&merge(&mut assignments, 1, found(), Timeliness::Live)),
            "it may have begun long ago"
        );
        assert!(
            has_prompt(&merge(&mut assignments, 2, found(), Timeliness::Late)),
            "its booking arrived live"
        );
        assignments.suspend(&mut Vec::new());
        let mut again = Vec::new();
        assignments.resume(&mut again);
        assert!(matches!(again[..], [Effect::Booked { assignment: 3, .. }]), "{again:?}");
        assert!(
            !has_prompt(&merge(&mut assignments, 3, found(), Timeliness::Live)),
            "other requests were sent since"
        );
        assert_eq!(assignments.prompt_bytes, 0);
    }

    #[test]
    fn assignments_missing_in_a_state_end_unless_they_are_newer() {
        let mut assignments = PeerAssignments::new(ROUTER);
        (1..=4).for_each(|number| _ = merge(&mut assignments, number, new_assignment(1), Timeliness::Live));
        let state = Ledger { assignments: [(1, new_assignment(1))].into(), ..Ledger::default() };
        let mut effects = Vec::new();
        assignments.end_all_except(&state, 3, &mut effects);
        let abandoned = |assignment| Effect::Ended {
            router: ROUTER,
            assignment,
            end: AssignmentEnd::Abandoned,
            prompt: None,
        };
        assert_eq!((effects, assignments.open_count()), (vec![abandoned(2), abandoned(3)], 2));
    }
}
