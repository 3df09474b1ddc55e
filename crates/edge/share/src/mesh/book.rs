//! Whom to dial, where, and when. Pure: time and chance are arguments.
//!
//! Addresses come from the operator's list, resolved, and from other routers, by gossip. One that a router answered at is
//! not dialed while that router is connected, whoever dialed whom; one that turned out to be ourselves is left alone while it is listed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use warmroute_types::RouterId;

use crate::backoff;
use crate::mesh::MeshPace;

/// Gossip is bounded too: nobody runs so many routers.
const ENTRIES_MAX: usize = 1_024;

/// An address to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// `HOST:PORT`.
    pub address: String,
    /// The host as the operator or its router wrote it, for certificates.
    pub host: String,
}

/// What came of dialing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// That router answered.
    Answered(RouterId),
    /// Nobody is there, or not yet.
    Absent,
    /// Somebody, but not of ours.
    Failed,
    /// One that does not want us, and will not in a second either.
    Refused,
}

/// Whether an operator should hear of what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tell {
    /// Something is wrong.
    Trouble,
    /// It is as it should be, or may become so by itself.
    Nothing,
}

#[derive(Debug)]
struct Entry {
    host: String,
    /// Which of the operator's entries name it.
    listed_by: BTreeSet<usize>,
    /// A member has it by gossip.
    member: Option<RouterId>,
    /// Until when a place that nobody names any more is tried.
    remembered_until: Option<Instant>,
    /// Who answered last.
    answered: Option<RouterId>,
    /// Whoever answered here has left: that nobody does any more is as it should be.
    is_left: bool,
    /// Since when it is known.
    since: Instant,
    failures: u32,
    due: Instant,
    dialing: bool,
}

/// All addresses.
#[derive(Debug)]
pub(crate) struct Book {
    entries: BTreeMap<String, Entry>,
    pace: MeshPace,
}

impl Book {
    pub(crate) fn new(pace: MeshPace) -> Book {
        Book { entries: BTreeMap::new(), pace }
    }

    /// One of the operator's entries stands for these places now.
    pub(crate) fn listed(&mut self, entry: usize, places: Vec<Place>, now: Instant) {
        self.entries.values_mut().for_each(|known| _ = known.listed_by.remove(&entry));
        for place in places {
            if let Some(known) = self.entry(place, now) {
                known.listed_by.insert(entry);
            }
        }
        self.tidy(now);
    }

    /// Gossip says that a router is there.
    pub(crate) fn joined(&mut self, router: RouterId, place: Place, now: Instant) {
        if let Some(known) = self.entry(place, now) {
            known.member = Some(router);
            known.remembered_until = None;
            known.is_left = false;
        }
    }

    /// Gossip says that it is not there any more. It may be the network that is cut, so its place is remembered for a while.
    pub(crate) fn left(&mut self, router: RouterId, now: Instant) {
        let until = now + self.pace.remember;
        for entry in self.entries.values_mut().filter(|entry| entry.member == Some(router)) {
            entry.member = None;
            entry.remembered_until = Some(until);
        }
        self.tidy(now);
    }

    /// A connection to a router is lost: whoever can dial it does so at once, and the failures of the past mean nothing.
    pub(crate) fn lost(&mut self, router: RouterId, now: Instant, chance: u64) {
        let due = now + backoff::pause(1, self.pace.redial, chance);
        let of_it = |entry: &&mut Entry| entry.answered == Some(router) || entry.member == Some(router);
        for entry in self.entries.values_mut().filter(of_it) {
            entry.failures = 0;
            entry.due = due;
        }
    }

    /// A router has said goodbye. Its place is forgotten, unless it is listed: then somebody else may come there.
    pub(crate) fn goodbye(&mut self, router: RouterId, now: Instant) {
        let of_it = |entry: &&mut Entry| entry.answered == Some(router) || entry.member == Some(router);
        for entry in self.entries.values_mut().filter(of_it) {
            entry.member = entry.member.filter(|member| *member != router);
            entry.answered = entry.answered.filter(|answered| *answered != router);
            entry.remembered_until = None;
            entry.is_left = true;
            // It needs a moment to be gone.
            entry.due = now + self.pace.redial;
        }
        self.tidy(now);
    }

