//! What a decision reads of every worker, copied into one cache line.
//!
//! A worker's load and queue are atomics in three cache lines, and thousands of workers do not fit into a core's cache. Few
//! workers change between two decisions, so a decision keeps a copy and compares a version: every change of what
//! is copied increments it afterwards ([`ChangeGuard`]), and a copy with another version is renewed ([`Fleet::refresh`]). A copy that
//! is taken during a change has the version before it, so the next decision takes another.

use std::sync::atomic::{AtomicU64, Ordering::Release};

use warmroute_types::{Micros, WorkerId, WorkerState};

use crate::Fleet;
use crate::prefill_queue::{PrefillQueue, QueueForecast};
use crate::worker_load::WorkerLoad;

/// A copy of what most decisions need of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
pub struct LoadSummary {
    /// The worker's version at the time of the copy; 0: nothing was copied yet.
    pub(crate) version: u64,
    /// The worker.
    pub worker: WorkerId,
    /// The worker's state, which decides whether it may be chosen.
    pub state: WorkerState,
    /// A trial request is in flight on a recovering worker.
    pub(crate) is_on_trial: bool,
    /// In tenths of a second.
    pub(crate) paused_until: u32,
    /// Requests in flight.
    pub in_flight: u32,
    /// Context tokens of the requests in flight.
    pub decode_tokens: u64,
    /// Time of the engine's last report; zero without one.
    pub(crate) reported_at: Micros,
    /// Whether `free_queue` is there. An `Option` would take eight bytes more.
    pub(crate) has_free_queue: bool,
    pub(crate) free_queue: FreeQueue,
}

const _: () = assert!(size_of::<LoadSummary>() == 64, "a summary is one cache line");

/// A prefill queue without prompts, of a worker that is not slower than others: nothing of its forecast changes with time, except
/// how long it has been idle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct FreeQueue {
    pub booked_at: Micros,
    /// 0 = unknown.
    pub kv_tokens: u64,
    pub relative_latency: f32,
    /// `u16`, so that a summary is one cache line; a queue with more is not copied.
    pub external_waiting: u16,
    pub kind: u8,
}

impl LoadSummary {
    /// A copy that must be refreshed before it is read.
    pub fn unread(worker: WorkerId) -> LoadSummary {
        LoadSummary {
            version: 0,
            worker,
            state: WorkerState::Starting,
            is_on_trial: false,
            paused_until: 0,
            in_flight: 0,
            decode_tokens: 0,
            reported_at: Micros::ZERO,
            has_free_queue: false,
            free_queue: FreeQueue::default(),
        }
    }

    /// Whether the worker may get a request now, regardless of pauses.
    #[inline]
    pub fn takes_requests(&self) -> bool {
        self.state.takes_requests() && !self.is_on_trial
    }

    /// Whether the worker is paused.
    #[inline]
    pub fn is_paused(&self, now: Micros) -> bool {
        now < WorkerLoad::pause_end(self.paused_until)
    }

    /// Whether the engine has reported its load within this time.
    #[inline]
    pub fn has_report(&self, now: Micros, age_max: Micros) -> bool {
        self.reported_at != Micros::ZERO && now.since(self.reported_at) <= age_max
    }
}

impl FreeQueue {
    #[inline]
    pub(crate) fn forecast(&self, now: Micros) -> QueueForecast {
        QueueForecast {
            idle: now.since(self.booked_at),
            kv_tokens: Some(self.kv_tokens).filter(|&tokens| tokens > 0),
            relative_latency: self.relative_latency,
            kind: self.kind,
            external_waiting: self.external_waiting.into(),
            ..QueueForecast::default()
        }
    }
}

/// A worker's load and queue, to be changed. Increments the worker's version when it is dropped.
pub(crate) struct ChangeGuard<'a> {
    pub load: &'a WorkerLoad,
    pub queue: &'a PrefillQueue,
    pub version: &'a AtomicU64,
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        // After the change: a reader of the new version must see it.
        self.version.fetch_add(1, Release);
    }
}

impl Fleet {
    /// Renews the copy if the worker has changed since it was taken.
    #[inline]
    pub fn refresh(&self, summary: &mut LoadSummary) {
        let version = self.version(summary.worker);
        if summary.version != version {
            *summary = self.summary(summary.worker, version);
        }
    }

    /// A new copy.
    pub fn load_summary(&self, worker: WorkerId) -> LoadSummary {
        self.summary(worker, self.version(worker))
    }

    /// The queue ahead of a prompt sent to this worker now; the same as [`Fleet::forecast`].
    #[inline]
    pub fn forecast_of(&self, summary: &LoadSummary, now: Micros) -> QueueForecast {
        match summary.has_free_queue {
            true => summary.free_queue.forecast(now),
            false => self.forecast(summary.worker, now),
        }
    }
}
