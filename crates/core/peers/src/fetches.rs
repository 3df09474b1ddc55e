//! What is missing of engines' streams, asked for of other routers.
//!
//! One question for each worker, the last one that its feed has asked. Batches that are only late are given a moment; then whoever is
//! known to have more is asked, and if that one does not answer, another. Few at a time: answers may be large.

use std::collections::BTreeMap;

use warmroute_types::{Micros, RouterId};

use crate::Report;
use crate::parts::{Part, Parts};

/// Workers that are asked about at a time.
const OPEN_MAX: usize = 8;

/// After so long without a part of an answer it is asked for again,
const PATIENCE: Micros = Micros::from_millis(500);

/// so often in all.
const TRIES: u32 = 3;

/// More than this is no answer.
const ANSWER_MAX: usize = 64 << 20;

/// What is wanted.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    open: BTreeMap<u64, Fetch>,
}

/// From where on a stream is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Whose stream.
    pub worker: u64,
    /// Of which process; 0: of whichever it is.
    pub source: u64,
    /// The first batch that is missing; 0: all that is known. Of whichever source: the first that is known already.
    pub from_seq: u64,
}

#[derive(Debug)]
struct Fetch {
    wanted: Wanted,
    of: Option<RouterId>,
    due: Micros,
    tries: u32,
    /// Whom it was asked of last.
    asked: Option<RouterId>,
    parts: Parts,
}

impl Fetches {
    /// Wants something, in place of what was wanted of that worker before.
    pub fn want(&mut self, wanted: Wanted, of: Option<RouterId>, due: Micros) {
        let fetch = Fetch { wanted, of, due, tries: 0, asked: None, parts: Parts::default() };
        self.open.insert(wanted.worker, fetch);
    }

    /// It has come by another way.
    pub fn call_off(&mut self, worker: u64) {
        self.open.remove(&worker);
    }

    /// Whom to ask for what now. `others` are those who are there.
    pub fn ask(&mut self, others: &[RouterId], now: Micros) -> Vec<(RouterId, Wanted)> {
        let mut room =
            OPEN_MAX.saturating_sub(self.open.values().filter(|fetch| fetch.is_asked(now)).count());
        let mut asked = Vec::new();
        for fetch in self.open.values_mut() {
            if now < fetch.due || fetch.tries >= TRIES || others.is_empty() || room == 0 {
                continue;
            }
            room -= 1;
            asked.push((fetch.ask(others, now), fetch.wanted));
        }
        asked
    }

    /// Those that nobody has answered.
    pub fn give_up(&mut self, others: &[RouterId], now: Micros) -> Vec<u64> {
        let is_over = |fetch: &Fetch| now >= fetch.due && (fetch.tries >= TRIES || others.is_empty());
        let over: Vec<u64> =
            self.open.iter().filter(|(_, fetch)| is_over(fetch)).map(|(&id, _)| id).collect();
        over.iter().for_each(|worker| self.call_off(*worker));
        over
    }

    /// A part has come; all of it, where it was the last. Nothing in it: whoever was asked has nothing.
    pub fn take(
        &mut self,
        from: RouterId,
        worker: u64,
        part: Part,
        bytes: Vec<u8>,
        now: Micros,
    ) -> Option<Vec<Report>> {
        let fetch = self.open.get_mut(&worker).filter(|fetch| fetch.asked == Some(from))?;
        fetch.due = now + PATIENCE;
        let bytes = fetch.parts.take(part, bytes, ANSWER_MAX)?;
        let reports = Report::read_all(&bytes).unwrap_or_default();
        if reports.is_empty() && fetch.tries < TRIES {
            // Another may have it.
            (fetch.due, fetch.of) = (now, None);
            return None;
        }
        self.call_off(worker);
        Some(reports)
    }
}

impl Fetch {
    fn is_asked(&self, now: Micros) -> bool {
        self.asked.is_some() && now < self.due
    }

    /// The one that is known to have it first, then the others in turn.
    fn ask(&mut self, others: &[RouterId], now: Micros) -> RouterId {
        let known = self.of.take().filter(|of| others.contains(of));
        let turn = (self.wanted.worker as usize).wrapping_add(self.tries as usize) % others.len();
        let next = others.iter().cycle().skip(turn).take(2).find(|other| Some(**other) != self.asked);
        let of = known.or(next.copied()).unwrap_or(others[turn]);
        if self.asked != Some(of) {
            // Each counts its answers itself.
            self.parts = Parts::default();
        }
        (self.asked, self.due) = (Some(of), now + PATIENCE);
        self.tries += 1;
        of
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReportKind;

    const WANTED: Wanted = Wanted { worker: 5, source: 1, from_seq: 3 };

    fn part(at: u32, of: u32) -> Part {
        Part { answer: 1, at, of }
    }

    fn routers(count: u64) -> Vec<RouterId> {
        (1..=count).map(RouterId).collect()
    }

    #[test]
    fn whoever_has_more_is_asked_first_and_then_others_and_not_for_ever() {
        let mut fetches = Fetches::default();
        fetches.want(WANTED, Some(RouterId(3)), Micros(100));
        assert_eq!(fetches.ask(&routers(3), Micros(99)), [], "it may only be late");
        let mut asked = Vec::new();
        let mut now = Micros(100);
        while fetches.give_up(&routers(3), now).is_empty() {
            asked.extend(fetches.ask(&routers(3), now).into_iter().map(|(of, _)| of));
            now = now + PATIENCE;
        }
        assert_eq!((asked.len(), asked[0]), (TRIES as usize, RouterId(3)));
        assert!(asked.windows(2).all(|pair| pair[0] != pair[1]), "{asked:?}");
    }

    #[test]
    fn answers_come_in_parts_and_an_empty_one_lets_another_be_asked() {
        let report = Report { worker: 5, source: 1, seq: 3, kind: ReportKind::Known, bytes: [7; 99].into() };
        let bytes = Report::write_all(std::slice::from_ref(&report));
        let mut fetches = Fetches::default();
        fetches.want(WANTED, Some(RouterId(1)), Micros(0));
        assert_eq!(fetches.ask(&routers(2), Micros(1)), [(RouterId(1), WANTED)]);
        assert_eq!(fetches.take(RouterId(1), 5, part(0, 1), Vec::new(), Micros(2)), None);
        assert_eq!(fetches.ask(&routers(2), Micros(3)), [(RouterId(2), WANTED)]);
        let (head, tail) = bytes.split_at(40);
        assert_eq!(fetches.take(RouterId(2), 5, part(1, 2), tail.to_vec(), Micros(4)), None);
        assert_eq!(fetches.take(RouterId(1), 5, part(0, 2), head.to_vec(), Micros(4)), None, "of another");
        assert_eq!(fetches.take(RouterId(2), 5, part(0, 2), head.to_vec(), Micros(4)), Some(vec![report]));
        assert!(fetches.open.is_empty());
    }

    #[test]
    fn few_are_asked_for_at_a_time() {
        let mut fetches = Fetches::default();
        (0..20).for_each(|worker| fetches.want(Wanted { worker, ..WANTED }, None, Micros(0)));
        assert_eq!(fetches.ask(&routers(2), Micros(1)).len(), OPEN_MAX);
        assert_eq!(fetches.ask(&routers(2), Micros(2)).len(), 0);
        assert_eq!(fetches.give_up(&[], Micros(3)).len(), 20 - OPEN_MAX, "nobody is there");
    }
}
