//! What engines make of images, audio and video, learned from their events and answers.
//!
//! An event names the media in its blocks by the engine's own hashes, and its tokens show how many placeholders each has.
//! Which medium of which request that was, an answer tells in one of two ways. Its worker has computed the medium (it
//! found fewer cached tokens), and exactly one medium that appeared in the worker's events since the request was sent
//! continues the request's text. Or the worker's cache holds the whole prompt with exactly one of all media that its
//! events have named. Anything less certain teaches nothing. An answer may overtake its events, so it waits for them.
//!
//! A restarted engine may have other settings, which make other hashes. What is known stays in use then: the hash
//! decides, so a wrong one finds too little and never too much. The next answer confirms or replaces each of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use warmroute_index::RootKey;
use warmroute_prompt::MediumFacts;
use warmroute_types::{StoredBlocks, Usage, WorkerId};

use crate::prompt::PromptText;
use crate::saved_media::{KNOWN_MAX, SavedMedium};

/// Media of a worker's latest events.
const SEEN_MAX: usize = 64;

/// The part of a request's prompt from its first unknown medium on.
#[derive(Clone, Copy, Debug)]
pub struct UnknownMedia<'a> {
    /// Index of the text that it continues.
    pub text: usize,
    /// Key of the text's family.
    pub family: u64,
    /// Bytes of the text before the medium. The text ends there, unless the medium is known and only to be checked.
    pub at: usize,
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
    /// Tokens that the engine found in its cache, if it reports them.
    pub found: Option<u32>,
    /// Tokens of the whole prompt.
    pub prompt_tokens: u32,
    /// Media that had appeared before the request was sent.
    pub moment: u64,
    batches: u32,
}

impl AwaitedMedia {
    pub fn new(
        worker: WorkerId,
        text: &PromptText<'_>,
        media: UnknownMedia<'_>,
        usage: Usage,
        moment: u64,
    ) -> AwaitedMedia {
        AwaitedMedia {
            worker,
            family: media.family,
            root: text.root,
            bytes: text.bytes[..media.at.min(text.bytes.len())].to_vec(),
            rest: media.rest.to_vec(),
            found: usage.cached_tokens,
            prompt_tokens: usage.prompt_tokens,
            moment,
            batches: 0,
        }
    }
}

/// All known media.
#[derive(Default)]
pub(crate) struct MediaBook {
    /// Counts media that appear in events.
    moment: AtomicU64,
    /// Counts engines that have joined or restarted. What was checked before is checked again.
    starts: AtomicU64,
    known: RwLock<KnownMedia>,
    /// Answers whose events have not all arrived.
    awaited: Mutex<VecDeque<AwaitedMedia>>,
}

#[derive(Default)]
struct KnownMedia {
    /// By family and medium.
    facts: BTreeMap<(u64, u64), KnownFacts>,
    order: VecDeque<(u64, u64)>,
}

struct KnownFacts {
    facts: MediumFacts,
    /// Engines that had started when an answer showed the facts; `None` where another process has learned them.
    checked: Option<u64>,
}

/// What a family's engines make of a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownMedium {
    /// The hash and the placeholders.
    pub facts: MediumFacts,
    /// Whether an answer has shown them since the last start of an engine.
    pub is_checked: bool,
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
    pub fn get(&self, family: u64, medium: u64) -> Option<KnownMedium> {
        let starts = Some(self.starts.load(Ordering::Acquire));
        let known = self.known.read();
        let KnownFacts { facts, checked } = known.facts.get(&(family, medium))?;
        Some(KnownMedium { facts: facts.clone(), is_checked: *checked == starts })
    }

    /// Learns what a family's engines make of a medium.
    pub fn learn(&self, family: u64, medium: u64, facts: MediumFacts) {
        self.insert(family, medium, KnownFacts { facts, checked: Some(self.starts.load(Ordering::Acquire)) });
    }

    /// All known media, the oldest first.
    pub fn all(&self) -> Vec<SavedMedium> {
        let known = self.known.read();
        let one = |key: &(u64, u64)| {
            let facts = known.facts.get(key)?.facts.clone();
            Some(SavedMedium { family: key.0, medium: key.1, facts })
        };
        known.order.iter().filter_map(one).collect()
    }

    /// Takes over what another process has learned, to be checked.
    pub fn restore(&self, saved: Vec<SavedMedium>) {
        for SavedMedium { family, medium, facts } in saved {
            self.insert(family, medium, KnownFacts { facts, checked: None });
        }
    }

    fn insert(&self, family: u64, medium: u64, facts: KnownFacts) {
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

    /// Has all media checked again: an engine was started, perhaps with other settings.
    pub fn doubt(&self) {
        self.starts.fetch_add(1, Ordering::AcqRel);
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

    /// Media whose number of tokens is known, and that appeared or ended after a moment. None where some of them may have
    /// been dropped.
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

    fn known(book: &MediaBook, family: u64, medium: u64) -> Option<MediumFacts> {
        book.get(family, medium).map(|known| known.facts)
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
        assert_eq!((known(&book, 1, 0), known(&book, 1, 5)), (None, Some(facts(5))));
        book.learn(2, 5, facts(9));
        assert_eq!((known(&book, 1, 5), known(&book, 2, 5)), (Some(facts(5)), Some(facts(9))));
        assert_eq!(book.all().len(), KNOWN_MAX);
    }

    #[test]
    fn an_engines_start_and_another_process_leave_media_in_use_and_unchecked() {
        let book = MediaBook::default();
        let facts = |hash| MediumFacts { hash, placeholder: b"p"[..].into(), tokens: 1 };
        let is_checked = |medium| book.get(1, medium).map(|known| known.is_checked);
        book.learn(1, 3, facts(3));
        book.restore(vec![SavedMedium { family: 1, medium: 4, facts: facts(4) }]);
        assert_eq!((is_checked(3), is_checked(4), is_checked(5)), (Some(true), Some(false), None));
        book.doubt();
        assert_eq!((is_checked(3), known(&book, 1, 3)), (Some(false), Some(facts(3))));
        book.learn(1, 3, facts(3));
        assert_eq!(is_checked(3), Some(true));
    }
}
