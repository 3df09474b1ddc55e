//! Whether our own prompts come back in an engine's events.
//!
//! Where an engine can be asked how it tokenizes, or says how much it found in its cache, wrong files are noticed by that.
//! Where it says neither, there is one more sign: a prompt that it has computed must appear in its events. So now and then
//! one is remembered, and looked for when its events must have come.

use warmroute_index::{Index, Overlaps, Prompt, RootKey};
use warmroute_types::{Micros, WorkerId};

use crate::PromptText;
use crate::plane::Plane;

/// After this time a prompt's events must have come.
const WITHIN: Micros = Micros::from_secs(2);

/// So much of a prompt is remembered: more than its first block, whatever an engine's blocks are.
const HEAD_BYTES: usize = 8 << 10;

/// A prompt whose events are awaited.
pub(crate) struct Awaited {
    root: RootKey,
    head: Box<[u8]>,
    since: Micros,
    /// Blocks that had been reported by then.
    stored: u64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    /// Its beginning was reported.
    Yes,
    /// Other blocks were, but not its own.
    No,
    /// Nothing was reported since, so nobody knows.
    Unknown,
}

impl Awaited {
    pub fn new(text: PromptText<'_>, since: Micros, stored: u64) -> Awaited {
        let head = &text.bytes[..text.bytes.len().min(HEAD_BYTES)];
        Awaited { root: text.root, head: head.into(), since, stored }
    }

    pub fn is_due(&self, now: Micros) -> bool {
        now.since(self.since) >= WITHIN
    }

    pub fn look(&self, index: &Index, worker: WorkerId, stored: u64) -> Returned {
        let mut overlaps = Overlaps::new();
        index.lookup(self.root, Prompt::Bytes(&self.head), &mut overlaps);
        match overlaps.of(Plane::Hoped.of(worker)).tokens {
            0 if stored == self.stored => Returned::Unknown,
            0 => Returned::No,
            _ => Returned::Yes,
        }
    }
}
