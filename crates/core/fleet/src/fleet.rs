//! The registry: who sits where.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};
use warmroute_types::{Address, LoadReport, MAX_WORKERS, Micros, PrefixCache, WorkerId, WorkerState};

use crate::desk::Desk;
use crate::engine_kinds::EngineKinds;
use crate::outlier::Outliers;
use crate::prefill_queue::{PrefillQueue, Ticket};
use crate::suspicion::{Proof, ROW_MIN, Suspicions, Tally};
use crate::{
    Answer, Belief, Booking, DeskView, Health, HealthConfig, LatencyView, Models, ObservedPrompt,
    PrefillCost, PrefillFeatures, ProbeResult, QueueForecast, Worker, WorkerView,
};

/// All workers. Seats change rarely and are locked; desks are read by every decision and are not.
pub struct Fleet {
    seats: RwLock<Vec<Seat>>,
    desks: Box<[Desk]>,
    queues: Box<[PrefillQueue]>,
    /// The latency models, one for each model that workers serve.
    kinds: EngineKinds,
    outliers: Mutex<Outliers>,
    suspicions: Mutex<Suspicions>,
    /// By seat.
    tallies: Box<[Counts]>,
    health: HealthConfig,
}

/// How often a worker has answered requests and how often it broke off; they wrap.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counts {
    answers: AtomicU32,
    breaks: AtomicU32,
}

struct Seat {
    worker: Arc<Worker>,
    models: Models,
    models_from: ModelsFrom,
    health: Health,
    stay: Stay,
    /// The engine's own counters, for lists and metrics only.
    prefix_cache: Option<PrefixCache>,
}

/// Who said what a worker serves. The operator's word stands against the engine's own list.
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
enum Stay {
    Member,
    /// Told to go. The seat is taken by a newcomer only once nothing is booked on its desk.
    Leaving,
}

/// There is no seat left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fleet is full: {MAX_WORKERS} workers")]
pub struct FleetFull;

impl Fleet {
    /// An empty fleet.
    pub fn new(health: HealthConfig) -> Fleet {
        let desks = (0..MAX_WORKERS).map(|_| Desk::default()).collect();
        let queues = (0..MAX_WORKERS).map(|_| PrefillQueue::default()).collect();
        let (outliers, suspicions) = Default::default();
        Fleet {
            seats: RwLock::new(Vec::new()),
            desks,
            queues,
            kinds: EngineKinds::default(),
            outliers,
            suspicions,
            tallies: (0..MAX_WORKERS).map(|_| Counts::default()).collect(),
            health,
        }
    }

    /// Seats a worker. One that is already here keeps its seat and what it learned; one that was leaving is called
    /// back. Models given here stand, whatever the engine lists itself; unknown ones are learned from it.
    pub fn join(&self, address: Address, models: Models) -> Result<Arc<Worker>, FleetFull> {
        let mut seats = self.seats.write();
        if let Some(seat) = seats.iter_mut().find(|seat| seat.worker.address == address) {
            seat.welcome_back(models, &self.desks);
            let (worker, models) = (Arc::clone(&seat.worker), seat.models.clone());
            self.queue(worker.id).set_kind(self.kind_of(&models, &seats));
            return Ok(worker);
        }
        let free = seats.iter().position(|seat| seat.is_free(&self.desks)).unwrap_or(seats.len());
        if free == MAX_WORKERS {
            return Err(FleetFull);
        }
        let worker = Arc::new(Worker::new(WorkerId(free as u16), address));
        let seat = Seat {
            worker: Arc::clone(&worker),
            models_from: ModelsFrom::joining_with(&models),
            models,
            health: Health::default(),
            stay: Stay::Member,
            prefix_cache: None,
        };
        self.desks[free].wipe();
        self.queues[free].forget(self.kind_of(&seat.models, &seats));
        self.outliers.lock().forget(worker.id);
        self.suspicions.lock().forget(worker.id);
        if free == seats.len() {
            seats.push(seat)
        } else {
            seats[free] = seat
        }
        Ok(worker)
    }

    /// Lets a worker go: it gets nothing new, finishes what it has, and its seat is free after that.
    pub fn leave(&self, address: &Address) -> Option<WorkerId> {
        let mut seats = self.seats.write();
        let seat = seats.iter_mut().find(|s| s.worker.address == *address && s.stay == Stay::Member)?;
        seat.stay = Stay::Leaving;
        seat.health.drain();
        self.desk(seat.worker.id).set_state(WorkerState::Draining);
        Some(seat.worker.id)
    }

