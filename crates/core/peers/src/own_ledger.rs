//! What this router has to say: written by its requests, emptied every few milliseconds.
//!
//! Whatever is here is bounded. When nobody takes it away fast enough, the oldest prompts are given up first: a booking without its
//! prompt still tells how busy a worker is, and a prompt that nobody heard of costs a hit later.
//!
//! Requests write to it, so nobody may keep it for long: what is to be told is taken out as it is, and all that is open in portions.

use std::collections::BTreeMap;

use crate::{Advice, Booked, Health, Ledger, Over, Trip};

/// Bytes of prompts that wait to be told.
const PROMPTS_MAX: usize = 4 << 20;

/// About so many bytes make a message; the last trip may exceed it by its prompt.
const MESSAGE_BYTES: usize = 256 << 10;

/// Workers of which something was found; beyond, the oldest finding is forgotten.
const ADVICE_MAX: usize = 4_096;

/// Trips that are open are copied so many at a time.
const PORTION: usize = 256;

/// Bytes of a trip without its prompt, at most.
const TRIP_BYTES: usize = 48;

/// This router's own ledger.
#[derive(Debug)]
pub struct OwnLedger {
    next: u64,
    /// Trips that are not over.
    open: BTreeMap<u64, Trip>,
    /// How this router finds workers.
    advice: BTreeMap<u64, Advice>,
    /// Findings so far, of all workers: one that is forgotten and comes back is told under a number that nobody has heard.
    findings: u64,
    emptied: u32,
    /// What has not been told.
    news: Ledger,
    prompt_bytes: usize,
    /// Below which number news has no prompts any more.
    shed_below: u64,
    /// Prompts that were given up.
    pub dropped: u64,
}

impl Default for OwnLedger {
    fn default() -> OwnLedger {
        OwnLedger {
            next: 1,
            open: BTreeMap::new(),
            advice: BTreeMap::new(),
            findings: 0,
            emptied: 0,
            news: Ledger::default(),
            prompt_bytes: 0,
            shed_below: 0,
            dropped: 0,
        }
    }
}

impl OwnLedger {
    /// A request has been booked; its number.
    pub fn begin(&mut self, booked: Booked) -> u64 {
        let number = self.next;
        self.next += 1;
        let trip = Trip::begun(booked);
        self.prompt_bytes += trip.prompt_bytes();
        // Once it is told its prompt is nobody's concern, but for one who missed it and asks.
        self.open.insert(number, trip.clone());
        self.news.trips.insert(number, trip);
        self.shed();
        number
    }

    /// Its prompt has been computed.
    pub fn computed(&mut self, number: u64) {
        if let Some(trip) = self.open.get_mut(&number) {
            trip.is_computed = true;
            self.tell(number, Trip { is_computed: true, ..Trip::default() });
        }
    }

    /// It is over.
    pub fn over(&mut self, number: u64, over: Over) {
        if let Some(Trip { is_computed, .. }) = self.open.remove(&number) {
            // The last word says all: whoever hears it first is told no more of this trip but its booking.
            self.tell(number, Trip { is_computed, over: Some(over), ..Trip::default() });
        }
    }

    /// This router finds a worker well or failing; only what is new is told.
    pub fn found(&mut self, worker: u64, health: Health) {
        let known = self.advice.get(&worker).map_or(Health::Well, |advice| advice.health);
        if known != health {
            self.advise(worker, |advice| advice.health = health);
        }
    }

    /// This router has found a worker's cache empty.
    pub fn emptied(&mut self, worker: u64) {
        self.emptied = self.emptied.saturating_add(1);
        let emptied = self.emptied;
        self.advise(worker, |advice| advice.emptied = emptied);
    }

    /// Takes back what was found of workers that have left: nobody will find them well again.
    pub fn take_back(&mut self, is_member: impl Fn(u64) -> bool) {
        let is_failing = |(_, advice): &(&u64, &Advice)| advice.health == Health::Failing;
        let failing = self.advice.iter().filter(is_failing).map(|(&worker, _)| worker);
        let left: Vec<u64> = failing.filter(|&worker| !is_member(worker)).collect();
        left.into_iter().for_each(|worker| self.found(worker, Health::Well));
    }

