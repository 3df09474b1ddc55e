//! What is missing of engines' streams, asked for of other routers.
//!
//! One question for each worker, the last one that its feed has asked. Batches that are only late are given a moment; then whoever is
//! known to have more is asked, and if that one does not answer, another. Few at a time: answers may be large.

use std::collections::BTreeMap;

use warmroute_types::{Micros, RouterId};

use crate::Report;
use crate::question::{Want, Wanted};
use crate::questions::Questions;
use crate::round_trip::RoundTrip;

/// Workers that are asked about at a time.
const OPEN_MAX: usize = 8;

/// After so long without a part of an answer another is asked; and later where it is known that answers take longer,
const PATIENCE: Micros = Micros::from_millis(500);

/// so often in all.
const TRIES: u32 = 3;

/// What is wanted.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    open: BTreeMap<u64, Fetch>,
}

#[derive(Debug)]
struct Fetch {
    wanted: Wanted,
    of: Option<RouterId>,
    /// When it is to be asked for, where it is not.
    due: Micros,
    tries: u32,
    /// Of whom it was asked last, and the question's number.
    asked: Option<(RouterId, u64)>,
}

/// Who is there, how long each takes to answer, and what time it is.
pub(crate) struct Around<'a> {
    pub others: &'a BTreeMap<RouterId, RoundTrip>,
    pub now: Micros,
}

impl Fetches {
    /// Wants something, in place of what was wanted of that worker before.
    pub fn want(&mut self, wanted: Wanted, of: Option<RouterId>, due: Micros, questions: &mut Questions) {
        self.call_off(wanted.worker, questions);
        self.open.insert(wanted.worker, Fetch { wanted, of, due, tries: 0, asked: None });
    }

    /// It has come, or is wanted no more.
    pub fn call_off(&mut self, worker: u64, questions: &mut Questions) {
        let asked = self.open.remove(&worker).and_then(|fetch| fetch.asked);
        asked.into_iter().for_each(|(_, ticket)| questions.drop(ticket));
    }

    /// Asks for what is due; how often that was.
    pub fn ask(&mut self, around: &Around<'_>, questions: &mut Questions) -> u64 {
        let is_asked = |fetch: &&Fetch| fetch.asked.is_some() && !fetch.is_due(around, questions);
        let mut room = OPEN_MAX.saturating_sub(self.open.values().filter(is_asked).count());
        let mut asked = 0;
        for fetch in self.open.values_mut() {
            let is_over = fetch.tries >= TRIES || around.others.is_empty();
            if room > 0 && !is_over && fetch.is_due(around, questions) {
                fetch.ask(around, questions);
                (room, asked) = (room - 1, asked + 1);
            }
        }
        asked
    }

    /// Those that nobody has answered.
    pub fn give_up(&mut self, around: &Around<'_>, questions: &mut Questions) -> Vec<u64> {
        let is_last = |fetch: &Fetch| fetch.tries >= TRIES || around.others.is_empty();
        let is_over = |fetch: &Fetch| is_last(fetch) && fetch.is_due(around, questions);
        let over: Vec<u64> =
            self.open.iter().filter(|(_, fetch)| is_over(fetch)).map(|(&id, _)| id).collect();
        over.iter().for_each(|worker| self.call_off(*worker, questions));
        over
    }

    /// An answer has come. Nothing in it: whoever was asked has nothing, and another may.
    pub fn take(&mut self, worker: u64, bytes: &[u8], questions: &mut Questions) -> Option<Vec<Report>> {
        let fetch = self.open.get(&worker)?;
        let reports = Report::read_all(bytes).unwrap_or_default();
        if reports.is_empty() && fetch.tries < TRIES {
            return None;
        }
        self.call_off(worker, questions);
        Some(reports)
    }
}

impl Fetch {
    fn is_due(&self, around: &Around<'_>, questions: &Questions) -> bool {
        let Some((of, ticket)) = self.asked else { return around.now >= self.due };
        let is_quiet = |trip: &RoundTrip| {
            let patience = PATIENCE.max(Micros(2 * trip.patience(0).0));
            questions.is_quiet(ticket, patience, around.now)
        };
        around.others.get(&of).is_none_or(is_quiet)
    }

