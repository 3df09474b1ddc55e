//! The registry of workers. A worker keeps its slot (its [`WorkerId`]) while it is a member.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};
use warmroute_types::{
    Address, LoadReport, MAX_WORKERS, Micros, PrefixCache, SourceReadiness, WorkerId, WorkerState,
};

use crate::adapter_slots::AdapterSlots;
use crate::answer_time::{AnswerTime, PRIOR_MS};
use crate::change_guard::ChangeGuard;
use crate::engine_kinds::EngineKinds;
use crate::fault_attribution::{BREAKS_MIN, FaultAttribution, OutcomeCounts, Verdict};
use crate::outlier::Outliers;
use crate::places::PlaceReports;
use crate::prefill_queue::{EnginePlaces, PrefillQueue, Ticket};
use crate::worker_load::WorkerLoad;
use crate::{
    AnswerProgress, CacheBelief, HealthConfig, HealthTracker, LatencyView, ModelCard, Models, ObservedPrompt,
    PrefillCost, PrefillFeatures, ProbeResult, QueueForecast, Worker, WorkerLoadView, WorkerView,
};

/// All workers. Slots change rarely and are locked; loads are read by every decision and are not.
pub struct Fleet {
    slots: RwLock<Vec<WorkerSlot>>,
    loads: Box<[WorkerLoad]>,
    queues: Box<[PrefillQueue]>,
    /// Changes of each worker's load and queue so far: see `load_summary.rs`.
    versions: Box<[AtomicU64]>,
    /// The latency models, one per model that workers serve.
    kinds: EngineKinds,
    adapters: AdapterSlots,
    outliers: Mutex<Outliers>,
    faults: Mutex<FaultAttribution>,
    /// Answer counts by worker index.
    outcomes: Box<[OutcomeCounters]>,
    health: HealthConfig,
}

/// Completed and broken-off answers of a worker; wrap.
#[derive(Debug, Default)]
#[repr(align(64))]
struct OutcomeCounters {
    answers: AtomicU32,
    breaks: AtomicU32,
    /// The answers whose time was learned. Refused requests are not among them: they had no place in the engine.
    timed: AtomicU32,
    /// How long its answers take.
    answer_time: AnswerTime,
}

struct WorkerSlot {
    worker: Arc<Worker>,
    models: Models,
    models_from: ModelsFrom,
    health: HealthTracker,
    membership: Membership,
    /// The engine's own counters, for lists and metrics only.
    prefix_cache: Option<PrefixCache>,
    /// What the engine says about its models, for lists only.
    model_cards: Arc<[ModelCard]>,
    places: PlaceReports,
}

/// Source of a worker's model list. The operator's list overrides the engine's.
#[derive(Clone, Copy, PartialEq)]
enum ModelsFrom {
    Operator,
    Engine,
}

