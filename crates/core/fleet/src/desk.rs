//! One worker's desk: its state and the work on it, as atomics.
//!
//! Desks lie in one array, a cache line each, so that a decision over thousands of workers reads memory in sequence.
//! Decisions for one model are serialised by the router; decisions for other models and releases happen at any
//! time, hence atomics. `Relaxed` is enough: each number stands for itself and nothing is published through it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use warmroute_types::{CacheView, LoadReport, Micros, WorkerState};

use crate::Work;
use crate::belief::{Belief, Believed};

/// Work and state of one seat.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Desk {
    state: AtomicU8,
    in_flight: AtomicU32,
    prefill_tokens: AtomicU64,
    decode_tokens: AtomicU64,
    /// The engine's own report: waiting in the high half, running in the low half.
    reported: AtomicU64,
    /// When that was, in microseconds; 0 = never.
    reported_at: AtomicU64,
    /// Requests booked since that report, which it cannot know.
    booked_since: AtomicU32,
    /// The worker asked to be left alone until then, in tenths of a second, of which there is room for 13 years.
    rests_until: AtomicU32,
    /// Share of KV blocks in use; all of them is [`WHOLE`].
    kv_use: AtomicU16,
    /// Whether its breaker has seen failures that an answer would end: only then is an answer worth telling.
    is_suspect: AtomicBool,
    /// Bookings ever made.
    bookings: AtomicU32,
    /// It has said once how many tokens were cached: from then on, saying nothing means none.
    says_cached: AtomicBool,
    /// Tokens of a cache block; 0 until the engine has said.
    block_tokens: AtomicU16,
    /// Answers whose prompt must have filled a block of the cache; it wraps.
    fillings: AtomicU32,
    /// Answers in a row that found nothing of what was promised.
    broken_promises: AtomicU8,
    /// How its cache is known, and how far that is believed.
    pub(crate) believed: Believed,
}

/// From here on: a worker in state `Recovering` that has its one request. The state is the token: whoever turns the one into the
/// other brings the trial, and only who has the token ends it.
const TRIED: u8 = 5;

/// A trial of a recovering worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial(u8);

impl Trial {
    /// Trials that follow each other are told apart by the booking that brings them: a slow one may outlive the recovery that it
    /// was for, and must not end another's.
    fn of_booking(number: u32) -> Trial {
        Trial(TRIED + (number % u32::from(u8::MAX - TRIED)) as u8)
    }
}

/// All KV blocks.
const WHOLE: f32 = u16::MAX as f32;

/// A unit of [`Desk::rests_until`].
const TENTH: u64 = 100_000;

const _: () = assert!(size_of::<Desk>() == 64, "a desk is one cache line");

/// The numbers on a desk at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeskView {
    /// May it be chosen?
    pub state: WorkerState,
    /// A request finds out at this moment whether the worker has recovered: it gets no second one.
    pub is_tried: bool,
    /// It asked to be left alone until then.
    pub rests_until: Micros,
    /// Requests sent and not ended.
    pub in_flight: u32,
    /// Prompt tokens whose prefill has not ended.
    pub prefill_tokens: u64,
    /// Context tokens of the requests in flight.
    pub decode_tokens: u64,
    /// Requests booked since the engine's last report.
    pub booked_since_report: u32,
    /// The engine's last report, if it ever made one.
    pub report: Option<LoadReport>,
    /// Whether the engine says how many prompt tokens it found in its cache.
    pub says_cached: bool,
    /// Tokens of a block of its cache, if it has said so.
    pub block_tokens: Option<u32>,
    /// How its cache is known.
    pub view: CacheView,
    /// How far what its engine tells of its cache has turned out true, 0 to 1.
    pub trust: f32,
    /// How often its cache has been forgotten; it wraps.
    pub life: u32,
    /// Answers whose prompt must have filled a block of the cache; it wraps.
    pub fillings: u32,
}

impl DeskView {
    /// Whether a request may be sent there now, were it the only worker.
    pub fn takes_requests(&self) -> bool {
        self.state.takes_requests() && !self.is_tried
    }

    /// Whether it has asked to be left alone for now.
    pub fn rests(&self, now: Micros) -> bool {
        now < self.rests_until
    }

    /// Requests that wait inside the engine: reported, plus sent since. `None` when the report is older than `age_max`.
    pub fn waiting(&self, now: Micros, age_max: Micros) -> Option<u32> {
        let report = self.report.filter(|report| now.since(report.at) <= age_max)?;
        Some(report.waiting.saturating_add(self.booked_since_report))
    }
}

impl Desk {
    pub(crate) fn state(&self) -> WorkerState {
        match self.state.load(Relaxed) {
            1 => WorkerState::Ready,
            2 => WorkerState::Unhealthy,
            3 => WorkerState::Draining,
            4 | TRIED.. => WorkerState::Recovering,
            _ => WorkerState::Starting,
        }
    }

    /// A trial that is under way goes on.
    pub(crate) fn set_state(&self, state: WorkerState) {
        if self.state() != state {
            self.state.store(state as u8, Relaxed);
        }
    }

    /// Takes the trial of a recovering worker; `None` where there is none to take.
    pub(crate) fn begin_trial(&self) -> Option<Trial> {
        let (free, trial) = (WorkerState::Recovering as u8, Trial::of_booking(self.bookings()));
        self.state.compare_exchange(free, trial.0, Relaxed, Relaxed).is_ok().then_some(trial)
    }

