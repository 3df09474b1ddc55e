//! Tokens of a tenant's requests, as engines reported them.

use prometheus_client::metrics::counter::Counter;
use warmroute_types::Usage;

/// Sums over a tenant's complete responses. They survive a reload of the key file.
#[derive(Debug, Default)]
pub(crate) struct TenantTokens {
    pub(crate) prompt: Counter,
    pub(crate) cached: Counter,
    pub(crate) output: Counter,
}

impl TenantTokens {
    pub(crate) fn count(&self, usage: Usage) {
        self.prompt.inc_by(usage.prompt_tokens.into());
        self.cached.inc_by(usage.cached_tokens.unwrap_or(0).into());
        self.output.inc_by(usage.output_tokens.into());
    }
}
