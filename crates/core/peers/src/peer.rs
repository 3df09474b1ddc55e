//! Another router, as far as it has been heard.

use std::collections::{BTreeMap, BTreeSet};

use warmroute_types::{Micros, RouterId};

use crate::batches::Batches;
use crate::named::Named;
use crate::round_trip::RoundTrip;
use crate::{Advice, Effect, Health, Ledger, Over, Trip};

/// Trips of one peer that are remembered; beyond, the oldest are taken for over.
const TRIPS_MAX: usize = 1 << 16;

/// Workers of one peer of which its advice is remembered; beyond, the oldest is forgotten.
const ADVICE_MAX: usize = 4_096;

/// What is known of a peer's trip here. Its booking is passed on at once, so only its number stays.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    is_booked: bool,
    is_computed: bool,
    over: Option<Over>,
}

impl Known {
    /// Everything has been passed on.
    fn is_closed(self) -> bool {
        self.is_booked && self.over.is_some()
    }

    fn is_open(self) -> bool {
        self.is_booked && self.over.is_none()
    }
}

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    id: RouterId,
    pub batches: Batches,
    /// Whether one has come, or how many there are.
    pub has_told: bool,
    trips: BTreeMap<u64, Known>,
    advice: BTreeMap<u64, Advice>,
    pub met: Micros,
    pub heard: Micros,
    /// Since when something has been missing.
    pub missing_since: Option<Micros>,
    /// The question by which it was asked for that.
    pub asked: Option<u64>,
    /// When the answer was that nothing can be told.
    pub told_nothing: Option<Micros>,
    /// How long it takes to answer.
    pub trip: RoundTrip,
    /// How long it takes to answer nothing: the way there and back; and when that was last tried.
    pub way: RoundTrip,
    pub greeted: Option<Micros>,
    /// Workers that it sends to.
    pub named: Named,
    /// The latest version of the language that it speaks.
    pub language: u8,
}

/// A peer in numbers, for lists and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerView {
    /// Who.
    pub id: RouterId,
    /// Since it was first heard.
    pub known_for: Micros,
    /// Since it was last heard.
    pub silent_for: Micros,
    /// Batches that it has sent and that have not come.
    pub missing: u64,
    /// Since when some have been missing; zero when none is.
    pub missing_for: Micros,
    /// Its requests that are open, as far as known here.
    pub open: usize,
    /// Workers that it finds failing.
    pub failing: usize,
    /// Workers that it sends to and that are not known here.
    pub unknown_workers: usize,
    /// How long it takes to answer; `None` where it was never asked.
    pub round_trip: Option<Micros>,
    /// The latest version of the language that it speaks.
    pub language: u8,
}

impl Peer {
    pub fn new(id: RouterId, now: Micros) -> Peer {
        Peer {
            id,
            batches: Batches::default(),
            has_told: false,
            trips: BTreeMap::new(),
            advice: BTreeMap::new(),
            met: now,
            heard: now,
            missing_since: None,
            asked: None,
            told_nothing: None,
            trip: RoundTrip::default(),
            way: RoundTrip::default(),
            greeted: None,
            named: Named::default(),
            language: 0,
        }
    }

    /// Takes in one of its batches, in any order and however often; what that changes here. One without news is of any number.
    pub fn take_batch(&mut self, number: u64, news: Ledger, effects: &mut Vec<Effect>) {
        if news.is_empty() {
            self.batches.exist_up_to(number, news.open_from);
        } else if !self.batches.note(number, news.open_from) {
            return;
        }
        self.merge(news, effects);
    }

    /// Takes in what stands for all of its batches up to one.
    pub fn take_state(&mut self, up_to: u64, state: Ledger, effects: &mut Vec<Effect>) {
        self.batches.settle(up_to, state.open_from);
        self.merge(state, effects);
    }

