//! One worker's prefill queue: how long until the engine could start with a new prompt.
//!
//! Engines compute prompts in the order in which they arrive. So when a first token comes, the prompts booked well before it are
//! computed, and the next one has started. A prefill took the time since the first token before it, and the work ahead of a new
//! prompt is the sum of what was booked, less the time that has passed. Neither needs a report from the engine.
//!
//! Requests that are sent at the same time reach the engine in any order: see [`REORDERED_WITHIN`].
//!
//! An answer that is not streamed has no first token: its prompt counts as computed when its turn has come and its expected time
//! has passed.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use warmroute_types::{Delivery, LoadReport, Micros};

use crate::latency_model::{
    FeatureVector, LatencyModel, ObservedPrompt, ObservedStep, PrefillFeatures, QueuePosition,
};
use crate::load_summary::LoadSummary;
use crate::prefill_steps::{ComputedPrompt, PendingSteps, ReportExpected};
use crate::relative_latency::RelativeLatency;

/// One worker's queue: atomics that decisions read, and behind a lock what they follow from. The atomics come first, in two
/// cache lines: a decision reads them for every worker.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct PrefillQueue {
    /// Expected prefill time in microseconds of the prompts that are booked and not computed.
    booked_us: AtomicU64,
    /// The part of it before the first streamed prompt.
    unstreamed_us: AtomicU64,
    /// Expected prefill time of the first streamed prompt, in microseconds.
    streamed_us: AtomicU64,
    /// When the prompt at the head was started, or [`STARTS_NOW`], or [`UNKNOWN`].
    begun_at: AtomicU64,
    /// Since when the first token of the first streamed prompt could have come; `u64::MAX` without one.
    quiet_since: AtomicU64,
    /// When the last prompt was booked.
    booked_at: AtomicU64,
    /// Tokens of the worker's KV cache; 0 until it is known.
    kv_tokens: AtomicU64,
    /// Prompts that are booked and not computed.
    prompts: AtomicU32,
    /// The number of them before the first streamed one.
    unstreamed: AtomicU32,
    /// How many times as long as its engine kind's model the worker takes; f32 bits.
    relative_latency: AtomicU32,
    /// Prompts that wait in the engine by its last report, less those that were booked here.
    external_waiting: AtomicU32,
    /// Prompt tokens computed lately, as of `booked_at`: see [`CHURN_HALF_LIFE`]; f32 bits.
    recent_tokens: AtomicU32,
    /// When the relative latency was last learned, or [`UNTIMED`].
    learned_at: AtomicU64,
    /// Requests that the engine computes at once; 0 until it is known.
    places: AtomicU16,
    /// Requests of other clients in the engine, by its last report.
    others: AtomicU16,
    /// Which latency model is the worker's.
    kind: AtomicU8,
    state: Mutex<State>,
}

const _: () =
    assert!(std::mem::offset_of!(PrefillQueue, state) <= 128, "decisions read two cache lines of a queue");

/// The prompts in the order in which they were booked.
#[derive(Debug)]
struct State {
    prompts: VecDeque<BookedPrompt>,
    last_ticket: u64,
    /// When the first of them was started, as far as this router's own first tokens tell.
    since: Micros,
    /// When a first token last came, here or at a peer.
    last_first_token: Micros,
    steps: PendingSteps,
    relative_latency: RelativeLatency,
    /// The prompt at the head was given up: how much of the time since it started was its own is not known.
    is_disturbed: bool,
}

#[derive(Clone, Copy, Debug)]
struct BookedPrompt {
    ticket: Ticket,
    us: u64,
    delivery: Delivery,
    /// Computed, but when is not known: a peer has seen its first token, or its answer is not streamed and its expected time has
    /// passed. It is ahead of no prompt any more, and stays to be learned from with the next first token.
    is_done: bool,
}

