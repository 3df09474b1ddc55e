//! Answers to others' questions, kept while they are pulled, part by part.
//!
//! An answer is put together once for a question, and each part of it sent when it is asked for: so nobody is sent more than it can take,
//! and what was lost is sent again alone. All that is presumed is the same whoever asks, and may be large: it is put together once for all
//! who ask within some seconds. What is kept is bounded, and nothing goes that is being pulled: whoever had to begin anew would do so
//! for ever. Who finds no room asks again.

use std::collections::BTreeMap;
use std::sync::Arc;

use warmroute_types::{Micros, RouterId, To};

use crate::parts::{ANSWER_BYTES_MAX, PART_BYTES, Part};
use crate::question::{PARTS_AT_ONCE, Question, Want};
use crate::{Letter, Message};

/// One that nobody has asked for any more for so long is forgotten,
const KEPT_FOR: Micros = Micros::from_secs(10);

/// and after so long where there is no room for another. Those who pull ask more often.
const PULLED_WITHIN: Micros = Micros::from_secs(3);

/// One that is not put together after so long was lost on its way to whoever should do it, and is begun again when it is asked for.
const COMPOSED_IN: Micros = Micros::from_secs(2);

/// The same for all that is presumed, which takes longer.
const VIEW_COMPOSED_IN: Micros = Micros::from_secs(10);

/// Who asks for all that is presumed is told what was put together for another within this time. What has happened since is among the
/// batches that are kept.
pub(crate) const VIEW_SHARED_FOR: Micros = Micros::from_secs(5);

/// Answers that are kept at a time.
const ANSWERS_MAX: usize = 256;

/// What others have asked.
#[derive(Debug)]
pub(crate) struct Answers {
    me: RouterId,
    /// Answers so far.
    count: u64,
    open: BTreeMap<(RouterId, u64), Open>,
    /// The last that all are told who ask for all that is presumed.
    view: Option<View>,
    /// How large it was: the next will be about as large.
    last_view_bytes: usize,
    /// Parts of those that have just been put together.
    ready: Vec<Letter>,
}

#[derive(Debug)]
struct Open {
    /// As it was last asked.
    question: Question,
    asked: Micros,
    /// `None` while it is put together.
    told: Option<Told>,
}

/// An answer and its number. It is the same for all who are told it, so that who comes back for it goes on where it was.
#[derive(Clone, Debug)]
struct Told {
    answer: u64,
    bytes: Arc<[u8]>,
}

#[derive(Debug)]
struct View {
    since: Micros,
    /// `None` while it is put together.
    told: Option<Told>,
}

impl Open {
    fn is_lost(&self, now: Micros) -> bool {
        let composed_in = if self.is_view() { VIEW_COMPOSED_IN } else { COMPOSED_IN };
        self.told.is_none() && now.since(self.asked) >= composed_in
    }

    fn is_view(&self) -> bool {
        self.question.want == Want::View
    }

    fn bytes(&self) -> usize {
        self.told.as_ref().map_or(0, |told| told.bytes.len())
    }
}

impl View {
    fn is_of_use(&self, now: Micros) -> bool {
        let for_so_long = if self.told.is_some() { VIEW_SHARED_FOR } else { VIEW_COMPOSED_IN };
        now.since(self.since) < for_so_long
    }
}

impl Answers {
    pub fn new(me: RouterId) -> Answers {
        Answers { me, count: 0, open: BTreeMap::new(), view: None, last_view_bytes: 0, ready: Vec::new() }
    }

    /// Somebody asks: the parts that are wanted, or `None` where the answer is yet to be put together, and told by
    /// [`Answers::tell`] or [`Answers::tell_view`].
    pub fn asked(&mut self, by: RouterId, question: Question, now: Micros) -> Option<Vec<Letter>> {
        let key = (by, question.ticket);
        if self.open.get(&key).is_some_and(|open| open.is_lost(now)) {
            self.open.remove(&key);
        }
        if let Some(open) = self.open.get_mut(&key) {
            open.question = question;
            if open.told.is_some() {
                open.asked = now;
            }
            return Some(self.parts(key));
        }
        while self.open.len() >= ANSWERS_MAX {
            if !self.drop_idle(now) {
                return Some(Vec::new());
            }
        }
        let shared = self.view.as_ref().filter(|view| question.want == Want::View && view.is_of_use(now));
        if let Some(told) = shared.map(|view| view.told.clone()) {
            self.open.insert(key, Open { question, asked: now, told });
            return Some(self.parts(key));
        }
        if question.want == Want::View {
            if !self.has_room_for_view(now) {
                return Some(Vec::new());
            }
            self.view = Some(View { since: now, told: None });
        }
        self.open.insert(key, Open { question, asked: now, told: None });
        None
    }

    /// Whether another like the last one may be put together, beside those that are being pulled.
    fn has_room_for_view(&mut self, now: Micros) -> bool {
        while self.view_bytes() + self.last_view_bytes > ANSWER_BYTES_MAX {
            if !self.drop_idle(now) {
                return false;
            }
        }
        true
    }