    fn merge(&mut self, news: Ledger, effects: &mut Vec<Effect>) {
        for (number, trip) in news.trips {
            self.hear(number, trip, effects);
        }
        self.close_below(self.batches.open_from(), effects);
        if self.trips.len() > TRIPS_MAX
            && let Some((&number, _)) = self.trips.iter().nth(self.trips.len() - TRIPS_MAX)
        {
            self.close_below(number, effects);
        }
        news.advice.into_iter().for_each(|(worker, advice)| self.heed(worker, advice, effects));
    }

    fn hear(&mut self, number: u64, trip: Trip, effects: &mut Vec<Effect>) {
        // One that is over by now and was never heard of is passed on whole all the same: its prompt lies in a cache.
        let closed = (number < self.batches.open_from()).then_some(Over::Left);
        let entry = self.trips.entry(number).or_insert(Known { over: closed, ..Known::default() });
        let was = *entry;
        entry.is_booked |= trip.booked.is_some();
        entry.is_computed |= trip.is_computed;
        entry.over = entry.over.max(trip.over);
        let (router, is) = (self.id, *entry);
        if let Some(booked) = trip.booked.filter(|_| !was.is_booked) {
            self.named.note(booked.worker, self.heard);
            effects.push(Effect::Booked { router, trip: number, booked });
        }
        // What was known before its booking was is told with it.
        let is_told =
            |is_known: bool, was_known: bool| is.is_booked && is_known && !(was.is_booked && was_known);
        if is_told(is.is_computed, was.is_computed) && !was.is_closed() {
            effects.push(Effect::Computed { router, trip: number });
        }
        if let Some(over) = is.over.filter(|_| is_told(true, was.over.is_some())) {
            effects.push(Effect::Over { router, trip: number, over });
        }
    }

    /// Whatever is open below this number is over, though nobody said how.
    fn close_below(&mut self, number: u64, effects: &mut Vec<Effect>) {
        let open = self.trips.split_off(&number);
        let closed = std::mem::replace(&mut self.trips, open);
        self.leave(closed, effects);
    }

    /// It is gone: nothing of it is open any more.
    pub fn close(&mut self, effects: &mut Vec<Effect>) {
        let all = std::mem::take(&mut self.trips);
        self.leave(all, effects);
    }

    fn leave(&self, trips: BTreeMap<u64, Known>, effects: &mut Vec<Effect>) {
        let (router, over) = (self.id, Over::Left);
        let left = trips.into_iter().filter(|(_, known)| known.is_open());
        effects.extend(left.map(|(trip, _)| Effect::Over { router, trip, over }));
    }

    /// Remembers since when something has been missing. Where nothing is any more: the question for it, which is not open any more.
    pub fn mind_holes(&mut self, now: Micros) -> Option<u64> {
        if self.batches.missing() > 0 {
            self.missing_since.get_or_insert(now);
            return None;
        }
        self.missing_since = None;
        self.asked.take()
    }

    fn heed(&mut self, worker: u64, advice: Advice, effects: &mut Vec<Effect>) {
        let known = self.advice.entry(worker).or_default();
        if advice.version <= known.version {
            return;
        }
        if advice.emptied > known.emptied {
            effects.push(Effect::Emptied { worker });
        }
        *known = advice;
        Ledger::forget_oldest(&mut self.advice, ADVICE_MAX);
    }

    /// Members of the fleet that it finds failing. One that finds most of them failing is cut off itself, and is not listened to.
    pub fn failing<'a>(&'a self, members: &'a BTreeSet<u64>) -> impl Iterator<Item = u64> + 'a {
        let is_failing =
            |(worker, advice): &(&u64, &Advice)| advice.health == Health::Failing && members.contains(worker);
        let is_heeded = 2 * self.advice.iter().filter(is_failing).count() <= members.len();
        self.advice.iter().filter(move |one| is_heeded && is_failing(one)).map(|(&worker, _)| worker)
    }