    /// Everybody who should be dialed now; each is being dialed from then on, until [`Book::outcome`].
    pub(crate) fn due(&mut self, now: Instant, connected: impl Fn(RouterId) -> bool) -> Vec<Place> {
        self.tidy(now);
        let wanted = |entry: &Entry| entry.due <= now && entry.wants_dialing(&connected);
        let due = self.entries.iter_mut().filter(|(_, entry)| wanted(entry));
        let due = due.map(|(address, entry)| {
            entry.dialing = true;
            Place { address: address.clone(), host: entry.host.clone() }
        });
        due.collect()
    }

    /// When [`Book::due`] has something next.
    pub(crate) fn next_due(&self, connected: impl Fn(RouterId) -> bool) -> Option<Instant> {
        self.entries.values().filter(|entry| entry.wants_dialing(&connected)).map(|entry| entry.due).min()
    }

    /// What came of dialing.
    pub(crate) fn outcome(&mut self, address: &str, outcome: Outcome, now: Instant, chance: u64) -> Tell {
        let pace = self.pace;
        let Some(entry) = self.entries.get_mut(address) else { return Tell::Nothing };
        entry.dialing = false;
        let tell = entry.tell(outcome, pace.settle, now);
        match outcome {
            Outcome::Answered(router) => {
                entry.answered = Some(router);
                entry.is_left = false;
                entry.failures = 0;
                entry.due = now + backoff::pause(1, pace.redial, chance);
            }
            Outcome::Absent | Outcome::Failed => {
                entry.failures = entry.failures.saturating_add(1);
                entry.due = now + backoff::pause(entry.failures, pace.redial, chance);
            }
            Outcome::Refused => entry.due = now + backoff::jittered(pace.refused, chance),
        }
        tell
    }

    fn entry(&mut self, place: Place, now: Instant) -> Option<&mut Entry> {
        if self.entries.len() >= ENTRIES_MAX && !self.entries.contains_key(&place.address) {
            return None;
        }
        Some(self.entries.entry(place.address).or_insert_with(|| Entry::new(place.host, now)))
    }

    fn tidy(&mut self, now: Instant) {
        self.entries.retain(|_, entry| entry.is_named(now) || entry.dialing);
    }
}

impl Entry {
    fn new(host: String, now: Instant) -> Entry {
        Entry {
            host,
            listed_by: BTreeSet::new(),
            member: None,
            remembered_until: None,
            answered: None,
            is_left: false,
            since: now,
            failures: 0,
            due: now,
            dialing: false,
        }
    }

    fn is_named(&self, now: Instant) -> bool {
        !self.listed_by.is_empty()
            || self.member.is_some()
            || self.remembered_until.is_some_and(|until| now < until)
    }

    /// Nobody is missed who has left, nor who may just be starting, as we are.
    fn tell(&self, outcome: Outcome, settle: Duration, now: Instant) -> Tell {
        let is_new = self.answered.is_none() && now.duration_since(self.since) < settle;
        match outcome {
            Outcome::Answered(_) => Tell::Nothing,
            Outcome::Absent if self.is_left || is_new => Tell::Nothing,
            Outcome::Absent | Outcome::Failed | Outcome::Refused => Tell::Trouble,
        }
    }

