//! The state and load of one worker, as atomics.
//!
//! All loads are in one array, a cache line each, so that a decision over thousands of workers reads memory
//! in sequence. The router serialises decisions for one model; decisions for other models and releases happen
//! at any time, hence atomics. `Relaxed` is enough: each number stands for itself and publishes no other
//! memory.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use warmroute_types::{CacheView, LoadReport, Micros, WorkerState};

use crate::BookedWork;
use crate::cache_belief::{AtomicCacheBelief, CacheBelief};

/// State and load of one worker.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct WorkerLoad {
    state: AtomicU8,
    in_flight: AtomicU32,
    prefill_tokens: AtomicU64,
    decode_tokens: AtomicU64,
    /// The engine's last report: waiting requests in the high half, running ones in the low half.
    reported: AtomicU64,
    /// Time of the last report in microseconds; 0 = never.
    reported_at: AtomicU64,
    /// Requests booked since that report, which it does not include.
    booked_since: AtomicU32,
    /// The worker gets no requests until then, in tenths of a second; the range is 13 years.
    paused_until: AtomicU32,
    /// Share of KV blocks in use, scaled to [`WHOLE`].
    kv_use: AtomicU16,
    /// Whether an answer would change the breaker. Without failures answers skip the lock.
    awaits_answer: AtomicBool,
    /// Bookings made so far; wraps.
    bookings: AtomicU32,
    /// The engine has reported a cached-token count once. From then on a missing count means 0.
    reports_cached_tokens: AtomicBool,
    /// Tokens per cache block; 0 = unknown.
    block_tokens: AtomicU16,
    /// Answers whose prompt filled at least one cache block; wraps.
    block_filling_answers: AtomicU16,
    /// Blocks that the engine's events have removed; wraps.
    evicted_blocks: AtomicU16,
    /// Consecutive answers that found none of the predicted tokens cached.
    failed_predictions: AtomicU8,
    /// Source and trust of what is known about the worker's cache.
    pub(crate) cache_belief: AtomicCacheBelief,
}

/// States from this value on are `Recovering` with a trial request in flight. The state is the token: the
/// thread that swaps it in owns the trial, and only the owner ends it.
const ON_TRIAL: u8 = 7;

/// A trial request of a recovering worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial(u8);

impl Trial {
    /// The booking number distinguishes consecutive trials. A slow trial may outlive its recovery and must
    /// not end a later one.
    fn of_booking(number: u32) -> Trial {
        Trial(ON_TRIAL + (number % u32::from(u8::MAX - ON_TRIAL)) as u8)
    }
}

/// `kv_use` with all KV blocks in use.
const WHOLE: f32 = (UNREPORTED - 1) as f32;

/// `kv_use` of an engine that does not tell it.
const UNREPORTED: u16 = u16::MAX;

/// Unit of [`WorkerLoad::paused_until`], in microseconds.
const TENTH: u64 = 100_000;

const _: () = assert!(size_of::<WorkerLoad>() == 64, "a load is one cache line");

/// The state and load of a worker at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerLoadView {
    /// The worker's state, which decides whether it may be chosen.
    pub state: WorkerState,
    /// A trial request is in flight on a recovering worker, which gets no second one.
    pub is_on_trial: bool,
    /// The worker gets no requests before this time.
    pub paused_until: Micros,
    /// Requests in flight.
    pub in_flight: u32,
    /// Prompt tokens whose prefill has not ended.
    pub prefill_tokens: u64,
    /// Context tokens of the requests in flight.
    pub decode_tokens: u64,
    /// Requests booked since the engine's last report.
    pub booked_since_report: u32,
    /// The engine's last report, if any.
    pub report: Option<LoadReport>,
    /// Whether the engine reports cached tokens.
    pub reports_cached_tokens: bool,
    /// Tokens per cache block, if reported.
    pub block_tokens: Option<u32>,
    /// Source of what is known about the cache.
    pub view: CacheView,
    /// Share of the feed's claims confirmed by answers, 0 to 1.
    pub trust: f32,
    /// Number of cache resets; wraps.
    pub generation: u32,
    /// Answers whose prompt filled at least one cache block; wraps.
    pub block_filling_answers: u16,
    /// Blocks that the engine's events have removed; wraps.
    pub evicted_blocks: u16,
    /// Whether the engine computes the last cached block of each prompt again, as vLLM does with EAGLE or MTP drafts.
    pub recomputes_last_block: bool,
}