    /// The one that is known to have it first, then the others in turn.
    fn ask(&mut self, around: &Around<'_>, questions: &mut Questions) {
        let others: Vec<RouterId> = around.others.keys().copied().collect();
        let last = self.asked.take();
        last.iter().for_each(|(_, ticket)| questions.drop(*ticket));
        let known = self.of.take().filter(|of| around.others.contains_key(of));
        let turn = (self.wanted.worker as usize).wrapping_add(self.tries as usize) % others.len();
        let is_another = |other: &&RouterId| last.is_none_or(|(of, _)| of != **other);
        let next = others.iter().cycle().skip(turn).take(2).find(is_another);
        let of = known.or(next.copied()).unwrap_or(others[turn]);
        self.asked = Some((of, questions.put(of, Want::Stream(self.wanted), around.now)));
        self.tries += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::Part;
    use crate::{Question, ReportKind};

    const WANTED: Wanted = Wanted { worker: 5, source: 1, from_seq: 3 };

    fn routers(count: u64) -> BTreeMap<RouterId, RoundTrip> {
        (1..=count).map(|id| (RouterId(id), RoundTrip::default())).collect()
    }

    /// Asks what is due, and says of whom.
    fn ask(
        fetches: &mut Fetches,
        questions: &mut Questions,
        others: &BTreeMap<RouterId, RoundTrip>,
        now: u64,
    ) -> Vec<(u64, Question)> {
        let around = Around { others, now: Micros(now) };
        fetches.ask(&around, questions);
        let asked = questions.ask(|_| RoundTrip::default(), Micros(now));
        asked.into_iter().map(|(of, question)| (of.0, question)).collect()
    }

    #[test]
    fn whoever_has_more_is_asked_first_and_then_others_and_not_for_ever() {
        let (mut fetches, mut questions, others) = (Fetches::default(), Questions::default(), routers(3));
        fetches.want(WANTED, Some(RouterId(3)), Micros(100), &mut questions);
        assert_eq!(ask(&mut fetches, &mut questions, &others, 99), [], "it may only be late");
        let (mut asked, mut now) = (Vec::new(), 100);
        while fetches.give_up(&Around { others: &others, now: Micros(now) }, &mut questions).is_empty() {
            asked.extend(ask(&mut fetches, &mut questions, &others, now).into_iter().map(|(of, _)| of));
            now += PATIENCE.0;
        }
        assert_eq!((asked.len(), asked[0]), (TRIES as usize, 3));
        assert!(asked.windows(2).all(|pair| pair[0] != pair[1]), "{asked:?}");
        assert!(questions.ask(|_| RoundTrip::default(), Micros(now)).is_empty(), "nothing is asked any more");
    }

    #[test]
    fn who_is_known_to_take_long_is_given_longer_and_who_dies_nothing() {
        let (mut fetches, mut questions, mut others) = (Fetches::default(), Questions::default(), routers(2));
        others.get_mut(&RouterId(1)).unwrap().note(Micros::from_millis(900));
        fetches.want(WANTED, Some(RouterId(1)), Micros(0), &mut questions);
        assert_eq!(ask(&mut fetches, &mut questions, &others, 1)[0].0, 1);
        let asked = ask(&mut fetches, &mut questions, &others, 1_400_000);
        assert!(asked.iter().all(|(of, _)| *of == 1), "still the same");
        others.remove(&RouterId(1));
        assert_eq!(ask(&mut fetches, &mut questions, &others, 1_400_001)[0].0, 2);
    }

    #[test]
    fn an_empty_answer_lets_another_be_asked() {
        let report = Report { worker: 5, source: 1, seq: 3, kind: ReportKind::Known, bytes: [7; 99].into() };
        let bytes = Report::write_all(std::slice::from_ref(&report));
        let (mut fetches, mut questions, others) = (Fetches::default(), Questions::default(), routers(2));
        fetches.want(WANTED, Some(RouterId(1)), Micros(0), &mut questions);
        let (of, question) = ask(&mut fetches, &mut questions, &others, 1).remove(0);
        assert_eq!((of, &question.want), (1, &Want::Stream(WANTED)));
        let part = Part { ticket: question.ticket, asked_at_us: 1, answer: 1, at: 0, of: 1 };
        assert!(questions.take(RouterId(1), part, Vec::new(), Micros(2)).is_some());
        assert_eq!(fetches.take(5, &[], &mut questions), None);
        assert_eq!(ask(&mut fetches, &mut questions, &others, 3)[0].0, 2);
        assert_eq!(fetches.take(5, &bytes, &mut questions), Some(vec![report]));
        assert!(fetches.open.is_empty());
    }

    #[test]
    fn few_are_asked_for_at_a_time() {
        let (mut fetches, mut questions, others) = (Fetches::default(), Questions::default(), routers(2));
        let wanted = |worker| Wanted { worker, ..WANTED };
        (0..20).for_each(|worker| fetches.want(wanted(worker), None, Micros(0), &mut questions));
        let mut ask = |now| fetches.ask(&Around { others: &others, now: Micros(now) }, &mut questions);
        assert_eq!((ask(1), ask(2)), (OPEN_MAX as u64, 0));
        let nobody = Around { others: &BTreeMap::new(), now: Micros(3) };
        assert_eq!(fetches.give_up(&nobody, &mut questions).len(), 20, "nobody is there");
    }
}
