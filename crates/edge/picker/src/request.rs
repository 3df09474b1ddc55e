//! What Envoy sends: `envoy.service.ext_proc.v3.ProcessingRequest`, reduced to what the picker reads. Field numbers are
//! those of Envoy's `external_processor.proto`, `base.proto` and protobuf's `struct.proto`.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use warmroute_protobuf::{BadMessage, FieldValue, MessageFields};

/// One message about a request or its response.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProcessingRequest {
    /// `None` if the message is about something that the picker does not know.
    pub event: Option<Event>,
    pub metadata: Metadata,
    /// The sender ignores replies.
    pub is_observing: bool,
    /// What the sender's filter is configured to send; in the first message only.
    pub protocol: Option<ProtocolConfig>,
}

/// A part of a request or of its response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    RequestHeaders(Head),
    RequestBody(BodyPart),
    RequestTrailers,
    ResponseHeaders(Head),
    ResponseBody(BodyPart),
    ResponseTrailers,
}

/// Headers of a request or of a response.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Head {
    pub method: Method,
    pub path: String,
    pub status: Option<StatusCode>,
    pub headers: HeaderMap,
    /// No body follows.
    pub is_end: bool,
}

/// A part of a body.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BodyPart {
    pub bytes: Bytes,
    pub is_end: bool,
}

/// How a filter sends bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BodyMode {
    /// Not at all.
    None,
    /// In parts, each of which is forwarded when it has been answered.
    Streamed,
    /// As a whole, which the filter keeps.
    Buffered,
    /// As a whole up to the filter's buffer size, and then as the part that fits.
    BufferedPartial,
    /// In parts, which the filter does not keep: the picker sends the body back. Filters that do not say how they send
    /// bodies are older than the other modes' use with pickers.
    #[default]
    FullDuplex,
}

impl BodyMode {
    fn of(number: u64) -> BodyMode {
        match number {
            0 => BodyMode::None,
            1 => BodyMode::Streamed,
            2 => BodyMode::Buffered,
            3 => BodyMode::BufferedPartial,
            _ => BodyMode::FullDuplex,
        }
    }
}

/// What a filter is configured to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProtocolConfig {
    pub request_body: BodyMode,
    pub response_body: BodyMode,
}

/// Dynamic metadata of the request, read when it is needed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Metadata(Bytes);

impl ProcessingRequest {
    /// Reads a message. Unknown fields are skipped; of a repeated field, the last one counts.
    pub(crate) fn decode(message: &Bytes) -> Result<ProcessingRequest, BadMessage> {
        let mut request = ProcessingRequest::default();
        for field in MessageFields::of(message) {
            let (number, inner) = match field? {
                (10, FieldValue::Number(is_observing)) => {
                    request.is_observing = is_observing != 0;
                    continue;
                }
                (number, FieldValue::Bytes(inner)) => (number, inner),
                // A field of another type than ours is unknown too.
                (_, FieldValue::Number(_)) => continue,
            };
            match number {
                2 => request.event = Some(Event::RequestHeaders(Head::decode(inner)?)),
                3 => request.event = Some(Event::ResponseHeaders(Head::decode(inner)?)),
                4 => request.event = Some(Event::RequestBody(BodyPart::decode(message, inner)?)),
                5 => request.event = Some(Event::ResponseBody(BodyPart::decode(message, inner)?)),
                6 => request.event = Some(Event::RequestTrailers),
                7 => request.event = Some(Event::ResponseTrailers),
                8 => request.metadata = Metadata(message.slice_ref(inner)),
                11 => request.protocol = Some(ProtocolConfig::decode(inner)?),
                _ => {}
            }
        }
        Ok(request)
    }

    /// Whether nothing of the response follows.
    pub(crate) fn ends_response(&self) -> bool {
        match &self.event {
            Some(Event::ResponseHeaders(head)) => head.is_end,
            Some(Event::ResponseBody(part)) => part.is_end,
            Some(Event::ResponseTrailers) => true,
            _ => false,
        }
    }
}

