//! Settings of single models: a policy and a limit that differ from the fleet's.

use std::collections::BTreeMap;

/// Settings of one model. What is absent is as for all models.
#[derive(Clone, Debug)]
pub struct ModelRules<P> {
    /// The policy for its requests.
    pub policy: Option<P>,
    /// Concurrency limit of a worker for its requests, in requests of any model; 0: no limit.
    pub in_flight_max: Option<u32>,
}

/// Settings by model.
pub type ModelRuleTable<P> = BTreeMap<String, ModelRules<P>>;

/// The settings of a request's model.
pub(crate) fn rules_of<'a, P>(
    table: &'a ModelRuleTable<P>,
    model: Option<&str>,
) -> Option<&'a ModelRules<P>> {
    table.get(model.filter(|_| !table.is_empty())?)
}
