//! The count of prompts that could not be rendered as their engine does.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::{ReasonLabel, start_at_zero};

/// Reasons why a prompt cannot be rendered in its engine's format.
const REASONS: [&str; 12] = [
    "api",
    "busy",
    "harmony",
    "nothing_to_continue",
    "no_template",
    "own_template",
    "setting",
    "several_prompts",
    "shape",
    "template_failed",
    "tokenizer_failed",
    "unknown_token",
];

/// Counts the prompts that could not be rendered, by reason. Clones count together.
#[derive(Clone)]
pub(crate) struct UnrenderedPrompts(pub(super) Family<ReasonLabel, Counter>);

impl Default for UnrenderedPrompts {
    fn default() -> UnrenderedPrompts {
        let counts = Family::default();
        start_at_zero(&counts, &REASONS);
        UnrenderedPrompts(counts)
    }
}

impl UnrenderedPrompts {
    /// Counts a prompt that could not be rendered.
    pub(crate) fn count(&self, reason: &'static str) {
        self.0.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Prompts that could not be rendered for this reason.
    #[cfg(test)]
    pub(crate) fn of(&self, reason: &'static str) -> u64 {
        self.0.get_or_create(&ReasonLabel { reason }).get()
    }
}
