//! Attacks that once succeeded, with variations: stalled bodies, silent connections, fields that steer engines, evaded
//! limits, lying engines. `docs/security.md` has the list.

mod admin;
mod background;
mod connections;
mod engines;
mod fields;
mod framing;
mod limits;
mod places;
mod queue;
mod streams;
mod tenants;
mod tokens;

use crate::harness::client::{Call, Response, chat};
use crate::harness::temp_folder::TempFolder;

/// A key file with these lines.
pub(crate) fn key_file(name: &str, lines: &str) -> (TempFolder, String) {
    let folder = TempFolder::new(name);
    let keys = folder.file("keys");
    std::fs::write(&keys, lines).unwrap();
    (folder, keys)
}

/// A chat with this key.
pub(crate) fn ask_as(url: &str, key: &str, body: &str) -> Response {
    let authorization = format!("authorization: Bearer {key}");
    let headers = [authorization.as_str(), "content-type: application/json"];
    Call::send(url, "POST", "/v1/chat/completions", &headers, body.as_bytes()).finish()
}

/// The status of a small chat with this key.
fn status_as(url: &str, key: &str) -> u16 {
    ask_as(url, key, &chat("m")).status
}