impl ProtocolConfig {
    fn decode(message: &[u8]) -> Result<ProtocolConfig, BadMessage> {
        // The default of an enum is not sent: a missing mode is `NONE`.
        let mut config = ProtocolConfig { request_body: BodyMode::None, response_body: BodyMode::None };
        for field in MessageFields::of(message) {
            match field? {
                (1, mode) => config.request_body = BodyMode::of(mode.number()),
                (2, mode) => config.response_body = BodyMode::of(mode.number()),
                _ => {}
            }
        }
        Ok(config)
    }
}

impl BodyPart {
    fn decode(message: &Bytes, inner: &[u8]) -> Result<BodyPart, BadMessage> {
        let mut part = BodyPart::default();
        for field in MessageFields::of(inner) {
            match field? {
                (1, body) => part.bytes = message.slice_ref(body.bytes()),
                (2, is_end) => part.is_end = is_end.is_true(),
                _ => {}
            }
        }
        Ok(part)
    }
}

impl Head {
    fn decode(message: &[u8]) -> Result<Head, BadMessage> {
        let mut head = Head::default();
        for field in MessageFields::of(message) {
            match field? {
                (1, map) => {
                    for header in MessageFields::of(map.bytes()) {
                        if let (1, header) = header? {
                            head.add(header)?;
                        }
                    }
                }
                (3, is_end) => head.is_end = is_end.is_true(),
                _ => {}
            }
        }
        Ok(head)
    }

    /// Adds a header. Names and values that HTTP does not allow are dropped.
    fn add(&mut self, header: FieldValue<'_>) -> Result<(), BadMessage> {
        let (mut name, mut text, mut raw) = (&b""[..], &b""[..], &b""[..]);
        for field in MessageFields::of(header.bytes()) {
            match field? {
                (1, value) => name = value.bytes(),
                (2, value) => text = value.bytes(),
                (3, value) => raw = value.bytes(),
                _ => {}
            }
        }
        let value = if raw.is_empty() { text } else { raw };
        match name {
            b":method" => self.method = Method::from_bytes(value).unwrap_or_default(),
            b":path" => self.path = String::from_utf8_lossy(value).into_owned(),
            b":status" => self.status = StatusCode::from_bytes(value).ok(),
            _ => {
                if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
                {
                    self.headers.append(name, value);
                }
            }
        }
        Ok(())
    }
}

impl Metadata {
    /// The strings of a value: of a list, or of one string, split at commas. `None` if there is no such key; a value of
    /// another type has no strings.
    pub(crate) fn strings(&self, namespace: &str, key: &str) -> Option<Vec<String>> {
        let fields = entry(&self.0, namespace)?;
        let value = entry(fields, key)?;
        let mut strings = Vec::new();
        for (number, value) in MessageFields::of(value).flatten() {
            match number {
                3 => strings.extend(text(value).split(',').map(|part| part.trim().to_owned())),
                6 => strings.extend(list(value)),
                _ => {}
            }
        }
        strings.retain(|string| !string.is_empty());
        Some(strings)
    }
}

/// The value of a key in a map, which is field 1 of its message. The last entry counts.
fn entry<'a>(message: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let mut found = None;
    for (_, entry) in MessageFields::of(message).flatten().filter(|(number, _)| *number == 1) {
        let (mut name, mut value) = (&b""[..], &b""[..]);
        for (number, part) in MessageFields::of(entry.bytes()).flatten() {
            match number {
                1 => name = part.bytes(),
                2 => value = part.bytes(),
                _ => {}
            }
        }
        if name == key.as_bytes() {
            found = Some(value);
        }
    }
    found
}

/// The strings of a list.
fn list(value: FieldValue<'_>) -> impl Iterator<Item = String> {
    let values = MessageFields::of(value.bytes()).flatten().filter(|(number, _)| *number == 1);
    let strings = values.flat_map(|(_, value)| MessageFields::of(value.bytes()).flatten());
    strings.filter(|(number, _)| *number == 3).map(|(_, value)| text(value))
}