impl ModelsFrom {
    fn joining_with(models: &Models) -> ModelsFrom {
        if *models == Models::Unknown { ModelsFrom::Engine } else { ModelsFrom::Operator }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Membership {
    Member,
    /// The worker gets nothing new. Its slot is free once nothing is booked on it.
    Leaving,
}

/// The fleet has no free slot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fleet is full: {MAX_WORKERS} workers")]
pub struct FleetFull;

impl Fleet {
    /// An empty fleet.
    pub fn new(health: HealthConfig) -> Fleet {
        let loads = (0..MAX_WORKERS).map(|_| WorkerLoad::default()).collect();
        let queues = (0..MAX_WORKERS).map(|_| PrefillQueue::default()).collect();
        let (outliers, faults) = Default::default();
        Fleet {
            slots: RwLock::new(Vec::new()),
            loads,
            queues,
            versions: (0..MAX_WORKERS).map(|_| AtomicU64::new(1)).collect(),
            kinds: EngineKinds::default(),
            adapters: AdapterSlots::new(MAX_WORKERS),
            outliers,
            faults,
            outcomes: (0..MAX_WORKERS).map(|_| OutcomeCounters::default()).collect(),
            health,
        }
    }

    /// Adds a worker. A known worker keeps its slot and what was learned. A leaving one becomes a member again and keeps
    /// its slot only, because another process may have its address. Models given here override the engine's own
    /// list; unknown models are learned from it.
    pub fn join(&self, address: Address, models: Models) -> Result<Arc<Worker>, FleetFull> {
        let mut slots = self.slots.write();
        let known = slots.iter().position(|slot| slot.worker.address == address);
        if let Some(slot) = known.map(|known| &mut slots[known])
            && slot.membership == Membership::Member
        {
            slot.set_models(models);
            let (worker, models) = (Arc::clone(&slot.worker), slot.models.clone());
            self.set_kind(&mut slots, worker.id, &models);
            return Ok(worker);
        }
        let free = known.or_else(|| slots.iter().position(|slot| slot.is_free(&self.loads)));
        let free = free.unwrap_or(slots.len());
        if free == MAX_WORKERS {
            return Err(FleetFull);
        }
        let worker = match known {
            Some(known) => Arc::clone(&slots[known].worker),
            None => Arc::new(Worker::new(WorkerId(free as u16), address)),
        };
        let slot = WorkerSlot {
            worker: Arc::clone(&worker),
            models_from: ModelsFrom::joining_with(&models),
            models,
            health: HealthTracker::default(),
            membership: Membership::Member,
            prefix_cache: None,
            model_cards: Arc::default(),
            places: PlaceReports::default(),
        };
        let kind = self.kind_of(&slot.models, &slots);
        let change = self.change(worker.id);
        change.load.clear();
        change.queue.forget(kind);
        self.outcomes[worker.id.index()].answer_time.forget();
        drop(change);
        self.outliers.lock().forget(worker.id);
        self.faults.lock().forget(worker.id);
        if free == slots.len() {
            slots.push(slot)
        } else {
            slots[free] = slot
        }
        self.publish_places(&slots, kind);
        Ok(worker)
    }

    /// Removes a worker: it gets nothing new, finishes its requests, and its slot is free after that.
    pub fn leave(&self, address: &Address) -> Option<WorkerId> {
        let mut slots = self.slots.write();
        let slot =
            slots.iter_mut().find(|s| s.worker.address == *address && s.membership == Membership::Member)?;
        slot.membership = Membership::Leaving;
        slot.health.drain();
        let worker = slot.worker.id;
        self.change(worker).load.set_state(WorkerState::Draining);
        self.publish_places(&slots, self.queue(worker).kind());
        Some(worker)
    }

    /// Records the result of a probe; returns the new state if it changed. Like all methods below, ignores a
    /// worker whose slot has been given to another.
    pub fn probed(&self, worker: &Worker, result: ProbeResult, now: Micros) -> Option<WorkerState> {
        self.update_health(worker, |health| health.probed(result, self.health, now))
    }

    /// Records what the worker's source says; returns the new state if it changed.
    pub fn set_readiness(&self, worker: &Worker, readiness: SourceReadiness) -> Option<WorkerState> {
        self.update_health(worker, |health| health.set_readiness(readiness))
    }

    /// Records a failed request; returns the new state if it changed.
    pub fn failed(&self, worker: &Worker, now: Micros) -> Option<WorkerState> {
        self.update_health(worker, |health| health.failed(self.health, now))
    }

    /// Records an answer that broke off, of which the fault is unknown (see `fault_attribution.rs`); returns
    /// the new state if it changed. All attempts of one request must carry the same `request` number. At most
    /// a third of the fleet is taken out this way.
    pub fn record_break(&self, worker: &Worker, request: u64, now: Micros) -> Option<WorkerState> {
        self.outcomes[worker.id.index()].breaks.fetch_add(1, Relaxed);
        // A break during the trial answers the question of the trial.
        let is_trial = self.load(worker.id).state() == WorkerState::Recovering;
        if is_trial {
            return self.failed(worker, now);
        }
        let (counts, may_be_taken_out) = self.compare_with_others(worker.id);
        let breaks_min = self.health.failures_max.max(BREAKS_MIN);
        let verdict = self.faults.lock().record_break(worker.id, request, counts, breaks_min);
        if verdict == Verdict::Inconclusive || !may_be_taken_out {
            return None;
        }
        self.update_health(worker, |health| (0..breaks_min).for_each(|_| health.failed(self.health, now)))
    }

    /// The outcomes of the other workers, and whether another worker may be taken out.
    fn compare_with_others(&self, worker: WorkerId) -> (OutcomeCounts, bool) {
        let slots = self.slots.read();
        let members: Vec<usize> = slots
            .iter()
            .filter(|slot| slot.membership == Membership::Member)
            .map(|slot| slot.worker.id.index())
            .collect();
        let others = |count: fn(&OutcomeCounters) -> &AtomicU32| {
            let counts = members.iter().filter(|&&slot| slot != worker.index());
            counts.fold(0_u32, |sum, &slot| sum.wrapping_add(count(&self.outcomes[slot]).load(Relaxed)))
        };
        let counts = OutcomeCounts {
            own_answers: self.outcomes[worker.index()].answers.load(Relaxed),
            others_answers: others(|counts| &counts.answers),
            others_breaks: others(|counts| &counts.breaks),
        };
        let out = members.iter().filter(|&&slot| !self.loads[slot].state().takes_requests()).count();
        (counts, out * 3 < members.len())
    }

    /// Records an answer, which ends a row of failures. Without failures, nearly always, the cost is one
    /// read. Only the trial request shows that a worker has recovered; a request sent earlier does not.
    pub(crate) fn answered(&self, worker: &Worker, is_trial: bool, answer: AnswerProgress) {
        // An answer that has only begun may still break: it does not count.
        if answer == AnswerProgress::Complete {
            self.outcomes[worker.id.index()].answers.fetch_add(1, Relaxed);
        }
        let load = self.load(worker.id);
        if load.awaits_answer() && (load.state() != WorkerState::Recovering || is_trial) {
            self.update_health(worker, |health| health.answered(answer, self.health));
        }
    }

    fn update_health(&self, worker: &Worker, change: impl FnOnce(&mut HealthTracker)) -> Option<WorkerState> {
        let mut slots = self.slots.write();
        let slot = slots.get_mut(worker.id.index()).filter(|slot| *slot.worker == *worker)?;
        let before = slot.health.state();
        change(&mut slot.health);
        let after = slot.health.state();
        let change = self.change(worker.id);
        change.load.set_state(after);
        change.load.set_awaits_answer(slot.health.breaker().awaits_answer());
        if is_away(before) != is_away(after) {
            self.publish_places(&slots, self.queue(worker.id).kind());
        }
        (before != after).then_some(after)
    }

    /// Whether connections to the worker fail. For a worker that takes requests this is one read.
    pub fn is_unreachable(&self, worker: WorkerId) -> bool {
        let is_out = self.load(worker).state() == WorkerState::Unhealthy;
        is_out && self.slots.read().get(worker.index()).is_some_and(|slot| slot.health.is_unreachable())
    }

    /// Pauses the worker until then. It still gets requests when all others are paused too.
    pub fn pause(&self, worker: &Worker, until: Micros) {
        let slots = self.slots.read();
        if slots.get(worker.id.index()).is_some_and(|slot| *slot.worker == *worker) {
            self.change(worker.id).load.pause(until);
        }
    }

    /// Compares a first token with its prediction. Ejects a worker that is repeatedly far too late and
    /// returns the end of the ejection.
    pub fn compare_first_token(
        &self,
        worker: &Worker,
        predicted: Micros,
        observed: Micros,
        now: Micros,
    ) -> Option<Micros> {
        let slots = self.slots.read();
        slots.get(worker.id.index()).filter(|slot| *slot.worker == *worker)?;
        let members = || slots.iter().filter(|slot| slot.membership == Membership::Member).count();
        let until = self.outliers.lock().record_first_token(worker.id, predicted, observed, members, now)?;
        self.change(worker.id).load.pause(until);
        Some(until)
    }

    /// Records the engine's model list; true if it changed.
    pub fn serves(&self, worker: &Worker, models: Models) -> bool {
        let mut slots = self.slots.write();
        let slot = slots.get_mut(worker.id.index()).filter(|slot| *slot.worker == *worker);
        let Some(slot) = slot.filter(|slot| slot.models_from == ModelsFrom::Engine) else { return false };
        let news = slot.models != models;
        slot.models = models;
        if news {
            let models = slot.models.clone();
            self.set_kind(&mut slots, worker.id, &models);
        }
        news
    }

    /// Records what the engine says about its models.
    pub fn describe_models(&self, worker: &Worker, cards: Vec<ModelCard>) {
        let mut slots = self.slots.write();
        let slot = slots.get_mut(worker.id.index()).filter(|slot| *slot.worker == *worker);
        if let Some(slot) = slot.filter(|slot| *slot.model_cards != *cards) {
            slot.model_cards = cards.into();
        }
    }

    /// Most tokens that any model of the worker takes as prompt and answer together, if the engine says so.
    pub fn max_model_len(&self, worker: WorkerId) -> Option<u64> {
        let slots = self.slots.read();
        slots.get(worker.index())?.model_cards.iter().filter_map(|card| card.max_model_len).max()
    }

    /// The worker serves these models now. One of another kind is another engine.
    fn set_kind(&self, slots: &mut [WorkerSlot], worker: WorkerId, models: &Models) {
        let (before, kind) = (self.queue(worker).kind(), self.kind_of(models, slots));
        self.change(worker).queue.set_kind(kind);
        if before != kind {
            self.outcomes[worker.index()].answer_time.forget();
            slots[worker.index()].places = PlaceReports::default();
            [before, kind].into_iter().for_each(|kind| self.publish_places(slots, kind));
        }
    }

    /// Shows decisions the places of the workers of one kind. A worker that has not shown its own has the fewest that another one
    /// of its kind has, unless it has run more: a worker without a number would look unlimited and get all requests. Engines that
    /// are away do not count: nothing would correct their number.
    fn publish_places(&self, slots: &[WorkerSlot], kind: u8) {
        let of_kind = |slot: &&WorkerSlot| {
            slot.membership == Membership::Member && self.queue(slot.worker.id).kind() == kind
        };
        let here = slots.iter().filter(of_kind).filter(|slot| !is_away(slot.health.state()));
        let fewest = here.filter_map(|slot| slot.places.places()).min();
        for slot in slots.iter().filter(of_kind) {
            let places = slot.places.places().or(fewest.filter(|&fewest| slot.places.allow(fewest)));
            if self.engine_places(slot.worker.id).places.map(NonZeroU16::get) != places {
                self.change(slot.worker.id).queue.set_places(places);
            }
        }
    }

    /// Forgets the places of an engine that may have been started again with others.
    pub fn forget_places(&self, worker: WorkerId) {
        let mut slots = self.slots.write();
        if let Some(slot) = slots.get_mut(worker.index()) {
            slot.places = PlaceReports::default();
            self.publish_places(&slots, self.queue(worker).kind());
        }
    }

    /// How many requests the worker's engine computes at once, and how many of other clients it has.
    pub fn engine_places(&self, worker: WorkerId) -> EnginePlaces {
        self.queue(worker).engine_places()
    }

    /// Mean time from the first token of the worker's answers to their end. That of its kind before its first answer.
    pub fn answer_ms(&self, worker: WorkerId) -> f32 {
        let of_kind = self.kinds.get(self.queue(worker).kind()).answers();
        self.outcomes[worker.index()].answer_time.mean_ms(of_kind.mean_ms(PRIOR_MS))
    }

    pub(crate) fn learn_answer(&self, worker: WorkerId, first_token_at: Micros, now: Micros) {
        let took_ms = now.since(first_token_at).0 as f32 / 1e3;
        let of_kind = self.kinds.get(self.queue(worker).kind()).answers();
        let (usual_ms, of_worker) = (of_kind.mean_ms(PRIOR_MS), &self.outcomes[worker.index()]);
        of_worker.timed.fetch_add(1, Relaxed);
        of_worker.answer_time.learn(took_ms, usual_ms);
        of_kind.learn(took_ms, PRIOR_MS);
    }

    /// The latency model for workers with these models.
    fn kind_of(&self, models: &Models, slots: &[WorkerSlot]) -> u8 {
        let is_used = |kind| slots.iter().any(|slot| self.queue(slot.worker.id).kind() == kind);
        self.kinds.of(models, is_used)
    }

    /// The cached tokens of an answer. A missing count is unknown until the worker has reported one, then 0.
    pub fn cached_tokens(&self, worker: &Worker, said: Option<u32>) -> Option<u32> {
        self.load(worker.id).cached_tokens(said)
    }

    /// Tokens per cache block, if the worker has reported it.
    pub fn block_tokens(&self, worker: WorkerId) -> Option<u32> {
        self.load(worker).block_tokens()
    }

    /// Records the engine's block size.
    pub fn set_block_tokens(&self, worker: &Worker, tokens: u32) {
        let slots = self.slots.read();
        if slots.get(worker.id.index()).is_some_and(|slot| *slot.worker == *worker) {
            self.load(worker.id).set_block_tokens(tokens);
        }
    }

    /// Counts an answer whose prompt filled at least one cache block, so that the engine must have published
    /// events.
    pub fn count_block_filling(&self, worker: WorkerId) {
        self.load(worker).count_block_filling();
    }

    /// Counts blocks that a worker's events have removed.
    pub fn count_evicted(&self, worker: WorkerId, blocks: usize) {
        self.load(worker).count_evicted(blocks);
    }

    /// Counts an answer that found none of the predicted tokens cached; returns the consecutive count.
    pub fn record_failed_prediction(&self, worker: WorkerId) -> u8 {
        self.load(worker).record_failed_prediction()
    }

    /// Consecutive answers that found none of the predicted tokens cached.
    pub fn failed_predictions(&self, worker: WorkerId) -> u8 {
        self.load(worker).failed_predictions()
    }

    /// Resets the count: an answer found predicted tokens.
    pub fn reset_failed_predictions(&self, worker: WorkerId) {
        self.load(worker).reset_failed_predictions();
    }

    /// Replaces the belief about a member's cache by `change` of the current one and returns the previous
    /// one. `None` for a worker that has left: its slot may be another's.
    pub fn revise(
        &self,
        worker: &Worker,
        change: impl FnMut(CacheBelief) -> CacheBelief,
    ) -> Option<CacheBelief> {
        let slots = self.slots.read();
        let slot = slots.get(worker.id.index()).filter(|slot| *slot.worker == *worker)?;
        (slot.membership == Membership::Member).then(|| self.load(worker.id).cache_belief.revise(change))
    }

    /// Resets what is known about the worker's cache.
    pub fn forget_cache(&self, worker: WorkerId) {
        self.load(worker).cache_belief.revise(CacheBelief::reset);
    }

    /// Records that the worker's cache is empty: what was computed before evicts nothing.
    pub fn clear_churn(&self, worker: WorkerId) {
        self.queue(worker).clear_churn();
    }

    /// Milliseconds until a worker can begin with a request for this adapter; zero if it holds the adapter. Adapters are
    /// hashes of their names.
    pub fn adapter_load_ms(&self, worker: WorkerId, adapter: u64, now: Micros) -> f32 {
        self.adapters.load_ms(worker.index(), adapter, now)
    }

    /// Records that a request for an adapter was sent to a worker.
    pub fn use_adapter(&self, worker: WorkerId, adapter: u64, now: Micros) {
        self.adapters.use_adapter(worker.index(), adapter, now);
    }

    /// Records the adapters that an engine works with, and how many it can hold.
    pub fn report_adapters(&self, worker: WorkerId, adapters: &[u64], slots: Option<u32>) {
        self.adapters.report(worker.index(), adapters, slots);
    }

    /// A request that waited for an adapter since `from` has its first token, which took `other_ms` beside the load.
    pub fn adapter_loaded(&self, worker: WorkerId, adapter: u64, from: Micros, at: Micros, other_ms: f32) {
        self.adapters.loaded(worker.index(), adapter, from, at, other_ms);
    }

    /// A request for an adapter was served, so the worker holds it.
    pub fn adapter_used(&self, worker: WorkerId, adapter: u64) {
        self.adapters.end_load(worker.index(), adapter);
    }

    /// Records that an engine was restarted and holds no adapter.
    pub fn clear_adapters(&self, worker: WorkerId) {
        self.adapters.clear(worker.index());
    }

    /// Forgets the adapters of a slot, and what was learned about their loads.
    pub fn forget_adapters(&self, worker: WorkerId) {
        self.adapters.forget(worker.index());
    }

    /// Number of requests ever booked on this slot; wraps.
    pub fn bookings(&self, worker: WorkerId) -> u32 {
        self.load(worker).bookings()
    }

    /// Whether the fleet has the address now. A worker that is leaving does not count.
    pub fn has_member(&self, address: &Address) -> bool {
        let is_member =
            |slot: &WorkerSlot| slot.membership == Membership::Member && slot.worker.address == *address;
        self.slots.read().iter().any(is_member)
    }

    /// Requests in flight on a worker; `None` if it takes none now.
    #[inline]
    pub fn in_flight_if_ready(&self, worker: WorkerId) -> Option<u32> {
        self.load(worker).in_flight_if_ready()
    }

    /// Whether this worker still has its slot and is not leaving.
    pub fn is_member(&self, worker: &Worker) -> bool {
        let slots = self.slots.read();
        let slot = slots.get(worker.id.index()).filter(|slot| *slot.worker == *worker);
        slot.is_some_and(|slot| slot.membership == Membership::Member)
    }

    /// Whether the operator configured this worker's models.
    pub fn models_are_given(&self, worker: &Worker) -> bool {
        let slots = self.slots.read();
        let slot = slots.get(worker.id.index()).filter(|slot| *slot.worker == *worker);
        slot.is_some_and(|slot| slot.models_from == ModelsFrom::Operator)
    }

    /// Records the engine's load report. True when its counters went back: the engine was restarted.
    pub fn report(&self, worker: &Worker, report: LoadReport) -> bool {
        let mut slots = self.slots.write();
        let slot = slots.get_mut(worker.id.index()).filter(|slot| *slot.worker == *worker);
        let Some(slot) = slot else { return false };
        let counters = report.prefix_cache.zip(slot.prefix_cache);
        let is_restarted = counters.is_some_and(|(now, before)| now.queries < before.queries);
        slot.prefix_cache = report.prefix_cache.or(slot.prefix_cache);
        if is_restarted {
            slot.places = PlaceReports::default();
        }
        let kind = self.queue(worker.id).kind();
        let answers = self.outcomes[worker.id.index()].timed.load(Relaxed);
        let mut full = self.kinds.get(kind).full().lock();
        let is_new = slot.places.report((worker.id, answers), &report, &mut full);
        drop(full);
        if is_new || is_restarted {
            self.publish_places(&slots, kind);
        }
        let change = self.change(worker.id);
        change.load.report(report);
        change.queue.report_requests(&report, change.load.in_flight());
        if is_restarted {
            change.queue.doubt();
        }
        is_restarted
    }

    /// The queue ahead of a prompt sent to this worker now.
    #[inline]
    pub fn forecast(&self, worker: WorkerId, now: Micros) -> QueueForecast {
        self.queue(worker).forecast(now)
    }

    /// Prompt tokens computed lately on the worker, as a share of its KV cache; `None` while its size is not known.
    pub fn cache_churn(&self, worker: WorkerId, now: Micros) -> Option<f32> {
        self.queue(worker).cache_churn(now)
    }

    /// The learned prefill cost of one kind of engine: see [`QueueForecast::kind`]. One worker takes
    /// [`QueueForecast::relative_latency`] times as long.
    #[inline]
    pub fn prefill_cost(&self, kind: u8) -> PrefillCost {
        self.kinds.get(kind).cost()
    }

    /// Milliseconds from the start of a prefill on this worker to its first token.
    pub fn prefill_ms(&self, worker: WorkerId, features: &PrefillFeatures, now: Micros) -> f32 {
        let queue = self.queue(worker);
        queue.relative_latency(now) * self.kinds.get(queue.kind()).cost().prefill_ms(features)
    }

    /// A worker's learned latency, for display.
    pub fn latency_view(&self, worker: WorkerId, now: Micros) -> LatencyView {
        let of = |miss_tokens| {
            self.prefill_ms(worker, &PrefillFeatures { miss_tokens, ..PrefillFeatures::default() }, now)
        };
        LatencyView {
            ms_per_1k_tokens: of(1_000) - of(0),
            ms_before_first: of(0),
            relative_latency: self.queue(worker).relative_latency(now),
            queue_ms: self.forecast(worker, now).queue_ms,
            places: self.engine_places(worker).places.map(NonZeroU16::get),
        }
    }

    /// Records the size of the worker's KV cache.
    pub fn set_kv_tokens(&self, worker: WorkerId, tokens: u64) {
        self.change(worker).queue.set_kv_tokens(tokens);
    }

    /// The latency models as numbers, by model name hash; input of [`Fleet::restore_latency`].
    pub fn latency_numbers(&self) -> Vec<(u64, Vec<f64>)> {
        self.kinds.numbers()
    }

    /// Restores a latency model. Corrupt numbers change nothing.
    pub fn restore_latency(&self, model: u64, numbers: &[f64]) {
        self.kinds.restore(model, numbers);
    }

    /// A worker's relative latency as numbers; input of [`Fleet::restore_worker`].
    pub fn relative_latency_numbers(&self, worker: WorkerId) -> [f64; 2] {
        self.queue(worker).numbers()
    }

    /// Restores a worker's saved state. Lower counters in the next report show that the engine was restarted
    /// since.
    pub fn restore_worker(
        &self,
        worker: &Worker,
        relative_latency: [f64; 2],
        prefix_cache: Option<PrefixCache>,
    ) {
        let mut slots = self.slots.write();
        if let Some(slot) = slots.get_mut(worker.id.index()).filter(|slot| *slot.worker == *worker) {
            slot.prefix_cache = prefix_cache;
            self.change(worker.id).queue.restore(relative_latency);
        }
    }

    pub(crate) fn first_token(&self, worker: WorkerId, ticket: Ticket, now: Micros) {
        let change = self.change(worker);
        let kind = self.kinds.get(change.queue.kind());
        if change.queue.first_token(ticket, kind.model(), now) {
            kind.publish();
        }
    }

    pub(crate) fn reported(&self, worker: WorkerId, ticket: Ticket, prompt: ObservedPrompt, now: Micros) {
        let change = self.change(worker);
        let kind = self.kinds.get(change.queue.kind());
        if change.queue.report(ticket, prompt, kind.model(), now) {
            kind.publish();
        }
    }

    /// The state and load of a worker.
    #[inline]
    pub fn load_view(&self, worker: WorkerId) -> WorkerLoadView {
        self.load(worker).view()
    }

    /// Every worker: members, and leaving workers with requests in flight.
    pub fn workers(&self) -> Vec<WorkerView> {
        let (slots, outliers) = (self.slots.read(), self.outliers.lock());
        slots
            .iter()
            .filter(|slot| !slot.is_free(&self.loads))
            .map(|slot| slot.view(&self.loads, &outliers))
            .collect()
    }

    /// The members: [`Fleet::workers`] without the leaving ones.
    pub fn members(&self) -> Vec<WorkerView> {
        let (slots, outliers) = (self.slots.read(), self.outliers.lock());
        let members = slots.iter().filter(|slot| slot.membership == Membership::Member);
        members.map(|slot| slot.view(&self.loads, &outliers)).collect()
    }

    /// Number of changes of a worker's load and queue.
    #[inline]
    pub(crate) fn version(&self, worker: WorkerId) -> u64 {
        self.versions[worker.index()].load(Acquire)
    }

    /// A worker's load and queue, to change what a [`LoadSummary`](crate::LoadSummary) copies.
    pub(crate) fn change(&self, worker: WorkerId) -> ChangeGuard<'_> {
        let version = &self.versions[worker.index()];
        ChangeGuard { load: self.load(worker), queue: self.queue(worker), version }
    }

    #[inline]
    pub(crate) fn queue(&self, worker: WorkerId) -> &PrefillQueue {
        &self.queues[worker.index()]
    }

    #[inline]
    pub(crate) fn load(&self, worker: WorkerId) -> &WorkerLoad {
        &self.loads[worker.index()]
    }
}

impl WorkerSlot {
    /// Sets the operator's models, if any are given.
    fn set_models(&mut self, models: Models) {
        if models != Models::Unknown {
            self.models = models;
            self.models_from = ModelsFrom::Operator;
        }
    }

