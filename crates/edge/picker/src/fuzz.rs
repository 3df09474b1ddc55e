//! Fuzz target: streams decode the same however they are cut, in bounded memory, and what is read can be written again.

use bytes::Bytes;
use warmroute_fuzz::cuttings;

use crate::grpc::MessageDecoder;
use crate::request::{Event, ProcessingRequest};
use warmroute_protobuf::{FieldValue, MessageFields, MessageWriter};

const BYTES_MAX: usize = 4_096;

/// The bytes of a stream as a proxy may send them.
pub fn ext_proc(input: &[u8]) {
    let [whole, others @ ..] = cuttings(input).map(|pieces| read(&pieces));
    others.iter().for_each(|read| assert_eq!(*read, whole));
    whole.0.iter().for_each(message_keeps_its_bounds);
    // Corpus files are messages too.
    message_keeps_its_bounds(&Bytes::copy_from_slice(input));
}

/// The messages, and the error at the end.
fn read(pieces: &[&[u8]]) -> (Vec<Bytes>, Option<String>) {
    let (mut decoder, mut messages) = (MessageDecoder::new(BYTES_MAX), Vec::new());
    for piece in pieces {
        decoder.push(Bytes::copy_from_slice(piece));
        loop {
            match decoder.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error.to_string())),
            }
        }
    }
    (messages, None)
}

fn message_keeps_its_bounds(message: &Bytes) {
    let fields: Result<Vec<_>, _> = MessageFields::of(message).collect();
    let decoded = ProcessingRequest::decode(message);
    let Ok(fields) = fields else {
        assert!(decoded.is_err(), "a message with a bad field is refused as a whole");
        return;
    };
    let rewritten = Bytes::from(rewritten(&fields));
    let Ok(request) = decoded else { return };
    let again = ProcessingRequest::decode(&rewritten).expect("what could be read can be read again");
    let parts =
        |request: &ProcessingRequest| (request.event.clone(), request.metadata.clone(), request.protocol);
    assert_eq!(parts(&again), parts(&request));
    let held = match &request.event {
        Some(Event::RequestHeaders(head) | Event::ResponseHeaders(head)) => {
            head.path.len() / 3
                + head.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>()
        }
        Some(Event::RequestBody(part) | Event::ResponseBody(part)) => part.bytes.len(),
        _ => 0,
    };
    assert!(held <= message.len(), "{held} bytes of {}", message.len());
    for (namespace, key) in
        [("envoy.lb", "x"), ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")]
    {
        let strings = request.metadata.strings(namespace, key).unwrap_or_default();
        assert!(strings.iter().all(|string| !string.is_empty() && string.trim() == string));
    }
}

/// The same fields, as we write them. Fixed numbers become ordinary ones.
fn rewritten(fields: &[(u64, FieldValue<'_>)]) -> Vec<u8> {
    let mut writer = MessageWriter::default();
    for (field, value) in fields {
        match value {
            FieldValue::Bytes(bytes) => writer.bytes(*field, bytes),
            FieldValue::Number(number) => writer.number(*field, *number),
        }
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    #[test]
    fn streams_of_proxies() {
        warmroute_fuzz::try_out("ext_proc", super::ext_proc);
    }
}
