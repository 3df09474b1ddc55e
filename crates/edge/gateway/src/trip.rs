//! A request's stay with one worker, from the decision to whatever ends it.
//!
//! A trip that is dropped before anybody said how it ended was cancelled by the client: that is true wherever in the code
//! hyper lets go of it, before the worker answered or in the middle of a stream. The booking inside is released at the
//! same moment.

use std::sync::Arc;

use warmroute_router::{Decision, Outcome};
use warmroute_types::Micros;

use crate::gateway::Gateway;
use crate::metrics::Ending;

/// One stay. A retry is another.
pub(crate) struct Trip {
    gateway: Arc<Gateway>,
    pub(crate) decision: Decision,
    /// When the request came, not when this stay began: that is what the client waits for.
    received: Micros,
    first_token: FirstToken,
    ending: Ending,
}

#[derive(PartialEq)]
enum FirstToken {
    Awaited,
    Seen,
}

impl Trip {
    pub(crate) fn new(gateway: &Arc<Gateway>, decision: Decision, received: Micros) -> Trip {
        let gateway = Arc::clone(gateway);
        Trip { gateway, decision, received, first_token: FirstToken::Awaited, ending: Ending::Cancelled }
    }

    /// The first token was seen; only the first time counts.
    pub(crate) fn first_token(&mut self) {
        if self.first_token == FirstToken::Awaited {
            self.first_token = FirstToken::Seen;
            self.gateway.router.observe(&mut self.decision, Outcome::FirstToken);
            self.gateway.metrics.first_token(self.gateway.now().since(self.received));
        }
    }

    /// Whether the first token is yet to come.
    pub(crate) fn awaits_first_token(&self) -> bool {
        self.first_token == FirstToken::Awaited
    }

    /// The worker answered to the end.
    pub(crate) fn end(mut self, ending: Ending) {
        self.gateway.router.observe(&mut self.decision, Outcome::Ended);
        self.ending = ending;
    }

    /// The worker failed.
    pub(crate) fn fail(mut self) {
        self.gateway.router.observe(&mut self.decision, Outcome::Failed);
        self.ending = Ending::Failed;
    }
}

impl Drop for Trip {
    fn drop(&mut self) {
        let lasted = self.gateway.now().since(self.received);
        self.gateway.metrics.ended(&self.decision.worker, self.ending, lasted);
    }
}
