//! `GET /v1/models` and what else a replica says about itself without being asked to generate.

use serde_json::{Value, json};

use crate::config::Config;

/// `{"version": …}`: it says plainly that it simulates.
pub(crate) fn version() -> Value {
    json!({"version": concat!("simulated ", env!("CARGO_PKG_VERSION"))})
}

/// The list of served models: the base, then its adapters.
pub(crate) fn list(config: &Config, created_s: u64) -> Value {
    let models: Vec<Value> = config.models().map(|name| model(config, name, created_s)).collect();
    json!({"object": "list", "data": models})
}

fn model(config: &Config, name: &str, created_s: u64) -> Value {
    let parent = (name != config.model).then_some(config.model.as_str());
    json!({
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "warmroute-simulated-engine",
        "root": config.engine.profile.as_str(),
        "parent": parent,
        "max_model_len": config.tokens_max(),
    })
}
