//! OTLP: a request with spans, and the collector's answer, as Protocol Buffers. Numbers are the fields' numbers in
//! `opentelemetry/proto/collector/trace/v1/trace_service.proto` and the files that it imports.

use std::time::{SystemTime, UNIX_EPOCH};

use warmroute_protobuf::{BadMessage, MessageFields, MessageWriter};

use crate::trace_span::{AttributeValue, Attributes, SpanEvent, SpanStatus, TraceSpan};
use crate::{SpanId, TraceId};

/// The name of this instrumentation.
const SCOPE: &str = "warmroute";

/// `STATUS_CODE_ERROR`.
const CODE_ERROR: u64 = 2;

/// Bits of a span's flags above the trace flags: it is known whether the parent is remote, and it is.
const KNOWS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// An `ExportTraceServiceRequest`.
pub(crate) fn encode_request(resource: &[(String, String)], spans: &[TraceSpan]) -> Vec<u8> {
    let mut request = MessageWriter::default();
    request.message(1, |resource_spans| {
        resource_spans.message(1, |writer| {
            for (name, value) in resource {
                write_attribute(writer, 1, name, |writer| writer.bytes(1, value.as_bytes()));
            }
        });
        resource_spans.message(2, |scope_spans| {
            scope_spans.message(1, |scope| {
                scope.bytes(1, SCOPE.as_bytes());
                scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
            });
            spans.iter().for_each(|span| scope_spans.message(2, |writer| write_span(writer, span)));
        });
    });
    request.finish()
}

fn write_span(writer: &mut MessageWriter, span: &TraceSpan) {
    let TraceId(trace_id) = span.context.trace_id;
    let SpanId(span_id) = span.context.span_id;
    writer.bytes(1, &trace_id.to_be_bytes());
    writer.bytes(2, &span_id.to_be_bytes());
    if let Some(state) = &span.state {
        writer.bytes(3, state.as_bytes());
    }
    if let Some(SpanId(parent)) = span.parent {
        writer.bytes(4, &parent.to_be_bytes());
    }
    writer.bytes(5, span.name.as_bytes());
    writer.number(6, span.kind as u64);
    writer.fixed64(7, nanos(span.start));
    writer.fixed64(8, nanos(span.end));
    write_attributes(writer, 9, &span.attributes);
    span.events.iter().for_each(|event| writer.message(11, |writer| write_event(writer, event)));
    if let SpanStatus::Error(why) = span.status {
        writer.message(15, |status| {
            status.bytes(2, why.as_bytes());
            status.number(3, CODE_ERROR);
        });
    }
    let remote = if span.is_parent_remote { IS_REMOTE } else { 0 };
    writer.fixed32(16, u32::from(span.context.flags()) | KNOWS_REMOTE | remote);
}

fn write_event(writer: &mut MessageWriter, event: &SpanEvent) {
    writer.fixed64(1, nanos(event.at));
    writer.bytes(2, event.name.as_bytes());
    write_attributes(writer, 3, &event.attributes);
}

fn write_attributes(writer: &mut MessageWriter, field: u64, attributes: &Attributes) {
    for (name, value) in attributes.iter() {
        write_attribute(writer, field, name, |writer| match value {
            AttributeValue::Text(text) => writer.bytes(1, text.as_bytes()),
            AttributeValue::Bool(is_true) => writer.present_number(2, u64::from(*is_true)),
            // A negative number is written in two's complement.
            AttributeValue::Int(number) => writer.present_number(3, *number as u64),
            AttributeValue::Double(number) => writer.fixed64(4, number.to_bits()),
        });
    }
}

fn write_attribute(
    writer: &mut MessageWriter,
    field: u64,
    name: &str,
    write_value: impl FnOnce(&mut MessageWriter),
) {
    writer.message(field, |pair| {
        pair.bytes(1, name.as_bytes());
        pair.message(2, write_value);
    });
}

