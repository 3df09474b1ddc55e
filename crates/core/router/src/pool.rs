//! The workers that serve one model, and the critical section in which one is chosen and booked.
//!
//! The index is walked before the section is entered. Whoever presumes something inside moves a version on, and a walk of
//! the same head that began before that is repeated inside: so a sibling sees what the one before it was given, and
//! everybody else does not pay for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use warmroute_fleet::{Booking, Fleet, Work, Worker};
use warmroute_index::{Index, Overlaps, Prompt, Span};
use warmroute_policy::{Ask, Candidate, Choice, Policy};
use warmroute_types::{MAX_WORKERS, Micros, WorkerId, WorkerState};

use crate::presumed::Presumed;
use crate::prompt::PromptChunks;
use crate::token_rate::TokenRate;

/// One model's workers.
#[derive(Default)]
pub(crate) struct Pool {
    section: Mutex<Section>,
    /// Each moves on with every presumption of a prompt whose head falls to it.
    versions: Versions,
    /// How many tokens this model makes of a byte.
    pub(crate) tokens: TokenRate,
}

/// Versions of what is presumed, by the first chunk of a prompt: prompts that share nothing hardly ever share one.
struct Versions([AtomicU64; 64]);

impl Default for Versions {
    fn default() -> Versions {
        Versions([const { AtomicU64::new(0) }; 64])
    }
}

impl Versions {
    /// A prompt shorter than a chunk presumes nothing and finds nothing; any will do.
    fn of(&self, prompt: PromptChunks<'_>) -> &AtomicU64 {
        &self.0[prompt.digests.first().map_or(0, |digest| *digest as usize % 64)]
    }
}

/// What the critical section works on. The candidates' memory is reserved when members change, not per decision.
#[derive(Default)]
struct Section {
    members: Vec<Member>,
    candidates: Vec<Candidate>,
    /// For each candidate, which member it is.
    seats: Vec<usize>,
    /// For each candidate, how many bytes of the prompt it holds.
    candidate_bytes: Vec<u32>,
    /// For each seat of the fleet, how many bytes of the prompt at hand it holds; zero between decisions.
    overlap_bytes: Vec<u32>,
    turn: u64,
}

/// A worker, with what every decision reads of it copied beside the pointer: following thousands of pointers would be
/// most of a decision's cost.
struct Member {
    id: WorkerId,
    identity: u64,
    worker: Arc<Worker>,
}

/// No more of a prompt than this is presumed: half a megabyte, the longest contexts of today. A larger one is most likely
/// refused, and would push everything else out of the worker's view.
pub(crate) const PRESUMED_CHUNKS_MAX: usize = 2_048;

/// What a decision needs besides the policy.
pub(crate) struct Terms<'a> {
    pub ask: Ask,
    pub prompt: Option<PromptChunks<'a>>,
    pub avoid: &'a [WorkerId],
    pub now: Micros,
    pub report_age_max: Micros,
}

/// A booked choice.
pub(crate) struct Placed {
    pub worker: Arc<Worker>,
    pub reason: &'static str,
    pub cached_tokens: Option<u32>,
    pub cached_bytes: Option<u32>,
    pub bookings: u32,
    pub booking: Booking,
    pub presumed: Option<Presumed>,
}

/// Memory that decisions need and that is kept between them: one for each thread that decides.
#[derive(Debug, Default)]
pub struct Scratch {
    overlaps: Overlaps,
    spans: Vec<Span>,
}

impl Pool {
    /// Replaces the members; the count of turns goes on. When this returns, no decision can choose a former member.
    pub(crate) fn set_members(&self, members: Vec<Arc<Worker>>) {
        let mut section = self.section.lock();
        section.candidates = Vec::with_capacity(members.len());
        section.seats = Vec::with_capacity(members.len());
        section.candidate_bytes = Vec::with_capacity(members.len());
        section.overlap_bytes.resize(MAX_WORKERS, 0);
        section.members = members.into_iter().map(Member::from).collect();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.section.lock().members.is_empty()
    }

