//! What the picker sends: `envoy.service.ext_proc.v3.ProcessingResponse`.

use bytes::Bytes;
use http::Response;
use warmroute_gateway::HeaderChanges;

use warmroute_protobuf::MessageWriter;

/// The header and metadata key that names the chosen endpoint.
pub(crate) const DESTINATION: &str = "x-gateway-destination-endpoint";

/// The metadata namespace of load balancing.
pub(crate) const LB_NAMESPACE: &str = "envoy.lb";

/// The metadata key by which an observing filter names a pick.
pub(crate) const PICK_ID: &str = "x-warmroute-pick";

/// The response header of conformance tests that names the endpoint which answered.
const TEST_SERVED: &str = "x-conformance-test-served-endpoint";

/// The part of a request or response that a reply is about. The numbers are the reply's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    RequestHeaders = 1,
    ResponseHeaders = 2,
    RequestBody = 3,
    ResponseBody = 4,
    RequestTrailers = 5,
    ResponseTrailers = 6,
}

/// The field of an `ImmediateResponse`.
const IMMEDIATE: u64 = 7;

/// Where a request goes.
#[derive(Clone, Debug)]
pub(crate) struct Route<'a> {
    /// `IP:PORT`, or several with commas.
    pub destination: String,
    pub headers: &'a HeaderChanges,
    /// Names the pick to an observing filter.
    pub pick_id: Option<String>,
}

/// Goes on without a change.
pub(crate) fn proceed(phase: Phase) -> Vec<u8> {
    let mut writer = MessageWriter::default();
    writer.message(phase as u64, |_| {});
    writer.finish()
}

/// Lets the headers of a response pass. `served` names the endpoint that answered, for conformance tests.
pub(crate) fn response_headers(served: Option<&str>) -> Vec<u8> {
    let mut writer = MessageWriter::default();
    writer.message(Phase::ResponseHeaders as u64, |reply| {
        served.into_iter().for_each(|served| {
            reply.message(1, |common| {
                common.message(2, |mutation| set_header(mutation, TEST_SERVED, served.as_bytes()));
            });
        });
    });
    writer.finish()
}

/// The choice, in reply to headers or to a body. `body` replaces the body that the filter keeps.
pub(crate) fn routed(phase: Phase, route: &Route<'_>, body: Option<&[u8]>) -> Vec<u8> {
    let mut writer = MessageWriter::default();
    writer.message(phase as u64, |reply| {
        // Trailers cannot change headers; the metadata below names the endpoint.
        if phase == Phase::RequestTrailers {
            return;
        }
        reply.message(1, |common| {
            common.message(2, |mutation| header_mutation(mutation, route));
            body.into_iter().for_each(|body| common.message(3, |mutation| mutation.bytes(1, body)));
            common.flag(5, true);
        });
    });
    writer.message(8, |metadata| {
        struct_field(metadata, LB_NAMESPACE, |value| {
            value.message(5, |fields| {
                struct_field(fields, DESTINATION, |value| value.bytes(3, route.destination.as_bytes()));
                route.pick_id.iter().for_each(|id| {
                    struct_field(fields, PICK_ID, |value| value.bytes(3, id.as_bytes()));
                });
            });
        });
    });
    writer.finish()
}

fn header_mutation(mutation: &mut MessageWriter, route: &Route<'_>) {
    set_header(mutation, DESTINATION, route.destination.as_bytes());
    route.headers.set.iter().for_each(|(name, value)| set_header(mutation, name.as_str(), value.as_bytes()));
    route.headers.remove.iter().for_each(|name| mutation.bytes(2, name.as_str().as_bytes()));
}

/// Sets a header in place of all its values. Envoy reads `raw_value` only.
fn set_header(mutation: &mut MessageWriter, name: &str, value: &[u8]) {
    mutation.message(1, |option| {
        option.message(1, |header| {
            header.bytes(1, name.as_bytes());
            header.bytes(3, value);
        });
        // OVERWRITE_IF_EXISTS_OR_ADD. The default would append, and a client's own value would stay first.
        option.number(3, 2);
    });
}

