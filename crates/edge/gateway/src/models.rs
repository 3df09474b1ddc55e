//! `GET /v1/models`: all models of the fleet.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde_json::{Value, json};
use warmroute_fleet::Models;
use warmroute_types::WorkerState;

use crate::gateway::Gateway;
use crate::gateway_error::GatewayError;
use crate::response_body::ResponseBody;

/// All models, including aliases.
pub(crate) fn list(gateway: &Gateway) -> Response<ResponseBody> {
    let cards: Vec<Value> = catalogue(gateway).iter().map(|(id, root)| card(id, root)).collect();
    answer(&json!({"object": "list", "data": cards}))
}

/// One model.
pub(crate) fn one(gateway: &Gateway, id: &str) -> Result<Response<ResponseBody>, GatewayError> {
    let unknown = || GatewayError::UnknownModel(id.to_owned());
    let catalogue = catalogue(gateway);
    let root = catalogue.get(id).ok_or_else(unknown)?;
    Ok(answer(&card(id, root)))
}

/// Model names and the models that serve them. Models of unhealthy workers are listed too, so that the list does not
/// change with every health check.
fn catalogue(gateway: &Gateway) -> BTreeMap<String, String> {
    let mut catalogue = BTreeMap::new();
    for view in gateway.router.inspect().workers() {
        if let (Models::Named(names), true) = (view.models, view.load.state != WorkerState::Draining) {
            catalogue.extend(names.iter().map(|name| (name.to_string(), name.to_string())));
        }
    }
    for (alias, model) in &gateway.config().aliases {
        if catalogue.contains_key(model) {
            catalogue.insert(alias.clone(), model.clone());
        }
    }
    catalogue
}

fn card(id: &str, root: &str) -> Value {
    json!({"id": id, "object": "model", "created": 0, "owned_by": "warmroute", "root": root})
}

fn answer(value: &Value) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::whole(Bytes::from(value.to_string())));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