    /// Chooses, books and presumes in one step. `None`: no member is ready, or all ready ones are to be avoided.
    pub(crate) fn place<P: Policy>(
        &self,
        fleet: &Arc<Fleet>,
        index: &Arc<Index>,
        policy: &P,
        terms: Terms<'_>,
        scratch: &mut Scratch,
    ) -> Option<Placed> {
        let version = |prompt| self.versions.of(prompt).load(Ordering::Acquire);
        let walked = terms.prompt.map(version);
        if let Some(prompt) = terms.prompt {
            scratch.walk(index, prompt);
            scratch.cut(prompt, &self.tokens);
        }
        let mut section = self.section.lock();
        if let Some(prompt) = terms.prompt.filter(|&prompt| walked != Some(version(prompt))) {
            scratch.walk(index, prompt);
        }
        section.line_up(fleet, &terms, &self.tokens, &scratch.overlaps);
        if section.candidates.is_empty() {
            return None;
        }
        let ask = Ask { turn: section.turn, ..terms.ask };
        section.turn = section.turn.wrapping_add(1);
        let Choice { index: chosen, reason } = policy.choose(&ask, &section.candidates);
        let cached_tokens = terms.prompt.map(|_| section.candidates[chosen].overlap_tokens);
        let worker = Arc::clone(&section.members[section.seats[chosen]].worker);
        let work = Work {
            prefill_tokens: ask.prompt_tokens - cached_tokens.unwrap_or(0),
            context_tokens: ask.prompt_tokens,
        };
        let cached_bytes = terms.prompt.map(|_| section.candidate_bytes[chosen]);
        let booking = Booking::make(fleet, worker.id, work);
        let bookings = fleet.bookings(worker.id);
        let presumed = terms.prompt.and_then(|prompt| {
            let presumed = Presumed::make(index, worker.id, prompt.root, &scratch.spans, terms.now);
            // After it, not before: whoever reads the new version must see what it stands for.
            self.versions.of(prompt).fetch_add(1, Ordering::Release);
            presumed
        });
        Some(Placed { worker, reason, cached_tokens, cached_bytes, bookings, booking, presumed })
    }
}

impl Scratch {
    fn walk(&mut self, index: &Index, prompt: PromptChunks<'_>) {
        index.lookup(prompt.root, Prompt::Chunks(prompt.digests), &mut self.overlaps);
    }

    /// The prompt as spans, with the tokens that its chunks are believed to have.
    fn cut(&mut self, prompt: PromptChunks<'_>, rate: &TokenRate) {
        let tokens = rate.tokens_in(prompt.chunk_bytes).clamp(1, Span::TOKENS_MAX);
        let span = |&digest: &u64| Span { digest, bytes: prompt.chunk_bytes, tokens };
        self.spans.clear();
        self.spans.extend(prompt.digests.iter().take(PRESUMED_CHUNKS_MAX).map(span));
    }
}

impl Section {
    /// Writes the ready members' numbers into the candidates.
    fn line_up(&mut self, fleet: &Fleet, terms: &Terms<'_>, rate: &TokenRate, overlaps: &Overlaps) {
        let overlaps = if terms.prompt.is_some() { overlaps.as_slice() } else { &[] };
        overlaps.iter().for_each(|overlap| self.overlap_bytes[overlap.worker.index()] = overlap.reach.bytes);
        // The last token is computed anew even when everything is cached: its logits are wanted.
        let usable = terms.ask.prompt_tokens.saturating_sub(1);
        self.candidates.clear();
        self.seats.clear();
        self.candidate_bytes.clear();
        for (seat, member) in self.members.iter().enumerate() {
            let desk = fleet.desk_view(member.id);
            if desk.state != WorkerState::Ready || terms.avoid.contains(&member.id) {
                continue;
            }
            self.seats.push(seat);
            let held_bytes = self.overlap_bytes[member.id.index()];
            self.candidate_bytes.push(held_bytes);
            self.candidates.push(Candidate {
                worker: member.id,
                identity: member.identity,
                overlap_tokens: rate.tokens_in(held_bytes).min(usable),
                in_flight: desk.in_flight,
                prefill_tokens: desk.prefill_tokens,
                decode_tokens: desk.decode_tokens,
                waiting: desk.waiting(terms.now, terms.report_age_max),
            });
        }
        overlaps.iter().for_each(|overlap| self.overlap_bytes[overlap.worker.index()] = 0);
    }
}

impl From<Arc<Worker>> for Member {
    fn from(worker: Arc<Worker>) -> Member {
        Member { id: worker.id, identity: worker.identity, worker }
    }
}