    /// Somebody tried to reach the worker; the state that leads to, if it changed.
    /// News of a worker whose seat has gone to another is ignored, here and everywhere below.
    pub fn probed(&self, worker: &Worker, result: ProbeResult, now: Micros) -> Option<WorkerState> {
        self.tend(worker, |health| health.probed(result, self.health, now))
    }

    /// The worker took a request and failed it; the state that leads to, if it changed.
    pub fn failed(&self, worker: &Worker, now: Micros) -> Option<WorkerState> {
        self.tend(worker, |health| health.failed(self.health, now))
    }

    /// The worker took a request and broke off, and it is not known whose fault that is: see `suspicion.rs`. The state that leads to, if
    /// it changed. One request, however often it is sent, is to have one number. No more than a third of the fleet is ever taken
    /// out this way.
    pub fn broke(&self, worker: &Worker, request: u64, now: Micros) -> Option<WorkerState> {
        self.tallies[worker.id.index()].breaks.fetch_add(1, Relaxed);
        // Whoever was to find out has found out.
        let is_trial = self.desk(worker.id).state() == WorkerState::Recovering;
        if is_trial {
            return self.failed(worker, now);
        }
        let (tally, may_be_taken_out) = self.survey(worker.id);
        let row_max = self.health.failures_max.max(ROW_MIN);
        let proof = self.suspicions.lock().broke(worker.id, request, tally, row_max);
        if proof == Proof::None || !may_be_taken_out {
            return None;
        }
        self.tend(worker, |health| (0..row_max).for_each(|_| health.failed(self.health, now)))
    }

    /// How the others fare beside this worker, and whether one more of them can be spared.
    fn survey(&self, worker: WorkerId) -> (Tally, bool) {
        let seats = self.seats.read();
        let members: Vec<usize> = seats
            .iter()
            .filter(|seat| seat.stay == Stay::Member)
            .map(|seat| seat.worker.id.index())
            .collect();
        let others = |count: fn(&Counts) -> &AtomicU32| {
            let counts = members.iter().filter(|&&seat| seat != worker.index());
            counts.fold(0_u32, |sum, &seat| sum.wrapping_add(count(&self.tallies[seat]).load(Relaxed)))
        };
        let tally = Tally {
            own_answers: self.tallies[worker.index()].answers.load(Relaxed),
            others_answers: others(|counts| &counts.answers),
            others_breaks: others(|counts| &counts.breaks),
        };
        let out = members.iter().filter(|&&seat| !self.desks[seat].state().takes_requests()).count();
        (tally, out * 3 < members.len())
    }

    /// A request was answered. That ends rows of failures; where there are none, which is nearly always, it costs one read.
    /// Whether a worker has recovered only the request tells that was sent to find out: one long under way says little.
    pub fn answered(&self, worker: &Worker, booking: &Booking, answer: Answer) {
        // One that has begun may still break: it ends no row, and proves nothing about the others.
        if answer == Answer::Whole {
            self.tallies[worker.id.index()].answers.fetch_add(1, Relaxed);
        }
        let desk = self.desk(worker.id);
        if desk.is_suspect() && (desk.state() != WorkerState::Recovering || booking.is_trial()) {
            self.tend(worker, |health| health.answered(answer, self.health));
        }
    }

    fn tend(&self, worker: &Worker, change: impl FnOnce(&mut Health)) -> Option<WorkerState> {
        let mut seats = self.seats.write();
        let seat = seats.get_mut(worker.id.index()).filter(|seat| *seat.worker == *worker)?;
        let before = seat.health.state();
        change(&mut seat.health);
        let after = seat.health.state();
        self.desk(worker.id).set_state(after);
        self.desk(worker.id).set_suspect(seat.health.breaker().awaits_answer());
        (before != after).then_some(after)
    }

    /// Whether nobody reaches the worker. Of one that takes requests this costs one read.
    pub fn is_unreachable(&self, worker: WorkerId) -> bool {
        let is_out = self.desk(worker).state() == WorkerState::Unhealthy;
        is_out && self.seats.read().get(worker.index()).is_some_and(|seat| seat.health.is_unreachable())
    }

