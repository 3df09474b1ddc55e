//! Checks that this router's prompts appear in an engine's events.
//!
//! Wrong model files show when an engine can be asked how it tokenizes, or reports cached tokens. For an
//! engine that does neither, one sign remains: a computed prompt must appear in its events. The check keeps
//! one prompt at a time and looks for it once its events must have arrived.

use warmroute_index::{Index, Overlaps, Prompt, RootKey};
use warmroute_types::{Micros, WorkerId};

use crate::PromptText;
use crate::reported_view::ReportedView;

/// Time after which a prompt's events must have arrived.
const WITHIN: Micros = Micros::from_secs(2);

/// Length of the kept head: more than the first block of any engine.
const HEAD_BYTES: usize = 8 << 10;

/// A prompt whose events are expected.
pub(crate) struct AwaitedPrompt {
    root: RootKey,
    head: Box<[u8]>,
    since: Micros,
    /// Number of blocks reported before.
    stored: u64,
}

/// Whether the prompt appeared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PromptSeen {
    /// Its beginning was reported.
    Yes,
    /// Other blocks were reported, but not its own.
    No,
    /// Nothing was reported since.
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
