//! What is asked of others, and the parts of their answers that have come.
//!
//! ```text
//! Ask 7: parts 0        ──▶          nobody knows yet how long an answer takes: one part is enough to learn it
//!                       ◀── part 0 of 60
//! Ask 7: parts 1 to 8   ──▶          from now on so many are under way at a time, and each that comes is followed by another
//! ```
//!
//! Nobody is sent more than it has asked for, and nothing is asked for again before the answer could have come. So a long answer fills no
//! queue on its way, and news goes between its parts. What is needed most goes first, and the rest waits for it.

use std::collections::BTreeMap;

use warmroute_types::{Micros, RouterId};

use crate::parts::{Part, Parts, Progress};
use crate::question::{PARTS_AT_ONCE, Question, Want};
use crate::round_trip::RoundTrip;

/// Questions that are open.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    tickets: u64,
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    of: RouterId,
    want: Want,
    parts: Parts,
    /// Parts that are asked for, and when they were.
    under_way: BTreeMap<u32, Micros>,
    /// When something of the answer last came, or it was first asked.
    heard: Micros,
    /// Times that nothing came in time, since something did.
    in_vain: u32,
}

impl Questions {
    /// Asks one; its number.
    pub fn put(&mut self, of: RouterId, want: Want, now: Micros) -> u64 {
        self.tickets += 1;
        let (parts, under_way) = (Parts::default(), BTreeMap::new());
        self.open.insert(self.tickets, Open { of, want, parts, under_way, heard: now, in_vain: 0 });
        self.tickets
    }

    /// The answer is not wanted any more.
    pub fn drop(&mut self, ticket: u64) {
        self.open.remove(&ticket);
    }

    /// Whether nothing of its answer has come for so long, or it is not open any more.
    pub fn is_quiet(&self, ticket: u64, for_so_long: Micros, now: Micros) -> bool {
        self.open.get(&ticket).is_none_or(|open| now.since(open.heard) >= for_so_long)
    }

    /// What is to be asked now, of whom.
    pub fn ask(&mut self, trip_to: impl Fn(RouterId) -> RoundTrip, now: Micros) -> Vec<(RouterId, Question)> {
        self.open.values_mut().for_each(|open| open.forget_late(trip_to(open.of), now));
        let mut in_order: Vec<(&u64, &mut Open)> = self.open.iter_mut().collect();
        in_order.sort_by_key(|(_, open)| open.want.rank());
        // By teller, what is under way of all that comes before.
        let mut busy = BTreeMap::<RouterId, usize>::new();
        let mut asked = Vec::new();
        for (&ticket, open) in in_order {
            let busy = busy.entry(open.of).or_default();
            let room = PARTS_AT_ONCE.saturating_sub(*busy + open.under_way.len());
            let parts = open.next(trip_to(open.of), room, now);
            *busy += open.under_way.len();
            if !parts.is_empty() {
                let want = open.want.clone();
                asked.push((open.of, Question { ticket, asked_at_us: now.0, want, parts }));
            }
        }
        asked
    }

    /// A part has come; all of it, where it was the last one missing.
    pub fn take(
        &mut self,
        from: RouterId,
        part: Part,
        bytes: Vec<u8>,
        now: Micros,
    ) -> Option<(Want, Vec<u8>)> {
        let open = self.open.get_mut(&part.ticket).filter(|open| open.of == from)?;
        let progress = open.take(part, bytes, now);
        match progress {
            Progress::Some => None,
            // Too much is none, and asked again it would be the same.
            Progress::TooLarge => self.open.remove(&part.ticket).map(|open| (open.want, Vec::new())),
            Progress::Whole(bytes) => self.open.remove(&part.ticket).map(|open| (open.want, bytes)),
        }
    }
}

impl Open {
    /// What should have come by now is not under way any more.
    fn forget_late(&mut self, trip: RoundTrip, now: Micros) {
        let (patience, before) = (trip.patience(self.in_vain), self.under_way.len());
        self.under_way.retain(|_, asked| now.since(*asked) < patience);
        self.in_vain += u32::from(self.under_way.len() < before);
    }

