//! How long a request's first token would take on a worker, and what that is concluded from.
//!
//! What this router has booked is the main signal; what engines report is a correction, for the prompts that came to them by
//! another way, and only while it is fresh.

use warmroute_fleet::{DeskView, Effort, Outlook, Speed};
use warmroute_policy::Estimate;
use warmroute_types::Micros;

/// A request as one worker would meet it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prospect {
    /// To be booked, and learned from when the first token comes.
    pub effort: Effort,
    pub estimate: Estimate,
}

/// What a worker would find of a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub prompt_tokens: u32,
    pub overlap_tokens: u32,
    pub restorable_tokens: u32,
}

/// The time at which it is asked, and how old reports may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub now: Micros,
    pub report_age_max: Micros,
}

impl Prospect {
    pub(crate) fn of(
        desk: &DeskView,
        outlook: &Outlook,
        speed: &Speed,
        found: Found,
        at: Moment,
    ) -> Prospect {
        let effort = effort(desk, outlook, found);
        let prefill_ms = outlook.slowness * speed.prefill_ms(&effort);
        let estimate = Estimate {
            queue_ms: outlook.queue_ms + strangers_ms(desk, outlook, at, prefill_ms),
            prefill_ms,
            lacking_ms: 0.0,
            anywhere_ms: 0.0,
            step_ms: outlook.slowness * speed.step_ms(&effort),
            prompts_ahead: outlook.prompts,
            idle: outlook.idle,
        };
        Prospect { effort, estimate }
    }
}

/// What a prompt's time there is expected from.
pub(crate) fn effort(desk: &DeskView, outlook: &Outlook, found: Found) -> Effort {
    let Found { prompt_tokens, overlap_tokens, restorable_tokens } = found;
    let cached_tokens = overlap_tokens.saturating_add(restorable_tokens);
    let wanted_tokens = desk.decode_tokens + u64::from(prompt_tokens);
    let is_crowded = outlook.kv_tokens.is_some_and(|kv_tokens| wanted_tokens > kv_tokens);
    Effort {
        miss_tokens: prompt_tokens.saturating_sub(cached_tokens),
        cached_tokens,
        restored_tokens: restorable_tokens,
        decoding: desk.in_flight.saturating_sub(outlook.prompts),
        context_tokens: desk.decode_tokens,
        crowded_tokens: if is_crowded { prompt_tokens } else { 0 },
        place: outlook.place,
    }
}

/// For prompts that wait in the engine and did not come from here. Nothing is known of them: each is taken for one like ours.
fn strangers_ms(desk: &DeskView, outlook: &Outlook, at: Moment, prefill_ms: f32) -> f32 {
    let is_fresh = desk.report.is_some_and(|report| at.now.since(report.at) <= at.report_age_max);
    let strangers = if is_fresh { outlook.strangers } else { 0 };
    let ours_ms = outlook.queue_ms / outlook.prompts.max(1) as f32;
    strangers as f32 * ours_ms.max(prefill_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use warmroute_fleet::{Booking, Fleet, HealthConfig, Models, Work};
    use warmroute_types::{Address, LoadReport};

    const FOUND: Found = Found { prompt_tokens: 4_000, overlap_tokens: 0, restorable_tokens: 0 };

    #[test]
    fn prompts_that_came_another_way_count_while_the_report_is_fresh() {
        let fleet = Arc::new(Fleet::new(HealthConfig::default()));
        let worker = fleet.join(Address::new("http://engine"), Models::Any).unwrap();
        let queue_ms = |now_s| {
            let at = Moment { now: Micros::from_secs(now_s), report_age_max: Micros::from_secs(5) };
            let (desk, outlook) = (fleet.desk_view(worker.id), fleet.outlook(worker.id, at.now));
            Prospect::of(&desk, &outlook, &fleet.speed(), FOUND, at).estimate.queue_ms
        };
        let report = |waiting, at_s| {
            fleet.report(
                &worker,
                LoadReport { waiting, at: Micros::from_secs(at_s), ..LoadReport::default() },
            );
        };
        let work = Work { prefill_tokens: 4_000, context_tokens: 4_000, ..Work::default() };
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
