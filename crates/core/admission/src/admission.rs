//! Admission: a limit of concurrent requests, a bounded queue for the next ones, and a retry time for the rest.

use std::collections::BTreeMap;

use warmroute_types::Micros;

use crate::admission_rate::AdmissionRate;
use crate::queue::{DROPPED_AT_ONCE_MAX, turns_before};
use crate::ttft_budget::retry_after_s;
use crate::{AdmissionPosition, AdmissionQueue, AdmissionRequest, Class, DrainRate};

/// Routes whose rates are remembered.
const ROUTES_MAX: usize = 4_096;

/// Limits of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most requests in flight at once; 0 is unlimited.
    pub running_max: u32,
    /// Most requests that may wait.
    pub waiting_max: usize,
    /// Longest time that a request may wait.
    pub wait_max: Micros,
}

/// A request that may not wait.
#[derive(Debug)]
pub struct Refused {
    /// The limit or shortage that the request met.
    pub cause: RefusalCause,
    /// When to retry.
    pub retry_after_s: u32,
}

/// Why a request may not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// The queue is full.
    Full,
    /// It would be admitted after it is due.
    TooLate,
}

/// The requests in flight and those that wait. `T` is what the driver needs to wake a waiting request.
#[derive(Debug)]
pub struct Admission<T> {
    config: Config,
    running: u32,
    queue: AdmissionQueue<T>,
    drain_rate: DrainRate,
    /// Admissions while the limit of requests in flight was reached.
    limit_rate: AdmissionRate,
    /// By route: how fast its requests are admitted, for the expected wait.
    route_rates: BTreeMap<u64, AdmissionRate>,
}

impl<T> Admission<T> {
    /// No request is in flight and none waits.
    pub fn new(config: Config) -> Admission<T> {
        Admission {
            config,
            running: 0,
            queue: AdmissionQueue::new(config.waiting_max),
            drain_rate: DrainRate::default(),
            limit_rate: AdmissionRate::default(),
            route_rates: BTreeMap::new(),
        }
    }