    /// All that is presumed is this, for everybody who waits for it. Nothing is an answer, too. So is too much.
    pub fn tell_view(&mut self, bytes: Arc<[u8]>, now: Micros) {
        let told = self.number(bytes);
        self.last_view_bytes = told.bytes.len();
        let since = self.view.as_ref().map_or(now, |view| view.since);
        self.view = Some(View { since, told: Some(told.clone()) });
        let waits = |(_, open): &(&(RouterId, u64), &mut Open)| open.is_view() && open.told.is_none();
        let mut keys = Vec::new();
        for (key, open) in self.open.iter_mut().filter(waits) {
            (open.told, open.asked) = (Some(told.clone()), now);
            keys.push(*key);
        }
        let parts: Vec<Letter> = keys.into_iter().flat_map(|key| self.parts(key)).collect();
        self.ready.extend(parts);
    }

    /// The answer is this. Nothing is one, too: there is none. So is too much.
    pub fn tell(&mut self, to: RouterId, ticket: u64, bytes: Vec<u8>, now: Micros) {
        let (key, told) = ((to, ticket), self.number(bytes.into()));
        let Some(open) = self.open.get_mut(&key) else { return };
        (open.told, open.asked) = (Some(told), now);
        while self.bytes() > ANSWER_BYTES_MAX {
            if !self.drop_idle(now) {
                self.open.remove(&key);
            }
        }
        let parts = self.parts(key);
        self.ready.extend(parts);
    }

    fn number(&mut self, bytes: Arc<[u8]>) -> Told {
        self.count += 1;
        let is_sane = bytes.len() <= ANSWER_BYTES_MAX;
        Told { answer: self.count, bytes: if is_sane { bytes } else { Arc::default() } }
    }

    /// The questions of a router that wait for an answer of their own.
    pub fn waiting(&self, of: RouterId) -> Vec<(u64, Want)> {
        let of_it = self.open.range((of, 0)..=(of, u64::MAX)).map(|(_, open)| open);
        let waits = of_it.filter(|open| open.told.is_none()).map(|open| &open.question);
        waits.map(|question| (question.ticket, question.want.clone())).collect()
    }

    /// Parts of what was put together since the last time.
    pub fn take_ready(&mut self) -> Vec<Letter> {
        std::mem::take(&mut self.ready)
    }

    /// Forgets what nobody comes for any more.
    pub fn expire(&mut self, is_here: impl Fn(RouterId) -> bool, now: Micros) {
        self.open.retain(|(of, _), open| is_here(*of) && now.since(open.asked) < KEPT_FOR);
        self.view.take_if(|view| !view.is_of_use(now));
    }