impl WorkerLoadView {
    /// Whether the worker may get a request now, regardless of pauses.
    #[inline]
    pub fn takes_requests(&self) -> bool {
        self.state.takes_requests() && !self.is_on_trial
    }

    /// Whether the worker is paused.
    #[inline]
    pub fn is_paused(&self, now: Micros) -> bool {
        now < self.paused_until
    }

    /// Requests that wait inside the engine: reported plus sent since. `None` when the report is older than
    /// `age_max`.
    #[inline]
    pub fn waiting(&self, now: Micros, age_max: Micros) -> Option<u32> {
        let report = self.report.filter(|report| now.since(report.at) <= age_max)?;
        Some(report.waiting.saturating_add(self.booked_since_report))
    }
}

impl WorkerLoad {
    #[inline]
    pub(crate) fn state(&self) -> WorkerState {
        match self.state.load(Relaxed) {
            1 => WorkerState::Ready,
            2 => WorkerState::Unhealthy,
            3 => WorkerState::Draining,
            5 => WorkerState::Unready,
            6 => WorkerState::Sleeping,
            4 | ON_TRIAL.. => WorkerState::Recovering,
            _ => WorkerState::Starting,
        }
    }

    /// Sets the state. A trial in flight continues when the state stays `Recovering`.
    pub(crate) fn set_state(&self, state: WorkerState) {
        if self.state() != state {
            self.state.store(state as u8, Relaxed);
        }
    }

    /// Starts the trial of a recovering worker; `None` when the worker is not recovering or already has one.
    pub(crate) fn begin_trial(&self) -> Option<Trial> {
        let (free, trial) = (WorkerState::Recovering as u8, Trial::of_booking(self.bookings()));
        self.state.compare_exchange(free, trial.0, Relaxed, Relaxed).is_ok().then_some(trial)
    }

    /// Whether this trial is the one in flight.
    pub(crate) fn is_current_trial(&self, trial: Trial) -> bool {
        self.state.load(Relaxed) == trial.0
    }

    /// Ends the trial. A trial that had a result has already changed the state.
    pub(crate) fn end_trial(&self, trial: Trial) {
        _ = self.state.compare_exchange(trial.0, WorkerState::Recovering as u8, Relaxed, Relaxed);
    }

    /// Pauses the worker until then. A later pause stands.
    pub(crate) fn pause(&self, until: Micros) {
        let tenths = u32::try_from(until.0.div_ceil(TENTH)).unwrap_or(u32::MAX);
        self.paused_until.fetch_max(tenths, Relaxed);
    }

    pub(crate) fn set_awaits_answer(&self, suspect: bool) {
        self.awaits_answer.store(suspect, Relaxed);
    }

    pub(crate) fn awaits_answer(&self) -> bool {
        self.awaits_answer.load(Relaxed)
    }

    /// The cached tokens of an answer. Engines omit the count when it is zero, so a missing count means 0
    /// once the engine has reported one.
    pub(crate) fn cached_tokens(&self, said: Option<u32>) -> Option<u32> {
        if said.is_some() {
            self.reports_cached_tokens.store(true, Relaxed);
        }
        said.or(self.reports_cached_tokens().then_some(0))
    }

    #[inline]
    pub(crate) fn reports_cached_tokens(&self) -> bool {
        self.reports_cached_tokens.load(Relaxed)
    }

    pub(crate) fn count_block_filling(&self) {
        self.block_filling_answers.fetch_add(1, Relaxed);
    }

    /// Counts blocks that events have removed.
    pub(crate) fn count_evicted(&self, blocks: usize) {
        self.evicted_blocks.fetch_add(blocks as u16, Relaxed);
    }

    /// Counts an answer that found none of the predicted tokens; returns the consecutive count.
    pub(crate) fn record_failed_prediction(&self) -> u8 {
        self.failed_predictions.fetch_add(1, Relaxed).saturating_add(1)
    }

    /// Consecutive answers that found none of the predicted tokens cached.
    pub(crate) fn failed_predictions(&self) -> u8 {
        self.failed_predictions.load(Relaxed)
    }

    /// Resets the count: an answer found predicted tokens.
    pub(crate) fn reset_failed_predictions(&self) {
        self.failed_predictions.store(0, Relaxed);
    }