    /// Replaces the limits. Admitted requests stay admitted, and waiting requests keep their deadlines.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
        self.queue.set_len_max(config.waiting_max);
    }

    /// Admits a request at once, if none waits and there is room.
    pub fn enter(
        &mut self,
        request: AdmissionRequest,
        has_room: impl FnOnce() -> bool,
    ) -> Option<AdmissionPosition> {
        if !self.queue.is_empty() || !self.has_room() || !has_room() {
            return None;
        }
        self.running += 1;
        Some(self.queue.pass(request))
    }

    /// Queues a request. The caller must call [`Admission::next`] afterwards: there may be room for this request
    /// although there is none for those before it.
    pub fn wait(
        &mut self,
        request: AdmissionRequest,
        item: T,
        now: Micros,
    ) -> Result<AdmissionPosition, Refused> {
        self.wait_until(request, item, now + self.config.wait_max, now)
    }

    /// Queues a request that may wait longer or shorter than others. A request that is predicted to be admitted after it
    /// is due is refused. Waiting requests that can no longer be admitted in time because of it are dropped, those of
    /// the lowest class first.
    pub fn wait_until(
        &mut self,
        request: AdmissionRequest,
        item: T,
        deadline: Micros,
        now: Micros,
    ) -> Result<AdmissionPosition, Refused> {
        self.note_empty(request.route);
        let wait = self.expected_wait(&request, now);
        if let Some(late) = request.due.map(|due| (now + wait).since(due)).filter(|late| *late > Micros::ZERO)
        {
            self.note_refusal(request.route, now);
            return Err(Refused { cause: RefusalCause::TooLate, retry_after_s: retry_after_s(late) });
        }
        self.note_wait(request.route, now);
        let pushed = self.queue.push(request, deadline, item);
        let position = pushed
            .map_err(|_| Refused { cause: RefusalCause::Full, retry_after_s: self.retry_after_s(now) })?;
        self.shed_hopeless(request.route, now);
        Ok(position)
    }

    /// How long a new request would wait: for the requests before it that need the same workers, at the rate at which
    /// such requests were admitted while others waited; and if the limit of requests in flight is reached, for all that
    /// go before it. Zero while nothing is known.
    pub fn expected_wait(&self, request: &AdmissionRequest, now: Micros) -> Micros {
        let wait = |interval: Option<Micros>, route: Option<u64>| {
            let Some(interval) = interval else { return Micros::ZERO };
            // What goes beyond the due time need not be counted.
            let turns = request.due.map_or(usize::MAX, |due| turns_before(due, interval, now));
            let ahead = self.queue.ahead_of(request, route, turns.saturating_add(1));
            Micros(interval.0.saturating_mul(ahead as u64 + 1))
        };
        let by_route = wait(self.route_interval(request.route, now), Some(request.route));
        let by_limit = if self.has_room() { None } else { self.limit_rate.interval(now) };
        by_route.max(wait(by_limit, None))
    }

    fn route_interval(&self, route: u64, now: Micros) -> Option<Micros> {
        self.route_rates.get(&route)?.interval(now)
    }

    fn note_wait(&mut self, route: u64, now: Micros) {
        if !self.has_room() && self.queue.is_empty() {
            self.limit_rate.begin(now);
        }
        if self.queue.len_on(route) == 0 {
            self.route_rate(route, now).begin(now);
        }
    }

    fn note_refusal(&mut self, route: u64, now: Micros) {
        if !self.has_room() && self.queue.is_empty() {
            self.limit_rate.refuse(now);
        }
        if self.queue.len_on(route) == 0 {
            self.route_rate(route, now).refuse(now);
        }
    }

    fn route_rate(&mut self, route: u64, now: Micros) -> &mut AdmissionRate {
        if self.route_rates.len() >= ROUTES_MAX && !self.route_rates.contains_key(&route) {
            self.route_rates.retain(|_, rate| !rate.is_forgotten(now));
            // Clients name models, so the number of routes must have a bound. Without a rate, nothing is predicted.
            if self.route_rates.len() >= ROUTES_MAX {
                self.route_rates.clear();
            }
        }
        self.route_rates.entry(route).or_default()
    }

    /// Drops waiting requests that can no longer be admitted in time.
    fn shed_hopeless(&mut self, route: u64, now: Micros) {
        if let Some(interval) = self.route_interval(route, now) {
            self.queue.shed_hopeless(Some(route), interval, now);
        }
        if let Some(interval) = self.limit_rate.interval(now).filter(|_| !self.has_room()) {
            self.queue.shed_hopeless(None, interval, now);
        }
    }

    /// Queues an admitted request again that found no room after all, at its former position. If it can use other workers
    /// than before, the caller has changed the position's route.
    pub fn wait_again(&mut self, position: AdmissionPosition, item: T, deadline: Micros) {
        self.running = self.running.saturating_sub(1);
        self.queue.wait_at(position, deadline, item);
    }

    /// Removes a request that stopped waiting; `None` if it has been admitted meanwhile.
    pub fn leave(&mut self, position: AdmissionPosition) -> Option<T> {
        let item = self.queue.remove(position);
        self.note_empty(position.route);
        item
    }

    /// Ends the measurement of times in which nothing waits.
    fn note_empty(&mut self, route: u64) {
        if self.queue.is_empty() {
            self.limit_rate.idle();
        }
        if let Some(rate) = self.route_rates.get_mut(&route).filter(|_| self.queue.len_on(route) == 0) {
            rate.idle();
        }
    }

    /// Records the end of a request.
    pub fn end(&mut self, position: AdmissionPosition, now: Micros) {
        if !self.has_room() {
            self.limit_rate.end(now);
        }
        if let Some(rate) = self.route_rates.get_mut(&position.route) {
            rate.end(now);
        }
        self.drain_rate.ended(now);
        self.withdraw();
    }

    /// Takes back an admission that its request does not use.
    pub fn withdraw(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// Whether a request waits and the limit of running requests has room for it.
    pub fn may_have_next(&self) -> bool {
        !self.queue.is_empty() && self.has_room()
    }

    /// Drops some of the requests that have waited too long. Returns whether that was all.
    pub fn drop_late(&mut self, now: Micros) -> bool {
        self.queue.drop_late(now, DROPPED_AT_ONCE_MAX)
    }

    /// Admits the next request for which there is room.
    pub fn next(&mut self, now: Micros, has_room: impl FnMut(&T) -> bool) -> Option<T> {
        if !self.may_have_next() {
            return None;
        }
        let (next, route) = self.queue.pop_with_route(now, has_room)?;
        self.running += 1;
        let waiting = self.queue.len_on(route) > 0;
        self.route_rate(route, now).admit(now, waiting);
        if !self.has_room() {
            self.limit_rate.admit(now, !self.queue.is_empty());
        }
        Some(next)
    }

    /// Corrects the cost of a request once it is known.
    pub fn correct(&mut self, position: AdmissionPosition, cost: u32) {
        self.queue.correct(position, cost);
    }

    /// When a refused client should retry: when the waiting requests will have been admitted, at the rate at which
    /// requests end.
    pub fn retry_after_s(&self, now: Micros) -> u32 {
        self.drain_rate.retry_after_s(self.queue.len() + 1, now)
    }

    /// Requests in flight.
    pub fn running(&self) -> u32 {
        self.running
    }

    /// Waiting requests of a class.
    pub fn waiting(&self, class: Class) -> usize {
        self.queue.len_of(class)
    }

    /// Waiting requests of a tenant.
    pub fn waiting_of(&self, tenant: u64) -> usize {
        self.queue.len_of_tenant(tenant)
    }

    fn has_room(&self) -> bool {
        self.config.running_max == 0 || self.running < self.config.running_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REQUEST: AdmissionRequest =
        AdmissionRequest { class: Class::Normal, tenant: 1, cost: 10, route: 0, due: None };

    /// A request in flight.
    const PLACE: AdmissionPosition =
        AdmissionPosition { class: Class::Normal, tenant: 1, cost: 10, route: 0, slot: (0, 0), due: None };

    fn admission(running_max: u32, waiting_max: usize) -> Admission<usize> {
        Admission::new(Config { running_max, waiting_max, wait_max: Micros::from_secs(5) })
    }

    #[test]
    fn requests_beyond_the_limit_wait_and_beyond_the_queue_are_refused() {
        let mut admission = admission(2, 1);
        assert!(admission.enter(REQUEST, || true).is_some() && admission.enter(REQUEST, || true).is_some());
        assert!(admission.enter(REQUEST, || true).is_none(), "two are in");
        admission.wait(REQUEST, 3, Micros::ZERO).unwrap();
        assert_eq!(admission.wait(REQUEST, 4, Micros::ZERO).unwrap_err().retry_after_s, 1);
        assert_eq!(admission.next(Micros::ZERO, |_| true), None);
        admission.end(PLACE, Micros::ZERO);
        assert_eq!(admission.next(Micros::ZERO, |_| true), Some(3));
        assert_eq!(admission.running(), 2);
    }

    #[test]
    fn a_new_request_does_not_overtake_waiting_ones() {
        let mut admission = admission(1, 5);
        admission.enter(REQUEST, || true).unwrap();
        admission.wait(REQUEST, 2, Micros::ZERO).unwrap();
        admission.end(PLACE, Micros::ZERO);
        assert!(admission.enter(REQUEST, || true).is_none());
        assert_eq!(admission.next(Micros::ZERO, |_| true), Some(2));
    }

    #[test]
    fn an_expired_request_is_not_admitted() {
        let mut admission = admission(1, 5);
        admission.enter(REQUEST, || true).unwrap();
        admission.wait(REQUEST, 2, Micros::ZERO).unwrap();
        admission.end(PLACE, Micros::from_secs(6));
        assert_eq!(admission.next(Micros::from_secs(6), |_| true), None);
        assert_eq!((admission.waiting(Class::Normal), admission.running()), (0, 0));
    }

    #[test]
    fn what_cannot_be_admitted_in_time_is_refused_and_the_lowest_class_is_shed_first() {
        let mut admission = admission(1, 100);
        admission.enter(REQUEST, || true).unwrap();
        // One request a second ends while others wait.
        for s in 0..20 {
            admission.wait(REQUEST, 0, Micros::from_secs(s)).unwrap();
            admission.wait(REQUEST, 0, Micros::from_secs(s)).unwrap();
            admission.end(PLACE, Micros::from_secs(s));
            assert_eq!(admission.next(Micros::from_secs(s), |_| true), Some(0));
            while admission.waiting(Class::Normal) > 1 {
                admission.end(PLACE, Micros::from_secs(s));
                admission.next(Micros::from_secs(s), |_| true);
            }
        }
        let now = Micros::from_secs(20);
        let due = |s: u64| Some(now + Micros::from_secs(s));
        let interval = admission.limit_rate.interval(now).unwrap();
        let low = AdmissionRequest { class: Class::Low, due: Some(now + interval + interval), ..REQUEST };
        admission.wait_until(low, 1, now + Micros::from_secs(60), now).unwrap();
        let hopeless = AdmissionRequest { due: Some(now), ..REQUEST };
        let refused = admission.wait_until(hopeless, 2, now + Micros::from_secs(60), now).unwrap_err();
        assert_eq!(refused.cause, RefusalCause::TooLate);
        assert!(refused.retry_after_s >= 1);
        let urgent = AdmissionRequest { due: due(60), ..REQUEST };
        admission.wait_until(urgent, 3, now + Micros::from_secs(60), now).unwrap();
        assert_eq!(admission.waiting(Class::Low), 0, "its turn would now be too late");
        assert_eq!(admission.waiting(Class::Normal), 2);
    }

    /// Requests of a route wait, and one is admitted every second.
    fn saturate(admission: &mut Admission<usize>, request: AdmissionRequest, until_s: u64) {
        for s in 0..=until_s {
            let now = Micros::from_secs(s);
            while admission.queue.len_on(request.route) < 20 {
                admission.wait_until(request, 0, now + Micros::from_secs(600), now).unwrap();
            }
            admission.next(now, |_| true).unwrap();
            admission.end(AdmissionPosition { route: request.route, ..PLACE }, now);
        }
    }

    #[test]
    fn other_models_queues_refuse_nothing() {
        let mut admission = admission(0, 100);
        saturate(&mut admission, REQUEST, 30);
        let now = Micros::from_secs(30);
        let due = Some(now + Micros::from_secs(5));
        let same = AdmissionRequest { due, ..REQUEST };
        let wait = |admission: &mut Admission<usize>, request| {
            admission.wait_until(request, 1, now + Micros::from_secs(60), now)
        };
        assert_eq!(
            admission.expected_wait(&AdmissionRequest { due: None, ..REQUEST }, now).as_secs_f64(),
            20.0
        );
        let refused = wait(&mut admission, AdmissionRequest { class: Class::Low, ..same });
        assert_eq!(refused.unwrap_err().cause, RefusalCause::TooLate, "twenty wait for the same workers");
        wait(&mut admission, AdmissionRequest { route: 7, ..same }).unwrap();
        assert_eq!(admission.next(now, |item| *item == 1), Some(1));
    }

    #[test]
    fn the_queue_of_a_greedy_tenant_refuses_no_other() {
        let mut admission = admission(1, 100);
        admission.enter(REQUEST, || true).unwrap();
        for s in 0..30 {
            let now = Micros::from_secs(s);
            while admission.queue.len() < 12 {
                let greedy = AdmissionRequest { tenant: 5, ..REQUEST };
                admission.wait_until(greedy, 0, now + Micros::from_secs(600), now).unwrap();
            }
            admission.end(PLACE, now);
            admission.next(now, |_| true).unwrap();
        }
        let now = Micros::from_secs(30);
        let honest = AdmissionRequest { tenant: 6, due: Some(now + Micros::from_secs(3)), ..REQUEST };
        admission.wait_until(honest, 1, now + Micros::from_secs(60), now).unwrap();
        assert_eq!(admission.queue.len(), 12, "none was dropped for it");
        admission.end(PLACE, now);
        let first_two = [admission.next(now, |_| true), {
            admission.end(PLACE, now);
            admission.next(now, |_| true)
        }];
        assert!(first_two.contains(&Some(1)), "{first_two:?}");
        let greedy = AdmissionRequest { tenant: 5, due: None, ..honest };
        assert!(admission.expected_wait(&greedy, now) > Micros::from_secs(8), "its own go first");
    }

    #[test]
    fn one_slow_time_does_not_refuse_for_ever() {
        let mut admission = admission(1, 100);
        saturate_limit(&mut admission, 4, Micros::from_secs(3));
        let mut now = Micros::from_secs(12);
        let mut refused = 0;
        // Requests take 80 ms now, and each comes while another one runs.
        for _ in 0..20 {
            let request = AdmissionRequest { due: Some(now + Micros::from_millis(1_500)), ..REQUEST };
            refused += u32::from(admission.wait_until(request, 1, now + Micros::from_secs(60), now).is_err());
            now = now + Micros::from_millis(80);
            admission.end(PLACE, now);
            if admission.next(now, |_| true).is_none() {
                admission.enter(REQUEST, || true).unwrap();
            }
        }
        assert!((1..4).contains(&refused), "{refused} of 20");
    }

    /// Of a limit of one, `count` requests are admitted at this interval while others wait.
    fn saturate_limit(admission: &mut Admission<usize>, count: u64, interval: Micros) {
        admission.enter(REQUEST, || true).unwrap();
        (0..count).for_each(|_| _ = admission.wait(REQUEST, 0, Micros::ZERO).unwrap());
        for n in 1..=count {
            let now = Micros(interval.0 * n);
            admission.end(PLACE, now);
            admission.queue.pop(Micros::ZERO, |_| true).unwrap();
            admission.running += 1;
            admission.limit_rate.admit(now, n < count);
            admission.route_rate(0, now).admit(now, n < count);
        }
    }

    #[test]
    fn the_rate_of_an_idle_fleet_refuses_nothing() {
        let mut admission = admission(1, 100);
        for minute in 0..30 {
            admission.enter(REQUEST, || true).unwrap();
            admission.end(PLACE, Micros::from_secs(60 * minute));
        }
        admission.enter(REQUEST, || true).unwrap();
        let now = Micros::from_secs(60 * 30);
        let soon = AdmissionRequest { due: Some(now + Micros::from_millis(10)), ..REQUEST };
        assert!(admission.wait_until(soon, 1, now + Micros::from_secs(60), now).is_ok());
    }

    #[test]
    fn a_request_may_wait_longer_than_others() {
        let mut admission = admission(0, 5);
        admission.wait_until(REQUEST, 1, Micros::from_secs(60), Micros::ZERO).unwrap();
        admission.wait(REQUEST, 2, Micros::ZERO).unwrap();
        assert_eq!(admission.next(Micros::from_secs(6), |_| true), Some(1));
        assert_eq!(admission.next(Micros::from_secs(6), |_| true), None, "the second one has expired");
    }

    /// Events at a gateway whose models each have room for some requests.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Come {
            model: usize,
            tenant: u64,
            class: Class,
            cost: u32,
        },
        End(usize),
        Leave(usize),
        /// An admitted request finds no room after all.
        Return(usize),
        Room {
            model: usize,
            room: u32,
        },
        Limit(u32),
        Later(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let class = prop_oneof![Just(Class::High), Just(Class::Normal), Just(Class::Low)];
        prop_oneof![
            4 => (0..3_usize, 0..4_u64, class, 0..500_u32)
                .prop_map(|(model, tenant, class, cost)| Step::Come { model, tenant, class, cost }),
            3 => (0..8_usize).prop_map(Step::End),
            1 => (0..8_usize).prop_map(Step::Leave),
            1 => (0..8_usize).prop_map(Step::Return),
            1 => (0..3_usize, 0..4_u32).prop_map(|(model, room)| Step::Room { model, room }),
            1 => (0..6_u32).prop_map(Step::Limit),
            1 => (0..4_u64).prop_map(Step::Later),
        ]
    }

    #[derive(Clone, Copy, Debug)]
    struct Waiter {
        model: usize,
        position: AdmissionPosition,
        deadline: Micros,
    }

    /// The admission under test, and what a driver would know about waiting and admitted requests.
    struct Harness {
        admission: Admission<usize>,
        room: [u32; 3],
        limit: u32,
        waiting: std::collections::BTreeMap<usize, Waiter>,
        inside: Vec<(usize, Waiter)>,
        now: Micros,
        arrived: usize,
    }

    impl Harness {
        fn take(&mut self, step: Step) {
            match step {
                Step::Come { model, tenant, class, cost } => {
                    let route = model as u64;
                    self.arrive(model, AdmissionRequest { class, tenant, cost, route, due: None });
                }
                Step::End(n) if n < self.inside.len() => {
                    let (_, waiter) = self.inside.swap_remove(n);
                    self.admission.end(waiter.position, self.now);
                }
                Step::Return(n) if n < self.inside.len() => {
                    let (id, waiter) = self.inside.swap_remove(n);
                    self.room[waiter.model] = 0;
                    self.admission.wait_again(waiter.position, id, waiter.deadline);
                    self.waiting.insert(id, waiter);
                }
                Step::Leave(n) => {
                    let Some((&id, &waiter)) = self.waiting.iter().nth(n) else { return };
                    self.waiting.remove(&id);
                    assert_eq!(
                        self.admission.leave(waiter.position),
                        Some(id),
                        "the request is still waiting"
                    );
                }
                Step::Room { model, room } => self.room[model] = room,
                Step::Limit(limit) => {
                    self.limit = limit;
                    self.admission.set_config(Config { running_max: limit, ..CONFIG });
                }
                Step::Later(s) => self.now = self.now + Micros::from_secs(s),
                _ => {}
            }
        }

        fn arrive(&mut self, model: usize, request: AdmissionRequest) {
            let (id, deadline) = (self.arrived, self.now + CONFIG.wait_max);
            self.arrived += 1;
            if let Some(position) = self.admission.enter(request, || self.room[model] > 0) {
                self.room[model] -= 1;
                self.inside.push((id, Waiter { model, position, deadline }));
            } else if let Ok(position) = self.admission.wait(request, id, self.now) {
                self.waiting.insert(id, Waiter { model, position, deadline });
                // A full queue drops a request of a lower class.
                let queue = &self.admission.queue;
                self.waiting.retain(|_, waiter| queue.contains(waiter.position));
            }
        }

        /// Admits all requests for which there is room, as a driver does after every event.
        fn admit_all(&mut self) {
            let (waiting, room, now) = (&mut self.waiting, &mut self.room, self.now);
            while let Some(id) = self.admission.next(now, |id| room[waiting[id].model] > 0) {
                let waiter = waiting.remove(&id).expect("no request is admitted twice");
                assert!(waiter.deadline > now, "no request is admitted late");
                room[waiter.model] -= 1;
                self.inside.push((id, waiter));
            }
        }
    }

    const CONFIG: Config = Config { running_max: 3, waiting_max: 12, wait_max: Micros::from_secs(5) };

    proptest! {
        /// No request waits for which there is room, and the admitted ones are counted correctly: a lost wake-up or a
        /// leaked slot would show.
        #[test]
        fn no_request_waits_while_there_is_room_for_it(steps in prop::collection::vec(step(), 1..300)) {
            let mut harness = Harness {
                admission: Admission::new(CONFIG),
                room: [1; 3],
                limit: CONFIG.running_max,
                waiting: Default::default(),
                inside: Vec::new(),
                now: Micros::ZERO,
                arrived: 0,
            };
            for step in steps {
                let inside = harness.inside.len();
                harness.take(step);
                harness.admit_all();
                prop_assert_eq!(harness.admission.running() as usize, harness.inside.len());
                let is_full = harness.limit > 0 && harness.inside.len() >= harness.limit as usize;
                // A lowered limit ends no request, and admits none.
                prop_assert!(harness.limit == 0 || harness.inside.len() <= inside.max(harness.limit as usize));
                harness.waiting.retain(|_, waiter| waiter.deadline > harness.now);
                let waits_in_vain = |waiter: &Waiter| !is_full && harness.room[waiter.model] > 0;
                prop_assert!(!harness.waiting.values().any(waits_in_vain), "{:?}", harness.waiting);
            }
        }

        /// The limit is never exceeded, and a request that may run is admitted as soon as another ends.
        #[test]
        fn the_limit_holds_and_no_slot_stays_unused(steps in prop::collection::vec(0..3_u8, 1..300), max in 1..6_u32) {
            let mut admission = admission(max, 8);
            for step in steps {
                match step {
                    0 if admission.enter(REQUEST, || true).is_none() => _ = admission.wait(REQUEST, 0, Micros::ZERO),
                    1 if admission.running() > 0 => admission.end(PLACE, Micros::ZERO),
                    _ => {}
                }
                while admission.next(Micros::ZERO, |_| true).is_some() {}
                prop_assert!(admission.running() <= max);
                prop_assert!(admission.waiting(Class::Normal) == 0 || admission.running() == max);
            }
        }
    }
}