/// One entry of a struct.
fn struct_field(fields: &mut MessageWriter, key: &str, value: impl FnOnce(&mut MessageWriter)) {
    fields.message(1, |entry| {
        entry.bytes(1, key.as_bytes());
        entry.message(2, value);
    });
}

/// The beginning of a reply that sends a part of a body back. The `length` bytes of the part follow it, uncopied.
pub(crate) fn body_part(phase: Phase, length: usize, is_end: bool) -> Vec<u8> {
    let mut part = MessageWriter::default();
    part.flag(2, is_end);
    part.bytes_follow(1, length);
    // Lengths count the bytes that follow, so each level is written from the inside out.
    let mut message = part.finish();
    for field in [3, 3, 1, phase as u64] {
        let mut outer = MessageWriter::default();
        outer.bytes_follow(field, message.len() + length);
        let mut outer = outer.finish();
        outer.extend_from_slice(&message);
        message = outer;
    }
    message
}

/// Answers the client in place of a worker.
pub(crate) fn immediate(response: &Response<Bytes>, details: &str) -> Vec<u8> {
    let mut writer = MessageWriter::default();
    writer.message(IMMEDIATE, |reply| {
        reply.message(1, |status| status.number(1, response.status().as_u16().into()));
        reply.message(2, |mutation| {
            for (name, value) in response.headers() {
                set_header(mutation, name.as_str(), value.as_bytes());
            }
        });
        reply.bytes(3, response.body());
        reply.bytes(5, details.as_bytes());
    });
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute_protobuf::MessageFields;

    /// The nested message at this path of field numbers.
    fn at<'a>(message: &'a [u8], path: &[u64]) -> Option<&'a [u8]> {
        let Some((field, rest)) = path.split_first() else { return Some(message) };
        let found = MessageFields::of(message).map(Result::unwrap).find(|(number, _)| number == field);
        at(found?.1.bytes(), rest)
    }

    #[test]
    fn header_and_metadata_name_the_same_endpoint() {
        let headers = HeaderChanges::default();
        let route = Route { destination: "10.0.0.1:8000".to_owned(), headers: &headers, pick_id: None };
        let reply = routed(Phase::RequestHeaders, &route, None);
        assert_eq!(at(&reply, &[1, 1, 2, 1, 1, 1]), Some(DESTINATION.as_bytes()));
        assert_eq!(at(&reply, &[1, 1, 2, 1, 1, 3]), Some(&b"10.0.0.1:8000"[..]));
        assert_eq!(at(&reply, &[8, 1, 1]), Some(LB_NAMESPACE.as_bytes()));
        assert_eq!(at(&reply, &[8, 1, 2, 5, 1, 1]), Some(DESTINATION.as_bytes()));
        assert_eq!(at(&reply, &[8, 1, 2, 5, 1, 2, 3]), Some(&b"10.0.0.1:8000"[..]));
        assert_eq!(at(&reply, &[1, 1, 3]), None, "the body is not replaced");
    }

    #[test]
    fn a_body_part_is_a_whole_message_with_the_bytes_that_follow() {
        for length in [0, 1, 120, 127, 128, 16_000, 70_000] {
            for is_end in [false, true] {
                let mut message = body_part(Phase::RequestBody, length, is_end);
                message.extend(std::iter::repeat_n(b'x', length));
                let part = at(&message, &[3, 1, 3, 3]).unwrap();
                assert_eq!(at(part, &[1]).unwrap(), vec![b'x'; length]);
                let end = MessageFields::of(part).flatten().find(|(number, _)| *number == 2);
                assert_eq!(end.is_some_and(|(_, value)| value.is_true()), is_end);
            }
        }
    }
}