impl BookedPrompt {
    /// Whether this prompt is computed when the first token of `other` comes.
    fn is_done_with(&self, other: Ticket) -> bool {
        let was_first = self.is_done
            || self.delivery == Delivery::Whole
            || other.booked.since(self.ticket.booked) >= REORDERED_WITHIN;
        self.ticket.number == other.number || (self.ticket.number < other.number && was_first)
    }
}

impl From<&BookedPrompt> for ComputedPrompt {
    fn from(prompt: &BookedPrompt) -> ComputedPrompt {
        let report = if prompt.is_done { ReportExpected::No } else { ReportExpected::Yes };
        ComputedPrompt { ticket: prompt.ticket.number, features: prompt.ticket.features, report }
    }
}

/// Capacity of a queue that is allocated when a worker joins, so that decisions do not allocate.
const PROMPTS_USUAL: usize = 64;
/// The same for steps whose answers have not ended.
const STEPS_USUAL: usize = 16;

/// No prefill is expected to take longer.
const EXPECTED_MAX_MS: f32 = 3.6e6;

/// Sentinel for `learned_at`: it was restored, and ages from the next read on.
const UNTIMED: u64 = 0;

/// Sentinels for `begun_at`: the prompt at the head starts at the next read; it is not known whether it has started.
const STARTS_NOW: u64 = u64::MAX;
const UNKNOWN: u64 = u64::MAX - 1;

/// A first token says nothing about prompts that were booked so little before its own: connections and the engine's tokenizer
/// decide which of them was first in its queue. Each of them leaves with its own first token, which comes at the same time if all
/// were computed in one step.
const REORDERED_WITHIN: Micros = Micros::from_secs(1);

/// The most computed prompts that are kept to be learned from.
const DONE_MAX: usize = 64;

/// A first token that takes this many times as long as expected, and at least this much longer, shows that the engine has
/// stalled. The stall is expected to go on for as long as it has lasted, up to a limit: when all first tokens are late because
/// the KV caches are full, lateness says little.
const LATE: u64 = 10;
const LATE_MIN: Micros = Micros::from_millis(100);
const LATE_MAX: Micros = Micros::from_secs(2);

/// A prompt whose first token has not come takes at least this part of its expected time more, even when that time is over. When it
/// counted as done, requests went to the worker that was late: on real engines they took twice as long as expected there
/// (docs/study/gpu).
const OVERDUE_SHARE: u64 = 4;

/// A worker that looks slow gets no requests, so no answer corrects the estimate if it is wrong. Without answers, its distance
/// from the others halves in this time, until a request is worth trying.
const EXPLORE_HALF_LIFE: Micros = Micros::from_secs(30);

/// Tokens that were computed so long ago count half in [`PrefillQueue::cache_churn`]: agents' pauses are shorter.
const CHURN_HALF_LIFE: Micros = Micros::from_secs(600);

/// A prompt's place in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    number: u64,
    booked: Micros,
    features: PrefillFeatures,
}

/// How soon a worker could start with a new prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueForecast {
    /// Milliseconds until the engine would start with it.
    pub queue_ms: f32,
    /// Where it would be in the queue.
    pub position: QueuePosition,
    /// Prompts ahead of it.
    pub prompts: u32,
    /// Time since the last prompt was booked.
    pub idle: Micros,
    /// Tokens of the worker's KV cache, if known.
    pub kv_tokens: Option<u64>,
    /// How many times as long as its engine kind's model the worker takes.
    pub relative_latency: f32,
    /// Which latency model is the worker's: see [`Fleet::prefill_cost`](crate::Fleet::prefill_cost).
    pub kind: u8,
    /// Prompts from other clients of the engine that waited there when it last reported.
    pub external_waiting: u32,
}

/// How many requests an engine computes at once, and who has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnginePlaces {
    /// The number of places; `None` while it is unknown.
    pub places: Option<NonZeroU16>,
    /// Requests of other clients that the engine computes or that wait in it, by its last report.
    pub others: u16,
}

