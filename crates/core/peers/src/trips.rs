//! A peer's requests, as far as they are known here.
//!
//! Reports of a trip come in any order and however often; each is passed on once, and in order. What was booked is kept while it is open: a
//! peer that falls silent has nothing open any more, and one that speaks again has it open still, as far as it does not say otherwise.

use std::collections::BTreeMap;

use warmroute_types::RouterId;

use crate::{Booked, Effect, Ledger, Over, Prompt, Trip};

/// Trips of one peer that are remembered; beyond, the oldest are taken for over.
const TRIPS_MAX: usize = 1 << 16;

/// Bytes of their prompts; beyond, the oldest are forgotten: what an engine is found to lack of those is not corrected here.
const PROMPTS_MAX: usize = 8 << 20;

/// When something is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Told {
    /// As it happens.
    #[default]
    Live,
    /// To one who had missed it. Nobody knows what was sent to its worker since, so nothing of that may be cut.
    Late,
}

/// Where and when a trip is told of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Word {
    pub told: Told,
    /// The batch, or the last one of those that a state stands for.
    pub batch: u64,
    /// Every trip with a lower number is over.
    pub open_from: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    is_booked: bool,
    is_computed: bool,
    over: Option<Over>,
}

impl Stage {
    /// Everything has been passed on.
    fn is_closed(self) -> bool {
        self.is_booked && self.over.is_some()
    }

    fn is_open(self) -> bool {
        self.is_booked && self.over.is_none()
    }
}

#[derive(Debug, Default)]
struct Known {
    stage: Stage,
    /// What was booked, while it is open.
    booked: Option<Booked>,
    /// When and where that was told.
    word: Word,
}

impl Known {
    fn prompt_bytes(&self) -> usize {
        let prompt = self.booked.as_ref().and_then(|booked| booked.prompt.as_ref());
        prompt.map_or(0, |prompt| size_of_val(&*prompt.digests))
    }

    fn forget_prompt(&mut self) -> Option<Prompt> {
        self.booked.as_mut().and_then(|booked| booked.prompt.take())
    }
}

/// One peer's trips.
#[derive(Debug)]
pub(crate) struct Trips {
    router: RouterId,
    known: BTreeMap<u64, Known>,
    prompt_bytes: usize,
    /// Below which number no prompts are known any more.
    shed_below: u64,
    /// Prompts that were forgotten for want of room.
    pub forgotten: u64,
}

impl Trips {
    pub fn new(router: RouterId) -> Trips {
        Trips { router, known: BTreeMap::new(), prompt_bytes: 0, shed_below: 0, forgotten: 0 }
    }

    /// Something is told of a trip.
    pub fn hear(&mut self, number: u64, trip: Trip, word: Word, effects: &mut Vec<Effect>) {
        let router = self.router;
        // One that is over by now and was never heard of is passed on whole all the same: its prompt lies in a cache.
        let over = (number < word.open_from).then_some(Over::Left);
        let unknown = || Known { stage: Stage { over, ..Stage::default() }, ..Known::default() };
        let known = self.known.entry(number).or_insert_with(unknown);
        let was = known.stage;
        let booked = trip.booked.filter(|_| !was.is_booked);
        let is = Stage {
            is_booked: was.is_booked || booked.is_some(),
            is_computed: was.is_computed || trip.is_computed,
            over: was.over.max(trip.over),
        };
        known.stage = is;
        if let Some(booked) = booked {
            (known.booked, known.word) = (Some(booked.clone()), word);
            self.prompt_bytes += known.prompt_bytes();
            self.shed_below = self.shed_below.min(number);
            effects.push(Effect::Booked { router, trip: number, booked });
        }
        // What was known before its booking was is told with it.
        let is_told =
            |is_known: bool, was_known: bool| is.is_booked && is_known && !(was.is_booked && was_known);
        if is_told(is.is_computed, was.is_computed) && !was.is_closed() {
            effects.push(Effect::Computed { router, trip: number });
        }
        if let Some(over) = is.over.filter(|_| is_told(true, was.over.is_some())) {
            self.prompt_bytes -= known.prompt_bytes();
            let is_found = matches!(over, Over::Found { .. }) && known.word.told == Told::Live;
            let prompt = known.booked.take().and_then(|booked| booked.prompt).filter(|_| is_found);
            effects.push(Effect::Over { router, trip: number, over, prompt });
        }
        self.shed();
    }

    /// Whatever is open below this number is over, though nobody said how; and so are the oldest of too many.
    pub fn close_below(&mut self, number: u64, effects: &mut Vec<Effect>) {
        let open = self.known.split_off(&number);
        let closed = std::mem::replace(&mut self.known, open);
        self.prompt_bytes -= closed.values().map(Known::prompt_bytes).sum::<usize>();
        effects.extend(closed.iter().filter(|(_, known)| known.stage.is_open()).map(self.left()));
        if self.known.len() > TRIPS_MAX
            && let Some((&number, _)) = self.known.iter().nth(self.known.len() - TRIPS_MAX)
        {
            self.close_below(number, effects);
        }
    }

    /// This is all that is open of what was told up to a batch: the rest of that is over.
    pub fn close_but(&mut self, state: &Ledger, up_to: u64, effects: &mut Vec<Effect>) {
        let left = self.left();
        for (number, known) in &mut self.known {
            let is_over = known.word.batch <= up_to && !state.trips.contains_key(number);
            if is_over && known.stage.is_open() {
                self.prompt_bytes -= known.prompt_bytes();
                (known.stage.over, known.booked) = (Some(Over::Left), None);
                effects.push(left((number, known)));
            }
        }
    }

