//! Reads the list of models that an engine serves.

use std::sync::Arc;

use serde::Deserialize;
use warmroute_fleet::{ModelCard, Models};

#[derive(Deserialize)]
struct ModelList {
    data: Vec<RawCard>,
}

/// A model as vLLM and SGLang list it. A value of another type counts as absent: it must not hide the model.
#[derive(Deserialize)]
struct RawCard {
    id: String,
    #[serde(default)]
    created: serde_json::Value,
    #[serde(default)]
    max_model_len: serde_json::Value,
    #[serde(default)]
    parent: serde_json::Value,
}

/// Models read from one engine. A base model and its adapters are far fewer.
const MODELS_MAX: usize = 1_024;

/// The models in a response to `GET /v1/models`; `None` if it is not a list of models.
pub(crate) fn read_models(body: &[u8]) -> Option<Vec<ModelCard>> {
    let list: ModelList = serde_json::from_slice(body).ok()?;
    let card = |raw: RawCard| ModelCard {
        created: raw.created.as_u64(),
        max_model_len: raw.max_model_len.as_u64(),
        parent: raw.parent.as_str().filter(|parent| *parent != raw.id).map(Arc::from),
        id: raw.id.into(),
    };
    Some(list.data.into_iter().take(MODELS_MAX).map(card).collect())
}

/// The models' names.
pub(crate) fn names_of(cards: &[ModelCard]) -> Models {
    Models::Named(cards.iter().map(|card| Arc::clone(&card.id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_limits_are_read_and_the_rest_is_ignored() {
        let body = br#"{"object":"list","data":[
            {"id":"tiny","object":"model","created":7,"max_model_len":4096,"permission":[{}]},
            {"id":"lora","created":"yesterday","max_model_len":null,"parent":"tiny"}]}"#;
        let card = |id: &str, created, max_model_len, parent: Option<&str>| ModelCard {
            id: id.into(),
            created,
            max_model_len,
            parent: parent.map(Arc::from),
        };
        let cards = read_models(body).unwrap();
        assert_eq!(cards, [card("tiny", Some(7), Some(4_096), None), card("lora", None, None, Some("tiny"))]);
        assert_eq!(names_of(&cards), Models::named(&["tiny", "lora"]));
        assert_eq!(read_models(b"not found"), None);
    }
}
