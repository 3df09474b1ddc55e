//! Buffers that decisions reuse.

use std::sync::Arc;

use warmroute_index::{Index, MatchEnd, Overlaps, Prompt, Reach, Recording, Span};
use warmroute_types::{MAX_WORKERS, WorkerId};

use crate::conversation_length::Turn;
use crate::group_table::GroupTable;
use crate::prompt::{PromptChunks, PromptText};
use crate::reported_overlap::ReportedOverlap;
use crate::reported_view::ReportedView;
use crate::token_rate::TokenRate;

/// Which candidates a decision keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptCandidates {
    /// The chosen one and the next best.
    #[default]
    NextBest,
    /// All of them too, in [`crate::Decision::all_candidates`]: one record a worker, made in the critical section.
    All,
}

/// Buffers of one thread that routes requests.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Which candidates the next decision keeps.
    pub kept: KeptCandidates,
    /// Presumed overlaps of the current prompt.
    pub(crate) presumed: Overlaps,
    /// The chunks of the current prompt. Shared with the index until the presumption is applied.
    pub(crate) spans: Arc<Vec<Span>>,
    /// Presumed overlap of the current prompt in bytes, by worker index; zero for workers not in `overlapping`.
    overlap_bytes: Vec<u32>,
    overlapping: Vec<usize>,
    /// Reported overlaps of one text of the prompt, by holder number.
    reported: Overlaps,
    /// The longest reported overlap of the first text.
    furthest: Reach,
    /// Where the longest reported match of all texts ends.
    reported_end: MatchEnd,
    /// Reported overlaps by worker index; default for workers not in `holders`.
    held: Vec<ReportedOverlap>,
    holders: Vec<WorkerId>,
}

impl Scratch {
    /// Looks up the presumed overlaps.
    pub(crate) fn walk(&mut self, index: &Index, prompt: PromptChunks<'_>) {
        index.lookup(prompt.root, Prompt::Chunks(prompt.digests), &mut self.presumed);
    }

    /// Cuts the prompt into spans with their estimated tokens.
    pub(crate) fn cut(&mut self, prompt: PromptChunks<'_>, rate: &TokenRate) {
        if Arc::get_mut(&mut self.spans).is_none() {
            self.spans = Arc::default();
        }
        if let Some(spans) = Arc::get_mut(&mut self.spans) {
            spans.clear();
            spans.extend(prompt.spans(|bytes| rate.tokens_in(bytes)));
        }
    }

    /// Sorts the presumed overlaps by worker. Allocates nothing after [`Scratch::walk_texts`].
    pub(crate) fn sort_presumed(&mut self, prompt: Option<PromptChunks<'_>>) {
        self.overlapping.drain(..).for_each(|worker| self.overlap_bytes[worker] = 0);
        for overlap in prompt.iter().flat_map(|_| self.presumed.as_slice()) {
            self.overlapping.push(overlap.holder.index());
            self.overlap_bytes[overlap.holder.index()] = overlap.reach.bytes;
        }
    }

    /// The presumed overlap of a worker, in bytes.
    #[inline]
    pub(crate) fn overlap_bytes(&self, worker: WorkerId) -> u32 {
        self.overlap_bytes[worker.index()]
    }

    /// Looks up the reported overlaps of each text of the prompt.
    pub(crate) fn walk_texts(&mut self, index: &Index, groups: &GroupTable, texts: &[PromptText<'_>]) {
        self.overlap_bytes.resize(MAX_WORKERS, 0);
        self.overlapping.reserve(MAX_WORKERS - self.overlapping.len());
        self.holders.drain(..).for_each(|worker| self.held[worker.index()] = ReportedOverlap::default());
        (self.furthest, self.reported_end) = (Reach::default(), MatchEnd::default());
        for (number, text) in (0..).zip(texts) {
            self.held.resize(MAX_WORKERS, ReportedOverlap::default());
            self.reported.record(groups.recording());
            index.lookup(text.root, Prompt::Bytes(text.bytes), &mut self.reported);
            self.reported_end = self.reported_end.max(self.reported.end());
            self.note(number, groups, u32::try_from(text.bytes.len()).unwrap_or(u32::MAX));
        }
    }

    fn note(&mut self, text: u8, groups: &GroupTable, prompt_bytes: u32) {
        let trail = self.reported.trail();
        let is_recorded = groups.recording() == Recording::On;
        for overlap in self.reported.as_slice() {
            let (worker, reported_view) = ReportedView::split(overlap.holder);
            let held = &mut self.held[worker.index()];
            if *held == ReportedOverlap::default() {
                self.holders.push(worker);
            }
            held.text = text;
            let common = is_recorded.then(|| groups.usable(worker, overlap, trail, prompt_bytes)).flatten();
            match common {
                Some(usable) => held.add_common(usable, overlap, reported_view),
                None => held.add(overlap.reach, reported_view),
            }
            if text == 0 && overlap.reach.bytes > self.furthest.bytes {
                self.furthest = overlap.reach;
            }
        }
    }

    /// The request's place in its conversation; `None` without a prompt.
    pub(crate) fn turn(&self, prompt: Option<PromptChunks<'_>>) -> Option<Turn> {
        prompt.map(|_| Turn::of(self.presumed.end().max(self.reported_end)))
    }

    /// What a worker reported to hold of the current prompt; nothing for a worker that reports nothing.
    #[inline]
    pub(crate) fn held(&self, worker: WorkerId) -> ReportedOverlap {
        self.held.get(worker.index()).copied().unwrap_or_default()
    }

    /// The longest reported overlap of the first text, whose tokens engines have counted.
    pub(crate) fn furthest(&self) -> Reach {
        self.furthest
    }
}
