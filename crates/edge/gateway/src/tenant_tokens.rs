//! Tokens of a tenant's requests, as engines reported them. Those of responses that ended early are estimated.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use warmroute_types::Usage;

/// Sums over a tenant's responses. They survive a reload of the key file.
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

/// The tokens of a response that ended early. They count unless another worker continues the response.
#[must_use]
pub(crate) struct PartialTokens {
    pub(crate) tenant: Arc<TenantTokens>,
    pub(crate) usage: Usage,
}

impl PartialTokens {
    pub(crate) fn count(self) {
        self.tenant.count(self.usage);
    }
}
