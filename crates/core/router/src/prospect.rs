//! How long a request's first token would take on a worker, and what that is concluded from.
//!
//! What this router has booked is the main signal; what engines report is a correction, for the prompts that came to them by
//! another way, and only while it is fresh.

use warmroute_fleet::{DeskView, Effort, Fleet, Outlook};
use warmroute_policy::Estimate;
use warmroute_types::{Micros, WorkerId};

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
    pub(crate) fn of(fleet: &Fleet, worker: WorkerId, desk: &DeskView, found: Found, at: Moment) -> Prospect {
        let outlook = fleet.outlook(worker, at.now);
        let effort = effort(desk, &outlook, found);
        let prefill_ms = fleet.prefill_ms(worker, &effort);
        let estimate = Estimate {
            queue_ms: outlook.queue_ms + strangers_ms(desk, &outlook, at, prefill_ms),
            prefill_ms,
            lacking_ms: 0.0,
            step_ms: fleet.step_ms(worker, &effort),
            prompts_ahead: outlook.prompts,
            idle: outlook.idle,
        };
        Prospect { effort, estimate }
    }
}

fn effort(desk: &DeskView, outlook: &Outlook, found: Found) -> Effort {
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
    let waiting = desk.waiting(at.now, at.report_age_max).unwrap_or(0);
    let strangers = waiting.saturating_sub(outlook.prompts);
    let each_ms = if outlook.prompts == 0 { prefill_ms } else { outlook.queue_ms / outlook.prompts as f32 };
    strangers as f32 * each_ms
}