    pub fn view(&self, now: Micros) -> PeerView {
        PeerView {
            id: self.id,
            known_for: now.since(self.met),
            silent_for: now.since(self.heard),
            missing: self.batches.missing(),
            missing_for: self.missing_since.map_or(Micros::ZERO, |since| now.since(since)),
            open: self.trips.values().filter(|known| known.is_open()).count(),
            failing: self.advice.values().filter(|advice| advice.health == Health::Failing).count(),
            unknown_workers: self.named.unknown(now),
            round_trip: self.way.usual(),
            language: self.language,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Booked, OwnLedger};
    use proptest::prelude::*;
    use warmroute_types::Delivery;

    fn booked(worker: u64) -> Booked {
        Booked {
            worker,
            prompt_tokens: 10,
            cached_tokens: 0,
            restorable_tokens: 0,
            delivery: Delivery::Streamed,
            prompt: None,
        }
    }

    fn news(open_from: u64, trips: &[(u64, Trip)]) -> Ledger {
        Ledger { open_from, trips: trips.iter().cloned().collect(), ..Ledger::default() }
    }

    /// Takes in the next batch.
    fn merge(peer: &mut Peer, ledger: Ledger) -> Vec<Effect> {
        let number = (1..).find(|&number| peer.batches.clone().note(number, 0)).unwrap();
        take(peer, number, ledger)
    }

    fn take(peer: &mut Peer, number: u64, ledger: Ledger) -> Vec<Effect> {
        let mut effects = Vec::new();
        peer.take_batch(number, ledger, &mut effects);
        effects
    }

    /// What became of a trip: on which worker it was, whether its prompt is known to be computed, how it ended.
    type Outcome = (u64, bool, Option<Over>);

    /// What a router's batches come to, taken in this order. Every trip is booked once, and ends once at most.
    fn outcomes(batches: &[(u64, Ledger)]) -> BTreeMap<u64, Outcome> {
        let mut peer = Peer::new(RouterId(9), Micros::ZERO);
        let mut trips = BTreeMap::<u64, Outcome>::new();
        for effect in batches.iter().flat_map(|(number, news)| take(&mut peer, *number, news.clone())) {
            match effect {
                Effect::Booked { trip, booked, .. } => {
                    assert!(trips.insert(trip, (booked.worker, false, None)).is_none(), "booked twice");
                }
                Effect::Computed { trip, .. } => {
                    let one = trips.get_mut(&trip).unwrap();
                    assert!(!std::mem::replace(&mut one.1, true) && one.2.is_none(), "computed before");
                }
                Effect::Over { trip, over, .. } => {
                    assert_eq!(trips.get_mut(&trip).unwrap().2.replace(over), None, "over before");
                }
                _ => {}
            }
        }
        trips
    }

    /// All that a router could say of itself: numbered batches, and what it says when there is nothing new.
    fn batches() -> impl Strategy<Value = Vec<(u64, Ledger)>> {
        proptest::collection::vec((0_u8..8, any::<usize>()), 1..80).prop_map(|acts| {
            let (mut own, mut open, mut told) = (OwnLedger::default(), Vec::new(), Vec::new());
            let mut number = 0;
            for (act, pick) in acts.into_iter().chain([(7, 0)]) {
                match act {
                    0..=2 => open.push(own.begin(booked(pick as u64 % 5))),
                    3 if !open.is_empty() => own.computed(open[pick % open.len()]),
                    4 | 5 if !open.is_empty() => {
                        let over = [Over::Left, Over::Answered, Over::Found { chunks: 2 }][pick % 3];
                        own.over(open.swap_remove(pick % open.len()), over);
                    }
                    6 | 7 => {
                        let mut news = own.take();
                        told.extend(std::iter::from_fn(|| news.next()).map(|news| {
                            number += 1;
                            (number, news)
                        }));
                        told.push((number, news.nothing()));
                    }
                    _ => {}
                }
            }
            told
        })
    }

    proptest! {
        /// Taking in is a fold over what came, so that its order and its grouping do not matter is one law.
        #[test]
        fn what_becomes_of_trips_does_not_depend_on_the_order_of_batches(
            (told, shuffled) in batches().prop_flat_map(|told| (Just(told.clone()), Just(told).prop_shuffle())),
        ) {
            prop_assert_eq!(outcomes(&shuffled), outcomes(&told));
        }

        #[test]
        fn what_becomes_of_trips_does_not_depend_on_what_came_twice(
            (told, twice) in batches().prop_flat_map(|told| {
                let twice = [told.clone(), told.clone()].concat();
                (Just(told), Just(twice).prop_shuffle())
            }),
        ) {
            prop_assert_eq!(outcomes(&twice), outcomes(&told));
        }
    }

    #[test]
    fn a_lost_batch_that_comes_late_does_not_change_how_its_trip_ended() {
        let router = RouterId(9);
        let mut peer = Peer::new(router, Micros::ZERO);
        let over = Trip { over: Some(Over::Answered), ..Trip::default() };
        assert_eq!(take(&mut peer, 2, news(1, &[(1, over)])), [], "nobody knows what");
        let other = Trip::begun(booked(6));
        assert_eq!(take(&mut peer, 3, news(2, &[(2, other)])).len(), 1, "it says that the first one is over");
        let late = take(&mut peer, 1, news(1, &[(1, Trip::begun(booked(5)))]));
        let closed = Effect::Over { router, trip: 1, over: Over::Answered };
        assert_eq!(late, [Effect::Booked { router, trip: 1, booked: booked(5) }, closed]);
    }

    #[test]
    fn whoever_is_gone_has_nothing_open() {
        let mut peer = Peer::new(RouterId(9), Micros::ZERO);
        let trips = [1, u64::MAX].map(|number| (number, Trip::begun(booked(5))));
        merge(&mut peer, news(1, &trips));
        let mut effects = Vec::new();
        peer.close(&mut effects);
        assert_eq!((effects.len(), peer.trips.len()), (2, 0));
    }

    #[test]
    fn reports_in_the_wrong_order_come_out_right() {
        let router = RouterId(9);
        let mut peer = Peer::new(router, Micros::ZERO);
        let over = Trip { over: Some(Over::Answered), ..Trip::default() };
        assert_eq!(merge(&mut peer, news(1, &[(1, over)])), [], "nobody knows what");
        let begun = Trip::begun(booked(5));
        let effects = merge(&mut peer, news(1, &[(1, begun.clone())]));
        let closed = Effect::Over { router, trip: 1, over: Over::Answered };
        assert_eq!(effects, [Effect::Booked { router, trip: 1, booked: booked(5) }, closed]);
        assert_eq!(merge(&mut peer, news(1, &[(1, begun.clone())])), [], "again");
        assert_eq!(
            merge(&mut peer, news(3, &[(2, begun)])).last(),
            Some(&Effect::Over { router, trip: 2, over: Over::Left })
        );
        assert!(peer.trips.is_empty());
    }

    #[test]
    fn a_router_that_finds_everybody_failing_is_not_believed() {
        let mut peer = Peer::new(RouterId(9), Micros::ZERO);
        let failing = |version| Advice { version, health: Health::Failing, emptied: 0 };
        let advice = |workers: std::ops::Range<u64>| Ledger {
            advice: workers.map(|worker| (worker, failing(1))).collect(),
            ..Ledger::default()
        };
        let members: BTreeSet<u64> = (0..8).collect();
        merge(&mut peer, advice(0..2));
        assert_eq!(peer.failing(&members).count(), 2);
        merge(&mut peer, advice(100..200));
        assert_eq!(peer.failing(&members).count(), 2, "workers that are not here do not count");
        merge(&mut peer, advice(0..6));
        assert_eq!(peer.failing(&members).count(), 0);
    }

    #[test]
    fn a_peer_that_has_met_many_workers_is_still_heeded() {
        let mut peer = Peer::new(RouterId(9), Micros::ZERO);
        let count = ADVICE_MAX as u64 + 9;
        let found = |worker| Advice { version: worker, health: Health::Failing, emptied: 0 };
        let advice = (1..=count).map(|worker| (worker, found(worker))).collect();
        merge(&mut peer, Ledger { advice, ..Ledger::default() });
        assert_eq!(peer.advice.len(), ADVICE_MAX);
        assert_eq!(peer.failing(&(count..count + 4).collect()).count(), 1, "the last one was heard");
    }
}
