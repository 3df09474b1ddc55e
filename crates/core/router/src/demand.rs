//! Requests that are expected to come while a worker computes a prompt.
//!
//! Work that a request adds to a worker delays those that come later. By how much follows from the arrivals per worker
//! and the share of time that workers are busy: extra work of `w` milliseconds is made up only while the worker would
//! have been idle, so it delays `arrivals × w / 2 / (1 - busy)` requests by `w` each. Requests that find another worker
//! free are not delayed. The share of those that find none is `busy` to the power of `√(2 (workers + 1)) - 1`:
//! Sakasegawa's approximation for queues with several servers.

use warmroute_types::Micros;

/// Time constant of the moving sums.
const MEMORY_MS: f32 = 30_000.0;

/// Sums over less time than this are too uncertain and count as sums over this time.
const OBSERVED_MS_MIN: f32 = 1_000.0;

/// Beyond this share the queues grow for other reasons, and the formula for a steady state has no meaning.
const BUSY_MAX: f32 = 0.9;

/// Moving sums of the prompts that were assigned, and of the time in which they came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    prompts: f32,
    work_ms: f32,
    observed_ms: f32,
    at: Option<Micros>,
}

impl Demand {
    /// Records an assigned prompt and its expected prefill time.
    pub fn note(&mut self, work_ms: f32, now: Micros) {
        let before = self.at(now);
        let work_ms = before.work_ms + work_ms.max(0.0);
        *self = Demand { prompts: before.prompts + 1.0, work_ms, ..before };
    }

    /// The sums at this time, if no prompt came since the last one.
    fn at(&self, now: Micros) -> Demand {
        let passed_ms = self.at.map_or(0.0, |at| now.since(at).0 as f32 / 1e3);
        let left = (-passed_ms / MEMORY_MS).exp();
        Demand {
            prompts: left * self.prompts,
            work_ms: left * self.work_ms,
            observed_ms: left * self.observed_ms + MEMORY_MS * (1.0 - left),
            at: Some(now),
        }
    }

    /// Requests delayed by each millisecond of work on one of `workers`. `routers` is the number of routers that assign
    /// about as many prompts as this one.
    pub fn followers_per_ms(&self, workers: usize, routers: u32, now: Micros) -> f32 {
        let Demand { prompts, work_ms, observed_ms, .. } = self.at(now);
        let share = routers as f32 / (workers.max(1) as f32 * observed_ms.max(OBSERVED_MS_MIN));
        let (arrivals_per_ms, busy) = (prompts * share, (work_ms * share).min(BUSY_MAX));
        let delayed = busy.powf((2.0 * (workers as f32 + 1.0)).sqrt() - 1.0);
        arrivals_per_ms * delayed / (1.0 - busy) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Micros = Micros::from_secs(120);

    /// Prompts of 100 ms at this rate, for two minutes.
    fn demand(per_s: u64) -> Demand {
        let mut demand = Demand::default();
        (0..120 * per_s).for_each(|turn| demand.note(100.0, Micros(1_000_000 * turn / per_s)));
        demand
    }

    #[test]
    fn followers_grow_with_the_rate_and_without_bound_only_near_capacity() {
        let per_ms = |per_s| demand(per_s).followers_per_ms(4, 1, END);
        // 20 prompts/s on 4 workers: 5/s each, half of the time busy; 22 % find no other worker free.
        assert!((per_ms(20) - 0.005 * 0.223 / 0.5 / 2.0).abs() < 1e-4, "{}", per_ms(20));
        assert!(per_ms(2) < per_ms(20) / 50.0);
        assert!(per_ms(36) > 8.0 * per_ms(20));
        assert!(per_ms(400) < 1.0, "beyond capacity it grows with the rate only");
    }

    #[test]
    fn workers_share_the_demand_and_routers_add_to_it() {
        let demand = demand(20);
        let per_ms = |workers, routers| demand.followers_per_ms(workers, routers, END);
        assert!(per_ms(8, 1) < per_ms(4, 1) && per_ms(4, 1) < per_ms(4, 2));
        assert!(per_ms(8, 2) < per_ms(4, 1), "as busy, but there are more that may be free");
    }

    #[test]
    fn silence_counts() {
        let demand = demand(36);
        let after = |s| demand.followers_per_ms(4, 1, END + Micros::from_secs(s));
        assert!(after(30) < after(0) / 5.0 && after(300) < after(0) / 1_000.0);
    }

    #[test]
    fn a_first_burst_is_no_rate() {
        let mut burst = Demand::default();
        assert_eq!(burst.followers_per_ms(1, 1, Micros(10)), 0.0);
        (0..10).for_each(|turn| burst.note(5.0, Micros(turn)));
        assert!(
            burst.followers_per_ms(1, 1, Micros(10)) < 0.001,
            "{}",
            burst.followers_per_ms(1, 1, Micros(10))
        );
    }
}
