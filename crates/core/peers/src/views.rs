//! All that is presumed of caches, from one router to another that was not there when it was said: one that has just been started,
//! or that was cut off for longer than news are kept.
//!
//! It may be many megabytes, and is only worth something: so it goes in small parts, a few at a time between the news, and where one
//! is lost all of it is asked for again, a few times, and of somebody else where there is one.

use std::collections::VecDeque;

use warmroute_types::{Micros, RouterId, To};

use crate::parts::{Part, Parts};
use crate::{Letter, Message};

/// Bytes of a part.
const PART_BYTES: usize = 128 << 10;

/// Parts that are told at a time.
const PARTS_AT_ONCE: usize = 4;

/// More than this is neither told nor heard.
const VIEW_BYTES_MAX: usize = 64 << 20;

/// After so long without a part of an answer the next one is asked,
const PATIENCE: Micros = Micros::from_secs(3);

/// so often in all.
const TRIES: u32 = 5;

/// Of so many it is remembered that they can be asked.
const TELLERS_MAX: usize = 8;

/// One that has just been heard is not asked for again.
const FRESH: Micros = Micros::from_secs(10);

/// What is on its way to others.
#[derive(Debug, Default)]
pub(crate) struct Going {
    parts: VecDeque<Letter>,
    /// Answers so far.
    answers: u64,
}

impl Going {
    /// All that is presumed.
    pub fn add(&mut self, from: RouterId, to: RouterId, bytes: &[u8]) {
        self.cut(to, bytes, |part, bytes| Message::View { from, part, bytes });
    }

    /// A worker's stream. Nothing is something to say, too: there is no answer.
    pub fn add_replay(&mut self, from: RouterId, to: RouterId, worker: u64, bytes: &[u8]) {
        self.cut(to, bytes, |part, bytes| Message::Replay { from, worker, part, bytes });
        if bytes.is_empty() {
            let part = Part { answer: self.answers, at: 0, of: 1 };
            let nothing = Message::Replay { from, worker, part, bytes: Vec::new() };
            self.parts.push_back(Letter { to: To::One(to), bytes: nothing.encode().into() });
        }
    }

    /// Cuts it into parts; nothing when there is too much on its way already.
    fn cut(&mut self, to: RouterId, bytes: &[u8], message: impl Fn(Part, Vec<u8>) -> Message) {
        self.answers += 1;
        if self.parts.len() * PART_BYTES + bytes.len() > VIEW_BYTES_MAX {
            return;
        }
        let (answer, of) = (self.answers, bytes.len().div_ceil(PART_BYTES) as u32);
        for (at, bytes) in (0..).zip(bytes.chunks(PART_BYTES)) {
            let bytes = message(Part { answer, at, of }, bytes.to_vec()).encode().into();
            self.parts.push_back(Letter { to: To::One(to), bytes });
        }
    }

    /// The next few.
    pub fn some(&mut self) -> impl Iterator<Item = Letter> {
        let count = self.parts.len().min(PARTS_AT_ONCE);
        self.parts.drain(..count)
    }
}

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
    /// Who was asked last, and when he was, or was last heard.
    asked: Option<(RouterId, Micros)>,
    tries: u32,
    parts: Parts,
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

    /// Who is to be asked now.
    pub fn whom_to_ask(&mut self, is_here: impl Fn(RouterId) -> bool, now: Micros) -> Option<RouterId> {
        let wanted = self.wanted.as_mut()?;
        let is_telling = |(of, heard): (RouterId, Micros)| is_here(of) && now.since(heard) < PATIENCE;
        if wanted.asked.is_some_and(is_telling) {
            return None;
        }
        wanted.tellers.retain(|teller| is_here(*teller));
        let next = wanted.tellers.front().copied().filter(|_| wanted.tries < TRIES);
        match next {
            Some(next) => wanted.ask(next, now),
            // Whoever comes next may be asked.
            None => (self.wanted, self.since) = (None, None),
        }
        next
    }

    /// A part has come; all of it, where it was the last.
    pub fn take(&mut self, from: RouterId, part: Part, bytes: Vec<u8>, now: Micros) -> Option<Vec<u8>> {
        let wanted = self.wanted.as_mut()?;
        wanted.asked.filter(|(of, _)| *of == from)?;
        wanted.asked = Some((from, now));
        let whole = wanted.parts.take(part, bytes, VIEW_BYTES_MAX)?;
        self.wanted = None;
        Some(whole)
    }
}