    fn is_free(&self, loads: &[WorkerLoad]) -> bool {
        self.membership == Membership::Leaving && loads[self.worker.id.index()].in_flight() == 0
    }

    fn view(&self, loads: &[WorkerLoad], outliers: &Outliers) -> WorkerView {
        WorkerView {
            worker: Arc::clone(&self.worker),
            models: self.models.clone(),
            load: loads[self.worker.id.index()].view(),
            is_unprobed: self.health.is_unprobed(),
            breaker: *self.health.breaker(),
            ejections: outliers.ejections(self.worker.id),
            prefix_cache: self.prefix_cache,
            model_cards: Arc::clone(&self.model_cards),
        }
    }
}

/// Whether the worker is known and not in use, so that its reports say nothing of now.
fn is_away(state: WorkerState) -> bool {
    !state.takes_requests() && state != WorkerState::Starting
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Booking;
    use crate::{BREAKER_PAUSE, BookedWork};
    use proptest::prelude::*;
    use warmroute_types::Delivery;

    fn fleet_of(n: usize) -> Arc<Fleet> {
        let fleet = Arc::new(Fleet::new(HealthConfig::default()));
        (0..n).for_each(|i| _ = fleet.join(address(i), Models::Any).unwrap());
        fleet
    }

    fn address(i: usize) -> Address {
        Address::new(format!("http://engine-{i}"))
    }

    const WORK: BookedWork = BookedWork {
        prefill_tokens: 70,
        context_tokens: 100,
        features: FEATURES,
        delivery: Delivery::Streamed,
    };
    const FEATURES: PrefillFeatures = PrefillFeatures {
        miss_tokens: 70,
        cached_tokens: 30,
        restored_tokens: 0,
        decoding: 0,
        context_tokens: 0,
        crowded_tokens: 0,
        position: crate::QueuePosition::Head,
    };

    #[test]
    fn a_booking_counts_as_load_until_it_ends() {
        let fleet = fleet_of(1);
        let mut booking = Booking::make(&fleet, WorkerId(0), WORK, Micros(5));
        let load = fleet.load_view(WorkerId(0));
        assert_eq!((load.in_flight, load.prefill_tokens, load.decode_tokens), (1, 70, 100));
        booking.first_token(Micros(9));
        booking.first_token(Micros(9));
        let load = fleet.load_view(WorkerId(0));
        assert_eq!((load.in_flight, load.prefill_tokens, load.decode_tokens), (1, 0, 100));
        drop(booking);
        let load = fleet.load_view(WorkerId(0));
        assert_eq!((load.in_flight, load.prefill_tokens, load.decode_tokens), (0, 0, 0));
    }

    #[test]
    fn a_slot_is_reused_only_after_its_last_booking() {
        let fleet = fleet_of(2);
        let booking = Booking::make(&fleet, WorkerId(0), WORK, Micros(5));
        fleet.leave(&address(0));
        assert_eq!(fleet.workers().len(), 2, "it leaves, but has not finished");
        assert_eq!(fleet.members().len(), 1);
        assert_eq!(fleet.join(address(7), Models::Any).unwrap().id, WorkerId(2));
        drop(booking);
        assert_eq!(fleet.workers().len(), 2);
        assert_eq!(fleet.join(address(8), Models::Any).unwrap().id, WorkerId(0));
        assert_eq!(fleet.load_view(WorkerId(0)).state, WorkerState::Starting);
    }

    #[test]
    fn a_worker_that_rejoins_while_leaving_keeps_its_slot_and_its_bookings_only() {
        let fleet = fleet_of(1);
        let worker = Arc::clone(&fleet.members()[0].worker);
        fleet.set_block_tokens(&worker, 16);
        fleet.report(&worker, LoadReport { waiting: 3, at: Micros(1), ..LoadReport::default() });
        let booking = Booking::make(&fleet, WorkerId(0), WORK, Micros(5));
        fleet.leave(&address(0));
        assert_eq!(fleet.join(address(0), Models::Unknown).unwrap(), worker);
        let (view, load) = (fleet.members().remove(0), fleet.load_view(WorkerId(0)));
        assert_eq!((view.models, view.prefix_cache), (Models::Unknown, None), "another process may answer");
        assert_eq!((load.state, load.in_flight), (WorkerState::Starting, 1));
        assert_eq!((load.block_tokens, load.report.map(|report| report.waiting)), (None, None));
        assert!(fleet.serves(&worker, Models::named(&["new"])), "the engine's list counts");
        drop(booking);
        let load = fleet.load_view(WorkerId(0));
        assert_eq!((load.in_flight, load.prefill_tokens, load.decode_tokens), (0, 0, 0));
    }

    #[test]
    fn late_reports_of_a_former_worker_are_ignored() {
        let fleet = fleet_of(1);
        let former = Arc::clone(&fleet.members()[0].worker);
        fleet.leave(&former.address);
        let joined = fleet.join(address(5), Models::Any).unwrap();
        assert_eq!(joined.id, former.id);
        assert_eq!(fleet.probed(&former, ProbeResult::Answered, Micros(1)), None);
        assert_eq!(fleet.failed(&former, Micros(1)), None);
        assert!(!fleet.serves(&former, Models::named(&["old"])));
        assert_eq!(fleet.probed(&joined, ProbeResult::Answered, Micros(1)), Some(WorkerState::Ready));
    }

    /// A fleet with one ready worker.
    fn ready() -> (Arc<Fleet>, Arc<Worker>) {
        let fleet = fleet_of(1);
        let worker = Arc::clone(&fleet.members()[0].worker);
        fleet.probed(&worker, ProbeResult::Answered, Micros::ZERO);
        (fleet, worker)
    }

    #[test]
    fn an_answer_resets_the_failures() {
        let (fleet, worker) = ready();
        let booking = Booking::make(&fleet, worker.id, WORK, Micros(5));
        for _ in 0..20 {
            fleet.failed(&worker, Micros(1));
            fleet.failed(&worker, Micros(1));
            booking.answered(&worker, AnswerProgress::Complete);
        }
        assert_eq!(fleet.load_view(worker.id).state, WorkerState::Ready);
        (0..3).for_each(|_| _ = fleet.failed(&worker, Micros(1)));
        booking.answered(&worker, AnswerProgress::Complete);
        assert_eq!(fleet.load_view(worker.id).state, WorkerState::Unhealthy, "a late answer proves little");
    }

    #[test]
    fn a_recovering_worker_gets_one_trial_request_at_a_time() {
        let (fleet, worker) = ready();
        let book = || Booking::make(&fleet, worker.id, WORK, Micros(5));
        let view = || fleet.load_view(worker.id);
        let late = book();
        (0..3).for_each(|_| _ = fleet.failed(&worker, Micros::ZERO));
        assert!(!view().takes_requests() && !fleet.is_unreachable(worker.id));
        fleet.probed(&worker, ProbeResult::Answered, BREAKER_PAUSE);
        assert!(view().takes_requests() && view().state == WorkerState::Recovering);
        let trial = book();
        assert!(!view().takes_requests(), "the trial is in flight");
        fleet.probed(&worker, ProbeResult::Answered, BREAKER_PAUSE);
        assert!(!view().takes_requests(), "a probe does not end it");
        drop(trial);
        assert!(view().takes_requests(), "the client left: another request may be the trial");
        let trial = book();
        late.answered(&worker, AnswerProgress::Complete);
        assert_eq!(view().state, WorkerState::Recovering, "that request was sent before the failures");
        trial.answered(&worker, AnswerProgress::Complete);
        drop(trial);
        assert!(view().takes_requests() && view().state == WorkerState::Ready);
    }

    #[test]
    fn the_trial_of_an_earlier_recovery_does_not_end_the_current_one() {
        let (fleet, worker) = ready();
        let book = || Booking::make(&fleet, worker.id, WORK, Micros(5));
        let is_free = || fleet.load_view(worker.id).takes_requests();
        let recover = |at: Micros| {
            (0..3).for_each(|_| _ = fleet.failed(&worker, at));
            fleet.probed(&worker, ProbeResult::Answered, at + BREAKER_PAUSE);
        };
        recover(Micros::ZERO);
        let slow = book();
        recover(BREAKER_PAUSE);
        let trial = book();
        slow.answered(&worker, AnswerProgress::Complete);
        drop(slow);
        assert!(!is_free(), "it was sent before the worker failed again");
        drop(trial);
        assert!(is_free());
    }

    #[test]
    fn a_pause_lasts_as_long_as_requested_and_a_new_worker_has_none() {
        let (fleet, worker) = ready();
        let is_paused = |ms| fleet.load_view(worker.id).is_paused(Micros::from_millis(ms));
        fleet.pause(&worker, Micros::from_millis(2_000));
        fleet.pause(&worker, Micros::from_millis(1_000));
        assert!(is_paused(1_999) && !is_paused(2_000));
        fleet.leave(&worker.address);
        fleet.join(address(7), Models::Any).unwrap();
        assert!(!is_paused(0));
    }

    #[test]
    fn models_are_learned_unless_the_operator_named_them() {
        let fleet = fleet_of(0);
        let told = fleet.join(address(0), Models::named(&["told"])).unwrap();
        let asked = fleet.join(address(1), Models::Unknown).unwrap();
        assert!(!fleet.serves(&told, Models::named(&["listed"])));
        assert!(fleet.serves(&asked, Models::named(&["listed"])));
        assert!(!fleet.serves(&asked, Models::named(&["listed"])), "no news");
        let models: Vec<_> = fleet.members().into_iter().map(|view| view.models).collect();
        assert_eq!(models, [Models::named(&["told"]), Models::named(&["listed"])]);
    }

    #[test]
    fn a_full_fleet_refuses_another_worker() {
        let fleet = fleet_of(MAX_WORKERS);
        assert_eq!(fleet.join(Address::new("http://one-too-many"), Models::Any), Err(FleetFull));
    }

    #[test]
    fn reports_expire_and_requests_sent_since_are_added() {
        let fleet = fleet_of(1);
        let (worker, engine) = (WorkerId(0), Arc::clone(&fleet.members()[0].worker));
        let waiting = |now| fleet.load_view(worker).waiting(Micros::from_secs(now), Micros::from_secs(5));
        assert_eq!(waiting(10), None, "no report yet");
        fleet.report(
            &engine,
            LoadReport { waiting: 3, running: 8, at: Micros::from_secs(10), ..LoadReport::default() },
        );
        let _bookings = [WORK, WORK].map(|work| Booking::make(&fleet, worker, work, Micros(5)));
        assert_eq!(waiting(12), Some(5));
        assert_eq!(waiting(9), Some(5), "a clock that steps back makes nothing older");
        assert_eq!(waiting(16), None, "the report is too old");
    }

    fn places(fleet: &Fleet, worker: WorkerId) -> Option<u16> {
        fleet.engine_places(worker).places.map(NonZeroU16::get)
    }

    /// Reports of a full engine with so many running requests, all of which end meanwhile.
    fn show_full(fleet: &Fleet, worker: &Worker, running: u32) {
        for _ in 0..5 {
            (0..running / 4).for_each(|_| fleet.learn_answer(worker.id, Micros(1), Micros(2)));
            fleet.report(worker, full(running));
        }
    }

    /// The report of an engine in which requests wait and the memory has room.
    fn full(running: u32) -> LoadReport {
        LoadReport { running, waiting: 90, kv_use: Some(0.2), at: Micros(1), ..LoadReport::default() }
    }

    #[test]
    fn refused_requests_do_not_show_places() {
        let (fleet, worker) = ready();
        for _ in 0..20 {
            (0..64).for_each(|_| fleet.answered(&worker, false, AnswerProgress::Complete));
            fleet.report(&worker, full(27));
        }
        assert_eq!(places(&fleet, worker.id), None, "27 run behind a long prompt, and others get 400");
    }

    #[test]
    fn places_of_an_engine_that_is_away_do_not_bind_the_others() {
        let fleet = fleet_of(2);
        let workers: Vec<_> = fleet.members().into_iter().map(|view| view.worker).collect();
        let probed = |result, times| {
            (0..times).for_each(|second| _ = fleet.probed(&workers[0], result, Micros::from_secs(second)));
        };
        probed(ProbeResult::Answered, 1);
        show_full(&fleet, &workers[0], 64);
        assert_eq!(places(&fleet, workers[1].id), Some(64));
        probed(ProbeResult::Failed, 9);
        assert!(fleet.is_unreachable(workers[0].id));
        assert_eq!(places(&fleet, workers[1].id), None);
        probed(ProbeResult::Answered, 9);
        assert_eq!(
            places(&fleet, workers[1].id),
            Some(64),
            "the router forgets the number of an engine that comes back"
        );
    }

    #[test]
    fn a_worker_whose_places_are_unknown_has_the_fewest_of_its_kind() {
        let fleet = fleet_of(4);
        let workers: Vec<_> = fleet.members().into_iter().map(|view| view.worker).collect();
        let other = fleet.join(address(4), Models::named(&["other"])).unwrap();
        fleet.report(&workers[3], LoadReport { running: 80, at: Micros(1), ..LoadReport::default() });
        let places = || [0, 1, 2, 3, 4].map(|index| places(&fleet, WorkerId(index)));
        assert_eq!(places(), [None; 5]);
        show_full(&fleet, &workers[0], 128);
        assert_eq!(
            places(),
            [Some(128), Some(128), Some(128), Some(128), None],
            "the last is of another kind"
        );
        show_full(&fleet, &workers[1], 64);
        assert_eq!(places(), [Some(128), Some(64), Some(64), None, None], "one has had more running");
        show_full(&fleet, &other, 32);
        assert_eq!(places()[..3], [Some(128), Some(64), Some(64)]);
        fleet.serves(&other, Models::Any);
        fleet.leave(&workers[1].address);
        assert_eq!(places()[2], Some(128), "it has left");
        fleet.join(address(1), Models::Any).unwrap();
        assert_eq!(places()[..3], [Some(128); 3], "another process has the address");
    }

    #[test]
    fn a_worker_has_the_time_of_its_own_answers_and_a_new_one_that_of_its_kind() {
        let fleet = Arc::new(fleet_of(3));
        let work = BookedWork { delivery: Delivery::Streamed, ..BookedWork::default() };
        let answers = |worker, took: Micros| {
            for _ in 0..400 {
                let mut booking = Booking::make(&fleet, WorkerId(worker), work, Micros(1));
                booking.first_token(Micros(2));
                booking.ended(Micros(1), Micros(2) + took);
            }
        };
        let near = |worker, ms: f32| (fleet.answer_ms(WorkerId(worker)) / ms - 1.0).abs() < 0.05;
        answers(0, Micros::from_secs(1));
        answers(1, Micros::from_secs(9));
        assert!(near(0, 1_000.0) && near(1, 9_000.0) && near(2, 9_000.0));
        let worker = Arc::clone(&fleet.members()[1].worker);
        fleet.leave(&worker.address);
        fleet.join(worker.address.clone(), Models::named(&["other"])).unwrap();
        assert!(near(1, 5_000.0), "another engine");
        let whole = BookedWork { delivery: Delivery::Whole, ..BookedWork::default() };
        for _ in 0..400 {
            let mut booking = Booking::make(&fleet, WorkerId(2), whole, Micros(1));
            booking.ended(Micros::from_secs(3), Micros::from_secs(5));
        }
        assert!(near(2, 2_000.0), "not streamed: first tokens were expected two seconds before the ends");
    }

    #[test]
    fn only_requests_of_other_clients_count_as_theirs() {
        let fleet = Arc::new(fleet_of(1));
        let worker = Arc::clone(&fleet.members()[0].worker);
        let work = BookedWork { prefill_tokens: 1_000, context_tokens: 1_000, ..BookedWork::default() };
        let mut bookings: Vec<_> =
            (0..13).map(|_| Booking::make(&fleet, worker.id, work, Micros(1))).collect();
        bookings[..3].iter_mut().for_each(|booking| booking.first_token(Micros(2)));
        let reported = |running, waiting| {
            fleet.report(&worker, LoadReport { running, waiting, at: Micros(3), ..LoadReport::default() });
            let forecast = fleet.forecast(worker.id, Micros(3));
            (forecast.external_waiting, fleet.engine_places(worker.id).others)
        };
        // Three answers and ten prompts are from here.
        assert_eq!(reported(3, 10), (0, 0));
        assert_eq!(reported(0, 13), (0, 0), "the answers were preempted, and wait");
        assert_eq!(reported(6, 20), (10, 13), "as many of another router");
        assert_eq!(reported(13, 10), (0, 10), "its answers run");
        assert_eq!(reported(0, 0), (0, 0));
        assert_eq!(reported(u32::MAX, u32::MAX), (u32::MAX - 13, u16::MAX));
    }

    #[test]
    fn a_restarted_engine_shows_its_places_again() {
        let (fleet, worker) = ready();
        let queries = |queries| Some(PrefixCache { queries, hits: 0 });
        for _ in 0..5 {
            (0..16).for_each(|_| fleet.learn_answer(worker.id, Micros(1), Micros(2)));
            fleet.report(&worker, LoadReport { prefix_cache: queries(900), ..full(64) });
        }
        assert_eq!(places(&fleet, worker.id), Some(64));
        let new = LoadReport { running: 1, prefix_cache: queries(10), ..LoadReport::default() };
        assert!(fleet.report(&worker, new));
        assert_eq!(places(&fleet, worker.id), None);
    }

    #[test]
    fn a_report_without_counters_is_no_restart_and_hides_none() {
        let (fleet, worker) = ready();
        let report = |queries: Option<u64>| {
            let prefix_cache = queries.map(|queries| PrefixCache { queries, hits: 0 });
            fleet.report(&worker, LoadReport { running: 1, prefix_cache, ..LoadReport::default() })
        };
        assert_eq!(
            [Some(900), None, Some(950), None, Some(10)].map(report),
            [false, false, false, false, true]
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Join(usize),
        Leave(usize),
        Book(usize),
        FirstToken(usize),
        End(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        (0..5_u8, 0..12_usize).prop_map(|(kind, n)| match kind {
            0 => Step::Join(n),
            1 => Step::Leave(n),
            2 => Step::Book(n),
            3 => Step::FirstToken(n),
            _ => Step::End(n),
        })
    }

    /// An event of one worker.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Book,
        /// One of its requests is answered that far, or its client leaves.
        Answered(usize, Option<AnswerProgress>),
        Failed(usize),
        Probed(ProbeResult),
        Later(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let answer =
            prop_oneof![Just(None), Just(Some(AnswerProgress::Begun)), Just(Some(AnswerProgress::Complete))];
        let probe = prop_oneof![4 => Just(ProbeResult::Answered), 1 => Just(ProbeResult::Failed)];
        prop_oneof![
            3 => Just(Event::Book),
            2 => (0..8_usize, answer).prop_map(|(n, answer)| Event::Answered(n, answer)),
            2 => (0..8_usize).prop_map(Event::Failed),
            2 => probe.prop_map(Event::Probed),
            1 => (0..1_500_u64).prop_map(Event::Later),
        ]
    }

    /// A worker and its bookings, each with whether it is the trial of this recovery.
    struct Watched {
        fleet: Arc<Fleet>,
        worker: Arc<Worker>,
        bookings: Vec<(Booking, bool)>,
        now: Micros,
    }

    impl Watched {
        fn see(&mut self, event: Event) {
            match event {
                // A router sends nothing to a worker that takes no requests.
                Event::Book if self.view().takes_requests() => {
                    let is_trial = self.view().state == WorkerState::Recovering;
                    let booking = Booking::make(&self.fleet, self.worker.id, WORK, self.now);
                    self.bookings.push((booking, is_trial));
                }
                Event::Answered(n, answer) if n < self.bookings.len() => {
                    answer.iter().for_each(|&answer| self.bookings[n].0.answered(&self.worker, answer));
                    if answer != Some(AnswerProgress::Begun) {
                        self.bookings.swap_remove(n);
                    }
                }
                Event::Failed(n) if n < self.bookings.len() => {
                    self.fleet.failed(&self.worker, self.now);
                    self.bookings.swap_remove(n);
                }
                Event::Probed(result) => _ = self.fleet.probed(&self.worker, result, self.now),
                Event::Later(ms) => self.now = self.now + Micros::from_millis(ms),
                _ => {}
            }
            if self.view().state != WorkerState::Recovering {
                self.bookings.iter_mut().for_each(|(_, is_trial)| *is_trial = false);
            }
        }

        fn view(&self) -> WorkerLoadView {
            self.fleet.load_view(self.worker.id)
        }
    }

    proptest! {
        /// In any order of events: a recovering worker has at most one trial, and the next one only after it
        /// ends. Answers, refusals and clients that leave never take a worker out.
        #[test]
        fn at_most_one_trial_is_in_flight_and_only_failures_take_a_worker_out(events in prop::collection::vec(event(), 1..300)) {
            let (fleet, worker) = ready();
            let mut watched = Watched { fleet, worker, bookings: Vec::new(), now: Micros::ZERO };
            for event in events {
                let before = watched.view().state;
                watched.see(event);
                let after = watched.view();
                let trials = watched.bookings.iter().filter(|(_, is_trial)| *is_trial).count();
                prop_assert!(trials <= 1);
                prop_assert_eq!(after.is_on_trial, trials == 1);
                let went_out = before != WorkerState::Unhealthy && after.state == WorkerState::Unhealthy;
                prop_assert!(!went_out || matches!(event, Event::Failed(_) | Event::Probed(ProbeResult::Failed)));
            }
        }

        /// In any order of events: loads equal the live bookings, and no two workers share a slot.
        #[test]
        fn load_is_the_sum_of_live_bookings(steps in prop::collection::vec(step(), 1..200)) {
            let fleet = fleet_of(4);
            let mut bookings: Vec<Booking> = Vec::new();
            for step in steps {
                match step {
                    Step::Join(n) => _ = fleet.join(address(n), Models::Any).unwrap(),
                    Step::Leave(n) => _ = fleet.leave(&address(n)),
                    Step::Book(n) => {
                        let members = fleet.members();
                        if !members.is_empty() {
                            let worker = members[n % members.len()].worker.id;
                            bookings.push(Booking::make(&fleet, worker, WORK, Micros(5)));
                        }
                    }
                    Step::FirstToken(n) if !bookings.is_empty() => {
                        let len = bookings.len();
                        bookings[n % len].first_token(Micros(9));
                    }
                    Step::End(n) if !bookings.is_empty() => _ = bookings.swap_remove(n % bookings.len()),
                    _ => {}
                }
                for view in fleet.workers() {
                    let live = bookings.iter().filter(|b| b.worker() == view.worker.id).count() as u32;
                    prop_assert_eq!(view.load.in_flight, live);
                    prop_assert_eq!(view.load.decode_tokens, u64::from(live) * 100);
                }
                let mut slots: Vec<_> = fleet.workers().iter().map(|view| view.worker.id).collect();
                slots.dedup();
                prop_assert_eq!(slots.len(), fleet.workers().len());
            }
        }
    }
}
