//! What a request has to do with stored objects.

use warmroute_prompt::Body;
use warmroute_types::WorkerId;

use crate::gateway_error::GatewayError;
use crate::stored_reference::{StoredCall, StoredKind, StoredReference};

/// What a request has to do with stored objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredUse {
    /// The objects that the request continues, reads or changes.
    pub(crate) references: Vec<StoredReference>,
    /// The first stored item that stands in the input by its identifier only; looked for where tenants are told apart.
    pub(crate) item: Option<String>,
    /// The client forbids to store the response.
    pub(crate) forbids_storing: bool,
    /// The client asks to store it.
    pub(crate) asks_to_store: bool,
    /// The kind and the owner of what the response stores; `None` if it stores nothing.
    pub(crate) stores: Option<(StoredKind, u64)>,
    /// Whether the engine answers before it has computed the response.
    pub(crate) is_background: bool,
    /// The object that the path names: the request reads, changes or cancels what was computed before.
    pub(crate) named: Option<NamedObject>,
    /// The worker that has the objects.
    pub(crate) worker: Option<WorkerId>,
}

/// The object that a path names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedObject {
    /// The hash of its identifier.
    pub(crate) id: u128,
    pub(crate) call: StoredCall,
}

impl StoredUse {
    /// Whether the request costs no tokens.
    pub(crate) fn is_free(&self) -> bool {
        self.named.is_some_and(|named| named.call.is_free())
    }

    /// What a body says.
    pub(crate) fn of_body(body: &Body<'_>) -> StoredUse {
        let response = (StoredKind::Response, body.previous_response());
        let named = [response, (StoredKind::Conversation, body.conversation())];
        let references = named.into_iter().filter_map(|(kind, id)| {
            let id = String::from_utf8_lossy(&id?).into_owned();
            Some(StoredReference { kind, id })
        });
        StoredUse {
            references: references.collect(),
            item: None,
            forbids_storing: body.forbids_storing(),
            asks_to_store: body.asks_to_store(),
            stores: None,
            is_background: body.is_background(),
            named: None,
            worker: None,
        }
    }

    /// A refusal of the request, in words of the object whose worker was needed.
    pub(crate) fn explain(&self, refusal: GatewayError) -> GatewayError {
        match (refusal, self.references.first(), self.worker) {
            (GatewayError::NotReady | GatewayError::WorkersFull, Some(reference), Some(_)) => {
                GatewayError::StoredNotReady(reference.clone())
            }
            (refusal, ..) => refusal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_objects_that_a_body_names_are_found() {
        let of = |json: &str| {
            let used = StoredUse::of_body(&Body::read(json.as_bytes()).unwrap());
            used.references.into_iter().map(|reference| (reference.kind, reference.id)).collect::<Vec<_>>()
        };
        let (response, conversation) =
            ((StoredKind::Response, "r".to_owned()), (StoredKind::Conversation, "c".to_owned()));
        let both = r#"{"conversation":"c","previous_response_id":"r"}"#;
        assert_eq!(of(both), [response, conversation.clone()]);
        assert_eq!(of(r#"{"conversation":{"id":"c"}}"#), [conversation]);
        assert_eq!(of("{}"), []);
    }
}
