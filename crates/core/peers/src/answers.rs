//! Answers to others' questions, kept while they are pulled, part by part.
//!
//! An answer is put together once for a question, and each part of it sent when it is asked for: so nobody is sent more than it can take,
//! and what was lost is sent again alone. All are bounded: who comes back for one that is gone gets another.

use std::collections::BTreeMap;
use std::sync::Arc;

use warmroute_types::{Micros, RouterId, To};

use crate::parts::{ANSWER_BYTES_MAX, PART_BYTES, Part};
use crate::question::{PARTS_AT_ONCE, Question, Want};
use crate::{Letter, Message};

/// One that nobody has asked for any more for so long is forgotten.
const KEPT_FOR: Micros = Micros::from_secs(10);

/// One that is not put together after so long was lost on its way to whoever should do it, and is begun again when it is asked for.
const COMPOSED_IN: Micros = Micros::from_secs(2);

/// Answers that are kept at a time.
const ANSWERS_MAX: usize = 256;

/// What others have asked.
#[derive(Debug)]
pub(crate) struct Answers {
    me: RouterId,
    /// Answers so far.
    count: u64,
    open: BTreeMap<(RouterId, u64), Open>,
    /// Parts of those that have just been put together.
    ready: Vec<Letter>,
}

#[derive(Debug)]
struct Open {
    /// As it was last asked.
    question: Question,
    asked: Micros,
    answer: u64,
    /// `None` while it is put together.
    bytes: Option<Arc<[u8]>>,
}

impl Answers {
    pub fn new(me: RouterId) -> Answers {
        Answers { me, count: 0, open: BTreeMap::new(), ready: Vec::new() }
    }

    /// Somebody asks: the parts that are wanted, or `None` where the answer is yet to be put together, and told by
    /// [`Answers::tell`].
    pub fn asked(&mut self, by: RouterId, question: Question, now: Micros) -> Option<Vec<Letter>> {
        let key = (by, question.ticket);
        let is_lost = |open: &Open| open.bytes.is_none() && now.since(open.asked) >= COMPOSED_IN;
        if self.open.get(&key).is_some_and(is_lost) {
            self.open.remove(&key);
        }
        if let Some(open) = self.open.get_mut(&key) {
            open.question = question;
            if open.bytes.is_some() {
                open.asked = now;
            }
            return Some(self.parts(key));
        }
        self.count += 1;
        self.open.insert(key, Open { question, asked: now, answer: self.count, bytes: None });
        self.make_room();
        None
    }

    /// The answer is this. Nothing is one, too: there is none. So is too much.
    pub fn tell(&mut self, to: RouterId, ticket: u64, bytes: Vec<u8>) {
        let key = (to, ticket);
        let Some(open) = self.open.get_mut(&key) else { return };
        let is_sane = bytes.len() <= ANSWER_BYTES_MAX;
        open.bytes = Some(if is_sane { bytes.into() } else { Arc::default() });
        let parts = self.parts(key);
        self.ready.extend(parts);
        self.make_room();
    }

    /// The questions of a router that wait for an answer.
    pub fn waiting(&self, of: RouterId) -> Vec<(u64, Want)> {
        let of_it = self.open.range((of, 0)..=(of, u64::MAX)).map(|(_, open)| open);
        let waits = of_it.filter(|open| open.bytes.is_none()).map(|open| &open.question);
        waits.map(|question| (question.ticket, question.want.clone())).collect()
    }

    /// Parts of what was put together since the last time.
    pub fn take_ready(&mut self) -> Vec<Letter> {
        std::mem::take(&mut self.ready)
    }

    /// Forgets what nobody comes for any more.
    pub fn expire(&mut self, is_here: impl Fn(RouterId) -> bool, now: Micros) {
        self.open.retain(|(of, _), open| is_here(*of) && now.since(open.asked) < KEPT_FOR);
    }

    fn parts(&self, key: (RouterId, u64)) -> Vec<Letter> {
        let Some(Open { question, answer, bytes: Some(bytes), .. }) = self.open.get(&key) else {
            return Vec::new();
        };
        let of = bytes.len().div_ceil(PART_BYTES).max(1) as u32;
        let wanted = question.parts.iter().take(PARTS_AT_ONCE).copied().filter(|&at| at < of);
        let letter = |at: u32| {
            let rest = &bytes[at as usize * PART_BYTES..];
            let (ticket, asked_at_us) = (question.ticket, question.asked_at_us);
            let part = Part { ticket, asked_at_us, answer: *answer, at, of };
            let bytes = rest[..rest.len().min(PART_BYTES)].to_vec();
            Letter::to_one(key.0, &Message::Answer { from: self.me, part, bytes })
        };
        wanted.map(letter).collect()
    }

