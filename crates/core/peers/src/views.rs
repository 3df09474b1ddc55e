//! All that is presumed of caches, wanted by one who was not there when it was said: who has just been started, or was cut off for longer
//! than news are kept.
//!
//! It may be many megabytes, and is only worth something: so one router is asked, a few times, and another where that one is gone, slow or
//! has nothing. Who has said most is asked first: routers that start together have little to tell each other.

use std::cmp::Reverse;

use warmroute_types::{Micros, RouterId};

use crate::answers::VIEW_SHARED_FOR;
use crate::question::Want;
use crate::questions::Questions;

/// After so long without a part of an answer the next one is asked,
const PATIENCE: Micros = Micros::from_secs(3);

/// so often in all.
const TRIES: u32 = 5;

/// Of so many it is remembered that they can be asked.
const TELLERS_MAX: usize = 8;

/// One that has just been heard is not asked for again,
const FRESH: Micros = Micros::from_secs(10);

/// unless somebody has said so many times as much.
const FAR_MORE: u64 = 2;

/// What is wanted of another.
#[derive(Debug, Default)]
pub(crate) struct Coming {
    wanted: Option<Wanted>,
    /// When one was last heard, and how much its teller had said.
    heard: Option<(Micros, u64)>,
}

#[derive(Debug, Default)]
struct Wanted {
    /// Those who have a past, the longest known first.
    tellers: Vec<Teller>,
    asked: Option<Asked>,
    tries: u32,
}

#[derive(Clone, Copy, Debug)]
struct Teller {
    router: RouterId,
    /// How many batches it had told by then.
    told: u64,
    tries: u32,
}

/// Who was asked last, the question's number, and when that was.
#[derive(Clone, Copy, Debug)]
struct Asked {
    of: RouterId,
    ticket: u64,
    at: Micros,
}

impl Coming {
    /// Somebody has a past, of so many batches. Those with much have the same, as far as they have told each other: one is enough, and
    /// the others are there in case that it dies or is slow.
    pub fn want(&mut self, of: RouterId, told: u64, now: Micros) {
        let is_fresh =
            |&(at, least): &(Micros, u64)| now.since(at) < FRESH && told <= least.saturating_mul(FAR_MORE);
        if self.heard.as_ref().is_some_and(is_fresh) {
            return;
        }
        let tellers = &mut self.wanted.get_or_insert_default().tellers;
        tellers.retain(|teller| teller.router != of);
        tellers.push(Teller { router: of, told, tries: 0 });
        if tellers.len() > TELLERS_MAX
            && let Some((least, _)) = tellers.iter().enumerate().min_by_key(|(_, teller)| teller.told)
        {
            tellers.remove(least);
        }
    }

    /// Asks whoever is to be asked now.
    pub fn ask(&mut self, is_here: impl Fn(RouterId) -> bool, now: Micros, questions: &mut Questions) {
        let Some(wanted) = &mut self.wanted else { return };
        let is_telling =
            |asked: &Asked| is_here(asked.of) && !questions.is_quiet(asked.ticket, PATIENCE, now);
        if wanted.asked.as_ref().is_some_and(is_telling) {
            return;
        }
        wanted.asked.take().into_iter().for_each(|asked| questions.drop(asked.ticket));
        wanted.tellers.retain(|teller| is_here(teller.router));
        match wanted.next().filter(|_| wanted.tries < TRIES) {
            Some(of) => {
                let ticket = questions.put(of, Want::View, now);
                wanted.asked = Some(Asked { of, ticket, at: now });
                wanted.note_try(of);
            }
            // Whoever comes next may be asked.
            None => self.wanted = None,
        }
    }

    /// An answer has come: what it says, and how old that is at most. Nothing in it: whoever was asked has nothing,
    /// and another may.
    pub fn take(&mut self, bytes: Vec<u8>, now: Micros) -> Option<(Vec<u8>, Micros)> {
        let wanted = self.wanted.as_mut()?;
        let asked = wanted.asked.take()?;
        let told =
            wanted.tellers.iter().find(|teller| teller.router == asked.of).map_or(0, |teller| teller.told);
        let least = if bytes.is_empty() { 0 } else { told.saturating_mul(FAR_MORE) };
        wanted.tellers.retain(|teller| teller.router != asked.of && teller.told > least);
        if wanted.tellers.is_empty() {
            self.wanted = None;
        }
        if bytes.is_empty() {
            return None;
        }
        self.heard = Some((now, told));
        // It may have been put together for another who had asked before.
        Some((bytes, now.since(asked.at) + VIEW_SHARED_FOR))
    }
}

impl Wanted {
    /// Of those who were asked least often the one that has said most.
    fn next(&self) -> Option<RouterId> {
        let first = self.tellers.iter().min_by_key(|teller| (teller.tries, Reverse(teller.told)));
        first.map(|teller| teller.router)
    }