    /// The worker asked to be left alone until then. It is, as long as there are others.
    pub fn rest(&self, worker: &Worker, until: Micros) {
        let seats = self.seats.read();
        if seats.get(worker.id.index()).is_some_and(|seat| *seat.worker == *worker) {
            self.desk(worker.id).rest(until);
        }
    }

    /// A first token came. Where its worker is so much later than predicted, again and again, that it is left alone for a while:
    /// until when.
    pub fn compare_first_token(
        &self,
        worker: &Worker,
        predicted: Micros,
        observed: Micros,
        now: Micros,
    ) -> Option<Micros> {
        let seats = self.seats.read();
        seats.get(worker.id.index()).filter(|seat| *seat.worker == *worker)?;
        let members = || seats.iter().filter(|seat| seat.stay == Stay::Member).count();
        let until = self.outliers.lock().saw(worker.id, predicted, observed, members, now)?;
        self.desk(worker.id).rest(until);
        Some(until)
    }

    /// The engine listed its models; true if that is news.
    pub fn serves(&self, worker: &Worker, models: Models) -> bool {
        let mut seats = self.seats.write();
        let seat = seats.get_mut(worker.id.index()).filter(|seat| *seat.worker == *worker);
        let Some(seat) = seat.filter(|seat| seat.models_from == ModelsFrom::Engine) else { return false };
        let news = seat.models != models;
        seat.models = models;
        if news {
            let models = seat.models.clone();
            self.queue(worker.id).set_kind(self.kind_of(&models, &seats));
        }
        news
    }

    /// Which latency model workers with these models have.
    fn kind_of(&self, models: &Models, seats: &[Seat]) -> u8 {
        let is_used = |kind| seats.iter().any(|seat| self.queue(seat.worker.id).kind() == kind);
        self.kinds.of(models, is_used)
    }

    /// What a worker's answer means about cached tokens: `None` is unknown, until it has once given a number.
    pub fn cached_tokens(&self, worker: &Worker, said: Option<u32>) -> Option<u32> {
        self.desk(worker.id).cached_tokens(said)
    }

    /// Tokens of a block of the worker's cache, if it has said so.
    pub fn block_tokens(&self, worker: WorkerId) -> Option<u32> {
        self.desk(worker).block_tokens()
    }

    /// The engine said how its cache is cut.
    pub fn set_block_tokens(&self, worker: &Worker, tokens: u32) {
        let seats = self.seats.read();
        if seats.get(worker.id.index()).is_some_and(|seat| *seat.worker == *worker) {
            self.desk(worker.id).set_block_tokens(tokens);
        }
    }

    /// A request was answered whose prompt must have filled a block of the worker's cache: its engine has something to tell.
    pub fn filled(&self, worker: WorkerId) {
        self.desk(worker).filled();
    }

    /// An answer found nothing of what was promised of this worker's cache; how many in a row did.
    pub fn promise_broken(&self, worker: WorkerId) -> u8 {
        self.desk(worker).promise_broken()
    }

    /// An answer found something: the row is over.
    pub fn promise_kept(&self, worker: WorkerId) {
        self.desk(worker).promise_kept();
    }

    /// Changes what is believed of a member's cache, by what is believed at this very moment; returns what that was. `None`
    /// for one that has left: its seat may be another's.
    pub fn revise(&self, worker: &Worker, change: impl FnMut(Belief) -> Belief) -> Option<Belief> {
        let seats = self.seats.read();
        let seat = seats.get(worker.id.index()).filter(|seat| *seat.worker == *worker)?;
        (seat.stay == Stay::Member).then(|| self.desk(worker.id).believed.revise(change))
    }

    /// Nothing is known any more of the worker's cache.
    pub fn forget_cache(&self, worker: WorkerId) {
        self.queue(worker).forget_answers();
        self.desk(worker).believed.revise(Belief::reborn);
    }

    /// How many requests were ever booked on this seat; it wraps.
    pub fn bookings(&self, worker: WorkerId) -> u32 {
        self.desk(worker).bookings()
    }

    /// Whether this worker still sits where it sat, and is not leaving.
    pub fn is_member(&self, worker: &Worker) -> bool {
        let seats = self.seats.read();
        let seat = seats.get(worker.id.index()).filter(|seat| *seat.worker == *worker);
        seat.is_some_and(|seat| seat.stay == Stay::Member)
    }

    /// Whether the operator said what this worker serves.
    pub fn models_are_given(&self, worker: &Worker) -> bool {
        let seats = self.seats.read();
        let seat = seats.get(worker.id.index()).filter(|seat| *seat.worker == *worker);
        seat.is_some_and(|seat| seat.models_from == ModelsFrom::Operator)
    }

