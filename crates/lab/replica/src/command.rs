//! What a rank sends to its driver.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use warmroute_engine::Request;

use crate::events::Content;
use crate::progress::Progress;

/// A command to a driver.
pub(crate) enum Command {
    /// Generate.
    Submit(Submission),
    /// Empty the prefix cache; the reply tells whether that was possible.
    Clear(oneshot::Sender<bool>),
    /// Forget everything; the reply follows when it is done.
    Restart(oneshot::Sender<()>),
    /// A client has left.
    CheckLeavers,
}

/// A request whose handler waits for it.
pub(crate) struct Submission {
    pub(crate) request: Request,
    /// Its tokens, where cache events are published.
    pub(crate) content: Option<Arc<Content>>,
    pub(crate) progress: Arc<Progress>,
    /// vLLM's name for the way it will end, for the metrics.
    pub(crate) finish: FinishedReason,
}

/// The label of `vllm:request_success_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishedReason {
    Stop,
    Length,
}

/// Sequences whose client has gone.
pub(crate) type Leavers = Mutex<Vec<Arc<Progress>>>;
