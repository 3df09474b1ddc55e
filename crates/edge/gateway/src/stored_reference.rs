//! Names of stored objects: in paths, and what an error says about them.

use http::Method;

/// Paths under which stored objects are.
const RESPONSES: &str = "/v1/responses/";
pub(crate) const CONVERSATIONS: &str = "/v1/conversations";

/// A kind of stored object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredKind {
    Response,
    Conversation,
}

impl StoredKind {
    /// The kind's name at the start of a sentence.
    pub(crate) fn title(self) -> &'static str {
        match self {
            StoredKind::Response => "Response",
            StoredKind::Conversation => "Conversation",
        }
    }

    /// The field of error objects that names the identifier.
    pub(crate) fn param(self) -> &'static str {
        match self {
            StoredKind::Response => "response_id",
            StoredKind::Conversation => "conversation_id",
        }
    }
}

/// An object that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredReference {
    pub(crate) kind: StoredKind,
    pub(crate) id: String,
}

/// Whether the path belongs to a stored object, or to all of them. Escapes in such a path are refused: engines decode
/// them, and identifiers need none.
pub(crate) fn is_stored_path(path: &str) -> bool {
    path.starts_with(RESPONSES) || path == CONVERSATIONS || path.starts_with("/v1/conversations/")
}

/// The object that a path names. `POST /v1/responses/compact` and similar calls name none.
pub(crate) fn reference_in_path(method: &Method, path: &str) -> Option<StoredReference> {
    let (kind, rest) = match path.strip_prefix(RESPONSES) {
        Some(rest) => (StoredKind::Response, rest),
        None => (StoredKind::Conversation, path.strip_prefix(CONVERSATIONS)?.strip_prefix('/')?),
    };
    let (id, is_whole) = rest.split_once('/').map_or((rest, true), |(id, _)| (id, false));
    let is_call = kind == StoredKind::Response && is_whole && *method == Method::POST;
    (!is_call).then(|| StoredReference { kind, id: id.to_owned() })
}
