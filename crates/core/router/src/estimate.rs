//! Estimates the time to first token of a request on a worker.
//!
//! The main signal is what this router has booked. Engine reports are a correction for prompts from other
//! clients, and only while they are fresh.

use warmroute_fleet::{
    EnginePlaces, Fleet, LoadSummary, PrefillCost, PrefillFeatures, QueueForecast, QueuePosition,
};
use warmroute_policy::Estimate;
use warmroute_types::Micros;

/// The expected overlap of a prompt on a worker, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptOverlap {
    pub prompt_tokens: u32,
    pub overlap_tokens: u32,
    pub restorable_tokens: u32,
    /// Tokens that the engine probably finds beyond the overlap: see `presumed_shortfall.rs`.
    pub shortfall_tokens: u32,
}

impl PromptOverlap {
    /// A worker that holds nothing of the prompt.
    #[inline]
    pub(crate) fn none_of(prompt_tokens: u32) -> PromptOverlap {
        PromptOverlap { prompt_tokens, overlap_tokens: 0, restorable_tokens: 0, shortfall_tokens: 0 }
    }
}

/// Time of the estimate, and the age limit of reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EstimateTime {
    pub now: Micros,
    pub report_age_max: Micros,
}

/// The estimate of a request on any worker.
#[inline]
pub(crate) fn estimate(
    load: &LoadSummary,
    forecast: &QueueForecast,
    cost: &PrefillCost,
    found: PromptOverlap,
    at: EstimateTime,
    place_wait_ms: f32,
) -> Estimate {
    let features = features(load, forecast, found);
    let prefill_ms = forecast.relative_latency * cost.prefill_ms(&features);
    let queue_ms = forecast.queue_ms + external_ms(load, forecast, at, prefill_ms);
    Estimate {
        queue_ms: queue_ms.max(place_wait_ms),
        prefill_ms,
        uncached_ms: forecast.relative_latency * cost.uncached_ms(&features),
        step_ms: forecast.relative_latency * cost.step_ms(&features),
        prompts_ahead: forecast.prompts,
        idle: forecast.idle,
        ..Estimate::default()
    }
}

/// Wait until enough answers end that the engine has a place for another request, in milliseconds; zero while it has one, or where
/// its places are unknown. While all places are taken, one becomes free every mean answer time / places.
#[inline]
pub(crate) fn place_wait_ms(fleet: &Fleet, load: &LoadSummary, at: EstimateTime) -> f32 {
    if !load.looks_full() {
        return 0.0;
    }
    let EnginePlaces { places: Some(places), others } = fleet.engine_places(load.worker) else { return 0.0 };
    let others = if load.has_report(at.now, at.report_age_max) { others.into() } else { 0 };
    let beyond = (load.in_flight.saturating_add(others) + 1).saturating_sub(places.get().into());
    beyond as f32 / f32::from(places.get()) * fleet.answer_ms(load.worker)
}

/// The estimates of a prompt of which nothing is cached, on workers of one kind that are free: what is the same for all of them
/// is computed once. They are equal to [`estimate`] there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColdEstimates {
    kind: u8,
    cost: PrefillCost,
    prompt_ms: f32,
    uncached_ms: f32,
    prompt_tokens: u32,
    step_weight: f32,
    now: Micros,
}

impl ColdEstimates {
    pub(crate) fn new(
        kind: u8,
        cost: PrefillCost,
        prompt_tokens: u32,
        step_weight: f32,
        now: Micros,
    ) -> ColdEstimates {
        let features = PrefillFeatures { miss_tokens: prompt_tokens, ..PrefillFeatures::default() };
        let (prompt_ms, uncached_ms) = (cost.prompt_ms(&features), cost.uncached_ms(&features));
        ColdEstimates { kind, cost, prompt_ms, uncached_ms, prompt_tokens, step_weight, now }
    }

    /// Whether these are the estimates of such a prompt on this worker.
    #[inline]
    pub(crate) fn apply_to(&self, load: &LoadSummary) -> bool {
        load.is_free && load.kind == self.kind && !load.looks_full()
    }