    /// What was last asked for longest ago goes first.
    fn make_room(&mut self) {
        let bytes = |open: &Open| open.bytes.as_ref().map_or(0, |bytes| bytes.len());
        while self.open.len() > ANSWERS_MAX
            || (self.open.len() > 1 && self.open.values().map(bytes).sum::<usize>() > ANSWER_BYTES_MAX)
        {
            let oldest = self.open.iter().min_by_key(|(_, open)| open.asked).map(|(key, _)| *key);
            oldest.into_iter().for_each(|key| _ = self.open.remove(&key));
        }
    }
}

impl Letter {
    /// For one router.
    pub(crate) fn to_one(to: RouterId, message: &Message) -> Letter {
        Letter { to: To::One(to), bytes: message.encode().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: RouterId = RouterId(1);
    const OTHER: RouterId = RouterId(2);

    fn question(ticket: u64, parts: &[u32]) -> Question {
        Question { ticket, asked_at_us: 9, want: Want::View, parts: parts.to_vec() }
    }

    fn told(letters: &[Letter]) -> Vec<(u64, u32, u32, usize)> {
        let part = |letter: &Letter| match Message::decode(&letter.bytes) {
            Ok(Some(Message::Answer { part, bytes, .. })) => (part.answer, part.at, part.of, bytes.len()),
            other => panic!("{other:?}"),
        };
        letters.iter().map(part).collect()
    }

    #[test]
    fn an_answer_is_put_together_once_and_told_as_it_is_asked_for() {
        let mut answers = Answers::new(ME);
        assert_eq!(answers.asked(OTHER, question(7, &[0]), Micros(1)), None);
        assert_eq!(
            answers.asked(OTHER, question(7, &[0]), Micros(2)),
            Some(vec![]),
            "it is being put together"
        );
        assert_eq!(answers.waiting(OTHER), [(7, Want::View)]);
        answers.tell(OTHER, 7, vec![5; 2 * PART_BYTES + 7]);
        assert_eq!(told(&answers.take_ready()), [(1, 0, 3, PART_BYTES)]);
        let more = answers.asked(OTHER, question(7, &[1, 2, 3]), Micros(3)).unwrap();
        assert_eq!(told(&more), [(1, 1, 3, PART_BYTES), (1, 2, 3, 7)]);
        let all: Vec<u32> = (0..3).cycle().take(99).collect();
        assert_eq!(answers.asked(OTHER, question(7, &all), Micros(4)).unwrap().len(), PARTS_AT_ONCE);
        answers.expire(|_| true, Micros(4) + KEPT_FOR);
        assert_eq!(answers.asked(OTHER, question(7, &[1]), Micros(5)), None, "it is gone: another one");
        answers.tell(OTHER, 7, Vec::new());
        assert_eq!(told(&answers.take_ready()), [], "there is no such part any more");
        let nothing = answers.asked(OTHER, question(7, &[0]), Micros(6)).unwrap();
        assert_eq!(told(&nothing), [(2, 0, 1, 0)], "nothing is an answer");
    }

    #[test]
    fn what_was_lost_before_it_was_told_is_begun_again() {
        let mut answers = Answers::new(ME);
        assert_eq!(answers.asked(OTHER, question(7, &[0]), Micros(1)), None);
        assert_eq!(answers.asked(OTHER, question(7, &[0]), Micros::from_secs(1)), Some(vec![]));
        assert_eq!(answers.asked(OTHER, question(7, &[0]), Micros::from_secs(3)), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut answers = Answers::new(ME);
        for ticket in 0..2 * ANSWERS_MAX as u64 {
            assert_eq!(answers.asked(OTHER, question(ticket, &[0]), Micros(ticket)), None);
        }
        assert_eq!(answers.open.len(), ANSWERS_MAX);
        let (last, before) = (2 * ANSWERS_MAX as u64 - 1, 2 * ANSWERS_MAX as u64 - 2);
        answers.tell(OTHER, before, vec![0; ANSWER_BYTES_MAX - 9]);
        answers.tell(OTHER, last, vec![0; 10]);
        assert_eq!(answers.open.keys().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), [last]);
        answers.tell(OTHER, last, vec![0; ANSWER_BYTES_MAX + 1]);
        let nothing = answers.asked(OTHER, question(last, &[0]), Micros(9)).unwrap();
        assert_eq!(told(&nothing)[0].3, 0, "too much is none");
    }
}
