//! The place of a request among its tenant's concurrent ones while its body arrives.
//!
//! A body may take minutes. If the request counted only after it, one key could hold every connection of the gateway with
//! bodies that drip. So it counts from its head on, with one token: how many it needs stands in the body.

use std::sync::Arc;

use http::HeaderMap;
use warmroute_admission::{Exceeded, ExpectedTokens, Lease, Limits};

use crate::admission_config::AdmissionConfig;
use crate::admission_gate::AdmissionGate;
use crate::gateway_error::GatewayError;
use crate::keys::Tenant;
use crate::stored_use::NamedObject;

/// A place among the concurrent requests of a tenant. Dropping it gives the place back, and the request does not count.
pub(crate) struct EarlyLease {
    gate: Arc<AdmissionGate>,
    limits: Limits,
    tenant: u64,
    /// `None` once it belongs to the admitted request.
    lease: Option<Lease>,
}

impl EarlyLease {
    /// Counts a request whose head has arrived. `None` if its tenant may have any number of requests.
    pub(crate) async fn take(
        gate: &Arc<AdmissionGate>,
        config: &AdmissionConfig,
        headers: &HeaderMap,
        tenant: Option<&Tenant>,
        named: Option<NamedObject>,
    ) -> Result<Option<EarlyLease>, GatewayError> {
        let limits = tenant.map_or(config.limits, |tenant| tenant.limits.over(config.limits));
        if limits.concurrent == 0 {
            return Ok(None);
        }
        gate.expire_background();
        let tenant = gate.tenant_id(config, headers, tenant);
        let limits = gate.limits_for(limits, tenant, named);
        // A tenant that has no token left need not send its body.
        let prompt = u32::from(!named.is_some_and(|named| named.call.is_free()));
        let least = ExpectedTokens { prompt, answers: 0, answer_max: Some(0) };
        let lease = gate.reserve(tenant, limits, least, None).await;
        let lease = Some(lease.map_err(GatewayError::RateLimited)?);
        Ok(Some(EarlyLease { gate: Arc::clone(gate), limits, tenant, lease }))
    }

    /// The lease of the admitted request. Where tokens are limited, another one takes its place.
    pub(crate) async fn admit(mut self, expected: ExpectedTokens) -> Result<Lease, Exceeded> {
        let lease = self.lease.take();
        match lease {
            Some(lease) if self.limits.tokens_per_minute == 0 => Ok(lease),
            lease => self.gate.reserve(self.tenant, self.limits, expected, lease).await,
        }
    }
}

impl Drop for EarlyLease {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.gate.limits.shared.lock().give_back(&lease);
            self.gate.peers.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::admission_gate::tests::gate;

    /// A gate that lets each tenant have one request at a time, and so many tokens a minute.
    fn gate_for_one(tokens_per_minute: u32) -> Arc<AdmissionGate> {
        let limits = Limits { requests_per_minute: 0, tokens_per_minute, concurrent: 1 };
        let admission = AdmissionConfig { limits, ..AdmissionConfig::default() };
        gate(Config { admission, ..Config::default() })
    }

    async fn take(gate: &Arc<AdmissionGate>) -> Result<Option<EarlyLease>, GatewayError> {
        let config = gate.settings.load();
        EarlyLease::take(gate, &config.admission, &HeaderMap::new(), None, None).await
    }

    const SHORT: ExpectedTokens = ExpectedTokens { prompt: 10, answers: 0, answer_max: Some(0) };

    #[tokio::test]
    async fn a_request_counts_while_its_body_arrives_and_no_longer() {
        let gate = gate_for_one(0);
        let first = take(&gate).await.unwrap();
        assert!(first.is_some());
        assert!(matches!(take(&gate).await, Err(GatewayError::RateLimited(_))));
        drop(first);
        assert!(take(&gate).await.is_ok(), "its client has left");
    }

    #[tokio::test]
    async fn an_admitted_request_keeps_its_place_until_it_is_settled() {
        for tokens_per_minute in [0, 1_000] {
            let gate = gate_for_one(tokens_per_minute);
            let early = take(&gate).await.unwrap().unwrap();
            let lease = early.admit(SHORT).await.unwrap();
            assert!(take(&gate).await.is_err(), "its place is taken");
            gate.limits.settle(&lease, 10);
            assert!(take(&gate).await.is_ok());
        }
    }

    #[tokio::test]
    async fn a_request_gives_its_place_back_if_the_tokens_it_needs_are_not_left() {
        let gate = gate_for_one(1_000);
        let first = take(&gate).await.unwrap().unwrap().admit(SHORT).await.unwrap();
        gate.limits.settle(&first, 500);
        let second = take(&gate).await.unwrap().unwrap();
        assert!(second.admit(ExpectedTokens { prompt: 900, ..SHORT }).await.is_err());
        let third = take(&gate).await.unwrap().unwrap().admit(SHORT).await.unwrap();
        gate.limits.settle(&third, 5_000);
        assert!(take(&gate).await.is_err(), "a tenant without tokens need not send its body");
    }

    #[tokio::test]
    async fn without_a_limit_on_concurrent_requests_none_counts_early() {
        assert!(take(&gate(Config::default())).await.unwrap().is_none());
    }
}