    fn advise(&mut self, worker: u64, change: impl FnOnce(&mut Advice)) {
        self.findings += 1;
        let advice = self.advice.entry(worker).or_default();
        advice.version = self.findings;
        change(advice);
        self.news.advice.insert(worker, *advice);
        Ledger::forget_oldest(&mut self.advice, ADVICE_MAX);
    }

    fn tell(&mut self, number: u64, trip: Trip) {
        self.news.trips.entry(number).or_default().merge(trip);
    }

    /// Gives up the oldest prompts until there is room.
    fn shed(&mut self) {
        let mut trips = self.news.trips.range_mut(self.shed_below..);
        while self.prompt_bytes > PROMPTS_MAX
            && let Some((&number, trip)) = trips.next()
        {
            self.shed_below = number + 1;
            self.prompt_bytes -= trip.prompt_bytes();
            if trip.forget_prompt() {
                self.dropped += 1;
                self.open.get_mut(&number).map(Trip::forget_prompt);
            }
        }
    }

    /// Every trip below this number is over.
    fn open_from(&self) -> u64 {
        self.open.first_key_value().map_or(self.next, |(&number, _)| number)
    }

    /// All that has not been told.
    pub fn take(&mut self) -> News {
        self.prompt_bytes = 0;
        News { open_from: self.open_from(), ledger: std::mem::take(&mut self.news) }
    }

    /// Some of what is open, from the first trip after this number on; and before all others how this router finds workers. Nothing
    /// where there is no more.
    pub fn open_after(&self, number: Option<u64>) -> Option<Ledger> {
        let after = number.map_or(0, |number| number.saturating_add(1));
        let trips = self.open.range(after..).take(PORTION).map(|(&number, trip)| (number, trip.clone()));
        let portion = Ledger { trips: trips.collect(), ..Ledger::default() };
        match number {
            None => Some(Ledger { advice: self.advice.clone(), ..portion }),
            Some(_) => Some(portion).filter(|portion| !portion.is_empty()),
        }
    }

    /// All that is open, by portions of [`OwnLedger::open_after`], between which others may write: what they write is news, and is told
    /// as such.
    pub fn state(mut open_after: impl FnMut(Option<u64>) -> Option<Ledger>) -> Ledger {
        let mut state = Ledger::default();
        let mut last = None;
        while let Some(mut portion) = open_after(last) {
            last = portion.trips.last_key_value().map(|(&number, _)| number).or(last).or(Some(0));
            state.trips.append(&mut portion.trips);
            state.advice.append(&mut portion.advice);
        }
        state
    }

    /// How many requests are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

/// News, taken out of a ledger.
#[derive(Debug, Default)]
pub struct News {
    /// Every trip below this number was over by then.
    open_from: u64,
    ledger: Ledger,
}

impl News {
    /// A message's worth; nothing when there are none.
    pub(crate) fn next(&mut self) -> Option<Ledger> {
        if self.ledger.is_empty() {
            return None;
        }
        let mut news = Ledger { advice: std::mem::take(&mut self.ledger.advice), ..Ledger::default() };
        fill(&mut news, std::iter::from_fn(|| self.ledger.trips.pop_first()));
        // What is still to be told must not be taken for over before it is.
        let untold = self.ledger.trips.first_key_value().map_or(u64::MAX, |(&number, _)| number);
        news.open_from = self.open_from.min(untold);
        Some(news)
    }