    /// The next parts, as many as there is room for: one, while it is not known how long that takes, or nothing came.
    fn next(&mut self, trip: RoundTrip, room: usize, now: Micros) -> Vec<u32> {
        let is_steady = trip.usual().is_some() && self.in_vain == 0;
        let window = if is_steady { PARTS_AT_ONCE } else { 1 };
        let room = room.min(window.saturating_sub(self.under_way.len()));
        let is_idle = |at: &u32| !self.under_way.contains_key(at);
        let parts: Vec<u32> = self.parts.missing().filter(is_idle).take(room).collect();
        self.under_way.extend(parts.iter().map(|&at| (at, now)));
        parts
    }

    fn take(&mut self, part: Part, bytes: Vec<u8>, now: Micros) -> Progress {
        (self.heard, self.in_vain) = (now, 0);
        self.under_way.remove(&part.at);
        let progress = self.parts.take(part, bytes);
        self.under_way.retain(|&at, _| self.parts.may_have(at));
        progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: RouterId = RouterId(2);

    fn part(at: u32, of: u32) -> Part {
        Part { ticket: 1, asked_at_us: 0, answer: 1, at, of }
    }

    fn parts(asked: &[(RouterId, Question)]) -> Vec<u32> {
        asked.iter().flat_map(|(_, question)| question.parts.iter().copied()).collect()
    }

    fn known() -> RoundTrip {
        let mut trip = RoundTrip::default();
        (0..40).for_each(|_| trip.note(Micros::from_millis(100)));
        trip
    }

    #[test]
    fn one_part_is_asked_for_until_something_is_known_and_then_a_window() {
        let mut questions = Questions::default();
        let ticket = questions.put(OTHER, Want::View, Micros(0));
        let ask = |questions: &mut Questions, trip, at| parts(&questions.ask(|_| trip, Micros(at)));
        assert_eq!(ask(&mut questions, RoundTrip::default(), 1), [0]);
        assert_eq!(ask(&mut questions, RoundTrip::default(), 2), [0_u32; 0], "it is under way");
        assert_eq!(questions.take(OTHER, part(0, 20), vec![0], Micros(3)), None);
        assert_eq!(ask(&mut questions, known(), 4), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(questions.take(OTHER, part(2, 20), vec![2], Micros(5)), None);
        assert_eq!(questions.take(OTHER, part(2, 20), vec![2], Micros(5)), None, "repeated");
        assert_eq!(ask(&mut questions, known(), 6), [9], "one came, one is asked for");
        assert_eq!(ask(&mut questions, known(), 1_000_000), [1], "nothing comes: carefully");
        let is_quiet = |questions: &Questions, long| questions.is_quiet(ticket, Micros(long), Micros(9));
        assert!(is_quiet(&questions, 4) && !is_quiet(&questions, 5));
        assert_eq!(questions.take(RouterId(3), part(1, 20), vec![1], Micros(7)), None, "of another");
        for at in (0..20).filter(|&at| at != 2 && at != 0 && at != 19) {
            assert_eq!(questions.take(OTHER, part(at, 20), vec![at as u8], Micros(8)), None);
        }
        let whole = questions.take(OTHER, part(19, 20), vec![19], Micros(9));
        assert_eq!(whole, Some((Want::View, (0..20).collect())));
        assert!(is_quiet(&questions, u64::MAX), "it is not open any more");
    }

    #[test]
    fn all_questions_to_one_router_share_its_window() {
        let mut questions = Questions::default();
        questions.put(OTHER, Want::View, Micros(0));
        questions.put(OTHER, Want::View, Micros(0));
        questions.put(RouterId(3), Want::View, Micros(0));
        let asked = questions.ask(|_| known(), Micros(1));
        assert_eq!(asked.iter().map(|(of, _)| of.0).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(questions.take(OTHER, part(0, 1), vec![0], Micros(2)), Some((Want::View, vec![0])));
        let asked = questions.ask(|_| known(), Micros(3));
        assert_eq!((asked.len(), asked[0].1.ticket), (1, 2), "now it is the second one's turn");
        let urgent = questions.put(OTHER, Want::Batches(vec![1..=2]), Micros(4));
        let asked = questions.ask(|_| known(), Micros(5));
        assert_eq!((asked.len(), asked[0].1.ticket), (1, urgent), "news waits for no view");
    }
}
