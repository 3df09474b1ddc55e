//! What engines make of images, audio and video, learned from their events and answers.
//!
//! An event names the media in its blocks by the engine's own hashes, and its tokens show how many placeholders each has.
//! Which medium of which request that was, an answer tells: its worker has computed the medium (it found fewer cached
//! tokens), and exactly one medium that appeared in the worker's events since the request was sent continues the
//! request's text. Anything less certain teaches nothing. An answer may overtake its events, so it waits for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use warmroute_index::RootKey;
use warmroute_prompt::MediumFacts;
use warmroute_types::{StoredBlocks, WorkerId};

use crate::prompt::PromptText;

/// Most media that are known; the oldest are forgotten first.
const KNOWN_MAX: usize = 1 << 16;

/// Media of a worker's latest events.
const SEEN_MAX: usize = 64;

/// The part of a request's prompt from its first unknown medium on.
#[derive(Clone, Copy, Debug)]
pub struct UnknownMedia<'a> {
    /// Index of the text that it continues.
    pub text: usize,
    /// Key of the text's family.
    pub family: u64,
    /// The rendered prompt, which begins with a medium.
    pub rest: &'a [u8],
}

/// Most answers whose events have not arrived yet, and most bytes of one's prompt.
const AWAITED_MAX: usize = 32;
const AWAITED_BYTES_MAX: usize = 1 << 20;

/// Batches of events after which an answer's media are given up.
const BATCHES_MAX: u32 = 16;

/// An answer that may explain the media of its prompt.
#[derive(Clone, Debug)]
pub(crate) struct AwaitedMedia {
    pub worker: WorkerId,
    pub family: u64,
    pub root: RootKey,
    /// The prompt up to its first unknown medium, and the rendered rest.
    pub bytes: Vec<u8>,
    pub rest: Vec<u8>,
    /// Tokens that the engine found in its cache.
    pub found: u32,
    /// Media that had appeared before the request was sent.
    pub moment: u64,
    batches: u32,
}

impl AwaitedMedia {
    pub fn new(
        worker: WorkerId,
        text: &PromptText<'_>,
        media: UnknownMedia<'_>,
        found: u32,
        moment: u64,
    ) -> AwaitedMedia {
        let (bytes, rest) = (text.bytes.to_vec(), media.rest.to_vec());
        AwaitedMedia { worker, family: media.family, root: text.root, bytes, rest, found, moment, batches: 0 }
    }
}

/// All known media.
#[derive(Default)]
pub(crate) struct MediaBook {
    /// Counts media that appear in events.
    moment: AtomicU64,
    known: RwLock<KnownMedia>,
    /// Answers whose events have not all arrived.
    awaited: Mutex<VecDeque<AwaitedMedia>>,
}

#[derive(Default)]
struct KnownMedia {
    /// By family and medium.
    facts: BTreeMap<(u64, u64), MediumFacts>,
    order: VecDeque<(u64, u64)>,
}

impl MediaBook {
    /// The number of the last medium that appeared in any event.
    pub fn moment(&self) -> u64 {
        self.moment.load(Ordering::Acquire)
    }

    /// A number for a medium that appears now.
    pub fn next_moment(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// What a family's engines make of a medium.
    pub fn facts(&self, family: u64, medium: u64) -> Option<MediumFacts> {
        self.known.read().facts.get(&(family, medium)).cloned()
    }

    /// Learns what a family's engines make of a medium.
    pub fn learn(&self, family: u64, medium: u64, facts: MediumFacts) {
        let mut known = self.known.write();
        if known.facts.insert((family, medium), facts).is_none() {
            known.order.push_back((family, medium));
        }
        while known.order.len() > KNOWN_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.facts.remove(&oldest);
        }
    }

    /// Keeps an answer until its events arrive. The oldest ones give way.
    pub fn keep(&self, media: AwaitedMedia) {
        if media.bytes.len() + media.rest.len() > AWAITED_BYTES_MAX || media.batches >= BATCHES_MAX {
            return;
        }
        let mut awaited = self.awaited.lock();
        awaited.push_back(AwaitedMedia { batches: media.batches + 1, ..media });
        while awaited.len() > AWAITED_MAX {
            awaited.pop_front();
        }
    }

    /// Takes the answers that await events of a worker.
    pub fn take_awaited(&self, worker: WorkerId) -> VecDeque<AwaitedMedia> {
        let mut awaited = self.awaited.lock();
        let (due, others) = awaited.drain(..).partition(|media| media.worker == worker);
        *awaited = others;
        due
    }

    /// Forgets a family's media: an engine was restarted, perhaps with other settings.
    pub fn forget(&self, family: u64) {
        let mut known = self.known.write();
        known.facts.retain(|(of, _), _| *of != family);
        known.order.retain(|(of, _)| *of != family);
    }
}

