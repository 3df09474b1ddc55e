//! Those who learn how requests go and decide nothing.

use std::sync::Arc;

use warmroute_record::Recorder;

use crate::console::state::Console;
use crate::history::History;
use crate::line_throttle::LineThrottle;
use crate::metrics::Metrics;
use crate::prefix_observer::PrefixObserver;

/// Everything that watches requests.
pub(crate) struct Observers {
    pub metrics: Metrics,
    pub history: History,
    pub console: Console,
    pub prefixes: Arc<PrefixObserver>,
    /// Records a trace of the requests, if one is wanted.
    pub recorder: Option<Arc<Recorder>>,
    /// Bounds the lines about workers' errors in the process's log.
    pub worker_errors: LineThrottle,
}