    fn note_try(&mut self, of: RouterId) {
        self.tries += 1;
        self.tellers.iter_mut().filter(|teller| teller.router == of).for_each(|teller| teller.tries += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;
    use crate::round_trip::RoundTrip;

    /// Who is asked now, if anybody is.
    fn asked(coming: &mut Coming, questions: &mut Questions, but: u64, at_ms: u64) -> Option<(u64, u64)> {
        let now = Micros::from_millis(at_ms);
        let ticket = |coming: &Coming| coming.wanted.as_ref()?.asked.map(|asked| (asked.of.0, asked.ticket));
        let before = ticket(coming);
        coming.ask(|router| router != RouterId(but), now, questions);
        questions.ask(|_| RoundTrip::default(), now);
        ticket(coming).filter(|after| before != Some(*after))
    }

    #[test]
    fn what_does_not_come_is_asked_for_a_few_times_and_of_nobody_who_is_gone() {
        let (mut coming, mut questions, at) = (Coming::default(), Questions::default(), Micros::from_secs);
        coming.want(RouterId(2), 9, Micros(1));
        let times = (0..100).filter(|at| asked(&mut coming, &mut questions, 0, at * 1_000).is_some()).count();
        assert_eq!(times, TRIES as usize);
        coming.want(RouterId(2), 9, at(200));
        assert_eq!(asked(&mut coming, &mut questions, 2, 200_000), None);
        coming.want(RouterId(3), 9, at(201));
        assert_eq!(asked(&mut coming, &mut questions, 2, 201_000).map(|(of, _)| of), Some(3));
        assert_eq!(coming.take(vec![9], at(203)), Some((vec![9], at(2) + VIEW_SHARED_FOR)));
        coming.want(RouterId(3), 9, at(204));
        assert_eq!(asked(&mut coming, &mut questions, 2, 204_000), None, "it is fresh");
        coming.want(RouterId(3), 9, at(213));
        assert!(asked(&mut coming, &mut questions, 2, 213_000).is_some());
    }

    #[test]
    fn the_next_is_asked_at_once_when_one_dies_and_after_a_while_when_one_is_slow() {
        let (mut coming, mut questions) = (Coming::default(), Questions::default());
        (2..=4).for_each(|id| coming.want(RouterId(id), 9, Micros(id)));
        assert_eq!(asked(&mut coming, &mut questions, 0, 10).map(|(of, _)| of), Some(2), "the longest known");
        let (of, ticket) = asked(&mut coming, &mut questions, 2, 20).unwrap();
        assert_eq!(of, 3, "it died");
        let first = Part { ticket, asked_at_us: 0, answer: 7, at: 0, of: 3 };
        assert_eq!(questions.take(RouterId(3), first, vec![1], Micros::from_millis(3_000)), None);
        assert_eq!(asked(&mut coming, &mut questions, 2, 5_900), None, "it is telling");
        assert_eq!(asked(&mut coming, &mut questions, 2, 6_000).map(|(of, _)| of), Some(4), "it has stopped");
    }

    #[test]
    fn who_has_said_most_is_asked_though_another_newcomer_was_met_first() {
        let (mut coming, mut questions, at) = (Coming::default(), Questions::default(), Micros::from_millis);
        coming.want(RouterId(2), 2, at(1));
        assert_eq!(asked(&mut coming, &mut questions, 0, 2).map(|(of, _)| of), Some(2));
        coming.want(RouterId(3), 5_000, at(3));
        coming.want(RouterId(4), 6_000, at(3));
        assert!(coming.take(vec![9], at(4)).is_some(), "the little that it has");
        assert_eq!(asked(&mut coming, &mut questions, 0, 5).map(|(of, _)| of), Some(4));
        assert!(coming.take(vec![9], at(6)).is_some());
        assert_eq!(asked(&mut coming, &mut questions, 0, 7), None, "all the others have the same");
        coming.want(RouterId(5), 20_000, at(8));
        assert_eq!(asked(&mut coming, &mut questions, 0, 9).map(|(of, _)| of), Some(5), "it has far more");
    }

    #[test]
    fn an_answer_with_nothing_in_it_keeps_nobody_from_asking_another() {
        let (mut coming, mut questions, at) = (Coming::default(), Questions::default(), Micros::from_millis);
        (2..=3).for_each(|id| coming.want(RouterId(id), 9, at(1)));
        assert_eq!(asked(&mut coming, &mut questions, 0, 2).map(|(of, _)| of), Some(2));
        assert_eq!(coming.take(Vec::new(), at(3)), None);
        assert_eq!(asked(&mut coming, &mut questions, 0, 4).map(|(of, _)| of), Some(3));
        assert_eq!(coming.take(Vec::new(), at(5)), None);
        assert_eq!(asked(&mut coming, &mut questions, 0, 6), None, "nobody is asked twice for nothing");
        coming.want(RouterId(4), 2, at(7));
        assert_eq!(asked(&mut coming, &mut questions, 0, 8).map(|(of, _)| of), Some(4));
    }
}