    /// Nothing new, and up to where everything is over.
    pub(crate) fn nothing(&self) -> Ledger {
        Ledger { open_from: self.open_from, ..Ledger::default() }
    }
}

/// Takes trips until they make a message.
fn fill(ledger: &mut Ledger, trips: impl Iterator<Item = (u64, Trip)>) {
    let mut bytes = 0;
    for (number, trip) in trips {
        bytes += TRIP_BYTES + trip.prompt_bytes();
        ledger.trips.insert(number, trip);
        if bytes >= MESSAGE_BYTES {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prompt;
    use warmroute_types::Delivery;

    fn booked(chunks: usize) -> Booked {
        let prompt = Prompt { root: 1, chunk_bytes: 256, chunk_tokens: 64, digests: vec![7; chunks].into() };
        Booked {
            worker: 1,
            prompt_tokens: 64 * chunks as u32,
            cached_tokens: 0,
            restorable_tokens: 0,
            delivery: Delivery::Streamed,
            prompt: Some(prompt),
        }
    }

    #[test]
    fn what_happens_between_two_batches_is_told_in_one() {
        let mut own = OwnLedger::default();
        let (short, long) = (own.begin(booked(1)), own.begin(booked(2)));
        own.computed(short);
        own.over(short, Over::Answered);
        let news = own.take().next().unwrap();
        assert_eq!(news.open_from, long, "the short one is over");
        let told = &news.trips[&short];
        assert!(told.booked.is_some() && told.is_computed && told.over == Some(Over::Answered));
        assert_eq!(own.take().next(), None);
        own.over(long, Over::Left);
        own.over(long, Over::Answered);
        let news = own.take().next().unwrap();
        assert_eq!((news.open_from, news.trips[&long].over), (long + 1, Some(Over::Left)), "it ends once");
        assert_eq!(own.open(), 0);
    }

    #[test]
    fn a_full_ledger_gives_up_the_oldest_prompts_and_no_booking() {
        let mut own = OwnLedger::default();
        let many = PROMPTS_MAX / (8 * 2_048) + 100;
        (0..many).for_each(|_| _ = own.begin(booked(2_048)));
        assert_eq!(own.dropped, 100);
        let mut told = Ledger::default();
        let mut messages = 0;
        let mut all = own.take();
        while let Some(news) = all.next() {
            assert!(news.trips.values().map(Trip::prompt_bytes).sum::<usize>() < MESSAGE_BYTES + 8 * 2_049);
            assert!(news.open_from <= *news.trips.first_key_value().unwrap().0, "nothing untold is over");
            told.merge(news);
            messages += 1;
        }
        assert!(messages > 10, "{messages}");
        let with_prompt = |trip: &&Trip| trip.prompt_bytes() > 0;
        let prompts = told.trips.values().filter(with_prompt).count();
        assert_eq!((told.trips.len(), prompts), (many, many - 100));
        assert!(told.trips.values().take(100).all(|trip| trip.prompt_bytes() == 0), "the oldest ones");
        assert_eq!(own.prompt_bytes, 0);
    }

    #[test]
    fn only_what_is_new_about_a_worker_is_told() {
        let mut own = OwnLedger::default();
        own.found(1, Health::Well);
        assert_eq!(own.take().next(), None);
        own.found(1, Health::Failing);
        own.found(1, Health::Failing);
        own.emptied(1);
        let advice = own.take().next().unwrap().advice[&1];
        assert_eq!(advice, Advice { version: 2, health: Health::Failing, emptied: 1 });
    }

    #[test]
    fn what_was_found_of_a_worker_that_leaves_is_taken_back_and_found_anew_when_it_returns() {
        let mut own = OwnLedger::default();
        own.found(1, Health::Failing);
        own.found(2, Health::Failing);
        let first = own.take().next().unwrap().advice[&1];
        own.take_back(|worker| worker == 2);
        own.take_back(|worker| worker == 2);
        let news = own.take().next().unwrap().advice;
        assert_eq!((news.len(), news[&1].health), (1, Health::Well), "once, and of nobody who is there");
        assert!(news[&1].version > first.version);
        (10..10 + ADVICE_MAX as u64).for_each(|worker| own.found(worker, Health::Failing));
        assert!((ADVICE_MAX / 2..=ADVICE_MAX).contains(&own.advice.len()));
        own.found(1, Health::Failing);
        assert!(own.take().next().unwrap().advice[&1].version > news[&1].version, "though it was forgotten");
    }
}
