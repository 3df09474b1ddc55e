//! What a decision reads of a worker that has no prompts ahead, copied into one cache line.
//!
//! A worker's load and queue are atomics in three cache lines, and those of thousands of workers do not fit into a core's
//! cache. Few workers change between two decisions, so a decision keeps a copy and compares a version. Every change of
//! what is copied increments the version afterwards (`change_guard.rs`), and a copy of another version is renewed
//! (`summaries.rs`). A copy that is taken during a change has the version before it, so the next decision takes another.

use warmroute_types::{Micros, WorkerId, WorkerState};

/// A copy of what most decisions need of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
pub struct LoadSummary {
    /// The worker's version at the time of the copy; 0: nothing was copied yet.
    pub(crate) version: u64,
    /// The worker that the numbers are of.
    pub worker: WorkerId,
    /// The worker's state.
    pub state: WorkerState,
    /// Whether the worker may get a request now, regardless of pauses.
    pub takes_requests: bool,
    /// The worker gets no requests before this time.
    pub paused_until: Micros,
    /// Requests in flight.
    pub in_flight: u32,
    /// Context tokens of the requests in flight.
    pub decode_tokens: u64,
    /// Time of the engine's last report; zero without one.
    pub reported_at: Micros,
    /// Whether no prompts are ahead of a new one, and the worker is not slower than others. Otherwise its
    /// [`QueueForecast`](crate::QueueForecast) depends on the time in more than `idle`.
    pub is_free: bool,
    /// The other fields are those of the forecast.
    pub kind: u8,
    /// How many times as long as its engine kind's model the worker takes.
    pub relative_latency: f32,
    /// Tokens of the worker's KV cache; 0 = unknown.
    pub kv_tokens: u64,
    /// The engine's places that other clients did not take by its last report; `u16::MAX` = unknown, or more.
    pub places_left: u16,
    /// When the last prompt was booked.
    pub booked_at: Micros,
}

const _: () = assert!(size_of::<LoadSummary>() == 64, "a summary is one cache line");

impl LoadSummary {
    /// A copy that must be refreshed before it is read.
    pub fn unread(worker: WorkerId) -> LoadSummary {
        LoadSummary {
            version: 0,
            worker,
            state: WorkerState::Starting,
            takes_requests: false,
            paused_until: Micros::ZERO,
            in_flight: 0,
            decode_tokens: 0,
            reported_at: Micros::ZERO,
            is_free: false,
            kind: 0,
            relative_latency: 1.0,
            kv_tokens: 0,
            places_left: u16::MAX,
            booked_at: Micros::ZERO,
        }
    }

    /// Whether another request would wait until an answer ends, if the last report still holds. False while the number of places
    /// is unknown.
    #[inline]
    pub fn looks_full(&self) -> bool {
        self.in_flight >= u32::from(self.places_left)
    }

    /// Whether the engine has reported its load within this time.
    pub fn has_report(&self, now: Micros, age_max: Micros) -> bool {
        self.reported_at != Micros::ZERO && now.since(self.reported_at) <= age_max
    }
}
