//! Whether our own prompts come back in an engine's events.
//!
//! Where an engine can be asked how it tokenizes, or says how much it found in its cache, wrong files are noticed by that.
//! Where it says neither, there is one more sign: a prompt that it has computed must appear in its events. So now and then
//! one is remembered, and looked for when its events must have come.

use warmroute_index::{Index, Overlaps, Prompt, RootKey};
use warmroute_types::{Micros, WorkerId};

use crate::PromptText;
use crate::reported_view::ReportedView;

/// After this time a prompt's events must have come.
const WITHIN: Micros = Micros::from_secs(2);

/// So much of a prompt is remembered: more than its first block, whatever an engine's blocks are.
const HEAD_BYTES: usize = 8 << 10;

/// A prompt whose events are awaited.
pub(crate) struct AwaitedPrompt {
    root: RootKey,
    head: Box<[u8]>,
    since: Micros,
    /// Blocks that had been reported by then.
    stored: u64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PromptSeen {
    /// Its beginning was reported.
    Yes,
    /// Other blocks were, but not its own.
    No,
    /// Nothing was reported since, so nobody knows.
    Unknown,
}

impl AwaitedPrompt {
    pub fn new(text: PromptText<'_>, since: Micros, stored: u64) -> AwaitedPrompt {
        let head = &text.bytes[..text.bytes.len().min(HEAD_BYTES)];
        AwaitedPrompt { root: text.root, head: head.into(), since, stored }
    }

    pub fn is_due(&self, now: Micros) -> bool {
        now.since(self.since) >= WITHIN
    }

    pub fn look(&self, index: &Index, worker: WorkerId, stored: u64) -> PromptSeen {
        let mut overlaps = Overlaps::new();
        index.lookup(self.root, Prompt::Bytes(&self.head), &mut overlaps);
        match overlaps.of(ReportedView::Sampled.holder(worker)).tokens {
            0 if stored == self.stored => PromptSeen::Unknown,
            0 => PromptSeen::No,
            _ => PromptSeen::Yes,
        }
    }
}
