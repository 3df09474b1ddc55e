//! All that is presumed of caches, wanted by one who was not there when it was said: who has just been started, or was cut off for longer
//! than news are kept.
//!
//! It may be many megabytes, and is only worth something: so one router is asked, a few times, and another where that one is gone or slow.

use std::collections::VecDeque;

use warmroute_types::{Micros, RouterId};

use crate::question::Want;
use crate::questions::Questions;

/// After so long without a part of an answer the next one is asked,
const PATIENCE: Micros = Micros::from_secs(3);

/// so often in all.
const TRIES: u32 = 5;

/// Of so many it is remembered that they can be asked.
const TELLERS_MAX: usize = 8;

/// One that has just been heard is not asked for again.
const FRESH: Micros = Micros::from_secs(10);

/// What is wanted of another.
#[derive(Debug, Default)]
pub(crate) struct Coming {
    wanted: Option<Wanted>,
    /// When one was last wanted.
    since: Option<Micros>,
}

#[derive(Debug, Default)]
struct Wanted {
    /// Those who have a past, and are to be asked in this order: at first the longest known.
    tellers: VecDeque<RouterId>,
    /// Who was asked last, and the question's number.
    asked: Option<(RouterId, u64)>,
    tries: u32,
}

impl Coming {
    /// Somebody has a past. They all have the same, as far as they have told each other: one is enough, and the others are there
    /// in case that it dies or is slow.
    pub fn want(&mut self, of: RouterId, now: Micros) {
        let is_fresh = self.since.is_some_and(|since| now.since(since) < FRESH);
        if self.wanted.is_none() && !is_fresh {
            (self.since, self.wanted) = (Some(now), Some(Wanted::default()));
        }
        if let Some(wanted) = self.wanted.as_mut().filter(|wanted| wanted.tellers.len() < TELLERS_MAX) {
            wanted.tellers.push_back(of);
        }
    }

    /// Asks whoever is to be asked now.
    pub fn ask(&mut self, is_here: impl Fn(RouterId) -> bool, now: Micros, questions: &mut Questions) {
        let Some(wanted) = &mut self.wanted else { return };
        let is_telling =
            |(of, ticket): (RouterId, u64)| is_here(of) && !questions.is_quiet(ticket, PATIENCE, now);
        if wanted.asked.is_some_and(is_telling) {
            return;
        }
        wanted.asked.take().into_iter().for_each(|(_, ticket)| questions.drop(ticket));
        wanted.tellers.retain(|teller| is_here(*teller));
        match wanted.tellers.front().copied().filter(|_| wanted.tries < TRIES) {
            Some(next) => {
                wanted.asked = Some((next, questions.put(next, Want::View, now)));
                wanted.tries += 1;
                wanted.tellers.rotate_left(1);
            }
            // Whoever comes next may be asked.
            None => (self.wanted, self.since) = (None, None),
        }
    }

    /// An answer has come; whether it is one. Nothing in it: whoever was asked has nothing, and another may.
    pub fn take(&mut self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let view = Some(bytes).filter(|bytes| !bytes.is_empty())?;
        self.wanted = None;
        Some(view)
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
        let before = coming.wanted.as_ref().and_then(|wanted| wanted.asked);
        coming.ask(|router| router != RouterId(but), now, questions);
        questions.ask(|_| RoundTrip::default(), now);
        let after = coming.wanted.as_ref().and_then(|wanted| wanted.asked);
        after.filter(|_| before != after).map(|(of, ticket)| (of.0, ticket))
    }

    #[test]
    fn what_does_not_come_is_asked_for_a_few_times_and_of_nobody_who_is_gone() {
        let (mut coming, mut questions) = (Coming::default(), Questions::default());
        coming.want(RouterId(2), Micros(1));
        let times = (0..100).filter(|at| asked(&mut coming, &mut questions, 0, at * 1_000).is_some()).count();
        assert_eq!(times, TRIES as usize);
        coming.want(RouterId(2), Micros::from_secs(200));
        assert_eq!(asked(&mut coming, &mut questions, 2, 200_000), None);
        coming.want(RouterId(3), Micros::from_secs(201));
        assert_eq!(asked(&mut coming, &mut questions, 2, 201_000).map(|(of, _)| of), Some(3));
        assert_eq!((coming.take(Vec::new()), coming.take(vec![9])), (None, Some(vec![9])));
        coming.want(RouterId(3), Micros::from_secs(202));
        assert_eq!(asked(&mut coming, &mut questions, 2, 202_000), None, "it is fresh");
    }

    #[test]
    fn the_next_is_asked_at_once_when_one_dies_and_after_a_while_when_one_is_slow() {
        let (mut coming, mut questions) = (Coming::default(), Questions::default());
        (2..=4).for_each(|id| coming.want(RouterId(id), Micros(id)));
        assert_eq!(asked(&mut coming, &mut questions, 0, 10).map(|(of, _)| of), Some(2), "the longest known");
        let (of, ticket) = asked(&mut coming, &mut questions, 2, 20).unwrap();
        assert_eq!(of, 3, "it died");
        let first = Part { ticket, asked_at_us: 0, answer: 7, at: 0, of: 3 };
        assert_eq!(questions.take(RouterId(3), first, vec![1], Micros::from_millis(3_000)), None);
        assert_eq!(asked(&mut coming, &mut questions, 2, 5_900), None, "it is telling");
        assert_eq!(asked(&mut coming, &mut questions, 2, 6_000).map(|(of, _)| of), Some(4), "it has stopped");
    }
}