    /// The engine reported its load. True when its counters have gone back: it has been restarted.
    pub fn report(&self, worker: &Worker, report: LoadReport) -> bool {
        let mut seats = self.seats.write();
        let seat = seats.get_mut(worker.id.index()).filter(|seat| *seat.worker == *worker);
        let Some(seat) = seat else { return false };
        let counted = |cache: Option<PrefixCache>| cache.map_or(0, |cache| cache.queries);
        let is_restarted = counted(report.prefix_cache) < counted(seat.prefix_cache);
        seat.prefix_cache = report.prefix_cache;
        self.desk(worker.id).report(report);
        self.queue(worker.id).report_waiting(report.waiting);
        if is_restarted {
            self.queue(worker.id).doubt();
        }
        is_restarted
    }

    /// What is ahead of a prompt that would be sent to this worker now.
    pub fn forecast(&self, worker: WorkerId, now: Micros) -> QueueForecast {
        self.queue(worker).forecast(now)
    }

    /// The learned prefill cost of one kind of engine: see [`QueueForecast::kind`]. One worker takes
    /// [`QueueForecast::relative_latency`] times as long.
    pub fn prefill_cost(&self, kind: u8) -> PrefillCost {
        self.kinds.get(kind).cost()
    }

    /// Milliseconds from the start of a prefill on this worker to its first token.
    pub fn prefill_ms(&self, worker: WorkerId, features: &PrefillFeatures, now: Micros) -> f32 {
        let queue = self.queue(worker);
        queue.relative_latency(now) * self.kinds.get(queue.kind()).cost().prefill_ms(features)
    }

    /// A worker's learned latency, for people.
    pub fn latency_view(&self, worker: WorkerId, now: Micros) -> LatencyView {
        let of = |miss_tokens| {
            self.prefill_ms(worker, &PrefillFeatures { miss_tokens, ..PrefillFeatures::default() }, now)
        };
        LatencyView {
            ms_per_1k_tokens: of(1_000) - of(0),
            ms_before_first: of(0),
            relative_latency: self.queue(worker).relative_latency(now),
            queue_ms: self.forecast(worker, now).queue_ms,
        }
    }

    /// A worker has reported the size of its KV cache.
    pub fn set_kv_tokens(&self, worker: WorkerId, tokens: u64) {
        self.queue(worker).set_kv_tokens(tokens);
    }

    /// The latency models as numbers, by the hashes of the models' names, for [`Fleet::restore_latency`] of another fleet.
    pub fn latency_numbers(&self) -> Vec<(u64, Vec<f64>)> {
        self.kinds.numbers()
    }

    /// Restores a latency model. Corrupt numbers change nothing.
    pub fn restore_latency(&self, model: u64, numbers: &[f64]) {
        self.kinds.restore(model, numbers);
    }

    /// A worker's relative latency as numbers, for [`Fleet::recall_worker`] of another fleet.
    pub fn relative_latency_numbers(&self, worker: WorkerId) -> [f64; 2] {
        self.queue(worker).numbers()
    }

    /// Another fleet knew this of the worker. Should its counters turn out to be lower, it has been restarted since.
    pub fn recall_worker(
        &self,
        worker: &Worker,
        relative_latency: [f64; 2],
        prefix_cache: Option<PrefixCache>,
    ) {
        let mut seats = self.seats.write();
        if let Some(seat) = seats.get_mut(worker.id.index()).filter(|seat| *seat.worker == *worker) {
            seat.prefix_cache = prefix_cache;
            self.queue(worker.id).restore(relative_latency);
        }
    }

    pub(crate) fn first_token(&self, worker: WorkerId, ticket: Ticket, now: Micros) {
        let queue = self.queue(worker);
        let kind = self.kinds.get(queue.kind());
        if queue.first_token(ticket, kind.model(), now) {
            kind.publish();
        }
    }

    pub(crate) fn reported(&self, worker: WorkerId, ticket: Ticket, prompt: ObservedPrompt, now: Micros) {
        let queue = self.queue(worker);
        let kind = self.kinds.get(queue.kind());
        if queue.report(ticket, prompt, kind.model(), now) {
            kind.publish();
        }
    }

