//! A worker as a page shows it. Counters are totals; the page takes differences over its own window.

use serde::Serialize;
use warmroute_fleet::{Models, WorkerView};

use super::rounding::thousandths;
use crate::attempt_outcome::AttemptOutcome;
use crate::cache_counts::CACHE_COUNTS;
use crate::fleet_notes::FleetNotes;
use crate::forwarding::Forwarding;

/// One worker.
#[derive(Serialize)]
pub(super) struct WorkerRow<'a> {
    id: u16,
    worker: &'a str,
    model: Option<&'a str>,
    state: &'static str,
    trouble: Option<String>,
    view: &'static str,
    /// Time of work ahead of a new prompt.
    queue_ms: f64,
    in_flight: u32,
    /// What the engine reports, if it does.
    kv: Option<f64>,
    waiting: Option<u32>,
    running: Option<u32>,
    /// How long the worker is left alone.
    rests_ms: f64,
    sent: u64,
    failed: u64,
    prompt: u64,
    predicted: u64,
    reachable: u64,
    cached: u64,
}

impl<'a> WorkerRow<'a> {
    pub(super) fn of(forwarding: &Forwarding, notes: &FleetNotes, view: &'a WorkerView) -> WorkerRow<'a> {
        let Forwarding { router, clock, upstreams, .. } = forwarding;
        let now = clock.now();
        let (worker, load) = (&view.worker, &view.load);
        let outcomes = upstreams.outcome_counts(worker);
        let of = |outcome: AttemptOutcome| outcomes[outcome as usize];
        let counts = upstreams.cache_counts(worker);
        let count = |name: &str| {
            let place = CACHE_COUNTS.iter().position(|(known, ..)| *known == name);
            place.map_or(0, |place| counts[place])
        };
        WorkerRow {
            id: worker.id.0,
            worker: &worker.label,
            model: match &view.models {
                Models::Named(names) => names.first().map(AsRef::as_ref),
                Models::Any | Models::Unknown => None,
            },
            state: load.state.as_str(),
            trouble: notes.probe_problems.get(&worker.address),
            view: load.view.as_str(),
            queue_ms: thousandths(router.inspect().latency(worker.id, now).queue_ms.into()),
            in_flight: load.in_flight,
            kv: load.report.and_then(|report| report.kv_use).map(|kv_use| thousandths(kv_use.into())),
            waiting: load.report.map(|report| report.waiting),
            running: load.report.map(|report| report.running),
            rests_ms: load.paused_until.since(now).as_millis_f64().round(),
            sent: outcomes.iter().sum::<u64>() + u64::from(load.in_flight),
            failed: of(AttemptOutcome::Failed) + of(AttemptOutcome::ServerError),
            prompt: count("prompt_tokens"),
            predicted: count("predicted_cached_tokens"),
            reachable: count("reachable_cached_tokens"),
            cached: count("cached_tokens"),
        }
    }
}
