//! Whose requests came in, written when somebody asks. The names are those of the file of keys, so they are bounded by it.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;

use crate::current::Current;
use crate::keys::Keys;

/// The tenants' own series.
pub(super) struct TenantCollector(pub Arc<Current<Option<Keys>>>);

impl std::fmt::Debug for TenantCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TenantCollector")
    }
}

impl Collector for TenantCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "Requests that came with a key of this name";
        let mut family = encoder.encode_descriptor("tenant_requests", help, None, MetricType::Counter)?;
        for tenant in self.0.load().iter().flat_map(Keys::tenants) {
            tenant.requests.encode(family.encode_family(&[("tenant", tenant.name.as_str())])?)?;
        }
        Ok(())
    }
}