    fn wants_dialing(&self, connected: impl Fn(RouterId) -> bool) -> bool {
        !self.dialing && !self.answered.is_some_and(&connected) && !self.member.is_some_and(&connected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: fn(RouterId) -> bool = |_| false;
    const IDLE: Duration = Duration::from_secs(3_600);

    fn place(address: &str) -> Place {
        Place { address: address.to_owned(), host: "host".to_owned() }
    }

    fn addresses(places: Vec<Place>) -> Vec<String> {
        places.into_iter().map(|place| place.address).collect()
    }

    fn book() -> (Book, Instant) {
        (Book::new(MeshPace::default()), Instant::now())
    }

    #[test]
    fn a_place_is_dialed_once_at_a_time_and_then_after_growing_pauses() {
        let (mut book, now) = book();
        book.listed(0, vec![place("a:1")], now);
        assert_eq!(addresses(book.due(now, NOBODY)), ["a:1"]);
        assert!(book.due(now, NOBODY).is_empty(), "it is being dialed");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            book.outcome("a:1", Outcome::Failed, now, 1_023);
            pauses.push(book.next_due(NOBODY).unwrap() - now);
            book.entries.get_mut("a:1").unwrap().dialing = true;
        }
        assert!(pauses.is_sorted() && pauses[0] < pauses[3], "{pauses:?}");
        assert_eq!(pauses[7], book.pace.redial);
    }

    #[test]
    fn whoever_is_connected_is_not_dialed_and_is_when_it_is_lost() {
        let (mut book, now) = book();
        book.listed(0, vec![place("a:1")], now);
        book.due(now, NOBODY);
        book.outcome("a:1", Outcome::Answered(RouterId(7)), now, 0);
        let later = now + IDLE;
        assert!(book.due(later, |router| router == RouterId(7)).is_empty());
        assert_eq!(book.next_due(|router| router == RouterId(7)), None);
        book.lost(RouterId(7), later, 1_023);
        assert!(book.next_due(NOBODY).unwrap() - later < Duration::from_millis(100));
        assert_eq!(addresses(book.due(later + book.pace.redial, NOBODY)), ["a:1"]);
    }

    #[test]
    fn one_that_refuses_us_is_left_alone_for_long() {
        let (mut book, now) = book();
        book.listed(0, vec![place("a:1")], now);
        book.due(now, NOBODY);
        book.outcome("a:1", Outcome::Refused, now, 0);
        assert_eq!(book.next_due(NOBODY).unwrap() - now, book.pace.refused / 2);
    }

    #[test]
    fn what_the_name_stands_for_now_counts_and_members_that_left_are_remembered() {
        let (mut book, now) = book();
        book.listed(0, vec![place("a:1"), place("b:1")], now);
        book.listed(0, vec![place("b:1")], now);
        book.joined(RouterId(3), place("c:1"), now);
        assert_eq!(addresses(book.due(now, NOBODY)), ["b:1", "c:1"]);
        book.left(RouterId(3), now);
        book.outcome("c:1", Outcome::Failed, now, 0);
        assert_eq!(addresses(book.due(now + book.pace.redial, NOBODY)), ["c:1"], "the network may be cut");
        book.outcome("c:1", Outcome::Failed, now, 0);
        book.due(now + book.pace.remember, NOBODY);
        assert_eq!(book.entries.keys().collect::<Vec<_>>(), ["b:1"]);
    }

    #[test]
    fn whoever_says_goodbye_is_forgotten_and_where_it_is_listed_not_missed() {
        let (mut book, now) = book();
        book.listed(0, vec![place("a:1")], now);
        for (router, address) in [(1, "a:1"), (2, "b:1")] {
            book.joined(RouterId(router), place(address), now);
            book.due(now, NOBODY);
            book.outcome(address, Outcome::Answered(RouterId(router)), now, 0);
            book.goodbye(RouterId(router), now);
        }
        assert_eq!(book.entries.keys().collect::<Vec<_>>(), ["a:1"]);
        let later = now + book.pace.settle * 2;
        assert_eq!(addresses(book.due(later, NOBODY)), ["a:1"], "somebody may come there");
        assert_eq!(book.outcome("a:1", Outcome::Absent, later, 0), Tell::Nothing);
        assert_eq!(book.outcome("a:1", Outcome::Failed, later, 0), Tell::Trouble, "who is that?");
        book.outcome("a:1", Outcome::Answered(RouterId(3)), later, 0);
        assert_eq!(book.outcome("a:1", Outcome::Absent, later, 0), Tell::Trouble, "that one did not say so");
        book.goodbye(RouterId(3), later);
        book.joined(RouterId(4), place("a:1"), later);
        assert_eq!(
            book.outcome("a:1", Outcome::Absent, later, 0),
            Tell::Trouble,
            "nor did one that dialed us"
        );
    }

    #[test]
    fn one_that_is_not_there_yet_is_no_trouble_at_first() {
        let (mut book, now) = book();
        book.listed(0, vec![place("a:1")], now);
        assert_eq!(book.outcome("a:1", Outcome::Absent, now, 0), Tell::Nothing);
        assert_eq!(book.outcome("a:1", Outcome::Refused, now, 0), Tell::Trouble);
        assert_eq!(book.outcome("a:1", Outcome::Absent, now + book.pace.settle, 0), Tell::Trouble);
    }

    #[test]
    fn gossip_cannot_fill_the_book_without_end() {
        let (mut book, now) = book();
        (0..ENTRIES_MAX as u64 * 2).for_each(|n| book.joined(RouterId(n), place(&format!("a:{n}")), now));
        assert_eq!(book.entries.len(), ENTRIES_MAX);
    }
}