    #[inline]
    pub(crate) fn of(&self, load: &LoadSummary) -> Estimate {
        let wanted_tokens = load.decode_tokens + u64::from(self.prompt_tokens);
        let is_crowded = load.kv_tokens > 0 && wanted_tokens > load.kv_tokens;
        let features = PrefillFeatures {
            miss_tokens: self.prompt_tokens,
            cached_tokens: 0,
            restored_tokens: 0,
            decoding: load.in_flight,
            context_tokens: load.decode_tokens,
            crowded_tokens: if is_crowded { self.prompt_tokens } else { 0 },
            position: QueuePosition::Head,
        };
        Estimate {
            prefill_ms: load.relative_latency * self.cost.prefill_from_ms(self.prompt_ms, &features),
            uncached_ms: load.relative_latency * self.uncached_ms,
            step_ms: load.relative_latency * self.cost.step_ms(&features) * self.step_weight,
            idle: self.now.since(load.booked_at),
            ..Estimate::default()
        }
    }
}

/// The inputs of the prefill prediction.
pub(crate) fn features(
    load: &LoadSummary,
    forecast: &QueueForecast,
    found: PromptOverlap,
) -> PrefillFeatures {
    let PromptOverlap { prompt_tokens, overlap_tokens, restorable_tokens, shortfall_tokens } = found;
    let cached_tokens = overlap_tokens.saturating_add(restorable_tokens).saturating_add(shortfall_tokens);
    let wanted_tokens = load.decode_tokens + u64::from(prompt_tokens);
    let is_crowded = forecast.kv_tokens.is_some_and(|kv_tokens| wanted_tokens > kv_tokens);
    PrefillFeatures {
        miss_tokens: prompt_tokens.saturating_sub(cached_tokens),
        cached_tokens,
        restored_tokens: restorable_tokens,
        decoding: load.in_flight.saturating_sub(forecast.prompts),
        context_tokens: load.decode_tokens,
        crowded_tokens: if is_crowded { prompt_tokens } else { 0 },
        position: forecast.position,
    }
}

