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
//! Only the status of the response itself counts, or that its worker does not know it any more. What cannot be read, and what
//! a client did not wait for, counts as running. A response that no client asks for is settled by what was reserved when
//! its time is over. The gateway does not ask the engine itself: what a tenant leaves open counts against that tenant only.

use std::time::Duration;

use warmroute_admission::{Lease, Limits};
use warmroute_types::Usage;

use crate::admission_gate::AdmissionGate;
use crate::random::random;
use crate::stored_use::NamedObject;

/// How long a response counts as running, where `request-timeout-secs` does not say it.
const RUNNING_MAX: Duration = Duration::from_secs(600);

impl AdmissionGate {
    /// Keeps the limits of a response that the engine may still compute. Without its identifier they are kept until its time
    /// is over.
    pub(crate) fn keep_in_background(&self, id: Option<u128>, tenant: u64, lease: Lease) {
        let running_max = self.settings.load().timeouts.total.unwrap_or(RUNNING_MAX);
        let id = id.unwrap_or_else(|| (u128::from(random()) << 64) | u128::from(random()));
        if let Some(lease) = self.background.keep(id, tenant, lease, self.clock.now() + running_max.into()) {
            self.limits.settle(&lease, lease.tokens());
        }
    }

    /// The limits of a request of this tenant. Responses that are computed in the background hold places but no
    /// connections. So requests for one of them may have as many beside it as the tenant may have requests: a client with
    /// one place can ask for its response, and no client gets more connections than places. One more may cancel or delete.
    pub(crate) fn limits_for(&self, limits: Limits, tenant: u64, named: Option<NamedObject>) -> Limits {
        let Some(NamedObject { id, call }) = named.filter(|named| named.call.is_free()) else {
            return limits;
        };
        let held = self.background.held_beside(id, tenant);
        let more = if held > 0 { held + u32::from(call.frees()) } else { 0 };
        match limits.concurrent {
            0 => limits,
            concurrent => Limits { concurrent: concurrent.saturating_add(more), ..limits },
        }
    }

    /// Settles a response that has ended. Without usage, what was reserved counts.
    pub(crate) fn end_background(&self, id: u128, usage: Option<Usage>) {
        let Some(lease) = self.background.take(id) else { return };
        let tokens = usage.map(|usage| usage.prompt_tokens.saturating_add(usage.output_tokens));
        self.limits.settle(&lease, tokens.unwrap_or(lease.tokens()));
        self.peers.notify();
    }

    /// Settles responses whose time is over.
    pub(crate) fn expire_background(&self) {
        while let Some(lease) = self.background.next_expired(self.clock.now()) {
            self.limits.settle(&lease, lease.tokens());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_admission::{ExpectedTokens, LeaseRequest};

    use crate::Config;
    use crate::admission_gate::tests::gate;

    const ONE_AT_A_TIME: Limits = Limits { requests_per_minute: 0, tokens_per_minute: 1_000, concurrent: 1 };

    fn lease(gate: &AdmissionGate, tokens: u32) -> Option<Lease> {
        let expected = ExpectedTokens { prompt: tokens, answers: 0, answer_max: Some(0) };
        let (answer, _) = tokio::sync::oneshot::channel();
        let mut limits = gate.limits.shared.lock();
        match limits.ask(7, ONE_AT_A_TIME, expected, answer, gate.clock.now()) {
            LeaseRequest::Decided(decision) => decision.ok(),
            LeaseRequest::Pending(_) => None,
        }
    }

    #[test]
    fn a_response_keeps_its_place_until_it_has_ended_and_its_tokens_count_once() {
        let gate = gate(Config::default());
        gate.keep_in_background(Some(1), 7, lease(&gate, 100).unwrap());
        let held = |id, tenant| gate.background.held_beside(id, tenant);
        assert_eq!((held(1, 7), held(2, 7), held(1, 8)), (1, 0, 0));
        assert!(lease(&gate, 1).is_none(), "its place is taken");
        gate.end_background(2, None);
        gate.expire_background();
        assert!(lease(&gate, 1).is_none(), "another one has ended");
        let usage = Usage { prompt_tokens: 300, output_tokens: 300, cached_tokens: None };
        gate.end_background(1, Some(usage));
        gate.end_background(1, Some(usage));
        assert!(lease(&gate, 600).is_none(), "600 of 1,000 tokens are used");
        let next = lease(&gate, 300).unwrap();
        gate.keep_in_background(Some(1), 7, next);
        assert!(gate.background.next_expired(gate.clock.now()).is_none());
        let later = gate.clock.now() + RUNNING_MAX.into();
        assert!(gate.background.next_expired(later).is_some(), "its time is over");
        assert!(gate.background.next_expired(later).is_none());
    }
}
