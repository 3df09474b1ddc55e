//! Responses and conversations that engines store for clients: each request that names one goes to the worker that has
//! it, and only with the key that made it.
//!
//! ```text
//! POST /v1/responses ──▶ worker 2 ──▶ {"id":"resp_1", …} ──▶ IdWatch: resp_1 is on worker 2, of tenant a
//! GET  /v1/responses/resp_1, or {"previous_response_id":"resp_1"}, of tenant a ──▶ worker 2
//!                                                                  of tenant b ──▶ 404, as for an unknown id
//! ```
//!
//! The router keeps the places (`warmroute_router`), shares them with its peers and saves them. An object of another
//! tenant is answered exactly like one that never existed, after the same time.

use std::time::Duration;

use http::Method;
use tokio::time::{Instant, sleep};
use warmroute_policy::Standard;
use warmroute_prompt::Api;
use warmroute_router::Router;
use warmroute_types::WorkerId;

use crate::admission_gate::AdmissionGate;
use crate::gateway_error::GatewayError;
use crate::keys::Tenant;
use crate::parsed_request::ParsedRequest;
use crate::stored_reference::{CONVERSATIONS, StoredKind, StoredReference, reference_in_path};
use crate::stored_use::NamedObject;
use crate::token::digest;

/// How long a request waits for peers to tell about an object that was just made at another router.
const PEERS_WAIT_MAX: Duration = Duration::from_millis(300);

/// How often it looks.
const PEERS_WAIT_STEP: Duration = Duration::from_millis(10);

/// The hash of an identifier, the same on every router.
pub(crate) fn hash_of(kind: StoredKind, id: &str) -> u128 {
    let digest = digest(format!("warmroute stored {} {id}", kind.param()).as_bytes());
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    u128::from_le_bytes(half)
}

/// The object that a path names.
pub(crate) fn named_object(method: &Method, path: &str) -> Option<NamedObject> {
    let (reference, call) = reference_in_path(method, path)?;
    Some(NamedObject { id: hash_of(reference.kind, &reference.id), call })
}

/// The hash of a tenant, the same on every router and after a restart.
fn owner_of(tenant: Option<&Tenant>) -> u64 {
    let Some(tenant) = tenant else { return 0 };
    let digest = digest(format!("warmroute owner {}", tenant.name).as_bytes());
    let mut half = [0; 8];
    half.copy_from_slice(&digest[..8]);
    // Zero stands for no tenant.
    u64::from_le_bytes(half).max(1)
}

/// Completes what is known about a request's stored objects: the worker that has those it names, and the owner of
/// what it stores. Refuses a request for an object that its tenant does not have.
pub(crate) async fn settle(
    request: &mut ParsedRequest,
    gate: &AdmissionGate,
    method: &Method,
    path: &str,
    tenant: Option<&Tenant>,
) -> Result<(), GatewayError> {
    let api = Api::of_path(path);
    let makes = match api {
        Api::Responses if !request.stored.forbids_storing => Some(StoredKind::Response),
        Api::Chat if request.stored.asks_to_store => Some(StoredKind::Completion),
        Api::Other if path == CONVERSATIONS && *method == Method::POST => Some(StoredKind::Conversation),
        _ => None,
    };
    request.stored.stores = makes.map(|kind| (kind, owner_of(tenant)));
    if *method != Method::POST && path == CONVERSATIONS {
        // A list of all tenants' conversations.
        return if tenant.is_some() { Err(GatewayError::UnknownPath(path.to_owned())) } else { Ok(()) };
    }
    request.stored.is_background &= api == Api::Responses;
    if let Some((reference, _)) = reference_in_path(method, path) {
        request.stored.named = named_object(method, path);
        // Fields of the body may name others, and the tenant must have all of them.
        request.stored.references.push(reference);
    } else if matches!(api, Api::Chat | Api::Completions | Api::Messages | Api::Generate) {
        // These APIs do not know the fields.
        request.stored.references.clear();
        request.stored.item = None;
    }
    let has_items = |path: &str| path.contains("responses") || path.contains("conversations");
    if let (Some(id), Some(_)) = (&request.stored.item, tenant)
        && has_items(path)
    {
        let (kind, id) = (StoredKind::Item, id.clone());
        return Err(GatewayError::StoredNotFound(StoredReference { kind, id }));
    }
    for reference in &request.stored.references {
        let found = find(&gate.router, reference, tenant).await;
        if let (Err(GatewayError::StoredLost(_)), StoredKind::Response) = (&found, reference.kind) {
            // Its worker has gone, so it is not computed any more.
            gate.end_background(hash_of(reference.kind, &reference.id), None);
        }
        let worker = found?;
        match (worker, request.stored.worker) {
            (Some(worker), Some(other)) if worker != other => {
                return Err(GatewayError::StoredApart(reference.clone()));
            }
            (worker, other) => request.stored.worker = other.or(worker),
        }
    }
    Ok(())
}

