//! Notifications for lab rules, beyond the numbers of a choice.
//!
//! Production policies are pure functions of what the router supplies. Rules of other projects know their
//! hardware, remember what they sent and learn from results. The simulated router notifies such rules in
//! virtual time:
//!
//! ```text
//!   joined ─► asked ─► (the policy chooses) ─► first_token ─► ended
//! ```

use warmroute_engine::Config as EngineConfig;
use warmroute_types::{Micros, WorkerId};

/// Observer of requests. Each choice has a number. A router makes one choice at a time, so the policy call
/// after [`asked`](Watcher::asked) is the choice of that number.
pub trait Watcher: Send + Sync {
    /// A worker joined, with this engine configuration.
    fn joined(&self, _worker: WorkerId, _engine: &EngineConfig) {}

    /// The next policy call is this choice.
    fn asked(&self, _choice: u64, _now: Micros) {}

    /// The first token of a choice arrived.
    fn first_token(&self, _choice: u64, _now: Micros) {}

    /// A request ended.
    fn ended(&self, _choice: u64, _end: End) {}
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Complete answer.
    Answered {
        /// Arrival of the last token.
        at: Micros,
        /// Length of the answer.
        output_tokens: u32,
    },
    /// No answer: the worker refused or died.
    Failed {
        /// Time at which the router noticed.
        at: Micros,
    },
}