    /// The numbers on a worker's desk.
    pub fn desk_view(&self, worker: WorkerId) -> DeskView {
        self.desk(worker).view()
    }

    /// Every worker that is here: members, and those that leave but have not finished.
    pub fn workers(&self) -> Vec<WorkerView> {
        let (seats, outliers) = (self.seats.read(), self.outliers.lock());
        seats
            .iter()
            .filter(|seat| !seat.is_free(&self.desks))
            .map(|seat| seat.view(&self.desks, &outliers))
            .collect()
    }

    /// Those among which to choose: [`Fleet::workers`] without the leaving ones.
    pub fn members(&self) -> Vec<WorkerView> {
        let (seats, outliers) = (self.seats.read(), self.outliers.lock());
        let members = seats.iter().filter(|seat| seat.stay == Stay::Member);
        members.map(|seat| seat.view(&self.desks, &outliers)).collect()
    }

    pub(crate) fn queue(&self, worker: WorkerId) -> &PrefillQueue {
        &self.queues[worker.index()]
    }

    pub(crate) fn desk(&self, worker: WorkerId) -> &Desk {
        &self.desks[worker.index()]
    }
}

impl Seat {
    fn welcome_back(&mut self, models: Models, desks: &[Desk]) {
        if models != Models::Unknown {
            self.models = models;
            self.models_from = ModelsFrom::Operator;
        }
        if self.stay == Stay::Leaving {
            self.stay = Stay::Member;
            self.health = Health::default();
            desks[self.worker.id.index()].set_state(WorkerState::Starting);
        }
    }

    fn is_free(&self, desks: &[Desk]) -> bool {
        self.stay == Stay::Leaving && desks[self.worker.id.index()].in_flight() == 0
    }