    fn parts(&self, key: (RouterId, u64)) -> Vec<Letter> {
        let Some(Open { question, told: Some(Told { answer, bytes }), .. }) = self.open.get(&key) else {
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

    /// Bytes of what only one has asked for.
    fn bytes(&self) -> usize {
        self.open.values().filter(|open| !open.is_view()).map(Open::bytes).sum()
    }

    /// Bytes of what may be told to several, each counted once.
    fn view_bytes(&self) -> usize {
        let told = self.open.values().filter(|open| open.is_view()).filter_map(|open| open.told.as_ref());
        let views: BTreeMap<u64, usize> = told.map(|told| (told.answer, told.bytes.len())).collect();
        views.into_values().sum()
    }

    /// Forgets what was last asked for longest ago, unless it is being pulled; whether there was something.
    fn drop_idle(&mut self, now: Micros) -> bool {
        let oldest = self.open.iter().min_by_key(|(_, open)| open.asked);
        let idle = oldest.filter(|(_, open)| now.since(open.asked) >= PULLED_WITHIN).map(|(key, _)| *key);
        idle.is_some_and(|key| self.open.remove(&key).is_some())
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
    use crate::Wanted;

    const ME: RouterId = RouterId(1);
    const OTHER: RouterId = RouterId(2);
    const STREAM: Want = Want::Stream(Wanted { worker: 5, source: 1, from_seq: 3 });

    fn question(ticket: u64, parts: &[u32]) -> Question {
        Question { ticket, asked_at_us: 9, want: STREAM, parts: parts.to_vec() }
    }

    fn view(ticket: u64, part: u32) -> Question {
        Question { want: Want::View, ..question(ticket, &[part]) }
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
        assert_eq!(answers.waiting(OTHER), [(7, STREAM)]);
        answers.tell(OTHER, 7, vec![5; 2 * PART_BYTES + 7], Micros(2));
        assert_eq!(told(&answers.take_ready()), [(1, 0, 3, PART_BYTES)]);
        let more = answers.asked(OTHER, question(7, &[1, 2, 3]), Micros(3)).unwrap();
        assert_eq!(told(&more), [(1, 1, 3, PART_BYTES), (1, 2, 3, 7)]);
        let all: Vec<u32> = (0..3).cycle().take(99).collect();
        assert_eq!(answers.asked(OTHER, question(7, &all), Micros(4)).unwrap().len(), PARTS_AT_ONCE);
        answers.expire(|_| true, Micros(4) + KEPT_FOR);
        assert_eq!(answers.asked(OTHER, question(7, &[1]), Micros(5)), None, "it is gone: another one");
        answers.tell(OTHER, 7, Vec::new(), Micros(5));
        assert_eq!(told(&answers.take_ready()), [], "there is no such part any more");
        let nothing = answers.asked(OTHER, question(7, &[0]), Micros(6)).unwrap();
        assert_eq!(told(&nothing), [(2, 0, 1, 0)], "nothing is an answer");
    }

    #[test]
    fn what_was_lost_before_it_was_told_is_begun_again() {
        let mut answers = Answers::new(ME);
        let at = Micros::from_secs;
        assert_eq!(answers.asked(OTHER, question(7, &[0]), Micros(1)), None);
        assert_eq!(answers.asked(OTHER, question(7, &[0]), at(1)), Some(vec![]));
        assert_eq!(answers.asked(OTHER, question(7, &[0]), at(3)), None);
        assert_eq!(answers.asked(OTHER, view(8, 0), Micros(1)), None);
        assert_eq!(answers.asked(OTHER, view(8, 0), at(9)), Some(vec![]), "it takes longer");
        assert_eq!(answers.asked(OTHER, view(8, 0), at(11)), None);
    }

    #[test]
    fn what_is_presumed_is_put_together_once_for_all_who_ask_and_counted_once() {
        let (mut answers, at) = (Answers::new(ME), Micros::from_secs);
        assert_eq!(answers.asked(RouterId(2), view(1, 0), at(1)), None);
        (3..100).for_each(|id| assert_eq!(answers.asked(RouterId(id), view(1, 0), at(1)), Some(vec![])));
        answers.tell_view(vec![0; 24 << 20].into(), at(1));
        assert_eq!(answers.take_ready().len(), 98, "everybody who waits is told");
        let late = answers.asked(RouterId(100), view(1, 7), at(4)).unwrap();
        assert_eq!(told(&late), [(1, 7, 192, PART_BYTES)]);
        assert_eq!(answers.view_bytes(), 24 << 20);
    }

    #[test]
    fn nobody_who_pulls_has_to_begin_anew_because_others_come() {
        let (mut answers, at) = (Answers::new(ME), Micros::from_secs);
        let (mut composed, mut number) = (0, None);
        for second in 1..60 {
            let by = RouterId(2 + second);
            if answers.asked(by, view(1, 0), at(second)).is_none() {
                composed += 1;
                answers.tell_view(vec![0; 24 << 20].into(), at(second));
            }
            let pulled = told(&answers.asked(OTHER, view(9, second as u32), at(second)).unwrap());
            assert_eq!(*number.get_or_insert(pulled[0].0), pulled[0].0, "at {second} s");
            answers.expire(|_| true, at(second));
            assert!(answers.view_bytes() <= ANSWER_BYTES_MAX);
        }
        assert!((2..=13).contains(&composed), "{composed}");
        answers.tell_view(vec![0; 60 << 20].into(), at(60));
        assert_eq!(answers.asked(OTHER, view(9, 60), at(65)).unwrap().len(), 1);
        assert_eq!(
            answers.asked(RouterId(99), view(1, 0), at(66)),
            Some(vec![]),
            "there is no room for another"
        );
        answers.expire(|_| true, at(600));
        assert!(answers.view.is_none(), "nobody asks for it any more");
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_pulled_stays() {
        let mut answers = Answers::new(ME);
        let kept = ANSWERS_MAX as u64;
        for ticket in 0..kept {
            assert_eq!(answers.asked(OTHER, question(ticket, &[0]), Micros(ticket)), None);
        }
        assert_eq!(
            answers.asked(OTHER, question(kept, &[0]), Micros(kept)),
            Some(vec![]),
            "there is no room"
        );
        assert_eq!(answers.open.len(), ANSWERS_MAX);
        let now = PULLED_WITHIN;
        assert_eq!(answers.asked(OTHER, question(kept, &[0]), now), None, "now there is");
        answers.tell(OTHER, 1, vec![0; ANSWER_BYTES_MAX - 9], now);
        assert_eq!(answers.take_ready().len(), 1);
        answers.tell(OTHER, 2, vec![0; 10], now);
        assert!(
            answers.take_ready().is_empty() && !answers.open.contains_key(&(OTHER, 2)),
            "it is asked again"
        );
        assert!(answers.open.contains_key(&(OTHER, 1)), "it is being pulled");
        answers.tell(OTHER, kept, vec![0; ANSWER_BYTES_MAX + 1], now);
        let nothing = answers.asked(OTHER, question(kept, &[0]), now).unwrap();
        assert_eq!(told(&nothing)[0].3, 0, "too much is none");
    }
}
