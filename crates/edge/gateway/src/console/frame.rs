//! Frames: what a page is told at one moment, as one server-sent event.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use warmroute_admission::Class;
use warmroute_fleet::WorkerView;
use warmroute_policy::{Policy, Standard};
use warmroute_router::{HeldHead, Router};

use super::request_row::{RequestRow, RequestUpdate, SentRows};
use super::rounding::thousandths;
use super::worker_row::WorkerRow;
use crate::fleet_notes::FleetNotes;
use crate::forwarding::Forwarding;
use crate::history::PastDecision;
use crate::observers::Observers;
use crate::peers_page::peers_page;

/// Decisions that a new page gets from before it was opened.
const PAST_ROWS: usize = 60;

/// Rows sampled for one frame, and candidate records of all of them together.
const ROWS_A_FRAME: usize = 20;
const CANDIDATES_A_FRAME: usize = 4_000;

/// Prefix heads shown, workers named for each, and the time between two surveys of the index.
const HEADS: usize = 16;
const HOLDERS_NAMED: usize = 16;
const SURVEY_EVERY: Duration = Duration::from_secs(5);

/// What is told once.
#[derive(Serialize)]
struct Hello<'a> {
    version: &'static str,
    /// When the gateway started: another value tells a page that counters began again.
    started: u64,
    requests: Vec<RequestRow<'a>>,
    prefixes: &'a Value,
}

/// What is told with each frame.
#[derive(Serialize)]
struct Frame<'a> {
    at: u64,
    policy: &'static str,
    /// Decisions since the start.
    decisions: u64,
    running: u32,
    queued: Vec<(&'static str, usize)>,
    awaiting_worker: usize,
    /// Time that the frame before took to build: what pages cost.
    built_us: u64,
    workers: Vec<WorkerRow<'a>>,
    requests: Vec<RequestRow<'a>>,
    updates: Vec<RequestUpdate>,
    ttft: Vec<(usize, u32)>,
    expected: Vec<(usize, u32)>,
    durations: Vec<(usize, u32)>,
    shadows: Vec<Value>,
    peers: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefixes: Option<&'a Value>,
}

/// Builds frames, and remembers what pages know.
pub(super) struct FrameBuilder {
    forwarding: Arc<Forwarding>,
    notes: Arc<FleetNotes>,
    started: u64,
    sent: SentRows,
    decisions: u64,
    prefixes: Value,
    surveyed: Option<Instant>,
    /// Time that the last frame took to build and to send.
    pub(super) built: Duration,
}

impl FrameBuilder {
    pub(super) fn new(forwarding: Arc<Forwarding>, notes: Arc<FleetNotes>) -> FrameBuilder {
        let clock = forwarding.clock;
        let uptime = Duration::from_micros(clock.since_start(clock.now()).0);
        let started = SystemTime::now() - uptime;
        FrameBuilder {
            started: unix_ms(started),
            sent: SentRows::default(),
            decisions: forwarding.observers.history.count(),
            forwarding,
            notes,
            prefixes: Value::Null,
            surveyed: None,
            built: Duration::ZERO,
        }
    }

    /// What a new page is told before its first frame.
    pub(super) fn first_frame(&mut self) -> Bytes {
        let past = self.forwarding.observers.history.last(PAST_ROWS);
        let requests = past.iter().rev().map(|past| RequestRow::of(past)).collect();
        let version = env!("CARGO_PKG_VERSION");
        event("hello", &Hello { version, started: self.started, requests, prefixes: &self.prefixes })
    }

    /// The next frame, for all pages.
    pub(super) fn frame(&mut self) -> Bytes {
        let (forwarding, notes) = (Arc::clone(&self.forwarding), Arc::clone(&self.notes));
        let Forwarding { router, clock, gate, observers, .. } = &*forwarding;
        let Observers { console, history, .. } = observers;
        let views = router.inspect().workers();
        let is_survey_due = self.surveyed.is_none_or(|at| at.elapsed() >= SURVEY_EVERY);
        if is_survey_due {
            self.surveyed = Some(Instant::now());
            self.prefixes = describe_prefixes(router, &views);
        }
        let rows: Vec<Arc<PastDecision>> = console.rows.lock().iter().cloned().collect();
        let (new, updates) = self.sent.advance(&rows);
        let (running, waiting) = gate.counts();
        let decisions = history.count();
        let wanted = (CANDIDATES_A_FRAME / views.len().max(1)).clamp(1, ROWS_A_FRAME);
        console.set_sample(wanted as u32, decisions - self.decisions);
        self.decisions = decisions;
        event(
            "frame",
            &Frame {
                at: unix_ms(SystemTime::now()),
                policy: router.inspect().policy().name(),
                decisions,
                running,
                queued: Class::ALL.into_iter().map(Class::as_str).zip(waiting).collect(),
                awaiting_worker: gate.awaiting_worker(),
                built_us: self.built.as_micros() as u64,
                workers: views.iter().map(|view| WorkerRow::of(&forwarding, &notes, view)).collect(),
                requests: new.iter().map(|past| RequestRow::of(past)).collect(),
                updates,
                ttft: console.observed_ttft.take(),
                expected: console.expected_ttft.take(),
                durations: console.durations.take(),
                shadows: describe_shadows(router),
                peers: peers_page(router, clock.now(), &forwarding.peers),
                prefixes: is_survey_due.then_some(&self.prefixes),
            },
        )
    }
}

/// The acting policy and each shadow, as totals.
fn describe_shadows(router: &Router<Standard>) -> Vec<Value> {
    let compared = router.inspect().policy_comparisons();
    let describe = compared.iter().map(|one| {
        json!({
            "policy": one.policy, "decisions": one.decisions, "agreed": one.agreed,
            "prompt": one.prompt_tokens, "cached": one.cached_tokens,
            "ttft_ms": thousandths(one.ttft.as_millis_f64()),
        })
    });
    describe.collect()
}

/// The index: its size, and the largest beginnings of prompts as hashes.
fn describe_prefixes(router: &Router<Standard>, views: &[WorkerView]) -> Value {
    let inspect = router.inspect();
    let stats = inspect.index_stats();
    let heads = inspect.prefix_heads(HEADS);
    let label = |id| views.iter().find(|view| view.worker.id == id).map(|view| &*view.worker.label);
    let describe = |HeldHead { head, workers }: &HeldHead| {
        json!({
            "hash": format!("{:016x}", head.digest), "head_tokens": head.head_tokens, "tokens": head.tokens,
            "branches": head.branches, "holders": workers.len(),
            "workers": workers.iter().take(HOLDERS_NAMED).filter_map(|&id| label(id)).collect::<Vec<_>>(),
        })
    };
    json!({
        "bytes": stats.bytes.total(), "budget_bytes": stats.budget_bytes,
        "spans": stats.spans, "held": stats.held,
        "heads": heads.iter().map(describe).collect::<Vec<_>>(),
    })
}

/// A server-sent event.
fn event(name: &str, data: &impl Serialize) -> Bytes {
    let mut text = format!("event: {name}\ndata: ").into_bytes();
    serde_json::to_writer(&mut text, data).expect("names and numbers can be written as JSON");
    text.extend_from_slice(b"\n\n");
    text.into()
}

fn unix_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
