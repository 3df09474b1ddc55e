//! Requests that wait for their tenant's home to decide, and the exchange of messages about limits with other routers.

use std::collections::BTreeSet;

use tokio::sync::oneshot;
use warmroute_admission::{Exceeded, ExpectedTokens, Lease, LeaseRequest, Limit, LimitMessage, Limits};
use warmroute_peers::Envelope;
use warmroute_types::RouterId;

use crate::admission_gate::AdmissionGate;

impl AdmissionGate {
    /// Asks whether a request may run, and waits for the tenant's home to answer. It takes the place of a lease that it
    /// has already.
    pub(crate) async fn reserve(
        &self,
        tenant: u64,
        limits: Limits,
        expected: ExpectedTokens,
        instead_of: Option<Lease>,
    ) -> Result<Lease, Exceeded> {
        let shared = &self.limits.shared;
        let (answer, answered) = oneshot::channel();
        let asked = {
            let mut shared = shared.lock();
            instead_of.iter().for_each(|lease| shared.give_back(lease));
            shared.ask(tenant, limits, expected, answer, self.clock.now())
        };
        let id = match asked {
            LeaseRequest::Decided(decision) => return decision,
            LeaseRequest::Pending(id) => id,
        };
        self.peers.notify();
        let mut wait = PendingAsk { gate: self, id, answered: Some(answered) };
        let Some(answered) = wait.answered.as_mut() else { return Err(NO_ANSWER) };
        let decision = answered.await;
        wait.answered = None;
        decision.unwrap_or(Err(NO_ANSWER))
    }

    /// Shares tenants' limits with other routers. `seed` is the same on all of them.
    pub(crate) fn share_limits(&self, me: RouterId, seed: u64) {
        self.set_seed(seed);
        self.limits.join(me);
    }

    /// Messages about limits that are due, to these routers.
    pub(crate) fn compose_limits(&self, others: BTreeSet<RouterId>) -> Vec<Envelope> {
        self.expire_background();
        self.limits.tick(others, self.clock.now())
    }

    /// Whether limits are shared with this router.
    pub(crate) fn shares_limits_with(&self, router: RouterId) -> bool {
        self.limits.shared.lock().has_member(router)
    }

    /// Takes another router's messages about limits; returns the answers.
    pub(crate) fn receive_limits(&self, from: RouterId, messages: Vec<LimitMessage>) -> Vec<Envelope> {
        self.limits.receive(from, messages, self.clock.now())
    }
}

/// The sender of an answer is dropped only with the gate.
const NO_ANSWER: Exceeded = Exceeded { limit: Limit::Requests, retry_after_s: 1 };

/// A request that waits for an answer. A client that leaves meanwhile returns what is granted.
struct PendingAsk<'a> {
    gate: &'a AdmissionGate,
    id: u64,
    /// `None` once it is answered.
    answered: Option<oneshot::Receiver<Result<Lease, Exceeded>>>,
}

impl Drop for PendingAsk<'_> {
    fn drop(&mut self) {
        let Some(mut answered) = self.answered.take() else { return };
        let mut shared = self.gate.limits.shared.lock();
        shared.cancel(self.id);
        answered.close();
        if let Ok(Ok(lease)) = answered.try_recv() {
            shared.give_back(&lease);
        }
    }
}