    fn view(&self, desks: &[Desk], outliers: &Outliers) -> WorkerView {
        WorkerView {
            worker: Arc::clone(&self.worker),
            models: self.models.clone(),
            desk: desks[self.worker.id.index()].view(),
            is_untried: self.health.is_untried(),
            breaker: *self.health.breaker(),
            ejections: outliers.ejections(self.worker.id),
            prefix_cache: self.prefix_cache,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PAUSE, Work};
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

    const WORK: Work =
        Work { prefill_tokens: 70, context_tokens: 100, features: FEATURES, delivery: Delivery::Streamed };
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
    fn a_booking_is_on_the_desk_until_it_is_over() {
        let fleet = fleet_of(1);
        let mut booking = Booking::make(&fleet, WorkerId(0), WORK, Micros(5));
        let desk = fleet.desk_view(WorkerId(0));
        assert_eq!((desk.in_flight, desk.prefill_tokens, desk.decode_tokens), (1, 70, 100));
        booking.first_token(Micros(9));
        booking.first_token(Micros(9));
        let desk = fleet.desk_view(WorkerId(0));
        assert_eq!((desk.in_flight, desk.prefill_tokens, desk.decode_tokens), (1, 0, 100));
        drop(booking);
        let desk = fleet.desk_view(WorkerId(0));
        assert_eq!((desk.in_flight, desk.prefill_tokens, desk.decode_tokens), (0, 0, 0));
    }

    #[test]
    fn a_seat_is_reused_only_after_its_last_booking() {
        let fleet = fleet_of(2);
        let booking = Booking::make(&fleet, WorkerId(0), WORK, Micros(5));
        fleet.leave(&address(0));
        assert_eq!(fleet.workers().len(), 2, "it leaves, but has not finished");
        assert_eq!(fleet.members().len(), 1);
        assert_eq!(fleet.join(address(7), Models::Any).unwrap().id, WorkerId(2));
        drop(booking);
        assert_eq!(fleet.workers().len(), 2);
        assert_eq!(fleet.join(address(8), Models::Any).unwrap().id, WorkerId(0));
        assert_eq!(fleet.desk_view(WorkerId(0)).state, WorkerState::Starting);
    }

    #[test]
    fn a_worker_that_comes_back_while_leaving_keeps_its_seat() {
        let fleet = fleet_of(1);
        let _booking = Booking::make(&fleet, WorkerId(0), WORK, Micros(5));
        fleet.leave(&address(0));
        assert_eq!(fleet.join(address(0), Models::Unknown).unwrap().id, WorkerId(0));
        assert_eq!(fleet.members()[0].models, Models::Any, "what it serves is remembered");
        assert_eq!(fleet.desk_view(WorkerId(0)).in_flight, 1);
    }

    #[test]
    fn late_news_of_a_former_worker_is_ignored() {
        let fleet = fleet_of(1);
        let former = Arc::clone(&fleet.members()[0].worker);
        fleet.leave(&former.address);
        let newcomer = fleet.join(address(5), Models::Any).unwrap();
        assert_eq!(newcomer.id, former.id);
        assert_eq!(fleet.probed(&former, ProbeResult::Answered, Micros(1)), None);
        assert_eq!(fleet.failed(&former, Micros(1)), None);
        assert!(!fleet.serves(&former, Models::named(&["old"])));
        assert_eq!(fleet.probed(&newcomer, ProbeResult::Answered, Micros(1)), Some(WorkerState::Ready));
    }

    /// One worker that is ready.
    fn ready() -> (Arc<Fleet>, Arc<Worker>) {
        let fleet = fleet_of(1);
        let worker = Arc::clone(&fleet.members()[0].worker);
        fleet.probed(&worker, ProbeResult::Answered, Micros::ZERO);
        (fleet, worker)
    }

    #[test]
    fn an_answer_ends_a_row_of_failures() {
        let (fleet, worker) = ready();
        let booking = Booking::make(&fleet, worker.id, WORK, Micros(5));
        for _ in 0..20 {
            fleet.failed(&worker, Micros(1));
            fleet.failed(&worker, Micros(1));
            fleet.answered(&worker, &booking, Answer::Whole);
        }
        assert_eq!(fleet.desk_view(worker.id).state, WorkerState::Ready);
        (0..3).for_each(|_| _ = fleet.failed(&worker, Micros(1)));
        fleet.answered(&worker, &booking, Answer::Whole);
        assert_eq!(fleet.desk_view(worker.id).state, WorkerState::Unhealthy, "a late answer proves little");
    }

    #[test]
    fn one_request_at_a_time_finds_out_whether_a_worker_has_recovered() {
        let (fleet, worker) = ready();
        let book = || Booking::make(&fleet, worker.id, WORK, Micros(5));
        let view = || fleet.desk_view(worker.id);
        let late = book();
        (0..3).for_each(|_| _ = fleet.failed(&worker, Micros::ZERO));
        assert!(!view().takes_requests() && !fleet.is_unreachable(worker.id));
        fleet.probed(&worker, ProbeResult::Answered, PAUSE);
        assert!(view().takes_requests() && view().state == WorkerState::Recovering);
        let trial = book();
        assert!(!view().takes_requests(), "it has its one request");
        fleet.probed(&worker, ProbeResult::Answered, PAUSE);
        assert!(!view().takes_requests(), "a probe does not end it");
        drop(trial);
        assert!(view().takes_requests(), "its client left: another may try");
        let trial = book();
        fleet.answered(&worker, &late, Answer::Whole);
        assert_eq!(view().state, WorkerState::Recovering, "that one was long under way");
        fleet.answered(&worker, &trial, Answer::Whole);
        drop(trial);
        assert!(view().takes_requests() && view().state == WorkerState::Ready);
    }

    #[test]
    fn a_trial_of_another_time_does_not_make_room_for_a_second_one() {
        let (fleet, worker) = ready();
        let book = || Booking::make(&fleet, worker.id, WORK, Micros(5));
        let is_free = || fleet.desk_view(worker.id).takes_requests();
        let recover = |at: Micros| {
            (0..3).for_each(|_| _ = fleet.failed(&worker, at));
            fleet.probed(&worker, ProbeResult::Answered, at + PAUSE);
        };
        recover(Micros::ZERO);
        let slow = book();
        recover(PAUSE);
        let trial = book();
        fleet.answered(&worker, &slow, Answer::Whole);
        drop(slow);
        assert!(!is_free(), "it was sent before the worker failed again");
        drop(trial);
        assert!(is_free());
    }

    #[test]
    fn a_rest_lasts_as_long_as_was_asked_for_and_a_newcomer_has_none() {
        let (fleet, worker) = ready();
        let rests = |ms| fleet.desk_view(worker.id).rests(Micros::from_millis(ms));
        fleet.rest(&worker, Micros::from_millis(2_000));
        fleet.rest(&worker, Micros::from_millis(1_000));
        assert!(rests(1_999) && !rests(2_000));
        fleet.leave(&worker.address);
        fleet.join(address(7), Models::Any).unwrap();
        assert!(!rests(0));
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
    fn the_fleet_has_an_end() {
        let fleet = fleet_of(MAX_WORKERS);
        assert_eq!(fleet.join(Address::new("http://one-too-many"), Models::Any), Err(FleetFull));
    }

    #[test]
    fn a_report_ages_and_what_was_sent_since_is_added() {
        let fleet = fleet_of(1);
        let (worker, engine) = (WorkerId(0), Arc::clone(&fleet.members()[0].worker));
        let waiting = |now| fleet.desk_view(worker).waiting(Micros::from_secs(now), Micros::from_secs(5));
        assert_eq!(waiting(10), None, "no report yet");
        fleet.report(
            &engine,
            LoadReport { waiting: 3, running: 8, at: Micros::from_secs(10), ..LoadReport::default() },
        );
        let _bookings = [WORK, WORK].map(|work| Booking::make(&fleet, worker, work, Micros(5)));
        assert_eq!(waiting(12), Some(5));
        assert_eq!(waiting(9), Some(5), "a clock that steps back makes nothing older");
        assert_eq!(waiting(16), None, "too old to be believed");
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

    /// What happens to one worker.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Book,
        /// One of its requests is answered, as far as that, or its client leaves.
        Answered(usize, Option<Answer>),
        Failed(usize),
        Probed(ProbeResult),
        Later(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let answer = prop_oneof![Just(None), Just(Some(Answer::Begun)), Just(Some(Answer::Whole))];
        let probe = prop_oneof![4 => Just(ProbeResult::Answered), 1 => Just(ProbeResult::Failed)];
        prop_oneof![
            3 => Just(Event::Book),
            2 => (0..8_usize, answer).prop_map(|(n, answer)| Event::Answered(n, answer)),
            2 => (0..8_usize).prop_map(Event::Failed),
            2 => probe.prop_map(Event::Probed),
            1 => (0..1_500_u64).prop_map(Event::Later),
        ]
    }

    /// One worker, and the bookings on it, each with whether it is the trial of this recovery.
    struct Watched {
        fleet: Arc<Fleet>,
        worker: Arc<Worker>,
        bookings: Vec<(Booking, bool)>,
        now: Micros,
    }

    impl Watched {
        fn see(&mut self, event: Event) {
            match event {
                // A router sends nothing to a worker that takes nothing.
                Event::Book if self.view().takes_requests() => {
                    let is_trial = self.view().state == WorkerState::Recovering;
                    let booking = Booking::make(&self.fleet, self.worker.id, WORK, self.now);
                    self.bookings.push((booking, is_trial));
                }
                Event::Answered(n, answer) if n < self.bookings.len() => {
                    answer
                        .iter()
                        .for_each(|&answer| self.fleet.answered(&self.worker, &self.bookings[n].0, answer));
                    if answer != Some(Answer::Begun) {
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

        fn view(&self) -> DeskView {
            self.fleet.desk_view(self.worker.id)
        }
    }

    proptest! {
        /// Whatever happens in whatever order: a worker that may have recovered has one request to show it, and another one only
        /// when that has ended. Answers, refusals among them, and clients that leave never take a worker out.
        #[test]
        fn one_request_at_most_finds_out_and_only_failures_take_a_worker_out(events in prop::collection::vec(event(), 1..300)) {
            let (fleet, worker) = ready();
            let mut watched = Watched { fleet, worker, bookings: Vec::new(), now: Micros::ZERO };
            for event in events {
                let before = watched.view().state;
                watched.see(event);
                let after = watched.view();
                let trials = watched.bookings.iter().filter(|(_, is_trial)| *is_trial).count();
                prop_assert!(trials <= 1);
                prop_assert_eq!(after.is_tried, trials == 1);
                let went_out = before != WorkerState::Unhealthy && after.state == WorkerState::Unhealthy;
                prop_assert!(!went_out || matches!(event, Event::Failed(_) | Event::Probed(ProbeResult::Failed)));
            }
        }

        /// Whatever happens in whatever order: desks hold exactly the live bookings, and no two workers share a seat.
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
                    prop_assert_eq!(view.desk.in_flight, live);
                    prop_assert_eq!(view.desk.decode_tokens, u64::from(live) * 100);
                }
                let mut seats: Vec<_> = fleet.workers().iter().map(|view| view.worker.id).collect();
                seats.dedup();
                prop_assert_eq!(seats.len(), fleet.workers().len());
            }
        }
    }
}