/// Nanoseconds since 1970, until the year 2554.
fn nanos(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Spans that the collector refused, by its `ExportTraceServiceResponse`.
pub(crate) fn rejected_spans(response: &[u8]) -> Result<u64, BadMessage> {
    let mut rejected = 0;
    for field in MessageFields::of(response) {
        let (1, partial) = field? else { continue };
        for field in MessageFields::of(partial.bytes()) {
            if let (1, count) = field? {
                rejected = count.number();
            }
        }
    }
    Ok(rejected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use warmroute_protobuf::FieldValue;

    use crate::{SpanKind, TraceContext};

    /// Bytes of all fields with this number.
    fn fields(message: &[u8], number: u64) -> Vec<FieldValue<'_>> {
        let fields = MessageFields::of(message).map(Result::unwrap);
        fields.filter(|(field, _)| *field == number).map(|(_, value)| value).collect()
    }

    fn only(message: &[u8], number: u64) -> FieldValue<'_> {
        let found = fields(message, number);
        assert_eq!(found.len(), 1, "field {number}");
        found[0]
    }

    fn span() -> TraceSpan {
        let mut attributes = Attributes::default();
        attributes.add("text", "value");
        attributes.add("zero", 0_u32);
        attributes.add("half", 0.5_f64);
        attributes.add("no", false);
        let at = UNIX_EPOCH + Duration::from_nanos(1_500);
        TraceSpan {
            context: TraceContext::root(TraceId(7), SpanId(8), true),
            parent: Some(SpanId(9)),
            is_parent_remote: true,
            state: Some("a=1".into()),
            name: "GET /x".into(),
            kind: SpanKind::Client,
            start: UNIX_EPOCH + Duration::from_nanos(1_000),
            end: UNIX_EPOCH + Duration::from_nanos(2_000),
            attributes,
            events: vec![SpanEvent { at, name: "first token", attributes: Attributes::default() }],
            status: SpanStatus::Error("failed"),
        }
    }

    #[test]
    fn a_request_contains_resource_scope_and_spans() {
        let resource = [("service.name".to_owned(), "w".to_owned())];
        let request = encode_request(&resource, &[span(), span()]);
        let resource_spans = only(&request, 1).bytes();
        let pair = only(only(resource_spans, 1).bytes(), 1).bytes();
        assert_eq!(only(pair, 1).bytes(), b"service.name");
        assert_eq!(only(only(pair, 2).bytes(), 1).bytes(), b"w");
        let scope_spans = only(resource_spans, 2).bytes();
        assert_eq!(only(only(scope_spans, 1).bytes(), 1).bytes(), b"warmroute");
        assert_eq!(fields(scope_spans, 2).len(), 2);
    }

    #[test]
    fn every_field_of_a_span_is_written() {
        let mut writer = MessageWriter::default();
        write_span(&mut writer, &span());
        let span = writer.finish();
        assert_eq!(only(&span, 1).bytes(), 7_u128.to_be_bytes());
        assert_eq!(only(&span, 2).bytes(), 8_u64.to_be_bytes());
        assert_eq!(only(&span, 3).bytes(), b"a=1");
        assert_eq!(only(&span, 4).bytes(), 9_u64.to_be_bytes());
        assert_eq!(only(&span, 5).bytes(), b"GET /x");
        assert_eq!(only(&span, 6).number(), 3);
        assert_eq!((only(&span, 7).number(), only(&span, 8).number()), (1_000, 2_000));
        assert_eq!(only(&span, 16).number(), 0x303);
        let event = only(&span, 11).bytes();
        assert_eq!((only(event, 1).number(), only(event, 2).bytes()), (1_500, &b"first token"[..]));
        let status = only(&span, 15).bytes();
        assert_eq!((only(status, 2).bytes(), only(status, 3).number()), (&b"failed"[..], 2));
        let values = fields(&span, 9).into_iter().map(|pair| only(pair.bytes(), 2).bytes().to_vec());
        let values: Vec<Vec<u8>> = values.collect();
        assert_eq!(only(&values[0], 1).bytes(), b"value");
        assert_eq!(only(&values[1], 3).number(), 0, "0 is not the same as nothing");
        assert_eq!(only(&values[2], 4).number(), 0.5_f64.to_bits());
        assert_eq!(only(&values[3], 2).number(), 0);
    }

    #[test]
    fn a_collector_says_how_many_spans_it_refused() {
        assert_eq!(rejected_spans(b""), Ok(0));
        let mut response = MessageWriter::default();
        response.message(1, |partial| {
            partial.number(1, 3);
            partial.bytes(2, b"too old");
        });
        assert_eq!(rejected_spans(&response.finish()), Ok(3));
        assert!(rejected_spans(b"<html>").is_err());
    }
}
