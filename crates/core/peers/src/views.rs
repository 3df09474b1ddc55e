//! All that is presumed of caches, from one router to another that was not there when it was said: one that has just been started,
//! or that was cut off for longer than news are kept.
//!
//! It may be many megabytes, and is only worth something: so it goes in small parts, a few at a time between the news, and where one
//! is lost all of it is asked for again, a few times.

use std::collections::{BTreeMap, VecDeque};

use warmroute_types::{Micros, RouterId, To};

use crate::{Letter, Message};

/// Bytes of a part.
const PART_BYTES: usize = 128 << 10;

/// Parts that are told at a time.
const PARTS_AT_ONCE: usize = 4;

/// More than this is neither told nor heard.
const VIEW_BYTES_MAX: usize = 64 << 20;

/// After so long without an answer it is asked for again,
const PATIENCE: Micros = Micros::from_secs(3);

/// so often.
const TRIES: u32 = 3;

/// One that has just been heard is not asked for again.
const FRESH: Micros = Micros::from_secs(10);

/// What is on its way to others.
#[derive(Debug, Default)]
pub(crate) struct Going {
    parts: VecDeque<Letter>,
}

impl Going {
    /// All that is presumed.
    pub fn add(&mut self, from: RouterId, to: RouterId, bytes: &[u8]) {
        self.cut(to, bytes, |part, parts, bytes| Message::View { from, part, parts, bytes });
    }

    /// A worker's stream. Nothing is something to say, too: there is no answer.
    pub fn add_replay(&mut self, from: RouterId, to: RouterId, worker: u64, bytes: &[u8]) {
        self.cut(to, bytes, |part, parts, bytes| Message::Replay { from, worker, part, parts, bytes });
        if bytes.is_empty() {
            let nothing = Message::Replay { from, worker, part: 0, parts: 1, bytes: Vec::new() };
            self.parts.push_back(Letter { to: To::One(to), bytes: nothing.encode().into() });
        }
    }

    /// Cuts it into parts; nothing when there is too much on its way already.
    fn cut(&mut self, to: RouterId, bytes: &[u8], message: impl Fn(u32, u32, Vec<u8>) -> Message) {
        if self.parts.len() * PART_BYTES + bytes.len() > VIEW_BYTES_MAX {
            return;
        }
        let parts = bytes.len().div_ceil(PART_BYTES) as u32;
        for (part, bytes) in (0..).zip(bytes.chunks(PART_BYTES)) {
            let bytes = message(part, parts, bytes.to_vec()).encode().into();
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

#[derive(Debug)]
struct Wanted {
    of: RouterId,
    asked: Option<Micros>,
    tries: u32,
    parts: BTreeMap<u32, Vec<u8>>,
    bytes: usize,
}

impl Coming {
    /// Somebody has a past. They all have the same, as far as they have told each other: one is enough.
    pub fn want(&mut self, of: RouterId, now: Micros) {
        let is_fresh = self.since.is_some_and(|since| now.since(since) < FRESH);
        if self.wanted.is_none() && !is_fresh {
            self.since = Some(now);
            self.wanted = Some(Wanted { of, asked: None, tries: 0, parts: BTreeMap::new(), bytes: 0 });
        }
    }

    /// Who is to be asked now.
    pub fn whom_to_ask(&mut self, is_here: impl Fn(RouterId) -> bool, now: Micros) -> Option<RouterId> {
        let wanted = self.wanted.as_mut()?;
        if wanted.asked.is_some_and(|asked| now.since(asked) < PATIENCE) {
            return None;
        }
        if wanted.tries >= TRIES || !is_here(wanted.of) {
            // Whoever comes next may be asked.
            (self.wanted, self.since) = (None, None);
            return None;
        }
        wanted.tries += 1;
        wanted.asked = Some(now);
        (wanted.parts, wanted.bytes) = (BTreeMap::new(), 0);
        Some(wanted.of)
    }

    /// A part has come; all of it, where it was the last.
    pub fn take(&mut self, from: RouterId, part: u32, parts: u32, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let wanted = self.wanted.as_mut().filter(|wanted| wanted.of == from)?;
        if part >= parts || wanted.bytes + bytes.len() > VIEW_BYTES_MAX {
            return None;
        }
        wanted.bytes += bytes.len();
        wanted.parts.insert(part, bytes);
        if wanted.parts.len() < parts as usize {
            return None;
        }
        let whole = self.wanted.take()?.parts.into_values();
        Some(whole.flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: RouterId = RouterId(1);
    const OTHER: RouterId = RouterId(2);

    fn told(going: &mut Going) -> Vec<(u32, u32, Vec<u8>)> {
        let parts: Vec<Letter> = std::iter::repeat_with(|| going.some().collect::<Vec<_>>())
            .take_while(|some| !some.is_empty())
            .inspect(|some| assert!(some.len() <= PARTS_AT_ONCE))
            .flatten()
            .collect();
        let part = |letter: &Letter| match Message::decode(&letter.bytes) {
            Ok(Some(Message::View { part, parts, bytes, .. })) => (part, parts, bytes),
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
        for (part, parts, bytes) in first.iter().chain(first) {
            assert_eq!(coming.take(OTHER, *part, *parts, bytes.clone()), None);
        }
        assert_eq!(coming.take(RouterId(3), last.0, last.1, last.2.clone()), None, "of somebody else");
        assert_eq!(coming.take(OTHER, last.0, last.1, last.2.clone()), Some(view));
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
}
