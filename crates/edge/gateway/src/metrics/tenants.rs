//! Metrics of tenants. The key file bounds their names.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;

use crate::current::Current;
use crate::keys::Keys;
use crate::tenant_tokens::TenantTokens;

/// A count of tokens: name, help, and how to read it.
type TokenCount = (&'static str, &'static str, fn(&TenantTokens) -> &Counter);

const TOKENS: [TokenCount; 3] = [
    ("tenant_prompt_tokens", "Prompt tokens that engines reported, by the API key's name", |t| &t.prompt),
    ("tenant_cached_tokens", "Prompt tokens reported as cached, by the API key's name", |t| &t.cached),
    ("tenant_output_tokens", "Output tokens that engines reported, by the API key's name", |t| &t.output),
];

/// Collects the tenants' counters at each scrape.
pub(super) struct TenantCollector(pub Arc<Current<Option<Keys>>>);

impl std::fmt::Debug for TenantCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TenantCollector")
    }
}

impl Collector for TenantCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "Requests with a valid API key, by the key's name";
        let mut family = encoder.encode_descriptor("tenant_requests", help, None, MetricType::Counter)?;
        for tenant in self.0.load().iter().flat_map(Keys::tenants) {
            tenant.requests.encode(family.encode_family(&[("tenant", tenant.name.as_str())])?)?;
        }
        for (name, help, read) in TOKENS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for tenant in self.0.load().iter().flat_map(Keys::tenants) {
                read(&tenant.tokens).encode(family.encode_family(&[("tenant", tenant.name.as_str())])?)?;
            }
        }
        Ok(())
    }
}
