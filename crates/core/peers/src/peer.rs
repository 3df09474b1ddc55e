//! Another router, as far as it has been heard.

use std::collections::{BTreeMap, BTreeSet};

use warmroute_types::{Micros, RouterId};

use crate::batches::Batches;
use crate::named::Named;
use crate::round_trip::RoundTrip;
use crate::trips::{Told, Trips, Word};
use crate::{Advice, Effect, Health, Ledger};

/// Workers of one peer of which its advice is remembered; beyond, the oldest is forgotten.
const ADVICE_MAX: usize = 4_096;

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    id: RouterId,
    pub batches: Batches,
    pub trips: Trips,
    advice: BTreeMap<u64, Advice>,
    pub met: Micros,
    pub heard: Micros,
    /// Since when something has been missing.
    pub missing_since: Option<Micros>,
    /// The question by which it was asked for that.
    pub asked: Option<u64>,
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
    /// How long the way there and back takes; `None` before that has been tried.
    pub round_trip: Option<Micros>,
    /// The latest version of the language that it speaks.
    pub language: u8,
}

impl Peer {
    pub fn new(id: RouterId, now: Micros) -> Peer {
        Peer {
            id,
            batches: Batches::default(),
            trips: Trips::new(id),
            advice: BTreeMap::new(),
            met: now,
            heard: now,
            missing_since: None,
            asked: None,
            trip: RoundTrip::default(),
            way: RoundTrip::default(),
            greeted: None,
            named: Named::default(),
            language: 0,
        }
    }

    /// Takes in one of its batches, in any order and however often; what that changes here. One without news is of any number.
    pub fn take_batch(&mut self, number: u64, news: Ledger, told: Told, effects: &mut Vec<Effect>) {
        if news.is_empty() {
            self.batches.meet(number);
            self.batches.exist_up_to(number, news.open_from);
        } else {
            self.batches.meet(number.saturating_sub(1));
            if !self.batches.note(number, news.open_from) {
                return;
            }
        }
        self.merge(news, number, told, effects);
    }

    /// Takes in what stands for all of its batches up to one.
    pub fn take_state(&mut self, up_to: u64, state: Ledger, effects: &mut Vec<Effect>) {
        self.trips.close_but(&state, up_to, effects);
        let open_from = state.open_from;
        // Nobody says when it found what it has found, so where it has just been met that is no news.
        self.merge(state, up_to, Told::Late, effects);
        self.batches.settle(up_to, open_from);
        self.trips.close_below(self.batches.open_from(), effects);
    }

    /// Nothing more can be heard of its batches up to this one.
    pub fn give_up(&mut self, up_to: u64, effects: &mut Vec<Effect>) {
        self.batches.settle(up_to, 0);
        self.trips.close_below(self.batches.open_from(), effects);
    }

    fn merge(&mut self, news: Ledger, batch: u64, told: Told, effects: &mut Vec<Effect>) {
        let word = Word { told, batch, open_from: self.batches.open_from() };
        for (number, trip) in news.trips {
            trip.booked.iter().for_each(|booked| self.named.note(booked.worker, self.heard));
            self.trips.hear(number, trip, word, effects);
        }
        self.trips.close_below(self.batches.open_from(), effects);
        news.advice.into_iter().for_each(|(worker, advice)| self.heed(worker, advice, effects));
        Ledger::forget_oldest(&mut self.advice, ADVICE_MAX);
    }

    /// It is silent, and taken for dead.
    pub fn part(&mut self, effects: &mut Vec<Effect>) {
        self.missing_since = None;
        self.trips.suspend(effects);
    }

