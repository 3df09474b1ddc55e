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
