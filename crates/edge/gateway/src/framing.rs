//! How a response is framed: as events or as one document.

use http::{HeaderMap, HeaderValue, header};

/// Framing of a response. It decides how a failure can be reported to the client, and whether a first token is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events: an error event can follow.
    Events,
    /// A single document, which can only be cut off.
    Document,
}

impl Framing {
    pub(crate) fn of(headers: &HeaderMap) -> Framing {
        let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        let is_plain = headers.get(header::CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
        // Compressed events cannot be read, and no event can follow them.
        match kind.starts_with(b"text/event-stream") && is_plain {
            true => Framing::Events,
            false => Framing::Document,
        }
    }
}
