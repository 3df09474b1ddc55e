//! SavedState that decisions need and that is kept between them.

use warmroute_index::{Index, Overlaps, Prompt, Reach, Span};
use warmroute_types::{MAX_WORKERS, WorkerId};

use crate::prompt::{PromptChunks, PromptText};
use crate::reported_overlap::ReportedOverlap;
use crate::reported_view::ReportedView;
use crate::token_rate::TokenRate;

/// One for each thread that decides.
#[derive(Debug, Default)]
pub struct Scratch {
    /// What is presumed of the prompt at hand.
    pub(crate) presumed: Overlaps,
    pub(crate) spans: Vec<Span>,
    /// What is reported of one of its writings, by the index's numbers.
    reported: Overlaps,
    /// How far anybody holds the first of them.
    furthest: Reach,
    /// The same by seat; empty for all that are not in `holders`.
    held: Vec<ReportedOverlap>,
    holders: Vec<WorkerId>,
}

impl Scratch {
    /// Looks up what is presumed.
    pub(crate) fn walk(&mut self, index: &Index, prompt: PromptChunks<'_>) {
        index.lookup(prompt.root, Prompt::Chunks(prompt.digests), &mut self.presumed);
    }

    /// The prompt as spans, with the tokens that its chunks are believed to have.
    pub(crate) fn cut(&mut self, prompt: PromptChunks<'_>, rate: &TokenRate) {
        self.spans.clear();
        self.spans.extend(prompt.spans(|bytes| rate.tokens_in(bytes)));
    }

    /// Looks up what is reported of each writing of the prompt.
    pub(crate) fn walk_texts(&mut self, index: &Index, texts: &[PromptText<'_>]) {
        self.holders.drain(..).for_each(|worker| self.held[worker.index()] = ReportedOverlap::default());
        self.furthest = Reach::default();
        for (number, text) in (0..).zip(texts) {
            self.held.resize(MAX_WORKERS, ReportedOverlap::default());
            index.lookup(text.root, Prompt::Bytes(text.bytes), &mut self.reported);
            self.note(number);
        }
    }

    fn note(&mut self, text: u8) {
        for overlap in self.reported.as_slice() {
            let (worker, reported_view) = ReportedView::split(overlap.worker);
            let held = &mut self.held[worker.index()];
            if *held == ReportedOverlap::default() {
                self.holders.push(worker);
            }
            held.text = text;
            held.add(overlap, reported_view);
            if text == 0 && overlap.reach.bytes > self.furthest.bytes {
                self.furthest = overlap.reach;
            }
        }
    }

    /// What a worker reports to hold.
    pub(crate) fn held(&self, worker: WorkerId) -> ReportedOverlap {
        self.held.get(worker.index()).copied().unwrap_or_default()
    }

    /// How far anybody holds the prompt's first writing: there its tokens have been counted.
    pub(crate) fn furthest(&self) -> Reach {
        self.furthest
    }
}