    #[inline]
    pub(crate) fn block_tokens(&self) -> Option<u32> {
        Some(u32::from(self.block_tokens.load(Relaxed))).filter(|&tokens| tokens > 0)
    }

    /// Sets the block size. Larger than 65,535 tokens is implausible and ignored.
    pub(crate) fn set_block_tokens(&self, tokens: u32) {
        self.block_tokens.store(u16::try_from(tokens).unwrap_or(0), Relaxed);
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Requests in flight; `None` if the worker takes none now. Two reads instead of a whole view.
    #[inline]
    pub(crate) fn in_flight_if_ready(&self) -> Option<u32> {
        let state = self.state.load(Relaxed);
        (state < ON_TRIAL && self.state().takes_requests()).then(|| self.in_flight())
    }

    /// Bookings made so far; wraps.
    pub(crate) fn bookings(&self) -> u32 {
        self.bookings.load(Relaxed)
    }

    pub(crate) fn book(&self, work: BookedWork) {
        self.bookings.fetch_add(1, Relaxed);
        self.in_flight.fetch_add(1, Relaxed);
        self.booked_since.fetch_add(1, Relaxed);
        self.prefill_tokens.fetch_add(u64::from(work.prefill_tokens), Relaxed);
        self.decode_tokens.fetch_add(u64::from(work.context_tokens), Relaxed);
    }

    pub(crate) fn release_prefill(&self, work: BookedWork) {
        self.prefill_tokens.fetch_sub(u64::from(work.prefill_tokens), Relaxed);
    }

    pub(crate) fn release_request(&self, work: BookedWork) {
        self.decode_tokens.fetch_sub(u64::from(work.context_tokens), Relaxed);
        self.in_flight.fetch_sub(1, Relaxed);
    }

    pub(crate) fn report(&self, report: LoadReport) {
        self.reported.store(u64::from(report.waiting) << 32 | u64::from(report.running), Relaxed);
        let kv_use =
            report.kv_use.map_or(UNREPORTED, |kv_use| (kv_use.clamp(0.0, 1.0) * WHOLE).round() as u16);
        self.kv_use.store(kv_use, Relaxed);
        self.reported_at.store(report.at.0.max(1), Relaxed);
        self.booked_since.store(0, Relaxed);
    }

    /// Resets the load for a new worker. Nothing may be booked on it.
    pub(crate) fn clear(&self) {
        self.set_state(WorkerState::Starting);
        self.set_awaits_answer(false);
        self.paused_until.store(0, Relaxed);
        self.reports_cached_tokens.store(false, Relaxed);
        self.set_block_tokens(0);
        self.cache_belief.revise(CacheBelief::reset);
        self.reset_failed_predictions();
        self.reported_at.store(0, Relaxed);
        self.booked_since.store(0, Relaxed);
    }

    // Decisions read a few fields of every worker: inlined, the others are not computed.
    #[inline]
    pub(crate) fn view(&self) -> WorkerLoadView {
        let at = Micros(self.reported_at.load(Relaxed));
        let reported = self.reported.load(Relaxed);
        let kv_use = Some(self.kv_use.load(Relaxed)).filter(|&kv_use| kv_use != UNREPORTED);
        let report = LoadReport {
            waiting: (reported >> 32) as u32,
            running: reported as u32,
            kv_use: kv_use.map(|kv_use| f32::from(kv_use) / WHOLE),
            prefix_cache: None,
            places: None,
            at,
        };
        let CacheBelief { view, trust, generation, last_block } = self.cache_belief.get();
        WorkerLoadView {
            state: self.state(),
            is_on_trial: self.state.load(Relaxed) >= ON_TRIAL,
            paused_until: Micros(u64::from(self.paused_until.load(Relaxed)) * TENTH),
            in_flight: self.in_flight(),
            prefill_tokens: self.prefill_tokens.load(Relaxed),
            decode_tokens: self.decode_tokens.load(Relaxed),
            booked_since_report: self.booked_since.load(Relaxed),
            report: (at != Micros::ZERO).then_some(report),
            reports_cached_tokens: self.reports_cached_tokens(),
            block_tokens: self.block_tokens(),
            view,
            trust,
            generation,
            block_filling_answers: self.block_filling_answers.load(Relaxed),
            evicted_blocks: self.evicted_blocks.load(Relaxed),
            recomputes_last_block: last_block.is_recomputed(),
        }
    }
}
