//! Responses that an engine computes in the background (`"background": true`).
//!
//! The engine answers at once with an identifier and goes on. So the request keeps its part of its tenant's limits after its
//! answer, until a request for the response shows that it has ended, or for a bounded time:
//!
//! ```text
//! POST /v1/responses {"background": true} ──▶ {"id": "resp_1", "status": "queued"}      the lease is kept under resp_1
//! GET  /v1/responses/resp_1               ──▶ {"status": "in_progress", …}              the lease stays
//! GET  /v1/responses/resp_1               ──▶ {"status": "completed", "usage": {…}, …}  settled by the usage, once
//! ```
//!
//! A response that no client asks for is settled by what was reserved when its time is over. The gateway does not ask the
//! engine itself: what a tenant leaves open counts against that tenant only.

use std::time::Duration;

use warmroute_admission::Lease;
use warmroute_types::Usage;

use crate::gateway::Gateway;

/// How long a response counts as running, where `request-timeout-secs` does not say it.
const RUNNING_MAX: Duration = Duration::from_secs(600);

impl Gateway {
    /// Keeps the limits of a response that the engine may still compute.
    pub(crate) fn keep_in_background(&self, id: u128, lease: Lease) {
        let running_max = self.config().timeouts.total.unwrap_or(RUNNING_MAX);
        let gate = &self.admission_gate;
        if let Some(lease) = gate.background.keep(id, lease, self.now() + running_max.into()) {
            gate.limits.settle(&lease, lease.tokens());
        }
    }

    /// Settles a response that has ended. Without usage, what was reserved counts.
    pub(crate) fn end_background(&self, id: u128, usage: Option<Usage>) {
        let Some(lease) = self.admission_gate.background.take(id) else { return };
        let tokens = usage.map(|usage| usage.prompt_tokens.saturating_add(usage.output_tokens));
        self.admission_gate.limits.settle(&lease, tokens.unwrap_or(lease.tokens()));
        self.notify_peers();
    }

    /// Settles responses whose time is over.
    pub(crate) fn expire_background(&self) {
        while let Some(lease) = self.admission_gate.background.next_expired(self.now()) {
            self.admission_gate.limits.settle(&lease, lease.tokens());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use warmroute_admission::{Asked, ExpectedTokens, Limits};
    use warmroute_policy::Standard;
    use warmroute_router::Router;

    use crate::Config;
    use crate::gateway::Records;

    const ONE_AT_A_TIME: Limits = Limits { requests_per_minute: 0, tokens_per_minute: 1_000, concurrent: 1 };

    fn gateway() -> Arc<Gateway> {
        let policy: Standard = "random".parse().unwrap();
        let router = Arc::new(Router::new(policy, warmroute_router::Config::default()));
        Gateway::new(router, Config::default(), Records::default()).unwrap()
    }

    fn lease(gateway: &Gateway, tokens: u32) -> Option<Lease> {
        let expected = ExpectedTokens { prompt: tokens, answers: 0, answer_max: Some(0) };
        let (answer, _) = tokio::sync::oneshot::channel();
        let mut limits = gateway.admission_gate.limits.shared.lock();
        match limits.ask(7, ONE_AT_A_TIME, expected, answer, gateway.now()) {
            Asked::Decided(decision) => decision.ok(),
            Asked::Pending(_) => None,
        }
    }

    #[test]
    fn a_response_keeps_its_place_until_it_has_ended_and_its_tokens_count_once() {
        let gateway = gateway();
        gateway.keep_in_background(1, lease(&gateway, 100).unwrap());
        assert!(gateway.admission_gate.background.has(1) && !gateway.admission_gate.background.has(2));
        assert!(lease(&gateway, 1).is_none(), "its place is taken");
        gateway.end_background(2, None);
        gateway.expire_background();
        assert!(lease(&gateway, 1).is_none(), "another one has ended");
        let usage = Usage { prompt_tokens: 300, output_tokens: 300, cached_tokens: None };
        gateway.end_background(1, Some(usage));
        gateway.end_background(1, Some(usage));
        assert!(lease(&gateway, 600).is_none(), "600 of 1,000 tokens are used");
        let next = lease(&gateway, 300).unwrap();
        gateway.keep_in_background(1, next);
        assert!(gateway.admission_gate.background.next_expired(gateway.now()).is_none());
        let later = gateway.now() + RUNNING_MAX.into();
        assert!(gateway.admission_gate.background.next_expired(later).is_some(), "its time is over");
        assert!(gateway.admission_gate.background.next_expired(later).is_none());
    }
}