    /// Its router is silent, and nothing is open as long as it is.
    pub fn suspend(&mut self, effects: &mut Vec<Effect>) {
        let left = self.left();
        for (number, known) in self.known.iter_mut().filter(|(_, known)| known.stage.is_open()) {
            effects.push(left((number, known)));
            // What was computed is presumed already, and nothing that is said of it later can be held against that.
            if known.stage.is_computed {
                self.prompt_bytes -= known.prompt_bytes();
                known.forget_prompt();
            }
            known.word.told = Told::Late;
        }
    }

    /// It speaks again.
    pub fn resume(&self, effects: &mut Vec<Effect>) {
        for (&trip, known) in &self.known {
            if let Some(booked) = known.booked.clone() {
                effects.push(Effect::Booked { router: self.router, trip, booked });
                let computed = Effect::Computed { router: self.router, trip };
                effects.extend(known.stage.is_computed.then_some(computed));
            }
        }
    }

    fn left(&self) -> impl Fn((&u64, &Known)) -> Effect + use<> {
        let router = self.router;
        move |(&trip, _)| Effect::Over { router, trip, over: Over::Left, prompt: None }
    }

    /// Forgets the oldest prompts until there is room.
    fn shed(&mut self) {
        let mut trips = self.known.range_mut(self.shed_below..);
        while self.prompt_bytes > PROMPTS_MAX
            && let Some((&number, known)) = trips.next()
        {
            self.shed_below = number.saturating_add(1);
            self.prompt_bytes -= known.prompt_bytes();
            self.forgotten += u64::from(known.forget_prompt().is_some());
        }
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.known.values().filter(|known| known.stage.is_open()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::Delivery;

    const ROUTER: RouterId = RouterId(9);

    fn begun(chunks: usize) -> Trip {
        let prompt = Prompt { root: 1, chunk_bytes: 256, chunk_tokens: 64, digests: vec![7; chunks].into() };
        Trip::begun(Booked {
            worker: 5,
            prompt_tokens: 10,
            cached_tokens: 0,
            restorable_tokens: 0,
            delivery: Delivery::Streamed,
            prompt: Some(prompt),
        })
    }

    fn found() -> Trip {
        Trip { is_computed: true, over: Some(Over::Found { chunks: 1 }), ..Trip::default() }
    }

    fn hear(trips: &mut Trips, number: u64, trip: Trip, told: Told) -> Vec<Effect> {
        let mut effects = Vec::new();
        trips.hear(number, trip, Word { told, batch: number, open_from: 0 }, &mut effects);
        effects
    }

    fn has_prompt(effects: &[Effect]) -> bool {
        matches!(effects.last(), Some(Effect::Over { prompt: Some(_), over: Over::Found { .. }, .. }))
    }

    #[test]
    fn the_oldest_prompts_are_forgotten_and_counted_when_there_are_too_many() {
        let mut trips = Trips::new(ROUTER);
        let many = PROMPTS_MAX as u64 / (8 * 2_048) + 100;
        (1..=many).for_each(|number| _ = hear(&mut trips, number, begun(2_048), Told::Live));
        assert!(trips.prompt_bytes <= PROMPTS_MAX);
        assert_eq!((trips.forgotten, trips.open() as u64), (100, many));
        assert!(!has_prompt(&hear(&mut trips, 100, found(), Told::Live)));
        assert!(has_prompt(&hear(&mut trips, 101, found(), Told::Live)), "the last ones are known");
        trips.close_below(u64::MAX, &mut Vec::new());
        assert_eq!((trips.prompt_bytes, trips.open()), (0, 0));
    }

    #[test]
    fn what_was_found_of_a_trip_that_was_heard_of_late_corrects_nothing() {
        let mut trips = Trips::new(ROUTER);
        hear(&mut trips, 1, begun(4), Told::Late);
        hear(&mut trips, 2, begun(4), Told::Live);
        hear(&mut trips, 3, begun(4), Told::Live);
        assert!(!has_prompt(&hear(&mut trips, 1, found(), Told::Live)), "it may have begun long ago");
        assert!(has_prompt(&hear(&mut trips, 2, found(), Told::Late)), "it is known when it began");
        trips.suspend(&mut Vec::new());
        let mut again = Vec::new();
        trips.resume(&mut again);
        assert!(matches!(again[..], [Effect::Booked { trip: 3, .. }]), "{again:?}");
        assert!(!has_prompt(&hear(&mut trips, 3, found(), Told::Live)), "others were sent since");
        assert_eq!(trips.prompt_bytes, 0);
    }

    #[test]
    fn what_a_state_does_not_name_is_over_unless_it_was_told_after_it() {
        let mut trips = Trips::new(ROUTER);
        (1..=4).for_each(|number| _ = hear(&mut trips, number, begun(1), Told::Live));
        let state = Ledger { trips: [(1, begun(1))].into(), ..Ledger::default() };
        let mut effects = Vec::new();
        trips.close_but(&state, 3, &mut effects);
        let left = |trip| Effect::Over { router: ROUTER, trip, over: Over::Left, prompt: None };
        assert_eq!((effects, trips.open()), (vec![left(2), left(3)], 2));
    }
}
