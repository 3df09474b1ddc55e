//! What a rule of the lab may be told beside the numbers of a choice.
//!
//! Production's policies are pure functions of what the router brings. Other routers' rules are not: they know their hardware,
//! remember what they sent, and learn from what came back. A rule that wants that is told here, by the gate, in virtual time:
//!
//! ```text
//!   joined ─► asked ─► (the policy chooses) ─► first_token ─► ended
//! ```

use warmroute_engine::Config as EngineConfig;
use warmroute_types::{Micros, WorkerId};

/// Somebody who is told. Each choice has a number; the router of a run asks one at a time, so what is chosen after
/// [`asked`](Watcher::asked) is the choice of that number.
pub trait Watcher: Send + Sync {
    /// A worker has taken its seat, and this is what it runs on.
    fn joined(&self, _worker: WorkerId, _engine: &EngineConfig) {}

    /// A choice comes next.
    fn asked(&self, _choice: u64, _now: Micros) {}

    /// The first token of what was chosen has come.
    fn first_token(&self, _choice: u64, _now: Micros) {}

    /// Nothing more will be heard of it.
    fn ended(&self, _choice: u64, _end: End) {}
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With its whole answer.
    Answered {
        /// When its last token was heard.
        at: Micros,
        /// The answer's length.
        output_tokens: u32,
    },
    /// Without one: refused, or its worker died.
    Failed {
        /// When that was heard.
        at: Micros,
    },
}