impl EnginePlaces {
    /// The places that other clients have left; `u16::MAX` while the number is unknown.
    fn left(self) -> u16 {
        self.places.map_or(u16::MAX, |places| places.get().saturating_sub(self.others))
    }
}

/// A worker's learned latency, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyView {
    /// Milliseconds for 1,000 prompt tokens that are not cached.
    pub ms_per_1k_tokens: f32,
    /// Milliseconds that every request takes before its first token: the network, the end of the current step.
    pub ms_before_first: f32,
    /// How many times as long as other workers with the same model it takes.
    pub relative_latency: f32,
    /// Milliseconds until the engine could start with a new prompt.
    pub queue_ms: f32,
    /// Requests that the engine computes at once, if known.
    pub places: Option<u16>,
}

impl State {
    fn new() -> State {
        State {
            prompts: VecDeque::new(),
            last_ticket: 0,
            since: Micros::ZERO,
            last_first_token: Micros::ZERO,
            steps: PendingSteps::default(),
            relative_latency: RelativeLatency::ONE,
            is_disturbed: false,
        }
    }

    /// Prompts that are not computed.
    fn waiting(&self) -> impl Iterator<Item = &BookedPrompt> {
        self.prompts.iter().filter(|prompt| !prompt.is_done)
    }

    fn is_head(&self, ticket: Ticket) -> bool {
        self.waiting().next().is_some_and(|head| head.ticket.number == ticket.number)
    }

    /// When the prompt at the head starts after the one before it was given up. A streamed one counts as not started until a first
    /// token comes; one that is not streamed will show none.
    fn next_begun_at(&self) -> u64 {
        match self.waiting().next() {
            Some(head) if head.delivery == Delivery::Whole => STARTS_NOW,
            _ => UNKNOWN,
        }
    }

    fn contains(&self, ticket: Ticket) -> bool {
        let by_number = |prompt: &BookedPrompt| prompt.ticket.number;
        self.prompts.binary_search_by_key(&ticket.number, by_number).is_ok()
    }

    /// Marks a prompt as computed; returns its expected time.
    fn finish(&mut self, number: u64) -> u64 {
        let is_it = |prompt: &&mut BookedPrompt| prompt.ticket.number == number;
        let Some(prompt) = self.prompts.iter_mut().find(is_it) else { return 0 };
        prompt.is_done = true;
        let us = std::mem::take(&mut prompt.us);
        if self.prompts.iter().take_while(|prompt| prompt.is_done).count() > DONE_MAX {
            self.prompts.pop_front();
            self.is_disturbed = true;
        }
        us
    }
}

impl Default for PrefillQueue {
    fn default() -> PrefillQueue {
        PrefillQueue {
            relative_latency: AtomicU32::new(1.0_f32.to_bits()),
            learned_at: AtomicU64::new(0),
            places: AtomicU16::new(0),
            others: AtomicU16::new(0),
            kind: AtomicU8::new(0),
            prompts: AtomicU32::new(0),
            booked_us: AtomicU64::new(0),
            unstreamed_us: AtomicU64::new(0),
            unstreamed: AtomicU32::new(0),
            streamed_us: AtomicU64::new(0),
            begun_at: AtomicU64::new(0),
            quiet_since: AtomicU64::new(u64::MAX),
            booked_at: AtomicU64::new(0),
            kv_tokens: AtomicU64::new(0),
            external_waiting: AtomicU32::new(0),
            recent_tokens: AtomicU32::new(0),
            state: Mutex::new(State::new()),
        }
    }
}

