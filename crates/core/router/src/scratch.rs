//! Memory that decisions need and that is kept between them.

use warmroute_index::{Index, Overlaps, Prompt, Reach, Span};
use warmroute_types::{MAX_WORKERS, WorkerId};

use crate::held::Held;
use crate::plane::Plane;
use crate::pool::PRESUMED_CHUNKS_MAX;
use crate::prompt::{PromptChunks, PromptText};
use crate::token_rate::TokenRate;

/// One for each thread that decides.
#[derive(Debug, Default)]
pub struct Scratch {
    /// What is presumed of the prompt at hand.
    pub(crate) presumed: Overlaps,
    pub(crate) spans: Vec<Span>,
    /// What is reported of it, by the index's numbers.
    reported: Overlaps,
    /// The same by seat; empty for all that are not in `holders`.
    held: Vec<Held>,
    holders: Vec<WorkerId>,
}

impl Scratch {
    /// Looks up what is presumed.
    pub(crate) fn walk(&mut self, index: &Index, prompt: PromptChunks<'_>) {
        index.lookup(prompt.root, Prompt::Chunks(prompt.digests), &mut self.presumed);
    }

    /// The prompt as spans, with the tokens that its chunks are believed to have.
    pub(crate) fn cut(&mut self, prompt: PromptChunks<'_>, rate: &TokenRate) {
        let tokens = rate.tokens_in(prompt.chunk_bytes).clamp(1, Span::TOKENS_MAX);
        let span = |&digest: &u64| Span { digest, bytes: prompt.chunk_bytes, tokens };
        self.spans.clear();
        self.spans.extend(prompt.digests.iter().take(PRESUMED_CHUNKS_MAX).map(span));
    }

    /// Looks up what is reported. `None`: there is nothing to look up.
    pub(crate) fn walk_text(&mut self, index: &Index, text: Option<PromptText<'_>>) {
        self.holders.drain(..).for_each(|worker| self.held[worker.index()] = Held::default());
        let Some(text) = text else { return };
        self.held.resize(MAX_WORKERS, Held::default());
        index.lookup(text.root, Prompt::Bytes(text.bytes), &mut self.reported);
        for overlap in self.reported.as_slice() {
            let (worker, plane) = Plane::split(overlap.worker);
            if self.held[worker.index()] == Held::default() {
                self.holders.push(worker);
            }
            self.held[worker.index()].add(overlap, plane);
        }
    }

    /// What a worker reports to hold.
    pub(crate) fn held(&self, worker: WorkerId) -> Held {
        self.held.get(worker.index()).copied().unwrap_or_default()
    }

    /// How far anybody holds the prompt: there its tokens have been counted.
    pub(crate) fn furthest(&self) -> Reach {
        let reaches = self.reported.as_slice().iter().map(|overlap| overlap.reach);
        reaches.filter(|_| !self.holders.is_empty()).max_by_key(|reach| reach.bytes).unwrap_or_default()
    }
}
