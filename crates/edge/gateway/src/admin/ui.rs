//! `/ui`: the live console. `/ui` is the page, `/ui/stream` its server-sent events, `/ui/request?number=` one request
//! with all its candidates.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderValue, Response, StatusCode, header};

use super::workers::parameter;
use super::{AdminError, AdminResult, as_json, explain};
use crate::console::{AdminBody, TooManyPages, subscribe};
use crate::drain::Drain;
use crate::fleet_notes::FleetNotes;
use crate::forwarding::Forwarding;

const TOO_MANY_PAGES: &str = "too many console pages are open";
const BAD_NUMBER: &str = "missing or bad parameter: GET /ui/request?number=N";
const GONE: &str = "the request is no longer kept";

/// `GET /ui/stream`.
pub(super) fn stream(
    forwarding: &Arc<Forwarding>,
    notes: &Arc<FleetNotes>,
    drain: &Drain,
) -> Result<Response<AdminBody>, AdminError> {
    let refused = |TooManyPages| AdminError(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_PAGES.to_owned());
    let mut response = Response::new(subscribe(forwarding, notes, drain).map_err(refused)?);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// `GET /ui/request?number=N`.
pub(super) fn request(forwarding: &Forwarding, query: &str) -> AdminResult {
    let number = parameter(query, "number").and_then(|number| number.parse().ok());
    let number = number.ok_or_else(|| AdminError(StatusCode::BAD_REQUEST, BAD_NUMBER.to_owned()))?;
    let Forwarding { router, observers, .. } = forwarding;
    let past = observers.console.row(number).or_else(|| observers.history.find(number));
    let past = past.ok_or_else(|| AdminError(StatusCode::NOT_FOUND, GONE.to_owned()))?;
    Ok(as_json(&explain::describe_past(router, &past, SystemTime::now())))
}