impl PrefillQueue {
    /// What is ahead of a prompt that would be booked now.
    #[inline]
    pub(crate) fn forecast(&self, now: Micros) -> QueueForecast {
        let since = |at: &AtomicU64| now.since(Micros(at.load(Relaxed)));
        let (begun_us, unstreamed_us) = (now.since(self.begun_at(now)).0, self.unstreamed_us.load(Relaxed));
        let passed = if begun_us < unstreamed_us { 0 } else { self.unstreamed.load(Relaxed) };
        let prompts = self.prompts.load(Relaxed).saturating_sub(passed);
        // However long the first streamed prompt has been computed, it is not done, and the prompts behind it have not started.
        let streamed_us = self.streamed_us.load(Relaxed);
        let passed_us = begun_us.min(unstreamed_us + streamed_us - streamed_us / OVERDUE_SHARE);
        let on_time_us = unstreamed_us + LATE * streamed_us + LATE_MIN.0;
        let stalled_us = since(&self.quiet_since).0.saturating_sub(on_time_us).min(LATE_MAX.0);
        let left_us = self.booked_us.load(Relaxed).saturating_sub(passed_us) + stalled_us;
        QueueForecast {
            queue_ms: left_us.min(i64::MAX as u64) as i64 as f32 / 1e3,
            position: if prompts == 0 { QueuePosition::Head } else { QueuePosition::Behind },
            prompts,
            idle: since(&self.booked_at),
            relative_latency: self.relative_latency(now),
            kind: self.kind(),
            external_waiting: self.external_waiting.load(Relaxed),
            kv_tokens: Some(self.kv_tokens.load(Relaxed)).filter(|&tokens| tokens > 0),
        }
    }

    /// Adds what decisions read to a copy of the worker's load.
    pub(crate) fn summarize(&self, load: LoadSummary) -> LoadSummary {
        let relative_latency = f32::from_bits(self.relative_latency.load(Relaxed));
        LoadSummary {
            is_free: self.prompts.load(Relaxed) == 0
                && self.booked_us.load(Relaxed) == 0
                && self.quiet_since.load(Relaxed) == u64::MAX
                && self.external_waiting.load(Relaxed) == 0
                && relative_latency <= 1.0,
            kind: self.kind(),
            relative_latency,
            kv_tokens: self.kv_tokens.load(Relaxed),
            places_left: self.engine_places().left(),
            booked_at: Micros(self.booked_at.load(Relaxed)),
            ..load
        }
    }

    /// How many times as long as its engine kind's model the worker takes. One that looks slow and has not been tried for a while
    /// may have recovered: see [`EXPLORE_HALF_LIFE`].
    #[inline]
    pub(crate) fn relative_latency(&self, now: Micros) -> f32 {
        let learned = f32::from_bits(self.relative_latency.load(Relaxed));
        if learned <= 1.0 {
            return learned;
        }
        if self.learned_at.load(Relaxed) == UNTIMED {
            self.learned_at.store(now.0, Relaxed);
        }
        let age = now.since(Micros(self.learned_at.load(Relaxed)));
        let half_lives = age.0 as f32 / EXPLORE_HALF_LIFE.0 as f32;
        1.0 + (learned - 1.0) * (-half_lives).exp2()
    }

    /// Prompt tokens computed lately as a share of the KV cache; `None` while its size is not known.
    pub(crate) fn cache_churn(&self, now: Micros) -> Option<f32> {
        let kv_tokens = Some(self.kv_tokens.load(Relaxed)).filter(|&tokens| tokens > 0)?;
        Some(self.recent_tokens(now) / kv_tokens as f32)
    }

    /// Forgets what was computed.
    pub(crate) fn clear_churn(&self) {
        let _booking = self.state.lock();
        self.recent_tokens.store(0, Relaxed);
    }

    /// Prompt tokens computed lately.
    fn recent_tokens(&self, now: Micros) -> f32 {
        let age = now.since(Micros(self.booked_at.load(Relaxed)));
        let half_lives = age.0 as f32 / CHURN_HALF_LIFE.0 as f32;
        f32::from_bits(self.recent_tokens.load(Relaxed)) * (-half_lives).exp2()
    }

    /// Which latency model is the worker's.
    #[inline]
    pub(crate) fn kind(&self) -> u8 {
        self.kind.load(Relaxed)
    }