fn text(value: FieldValue<'_>) -> String {
    String::from_utf8_lossy(value.bytes()).trim().to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use warmroute_protobuf::MessageWriter;

    /// A header map in its field.
    pub(crate) fn write_headers(writer: &mut MessageWriter, headers: &[(&str, &str)]) {
        writer.message(1, |map| {
            for (name, value) in headers {
                map.message(1, |header| {
                    header.bytes(1, name.as_bytes());
                    header.bytes(3, value.as_bytes());
                });
            }
        });
    }

    #[test]
    fn a_message_is_read_and_unknown_fields_are_skipped() {
        let mut writer = MessageWriter::default();
        writer.bytes(99, b"of a later version");
        writer.message(2, |head| {
            let headers = [(":method", "POST"), (":path", "/v1/completions?x"), ("a", "1"), ("a", "2")];
            write_headers(head, &headers);
            head.number(77, 5);
        });
        writer.message(11, |config| {
            config.number(1, 4);
            config.number(9, 1);
        });
        writer.flag(10, true);
        let request = ProcessingRequest::decode(&Bytes::from(writer.finish())).unwrap();
        let Some(Event::RequestHeaders(head)) = request.event else { panic!("{request:?}") };
        assert_eq!((head.method, head.path.as_str()), (Method::POST, "/v1/completions?x"));
        assert_eq!(head.headers.get_all("a").iter().count(), 2);
        assert!(!head.is_end && request.is_observing);
        let (request_body, response_body) = (BodyMode::FullDuplex, BodyMode::None);
        assert_eq!(request.protocol, Some(ProtocolConfig { request_body, response_body }));
    }

    #[test]
    fn a_raw_value_comes_before_a_value_and_names_are_lowered() {
        let mut writer = MessageWriter::default();
        writer.message(2, |head| {
            head.message(1, |map| {
                for (name, value, raw) in [("X-Both", "value", "raw"), ("x-old", "value", "")] {
                    map.message(1, |header| {
                        header.bytes(1, name.as_bytes());
                        header.bytes(2, value.as_bytes());
                        header.bytes(3, raw.as_bytes());
                    });
                }
            });
        });
        let request = ProcessingRequest::decode(&Bytes::from(writer.finish())).unwrap();
        let Some(Event::RequestHeaders(head)) = request.event else { panic!("{request:?}") };
        assert_eq!(head.headers["x-both"], "raw");
        assert_eq!(head.headers["x-old"], "value");
    }

    #[test]
    fn bodies_share_the_messages_memory() {
        let mut writer = MessageWriter::default();
        writer.message(4, |body| {
            body.bytes(1, b"{\"model\"");
            body.flag(2, true);
        });
        let message = Bytes::from(writer.finish());
        let request = ProcessingRequest::decode(&message).unwrap();
        let Some(Event::RequestBody(part)) = request.event else { panic!("{request:?}") };
        assert_eq!((&part.bytes[..], part.is_end), (&b"{\"model\""[..], true));
        assert!(message.as_ptr_range().contains(&part.bytes.as_ptr()));
    }

    /// Metadata with one key in one namespace.
    pub(crate) fn metadata(namespace: &str, key: &str, value: impl FnOnce(&mut MessageWriter)) -> Vec<u8> {
        let mut writer = MessageWriter::default();
        writer.message(1, |entry| {
            entry.bytes(1, namespace.as_bytes());
            entry.message(2, |fields| {
                fields.message(1, |entry| {
                    entry.bytes(1, key.as_bytes());
                    entry.message(2, value);
                });
            });
        });
        writer.finish()
    }

    #[test]
    fn a_subset_is_a_list_or_a_string_and_an_unreadable_one_allows_nothing() {
        let strings = |value: fn(&mut MessageWriter)| {
            Metadata(metadata("ns", "key", value).into()).strings("ns", "key")
        };
        let expected = Some(vec!["10.0.0.1:8000".to_owned(), "10.0.0.2:8000".to_owned()]);
        let as_list = |value: &mut MessageWriter| {
            value.message(6, |list| {
                for address in ["10.0.0.1:8000", "10.0.0.2:8000"] {
                    list.message(1, |value| value.bytes(3, address.as_bytes()));
                }
            });
        };
        assert_eq!(strings(as_list), expected);
        assert_eq!(strings(|value| value.bytes(3, b"10.0.0.1:8000, 10.0.0.2:8000")), expected);
        assert_eq!(strings(|value| value.bytes(3, b"")), Some(vec![]));
        assert_eq!(strings(|value| value.number(4, 1)), Some(vec![]));
        let other = Metadata(metadata("ns", "key", |_| {}).into());
        assert_eq!((other.strings("ns", "other"), other.strings("other", "key")), (None, None));
    }
}
