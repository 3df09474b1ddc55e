//! Reads the list of models that an engine serves.

use serde::Deserialize;

#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelCard>,
}

#[derive(Deserialize)]
struct ModelCard {
    id: String,
}

/// Models read from one engine. A base model and its adapters are far fewer.
const MODELS_MAX: usize = 1_024;

/// The model names in a response to `GET /v1/models`; `None` if it is not a list of models.
pub(crate) fn read_models(body: &[u8]) -> Option<Vec<String>> {
    let list: ModelList = serde_json::from_slice(body).ok()?;
    Some(list.data.into_iter().take(MODELS_MAX).map(|card| card.id).collect())
}

#[cfg(test)]
mod tests {
    use super::read_models;

    #[test]
    fn names_are_read_and_the_rest_is_ignored() {
        let body =
            br#"{"object":"list","data":[{"id":"tiny","object":"model","permission":[{}]},{"id":"lora"}]}"#;
        assert_eq!(read_models(body).unwrap(), ["tiny", "lora"]);
        assert_eq!(read_models(b"not found"), None);
    }
}