/// Wait for other clients' prompts in the engine, in milliseconds. Their size is unknown: each counts as one
/// of ours.
fn external_ms(load: &LoadSummary, forecast: &QueueForecast, at: EstimateTime, prefill_ms: f32) -> f32 {
    let external = forecast.external_waiting;
    if external == 0 || !load.has_report(at.now, at.report_age_max) {
        return 0.0;
    }
    let ours_ms = forecast.queue_ms / forecast.prompts.max(1) as f32;
    external as f32 * ours_ms.max(prefill_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use warmroute_fleet::{BookedWork, Booking, HealthConfig, Models};
    use warmroute_policy::ExpectedTtft;
    use warmroute_types::{Address, LoadReport};

    #[test]
    fn a_request_beyond_the_places_waits_for_answers_to_end() {
        let fleet = Arc::new(Fleet::new(HealthConfig::default()));
        let worker = fleet.join(Address::new("http://engine"), Models::Any).unwrap();
        let at = EstimateTime { now: Micros::from_secs(100), report_age_max: Micros::from_secs(5) };
        let work = BookedWork { context_tokens: 4_000, ..BookedWork::default() };
        let of = |at: EstimateTime| {
            let (load, forecast) = (fleet.load_summary(worker.id), fleet.forecast(worker.id, at.now));
            let wait_ms = place_wait_ms(&fleet, &load, at);
            let cost = fleet.prefill_cost(forecast.kind);
            (load, estimate(&load, &forecast, &cost, PromptOverlap::none_of(4_000), at, wait_ms))
        };
        let mut bookings: Vec<Booking> = Vec::new();
        let mut book = || {
            let mut booking = Booking::make(&fleet, worker.id, work, at.now);
            booking.first_token(at.now);
            bookings.push(booking);
        };
        (0..8).for_each(|_| book());
        let (_, unknown) = of(at);
        assert_eq!(unknown.queue_ms, 0.0);
        let report = |running, places| {
            fleet.report(&worker, LoadReport { running, places, at: at.now, ..LoadReport::default() })
        };
        report(8, Some(9));
        assert_eq!(of(at).1, unknown, "one place is free");
        report(8, Some(8));
        let ((load, full), answer_ms) = (of(at), fleet.answer_ms(worker.id));
        assert_eq!(full, Estimate { queue_ms: answer_ms / 8.0, ..unknown }, "one of eight answers must end");
        let cold = ColdEstimates::new(load.kind, fleet.prefill_cost(load.kind), 4_000, 1.0, at.now);
        assert!(!cold.apply_to(&load), "a full worker is estimated by itself");
        report(9, Some(9));
        assert_eq!(of(at).1.queue_ms, answer_ms / 9.0, "another client has the ninth place");
        let later = EstimateTime { now: at.now + Micros::from_secs(6), ..at };
        assert_eq!(of(later).1.queue_ms, 0.0, "that was long ago");
        report(8, Some(8));
        (0..4).for_each(|_| book());
        assert_eq!(of(at).1.queue_ms, 5.0 * answer_ms / 8.0, "four wait already");
        report(8, Some(u32::MAX));
        assert_eq!(of(at).1.queue_ms, 0.0, "so many are never taken");
    }

    #[test]
    fn a_worker_whose_last_place_is_taken_costs_no_less_than_before() {
        let fleet = Arc::new(Fleet::new(HealthConfig::default()));
        let worker = fleet.join(Address::new("http://engine"), Models::Any).unwrap();
        let at = EstimateTime { now: Micros::from_secs(100), report_age_max: Micros::from_secs(5) };
        let report = LoadReport { places: Some(256), at: at.now, ..LoadReport::default() };
        fleet.report(&worker, report);
        let work = BookedWork { context_tokens: 2_000, ..BookedWork::default() };
        let (mut bookings, mut before_ms) = (Vec::new(), 0.0);
        for requests in 0..300 {
            let (load, forecast) = (fleet.load_summary(worker.id), fleet.forecast(worker.id, at.now));
            let wait_ms = place_wait_ms(&fleet, &load, at);
            let (cost, found) = (fleet.prefill_cost(0), PromptOverlap::none_of(2_000));
            let cost_ms =
                ExpectedTtft::default().cost_ms(&estimate(&load, &forecast, &cost, found, at, wait_ms));
            assert!(cost_ms >= before_ms, "{cost_ms} ms with {requests} requests, {before_ms} with one less");
            before_ms = cost_ms;
            // The model does not learn from a peer's.
            let mut booking = Booking::of_peer(&fleet, worker.id, work, at.now);
            booking.first_token_at_peer(at.now);
            bookings.push(booking);
        }
    }

    #[test]
    fn prompts_that_came_another_way_count_while_the_report_is_fresh() {
        let fleet = Arc::new(Fleet::new(HealthConfig::default()));
        let worker = fleet.join(Address::new("http://engine"), Models::Any).unwrap();
        let queue_ms = |now_s| {
            let at = EstimateTime { now: Micros::from_secs(now_s), report_age_max: Micros::from_secs(5) };
            let (load, forecast) = (fleet.load_summary(worker.id), fleet.forecast(worker.id, at.now));
            let cost = fleet.prefill_cost(forecast.kind);
            estimate(&load, &forecast, &cost, PromptOverlap::none_of(4_000), at, 0.0).queue_ms
        };
        let report = |waiting, at_s| {
            fleet.report(
                &worker,
                LoadReport { waiting, at: Micros::from_secs(at_s), ..LoadReport::default() },
            );
        };
        let work = BookedWork { prefill_tokens: 4_000, context_tokens: 4_000, ..BookedWork::default() };
        let booking = Booking::make(&fleet, worker.id, work, Micros::from_secs(1));
        report(1, 1);
        let ours = queue_ms(1);
        drop(booking);
        assert_eq!(queue_ms(1), 0.0, "it was ours, and is done");
        report(2, 2);
        assert!(queue_ms(3) > ours, "two others wait");
        assert_eq!(queue_ms(9), 0.0, "that was long ago");
    }
}