    /// It was not.
    pub fn rejoin(&mut self, effects: &mut Vec<Effect>) {
        self.trips.resume(effects);
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
        // What it found before it was met counts from here on.
        let is_first = self.batches.lack_past() && !self.advice.contains_key(&worker);
        let known = self.advice.entry(worker).or_default();
        if advice.version <= known.version {
            return;
        }
        if advice.emptied > known.emptied && !is_first {
            effects.push(Effect::Emptied { worker });
        }
        *known = advice;
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
            open: self.trips.open(),
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
    use crate::{Booked, Over, OwnLedger, Trip};
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

    /// One that has been there from its first batch on.
    fn met() -> Peer {
        let mut peer = Peer::new(RouterId(9), Micros::ZERO);
        peer.batches.meet(0);
        peer
    }

    fn take(peer: &mut Peer, number: u64, ledger: Ledger) -> Vec<Effect> {
        let mut effects = Vec::new();
        peer.take_batch(number, ledger, Told::Live, &mut effects);
        effects
    }

    /// What became of a trip: on which worker it was, whether its prompt is known to be computed, how it ended.
    type Outcome = (u64, bool, Option<Over>);

    /// What a router's batches come to, taken in this order. Every trip is booked once, and ends once at most.
    fn outcomes(batches: &[(u64, Ledger)]) -> BTreeMap<u64, Outcome> {
        let mut peer = met();
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
        let mut peer = met();
        let over = Trip { over: Some(Over::Answered), ..Trip::default() };
        assert_eq!(take(&mut peer, 2, news(1, &[(1, over)])), [], "nobody knows what");
        let other = Trip::begun(booked(6));
        assert_eq!(take(&mut peer, 3, news(2, &[(2, other)])).len(), 1, "it says that the first one is over");
        let late = take(&mut peer, 1, news(1, &[(1, Trip::begun(booked(5)))]));
        let closed = Effect::Over { router, trip: 1, over: Over::Answered, prompt: None };
        assert_eq!(late, [Effect::Booked { router, trip: 1, booked: booked(5) }, closed]);
    }

    #[test]
    fn whoever_is_gone_has_nothing_open_until_it_is_back() {
        let mut peer = met();
        let trips = [1, u64::MAX].map(|number| (number, Trip::begun(booked(5))));
        merge(&mut peer, news(1, &trips));
        let mut effects = Vec::new();
        peer.part(&mut effects);
        assert_eq!(effects.len(), 2);
        let mut again = Vec::new();
        peer.rejoin(&mut again);
        assert_eq!((again.len(), peer.trips.open()), (2, 2), "it was only cut off");
    }

    #[test]
    fn reports_in_the_wrong_order_come_out_right() {
        let router = RouterId(9);
        let mut peer = met();
        let over = Trip { over: Some(Over::Answered), ..Trip::default() };
        assert_eq!(merge(&mut peer, news(1, &[(1, over)])), [], "nobody knows what");
        let begun = Trip::begun(booked(5));
        let effects = merge(&mut peer, news(1, &[(1, begun.clone())]));
        let closed = Effect::Over { router, trip: 1, over: Over::Answered, prompt: None };
        assert_eq!(effects, [Effect::Booked { router, trip: 1, booked: booked(5) }, closed]);
        assert_eq!(merge(&mut peer, news(1, &[(1, begun.clone())])), [], "again");
        assert_eq!(
            merge(&mut peer, news(3, &[(2, begun)])).last(),
            Some(&Effect::Over { router, trip: 2, over: Over::Left, prompt: None })
        );
        assert_eq!(peer.trips.open(), 0);
    }

    #[test]
    fn a_router_that_finds_everybody_failing_is_not_believed() {
        let mut peer = met();
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
        let mut peer = met();
        let count = ADVICE_MAX as u64 + 9;
        let found = |worker| Advice { version: worker, health: Health::Failing, emptied: 0 };
        let advice = (1..=count).map(|worker| (worker, found(worker))).collect();
        merge(&mut peer, Ledger { advice, ..Ledger::default() });
        assert!(peer.advice.len() <= ADVICE_MAX);
        assert_eq!(peer.failing(&(count..count + 4).collect()).count(), 1, "the last one was heard");
    }
}
