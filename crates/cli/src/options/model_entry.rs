//! Settings of one model: `[models."NAME"]` of the configuration file.

use serde::{Deserialize, Serialize};

use super::quantity::Count;

/// Settings of one model or adapter. What is absent is as for all models.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table with settings of a model"
)]
pub struct ModelEntry {
    /// The policy for its requests, as `routing.policy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Concurrency limit of a worker for its requests, as `admission.max-concurrent-per-worker`; 0 is unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_per_worker: Option<Count<u32>>,
}