    /// Books a prompt that is expected to take so long.
    pub(crate) fn book(
        &self,
        features: PrefillFeatures,
        delivery: Delivery,
        expected_ms: f32,
        now: Micros,
    ) -> Ticket {
        let us = (expected_ms.clamp(0.0, EXPECTED_MAX_MS) * 1e3) as u64;
        let mut state = self.state.lock();
        self.pass(&mut state, now);
        if state.prompts.is_empty() {
            self.begun_at.store(now.0, Relaxed);
            state.since = now;
        }
        let recent_tokens = self.recent_tokens(now) + features.miss_tokens as f32;
        self.recent_tokens.store(recent_tokens.to_bits(), Relaxed);
        self.booked_at.store(now.0, Relaxed);
        state.last_ticket += 1;
        let ticket = Ticket { number: state.last_ticket, booked: now, features };
        state.prompts.push_back(BookedPrompt { ticket, us, delivery, is_done: false });
        self.booked_us.fetch_add(us, Relaxed);
        self.publish(&state);
        ticket
    }

    /// When the prompt at the head was started.
    #[inline]
    fn begun_at(&self, now: Micros) -> Micros {
        match self.begun_at.load(Relaxed) {
            STARTS_NOW => {
                self.begun_at.store(now.0, Relaxed);
                now
            }
            at => Micros(at),
        }
    }

    /// Prompts at the head whose answers are not streamed count as computed once their expected time has passed.
    fn pass(&self, state: &mut State, now: Micros) {
        loop {
            let begun = self.begun_at(now);
            let unstreamed = state.waiting().next().filter(|head| head.delivery == Delivery::Whole);
            let Some(head) = unstreamed.filter(|head| now.since(begun).0 >= head.us.max(1)) else { break };
            let number = head.ticket.number;
            let us = state.finish(number);
            self.begun_at.store(begun.0 + us, Relaxed);
            self.booked_us.fetch_sub(us, Relaxed);
        }
        if state.waiting().next().is_none() {
            state.prompts.clear();
        }
    }

    /// A prompt left the queue without a first token.
    pub(crate) fn release(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        let Some(released) = state.prompts.iter().find(|prompt| prompt.ticket.number == ticket.number) else {
            return;
        };
        match released.delivery {
            _ if released.is_done => {}
            // Its answer has come, or was given up after its prompt was computed: prefill is a small part of an answer's time.
            Delivery::Whole => self.release_whole(&mut state, ticket),
            Delivery::Streamed => self.release_streamed(&mut state, ticket),
        }
    }

    fn release_whole(&self, state: &mut State, ticket: Ticket) {
        let (is_head, us) = (state.is_head(ticket), state.finish(ticket.number));
        self.booked_us.fetch_sub(us, Relaxed);
        if is_head {
            let begun = self.begun_at.load(Relaxed);
            let next = if begun < UNKNOWN { begun.saturating_add(us) } else { state.next_begun_at() };
            self.begun_at.store(next, Relaxed);
        }
        if state.waiting().next().is_none() {
            state.prompts.clear();
        }
        self.publish(state);
    }

    fn release_streamed(&self, state: &mut State, ticket: Ticket) {
        let is_head = state.is_head(ticket);
        self.remove(state, |prompt| prompt.ticket.number == ticket.number, |_| {});
        if is_head && !state.prompts.is_empty() {
            state.is_disturbed = true;
            self.begun_at.store(state.next_begun_at(), Relaxed);
        }
    }

