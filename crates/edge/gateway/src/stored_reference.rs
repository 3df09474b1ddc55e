//! Names of stored objects: in paths, and what an error says about them.

use http::Method;

/// Paths under which stored objects are.
const RESPONSES: &str = "/v1/responses/";
const COMPLETIONS: &str = "/v1/chat/completions/";
pub(crate) const CONVERSATIONS: &str = "/v1/conversations";

/// A kind of stored object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredKind {
    Response,
    Conversation,
    Completion,
    /// A part of a response or conversation. Who made one is not known here.
    Item,
}

impl StoredKind {
    /// The kind's name at the start of a sentence.
    pub(crate) fn title(self) -> &'static str {
        match self {
            StoredKind::Response => "Response",
            StoredKind::Conversation => "Conversation",
            StoredKind::Completion => "Completion",
            StoredKind::Item => "Item",
        }
    }

    /// The field of error objects that names the identifier.
    pub(crate) fn param(self) -> &'static str {
        match self {
            StoredKind::Response => "response_id",
            StoredKind::Conversation => "conversation_id",
            StoredKind::Completion => "completion_id",
            StoredKind::Item => "input",
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
    let is_below = [RESPONSES, COMPLETIONS, "/v1/conversations/"].iter().any(|start| path.starts_with(start));
    is_below || path == CONVERSATIONS
}

/// What a request does with the object that its path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredCall {
    /// Reads the object itself.
    Read,
    /// Stops a response that is computed.
    Cancel,
    Delete,
    /// Reads a part of it, such as its input.
    Part,
    /// Anything else.
    Change,
}

impl StoredCall {
    fn of(method: &Method, rest: &str, id: &str) -> StoredCall {
        let is_whole = rest == id;
        match *method {
            Method::GET if is_whole => StoredCall::Read,
            Method::DELETE if is_whole => StoredCall::Delete,
            Method::POST if rest.strip_prefix(id) == Some("/cancel") => StoredCall::Cancel,
            Method::GET | Method::HEAD | Method::DELETE => StoredCall::Part,
            _ => StoredCall::Change,
        }
    }

    /// Whether it costs no tokens: what it shows was computed, and charged, before.
    pub(crate) fn is_free(self) -> bool {
        self != StoredCall::Change
    }

    /// Whether it ends what is computed.
    pub(crate) fn frees(self) -> bool {
        matches!(self, StoredCall::Cancel | StoredCall::Delete)
    }
}

/// Calls of the Responses API that have the place of an identifier.
const CALLS: [&str; 2] = ["compact", "input_tokens"];

/// The object that a path names, and what the request does with it. `POST /v1/responses/compact` and similar calls name
/// none.
pub(crate) fn reference_in_path(method: &Method, path: &str) -> Option<(StoredReference, StoredCall)> {
    let (kind, rest) = if let Some(rest) = path.strip_prefix(RESPONSES) {
        (StoredKind::Response, rest)
    } else if let Some(rest) = path.strip_prefix(COMPLETIONS) {
        (StoredKind::Completion, rest)
    } else {
        (StoredKind::Conversation, path.strip_prefix(CONVERSATIONS)?.strip_prefix('/')?)
    };
    let is_call = kind == StoredKind::Response && *method == Method::POST && CALLS.contains(&rest);
    let id = rest.split('/').next().unwrap_or_default();
    let call = StoredCall::of(method, rest, id);
    (!is_call).then(|| (StoredReference { kind, id: id.to_owned() }, call))
}