    /// Whether this is the trial that is under way.
    pub(crate) fn is_tried_by(&self, trial: Trial) -> bool {
        self.state.load(Relaxed) == trial.0
    }

    /// The trial is over. Where it has shown something, the state is another by now.
    pub(crate) fn end_trial(&self, trial: Trial) {
        _ = self.state.compare_exchange(trial.0, WorkerState::Recovering as u8, Relaxed, Relaxed);
    }

    /// The worker is to be left alone until then; a later time that it asked for before stands.
    pub(crate) fn rest(&self, until: Micros) {
        let tenths = u32::try_from(until.0.div_ceil(TENTH)).unwrap_or(u32::MAX);
        self.rests_until.fetch_max(tenths, Relaxed);
    }

    pub(crate) fn set_suspect(&self, suspect: bool) {
        self.is_suspect.store(suspect, Relaxed);
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Relaxed)
    }

    /// What an engine said, or left out, about cached tokens, understood: engines leave the number out when it is zero.
    pub(crate) fn cached_tokens(&self, said: Option<u32>) -> Option<u32> {
        if said.is_some() {
            self.says_cached.store(true, Relaxed);
        }
        said.or(self.says_cached().then_some(0))
    }

    pub(crate) fn says_cached(&self) -> bool {
        self.says_cached.load(Relaxed)
    }

    pub(crate) fn filled(&self) {
        self.fillings.fetch_add(1, Relaxed);
    }

    /// An answer found nothing of what was promised; how many in a row did.
    pub(crate) fn promise_broken(&self) -> u8 {
        self.broken_promises.fetch_add(1, Relaxed).saturating_add(1)
    }

    /// An answer found something: the row is over.
    pub(crate) fn promise_kept(&self) {
        self.broken_promises.store(0, Relaxed);
    }

    pub(crate) fn block_tokens(&self) -> Option<u32> {
        Some(u32::from(self.block_tokens.load(Relaxed))).filter(|&tokens| tokens > 0)
    }

    /// No engine's block is larger than 65,535 tokens; one that says so is not believed.
    pub(crate) fn set_block_tokens(&self, tokens: u32) {
        self.block_tokens.store(u16::try_from(tokens).unwrap_or(0), Relaxed);
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Bookings so far, in the order in which they were made; it wraps.
    pub(crate) fn bookings(&self) -> u32 {
        self.bookings.load(Relaxed)
    }

    pub(crate) fn book(&self, work: Work) {
        self.bookings.fetch_add(1, Relaxed);
        self.in_flight.fetch_add(1, Relaxed);
        self.booked_since.fetch_add(1, Relaxed);
        self.prefill_tokens.fetch_add(u64::from(work.prefill_tokens), Relaxed);
        self.decode_tokens.fetch_add(u64::from(work.context_tokens), Relaxed);
    }

    pub(crate) fn release_prefill(&self, work: Work) {
        self.prefill_tokens.fetch_sub(u64::from(work.prefill_tokens), Relaxed);
    }

    pub(crate) fn release_request(&self, work: Work) {
        self.decode_tokens.fetch_sub(u64::from(work.context_tokens), Relaxed);
        self.in_flight.fetch_sub(1, Relaxed);
    }

    pub(crate) fn report(&self, report: LoadReport) {
        self.reported.store(u64::from(report.waiting) << 32 | u64::from(report.running), Relaxed);
        self.kv_use.store((report.kv_use.clamp(0.0, 1.0) * WHOLE).round() as u16, Relaxed);
        self.reported_at.store(report.at.0.max(1), Relaxed);
        self.booked_since.store(0, Relaxed);
    }

    /// Back to an empty desk for a newcomer. Only called when nothing is booked on it.
    pub(crate) fn wipe(&self) {
        self.set_state(WorkerState::Starting);
        self.set_suspect(false);
        self.rests_until.store(0, Relaxed);
        self.says_cached.store(false, Relaxed);
        self.set_block_tokens(0);
        self.believed.revise(Belief::reborn);
        self.promise_kept();
        self.reported_at.store(0, Relaxed);
        self.booked_since.store(0, Relaxed);
    }

    pub(crate) fn view(&self) -> DeskView {
        let at = Micros(self.reported_at.load(Relaxed));
        let reported = self.reported.load(Relaxed);
        let kv_use = f32::from(self.kv_use.load(Relaxed)) / WHOLE;
        let report = LoadReport {
            waiting: (reported >> 32) as u32,
            running: reported as u32,
            kv_use,
            prefix_cache: None,
            at,
        };
        let Belief { view, trust, life } = self.believed.get();
        DeskView {
            state: self.state(),
            is_tried: self.state.load(Relaxed) >= TRIED,
            rests_until: Micros(u64::from(self.rests_until.load(Relaxed)) * TENTH),
            in_flight: self.in_flight(),
            prefill_tokens: self.prefill_tokens.load(Relaxed),
            decode_tokens: self.decode_tokens.load(Relaxed),
            booked_since_report: self.booked_since.load(Relaxed),
            report: (at != Micros::ZERO).then_some(report),
            says_cached: self.says_cached(),
            block_tokens: self.block_tokens(),
            view,
            trust,
            life,
            fillings: self.fillings.load(Relaxed),
        }
    }
}