impl Wanted {
    fn ask(&mut self, next: RouterId, now: Micros) {
        if self.asked.is_none_or(|(of, _)| of != next) {
            // Each counts its answers itself.
            self.parts = Parts::default();
        }
        self.asked = Some((next, now));
        self.tries += 1;
        self.tellers.rotate_left(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: RouterId = RouterId(1);
    const OTHER: RouterId = RouterId(2);

    fn told(going: &mut Going) -> Vec<(Part, Vec<u8>)> {
        let parts: Vec<Letter> = std::iter::repeat_with(|| going.some().collect::<Vec<_>>())
            .take_while(|some| !some.is_empty())
            .inspect(|some| assert!(some.len() <= PARTS_AT_ONCE))
            .flatten()
            .collect();
        let part = |letter: &Letter| match Message::decode(&letter.bytes) {
            Ok(Some(Message::View { part, bytes, .. })) => (part, bytes),
            other => panic!("{other:?}"),
        };
        parts.iter().map(part).collect()
    }

    #[test]
    fn a_view_arrives_whole_in_any_order_and_repeated() {
        let (mut going, mut coming) = (Going::default(), Coming::default());
        let view: Vec<u8> = (0..3 * PART_BYTES + 7).map(|n| n as u8).collect();
        going.add(OTHER, ME, &view);
        coming.want(OTHER, Micros(1));
        assert_eq!(coming.whom_to_ask(|_| true, Micros(1)), Some(OTHER));
        assert_eq!(coming.whom_to_ask(|_| true, Micros(2)), None, "it has been asked");
        let mut parts = told(&mut going);
        parts.reverse();
        let (last, first) = parts.split_last().unwrap();
        for (part, bytes) in first.iter().chain(first) {
            assert_eq!(coming.take(OTHER, *part, bytes.clone(), Micros(3)), None);
        }
        assert_eq!(coming.take(RouterId(3), last.0, last.1.clone(), Micros(3)), None, "of somebody else");
        assert_eq!(coming.take(OTHER, last.0, last.1.clone(), Micros(3)), Some(view));
        coming.want(OTHER, Micros::from_secs(5));
        assert_eq!(coming.whom_to_ask(|_| true, Micros::from_secs(5)), None, "it is fresh");
    }

    #[test]
    fn what_does_not_come_is_asked_for_a_few_times_and_of_nobody_who_is_gone() {
        let mut coming = Coming::default();
        coming.want(OTHER, Micros(1));
        let asked =
            |at: u64, coming: &mut Coming| coming.whom_to_ask(|_| true, Micros::from_secs(at)).is_some();
        let times = (0..100).filter(|&at| asked(at, &mut coming)).count();
        assert_eq!(times, TRIES as usize);
        coming.want(OTHER, Micros::from_secs(200));
        assert_eq!(coming.whom_to_ask(|_| false, Micros::from_secs(200)), None);
        coming.want(RouterId(3), Micros::from_secs(201));
        assert_eq!(coming.whom_to_ask(|_| true, Micros::from_secs(201)), Some(RouterId(3)));
    }

    #[test]
    fn the_next_is_asked_at_once_when_one_dies_and_after_a_while_when_one_is_slow() {
        let mut coming = Coming::default();
        (2..=4).for_each(|id| coming.want(RouterId(id), Micros(id)));
        let at = |ms| Micros::from_millis(ms);
        assert_eq!(coming.whom_to_ask(|_| true, at(10)), Some(RouterId(2)), "the longest known");
        let but_two = |router| router != RouterId(2);
        assert_eq!(coming.whom_to_ask(but_two, at(20)), Some(RouterId(3)), "it died");
        let first = Part { answer: 7, at: 0, of: 3 };
        assert_eq!(coming.take(RouterId(3), first, vec![1], at(3_000)), None);
        assert_eq!(coming.whom_to_ask(but_two, at(5_900)), None, "it is telling");
        assert_eq!(coming.whom_to_ask(but_two, at(6_000)), Some(RouterId(4)), "it has stopped");
        let whole = Part { answer: 1, at: 0, of: 1 };
        assert_eq!(coming.take(RouterId(4), whole, vec![9], at(6_100)), Some(vec![9]), "whoever counts less");
    }
}
