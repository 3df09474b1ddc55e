//! The KV events endpoint of a worker in the configuration.

use serde::{Deserialize, Serialize};

/// The KV events endpoint of an engine's first rank; each further rank uses the next port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a table such as { endpoint = \"tcp://*:5557\" }, or { endpoint = \"off\" }"
)]
pub struct EventsEntry {
    /// `tcp://HOST:PORT`; a `*` means the worker's host. `bind` expects the engine at our own endpoint, `poll` polls
    /// TensorRT-LLM over HTTP, `off` disables events for the engine.
    pub endpoint: String,
    /// The replay endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// The topic of its messages, if it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub topic: String,
}