/// The worker that stores an object of this tenant; `None` if the object is unknown and there are no tenants, so that any
/// worker may answer.
async fn find(
    router: &Router<Standard>,
    reference: &StoredReference,
    tenant: Option<&Tenant>,
) -> Result<Option<WorkerId>, GatewayError> {
    let (id, owner) = (hash_of(reference.kind, &reference.id), owner_of(tenant));
    let is_ours = |owner_there: u64| tenant.is_none() || owner_there == owner;
    let deadline = Instant::now() + PEERS_WAIT_MAX;
    let stored = loop {
        let stored = router.inspect().stored_response(id);
        match stored.filter(|stored| is_ours(stored.owner)) {
            Some(stored) => break stored,
            None if router.peering().is_sharing() && Instant::now() < deadline => {
                sleep(PEERS_WAIT_STEP).await;
            }
            None if tenant.is_none() => return Ok(None),
            None => return Err(GatewayError::StoredNotFound(reference.clone())),
        }
    };
    let workers = router.inspect().workers();
    let worker = workers.iter().find(|view| view.worker.identity == stored.worker);
    match worker {
        Some(view) => Ok(Some(view.worker.id)),
        None => Err(GatewayError::StoredLost(reference.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored_reference::StoredCall;

    #[test]
    fn paths_name_responses_and_conversations() {
        let found = |method: Method, path: &str| {
            reference_in_path(&method, path).map(|(reference, _)| (reference.kind, reference.id))
        };
        let response = |id: &str| Some((StoredKind::Response, id.to_owned()));
        let completion = |id: &str| Some((StoredKind::Completion, id.to_owned()));
        let conversation = |id: &str| Some((StoredKind::Conversation, id.to_owned()));
        for (method, path, expected) in [
            (Method::GET, "/v1/responses/resp_1", response("resp_1")),
            (Method::DELETE, "/v1/responses/resp_1", response("resp_1")),
            (Method::POST, "/v1/responses/resp_1/cancel", response("resp_1")),
            (Method::GET, "/v1/responses/resp_1/input_items", response("resp_1")),
            (Method::POST, "/v1/responses/compact", None),
            (Method::POST, "/v1/responses/input_tokens", None),
            (Method::POST, "/v1/responses/resp_1", response("resp_1")),
            (Method::GET, "/v1/responses/compact", response("compact")),
            (Method::GET, "/v1/chat/completions/chatcmpl-1", completion("chatcmpl-1")),
            (Method::POST, "/v1/chat/completions/chatcmpl-1", completion("chatcmpl-1")),
            (Method::GET, "/v1/chat/completions/chatcmpl-1/messages", completion("chatcmpl-1")),
            (Method::POST, "/v1/conversations", None),
            (Method::POST, "/v1/conversations/conv_1", conversation("conv_1")),
            (Method::GET, "/v1/conversations/conv_1/items/msg_1", conversation("conv_1")),
            (Method::POST, "/v1/responses", None),
            (Method::POST, "/v1/chat/completions", None),
        ] {
            assert_eq!(found(method, path), expected, "{path}");
        }
    }

    #[test]
    fn only_the_whole_object_is_read_deleted_or_cancelled() {
        for (method, path, expected) in [
            (Method::GET, "/v1/responses/resp_1", StoredCall::Read),
            (Method::GET, "/v1/responses/resp_1/input_items", StoredCall::Part),
            (Method::GET, "/v1/responses/resp_1/cancel", StoredCall::Part),
            (Method::HEAD, "/v1/responses/resp_1", StoredCall::Part),
            (Method::DELETE, "/v1/responses/resp_1", StoredCall::Delete),
            (Method::DELETE, "/v1/responses/resp_1/x", StoredCall::Part),
            (Method::POST, "/v1/responses/resp_1/cancel", StoredCall::Cancel),
            (Method::POST, "/v1/responses/resp_1/cancel/x", StoredCall::Change),
            (Method::POST, "/v1/responses/resp_1", StoredCall::Change),
        ] {
            assert_eq!(named_object(&method, path).unwrap().call, expected, "{method} {path}");
        }
    }
}