/// A medium in a worker's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenMedium {
    pub moment: u64,
    pub hash: u64,
    /// Id of its placeholder token.
    pub placeholder: u32,
    pub tokens: u32,
    /// The last block so far, where the placeholders go on to its end.
    open_end: Option<u64>,
}

/// The media of a worker's latest events.
#[derive(Debug, Default)]
pub(crate) struct SeenMedia {
    recent: VecDeque<SeenMedium>,
}

impl SeenMedia {
    /// Takes in the media of an event.
    pub fn note(&mut self, blocks: &StoredBlocks, book: &MediaBook) {
        if let Some(parent) = blocks.parent {
            self.continue_open(parent, blocks, book);
        }
        for (number, start) in blocks.media.iter().enumerate() {
            let next = blocks.media.get(number + 1).map_or(blocks.tokens.len(), |next| next.token as usize);
            let Some(own) = blocks.tokens.get(start.token as usize..next) else { continue };
            let Some(&placeholder) = own.first() else { continue };
            let run = own.iter().take_while(|token| **token == placeholder).count();
            let goes_on = start.token as usize + run == blocks.tokens.len();
            self.recent.push_back(SeenMedium {
                moment: book.next_moment(),
                hash: start.hash,
                placeholder,
                tokens: run as u32,
                open_end: blocks.names.last().copied().filter(|_| goes_on),
            });
        }
        while self.recent.len() > SEEN_MAX {
            self.recent.pop_front();
        }
    }

    /// Media whose number of tokens is known, and that appeared or ended after a moment.
    pub fn since(&self, moment: u64) -> impl Iterator<Item = SeenMedium> {
        // Where all are newer, others that are newer too may have been dropped.
        let is_whole = self.recent.len() < SEEN_MAX || self.recent.iter().any(|seen| seen.moment <= moment);
        let is_new = move |seen: &&SeenMedium| is_whole && seen.moment > moment && seen.open_end.is_none();
        self.recent.iter().filter(is_new).copied()
    }

    /// The next blocks after those that ended within a medium.
    fn continue_open(&mut self, parent: u64, blocks: &StoredBlocks, book: &MediaBook) {
        let Some(open) = self.recent.iter_mut().rfind(|seen| seen.open_end == Some(parent)) else { return };
        let end = blocks.media.first().map_or(blocks.tokens.len(), |next| next.token as usize);
        let own = blocks.tokens.iter().take(end);
        let run = own.take_while(|token| **token == open.placeholder).count();
        open.tokens += run as u32;
        open.open_end = blocks.names.last().copied().filter(|_| run == blocks.tokens.len());
        open.moment = book.next_moment();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_types::MediumStart;

    fn blocks(parent: Option<u64>, names: &[u64], tokens: &[u32], media: &[(u32, u64)]) -> StoredBlocks {
        let media = media.iter().map(|&(token, hash)| MediumStart { token, hash }).collect();
        StoredBlocks {
            parent,
            names: names.to_vec(),
            tokens: tokens.to_vec(),
            block_tokens: 4,
            media,
            ..StoredBlocks::default()
        }
    }

    #[test]
    fn placeholders_are_counted_up_to_other_tokens_or_the_next_medium() {
        let (book, mut seen) = (MediaBook::default(), SeenMedia::default());
        seen.note(&blocks(None, &[1, 2], &[5, 8, 8, 8, 8, 8, 6, 6], &[(1, 70), (4, 71)]), &book);
        let found: Vec<_> = seen.since(0).map(|seen| (seen.hash, seen.placeholder, seen.tokens)).collect();
        assert_eq!(found, [(70, 8, 3), (71, 8, 2)]);
        assert_eq!(seen.since(1).count(), 1, "since the first of them");
    }

    #[test]
    fn a_medium_that_fills_the_last_block_is_counted_when_the_next_one_comes() {
        let (book, mut seen) = (MediaBook::default(), SeenMedia::default());
        seen.note(&blocks(None, &[1], &[5, 8, 8, 8], &[(1, 70)]), &book);
        assert_eq!(seen.since(0).count(), 0, "it may go on");
        seen.note(&blocks(Some(1), &[2], &[8, 8, 8, 8], &[]), &book);
        assert_eq!(seen.since(0).count(), 0);
        let before = book.moment();
        seen.note(&blocks(Some(2), &[3], &[8, 6, 6, 6], &[]), &book);
        assert_eq!(seen.since(before).map(|seen| seen.tokens).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn the_oldest_media_are_forgotten_and_families_are_apart() {
        let book = MediaBook::default();
        let facts = |hash| MediumFacts { hash, placeholder: b"p"[..].into(), tokens: 1 };
        (0..KNOWN_MAX as u64 + 2).for_each(|medium| book.learn(1, medium, facts(medium)));
        assert_eq!((book.facts(1, 0), book.facts(1, 5)), (None, Some(facts(5))));
        book.learn(2, 5, facts(9));
        book.forget(1);
        assert_eq!((book.facts(1, 5), book.facts(2, 5)), (None, Some(facts(9))));
    }
}
