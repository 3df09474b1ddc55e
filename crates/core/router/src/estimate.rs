//! Estimates the time to first token of a request on a worker.
//!
//! The main signal is what this router has booked. Engine reports are a correction for prompts from other
//! clients, and only while they are fresh.

use warmroute_fleet::{LoadSummary, PrefillCost, PrefillFeatures, QueueForecast, QueuePosition};
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
    place_wait_ms: Option<f32>,
) -> Estimate {
    let features = features(load, forecast, found);
    let prefill_ms = forecast.relative_latency * cost.prefill_ms(&features);
    let queue_ms = forecast.queue_ms + external_ms(load, forecast, at, prefill_ms);
    Estimate {
        queue_ms: place_wait_ms.map_or(queue_ms, |wait_ms| queue_ms.max(wait_ms)),
        prefill_ms,
        uncached_ms: forecast.relative_latency * cost.uncached_ms(&features),
        // A request that takes the place of an answer makes the batch no larger.
        step_ms: match place_wait_ms {
            Some(_) => 0.0,
            None => forecast.relative_latency * cost.step_ms(&features),
        },
        prompts_ahead: forecast.prompts,
        idle: forecast.idle,
        ..Estimate::default()
    }
}

/// Wait until enough answers end that the engine has a place for another request, in milliseconds; `None` while it has one, or where
/// its places are unknown. While all places are taken, they are free again at even distances.
#[inline]
pub(crate) fn place_wait_ms(load: &LoadSummary, answer_ms: impl FnOnce() -> f32) -> Option<f32> {
    let places = f32::from(load.places);
    load.is_full().then(|| (load.in_flight as f32 + 1.0 - places) / places * answer_ms())
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
        load.is_free && load.kind == self.kind && !load.is_full()
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
    use warmroute_fleet::{BookedWork, Booking, Fleet, HealthConfig, Models};
    use warmroute_types::{Address, LoadReport};

    #[test]
    fn a_request_beyond_the_places_waits_for_answers_to_end_and_slows_no_batch() {
        let fleet = Arc::new(Fleet::new(HealthConfig::default()));
        let worker = fleet.join(Address::new("http://engine"), Models::Any).unwrap();
        let at = EstimateTime { now: Micros::from_secs(100), report_age_max: Micros::from_secs(5) };
        let work = BookedWork { context_tokens: 4_000, ..BookedWork::default() };
        let of = |answer_ms| {
            let (load, forecast) = (fleet.load_summary(worker.id), fleet.forecast(worker.id, at.now));
            let wait_ms = place_wait_ms(&load, || answer_ms);
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
        let (_, unknown) = of(1_000.0);
        assert!(unknown.queue_ms == 0.0 && unknown.step_ms > 0.0);
        let report = |places| LoadReport { places, at: Micros::from_secs(1), ..LoadReport::default() };
        fleet.report(&worker, report(Some(9)));
        assert_eq!(of(1_000.0).1, unknown, "one place is free");
        fleet.report(&worker, report(Some(8)));
        let (load, full) = of(1_000.0);
        assert_eq!((full.queue_ms, full.step_ms), (1_000.0 / 8.0, 0.0), "one of eight answers must end");
        let cold = ColdEstimates::new(load.kind, fleet.prefill_cost(load.kind), 4_000, 1.0, at.now);
        assert!(!cold.apply_to(&load), "a full worker is estimated by itself");
        (0..4).for_each(|_| book());
        assert_eq!(of(1_000.0).1.queue_ms, 5.0 * 1_000.0 / 8.0, "four wait already");
        fleet.report(&worker, report(Some(u32::MAX)));
        assert!(of(1_000.0).1.step_ms > 0.0, "so many are never taken");
    }

    #[test]
    fn prompts_that_came_another_way_count_while_the_report_is_fresh() {
        let fleet = Arc::new(Fleet::new(HealthConfig::default()));
        let worker = fleet.join(Address::new("http://engine"), Models::Any).unwrap();
        let queue_ms = |now_s| {
            let at = EstimateTime { now: Micros::from_secs(now_s), report_age_max: Micros::from_secs(5) };
            let (load, forecast) = (fleet.load_summary(worker.id), fleet.forecast(worker.id, at.now));
            let cost = fleet.prefill_cost(forecast.kind);
            estimate(&load, &forecast, &cost, PromptOverlap::none_of(4_000), at, None).queue_ms
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
