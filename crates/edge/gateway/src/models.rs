//! `GET /v1/models`: all models of the fleet.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde_json::{Value, json};
use warmroute_fleet::{ModelCard, Models};
use warmroute_policy::Standard;
use warmroute_router::Router;
use warmroute_types::WorkerState;

use crate::Config;
use crate::gateway_error::GatewayError;
use crate::response_body::ResponseBody;

/// All models, including aliases.
pub(crate) fn list(router: &Router<Standard>, config: &Config) -> Response<ResponseBody> {
    let cards: Vec<Value> = catalogue(router, config).iter().map(|(id, model)| model.card(id)).collect();
    answer(&json!({"object": "list", "data": cards}))
}

/// One model.
pub(crate) fn one(
    router: &Router<Standard>,
    config: &Config,
    id: &str,
) -> Result<Response<ResponseBody>, GatewayError> {
    let unknown = || GatewayError::UnknownModel(id.to_owned());
    let catalogue = catalogue(router, config);
    let model = catalogue.get(id).ok_or_else(unknown)?;
    Ok(answer(&model.card(id)))
}

/// A model of the fleet.
#[derive(Clone)]
struct FleetModel {
    /// The name that workers know.
    root: String,
    /// The earliest time that a worker reports.
    created: Option<u64>,
    /// The smallest limit of all workers: a longer prompt may reach a worker that refuses it.
    max_model_len: Option<u64>,
}

impl FleetModel {
    fn new(root: &str) -> FleetModel {
        FleetModel { root: root.to_owned(), created: None, max_model_len: None }
    }

    fn add(&mut self, card: &ModelCard) {
        let least = |known: Option<u64>, more: Option<u64>| known.into_iter().chain(more).min();
        self.created = least(self.created, card.created);
        self.max_model_len = least(self.max_model_len, card.max_model_len);
    }

    fn card(&self, id: &str) -> Value {
        let mut card = json!({
            "id": id, "object": "model", "created": self.created.unwrap_or(0), "owned_by": "warmroute",
            "root": self.root,
        });
        if let Some(tokens) = self.max_model_len {
            card["max_model_len"] = tokens.into();
        }
        card
    }
}

/// The models by the names that clients use. Models of unhealthy workers are listed too, so that the list does not
/// change with every health check.
fn catalogue(router: &Router<Standard>, config: &Config) -> BTreeMap<String, FleetModel> {
    let mut catalogue: BTreeMap<String, FleetModel> = BTreeMap::new();
    for view in router.inspect().workers() {
        let (Models::Named(names), true) = (&view.models, view.load.state != WorkerState::Draining) else {
            continue;
        };
        for name in names.iter() {
            let model = catalogue.entry(name.to_string()).or_insert_with(|| FleetModel::new(name));
            view.model_cards.iter().filter(|card| card.id == *name).for_each(|card| model.add(card));
        }
    }
    for (alias, model) in &config.aliases {
        if let Some(model) = catalogue.get(model).cloned() {
            catalogue.insert(alias.clone(), model);
        }
    }
    catalogue
}

fn answer(value: &Value) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::whole(Bytes::from(value.to_string())));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