    /// A first token came: its prompt is computed, those well before it are too, and the next one starts. `model` learns
    /// what it took with predicted cached tokens, and again when the answers have reported theirs. Whether it has learned something.
    pub(crate) fn first_token(&self, ticket: Ticket, model: &Mutex<LatencyModel>, now: Micros) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if !state.contains(ticket) {
            return false; // It counts as computed since a later prompt's first token.
        }
        self.begun_at.store(now.0, Relaxed);
        state.last_first_token = now;
        let begun = std::mem::replace(&mut state.since, now);
        let mut computed = std::mem::take(&mut state.steps.computed);
        computed.clear();
        self.remove(state, |prompt| prompt.is_done_with(ticket), |prompt| computed.push(prompt.into()));
        // The head of the queue started when it was booked, or when the one before it was computed.
        let (head, behind) = if begun > ticket.booked { (0.0, 1.0) } else { (1.0, 0.0) };
        let mut position = FeatureVector::default();
        (position[0], position[1]) = (head, behind + computed.len().saturating_sub(1) as f64);
        let is_disturbed = std::mem::take(&mut state.is_disturbed);
        state.steps.observe(&computed, position, now.since(begun), now, is_disturbed);
        state.steps.computed = computed;
        let has_learned = state.steps.teach_newest(&mut model.lock());
        // Answers of an engine that reports no cached tokens only end: their steps are complete without a report.
        self.learn_complete(state, model, now) || has_learned
    }

    /// An answer has ended, and its engine reported this about its prompt. Steps that are complete now teach `model`. Whether there
    /// were any.
    pub(crate) fn report(
        &self,
        ticket: Ticket,
        prompt: ObservedPrompt,
        model: &Mutex<LatencyModel>,
        now: Micros,
    ) -> bool {
        let mut state = self.state.lock();
        state.steps.report(ticket.number, Some(prompt));
        self.learn_complete(&mut state, model, now)
    }

    /// Learns from steps all of whose answers have ended. False if there are none.
    fn learn_complete(&self, state: &mut State, model: &Mutex<LatencyModel>, now: Micros) -> bool {
        let mut has_learned = false;
        while let Some((step, lesson)) = state.steps.take_complete(now) {
            learn(&step, lesson, &mut state.relative_latency, &mut model.lock());
            has_learned = true;
        }
        if has_learned {
            self.publish_latency(state, now);
        }
        has_learned
    }

    /// An answer has ended or was given up, and nothing was reported about its prompt.
    pub(crate) fn abandon(&self, ticket: Ticket) {
        self.state.lock().steps.report(ticket.number, None);
    }

    /// A peer has seen a first token: that prompt is computed, and the next one has started by now.
    pub(crate) fn done_elsewhere(&self, ticket: Ticket, now: Micros) {
        let mut state = self.state.lock();
        if state.is_head(ticket) {
            self.begun_at.store(now.0, Relaxed);
        }
        state.last_first_token = now;
        self.booked_us.fetch_sub(state.finish(ticket.number), Relaxed);
        if state.waiting().next().is_none() {
            state.prompts.clear();
        }
        self.publish(&state);
    }

    /// Removes prompts, and hands each to `removed`.
    fn remove(
        &self,
        state: &mut State,
        is_out: impl Fn(&BookedPrompt) -> bool,
        mut removed: impl FnMut(&BookedPrompt),
    ) {
        state.prompts.retain(|prompt| {
            let is_out = is_out(prompt);
            if is_out {
                self.booked_us.fetch_sub(prompt.us, Relaxed);
                removed(prompt);
            }
            !is_out
        });
        if state.waiting().next().is_none() {
            state.prompts.clear();
        }
        self.publish(state);
    }

    fn publish(&self, state: &State) {
        let (mut prompts, mut unstreamed, mut unstreamed_us, mut streamed) = (0, 0, 0, None);
        for prompt in state.waiting() {
            prompts += 1;
            match prompt.delivery {
                Delivery::Whole if streamed.is_none() => {
                    unstreamed += 1;
                    unstreamed_us += prompt.us;
                }
                _ => streamed = streamed.or(Some(prompt)),
            }
        }
        let begun_at = Some(self.begun_at.load(Relaxed)).filter(|&at| at < UNKNOWN).unwrap_or(0);
        let quiet_since = streamed
            .map_or(u64::MAX, |first| first.ticket.booked.max(state.last_first_token).0.max(begun_at));
        self.quiet_since.store(quiet_since, Relaxed);
        self.prompts.store(prompts, Relaxed);
        self.unstreamed.store(unstreamed, Relaxed);
        self.unstreamed_us.store(unstreamed_us, Relaxed);
        self.streamed_us.store(streamed.map_or(0, |first| first.us), Relaxed);
    }

    /// The slot is reused by another engine: it starts with this latency model, at the fleet's speed. Prompts of the
    /// former one may still be in flight and teach nothing. Allocates what requests need.
    pub(crate) fn forget(&self, kind: u8) {
        let mut state = self.state.lock();
        state.relative_latency = RelativeLatency::ONE;
        state.steps.clear();
        state.is_disturbed = !state.prompts.is_empty();
        state.prompts.reserve(PROMPTS_USUAL);
        state.steps.reserve(STEPS_USUAL);
        self.kind.store(kind, Relaxed);
        self.publish_latency(&state, Micros(UNTIMED));
        self.set_kv_tokens(0);
        self.set_places(None);
        self.others.store(0, Relaxed);
    }

    /// The worker serves another model now: what it took so far was of the old one.
    pub(crate) fn set_kind(&self, kind: u8) {
        let mut state = self.state.lock();
        if self.kind.swap(kind, Relaxed) != kind {
            state.relative_latency = RelativeLatency::ONE;
            state.steps.clear();
            self.publish_latency(&state, Micros(UNTIMED));
        }
    }

    /// Another engine process runs at this address: the estimate of the former stands until answers correct it.
    pub(crate) fn doubt(&self) {
        let mut state = self.state.lock();
        state.relative_latency = state.relative_latency.doubted();
        state.steps.clear();
        state.is_disturbed = !state.prompts.is_empty();
    }

    /// The relative latency as numbers, for a saved state.
    pub(crate) fn numbers(&self) -> [f64; 2] {
        self.state.lock().relative_latency.numbers()
    }

    /// Restores such numbers.
    pub(crate) fn restore(&self, numbers: [f64; 2]) {
        let mut state = self.state.lock();
        state.relative_latency = RelativeLatency::of_numbers(numbers);
        self.publish_latency(&state, Micros(UNTIMED));
    }

    fn publish_latency(&self, state: &State, now: Micros) {
        self.relative_latency.store((state.relative_latency.ratio() as f32).to_bits(), Relaxed);
        self.learned_at.store(now.0, Relaxed);
    }

    /// The engine reported its requests, of which so many are from here.
    pub(crate) fn report_requests(&self, report: &LoadReport, in_flight: u32) {
        let others = report.waiting.saturating_add(report.running).saturating_sub(in_flight);
        // Of those from here, prompts wait, and so do preempted answers.
        let waiting = report.waiting.saturating_sub(self.prompts.load(Relaxed)).min(others);
        self.external_waiting.store(waiting, Relaxed);
        self.others.store(u16::try_from(others).unwrap_or(u16::MAX), Relaxed);
    }

    pub(crate) fn engine_places(&self) -> EnginePlaces {
        EnginePlaces { places: NonZeroU16::new(self.places.load(Relaxed)), others: self.others.load(Relaxed) }
    }

    pub(crate) fn set_places(&self, places: Option<u16>) {
        self.places.store(places.unwrap_or(0), Relaxed);
    }

    pub(crate) fn set_kv_tokens(&self, tokens: u64) {
        self.kv_tokens.store(tokens, Relaxed);
    }
}

/// Teaches a worker's relative latency and its engine kind's model.
fn learn(step: &ObservedStep, lesson: Option<u64>, relative: &mut RelativeLatency, model: &mut LatencyModel) {
    if model.is_known() {
        let features = model.explanation(step, relative.ratio());
        relative.learn(step.took_ms, model.expected_ms(features));
    }
    // The observed time, not the time divided by the relative latency: otherwise the model and all ratios could drift apart together.
    match lesson {
        Some(lesson) => model.revise(lesson, step),
        None => _ = model.observe(step),
    }
}

#[cfg(test)]
mod tests;
