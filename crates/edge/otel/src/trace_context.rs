//! W3C trace context: the headers by which a trace continues from one process to the next.

use std::fmt::{self, Write};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::trace_state::valid_state;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Length of `traceparent` in version 00. Later versions may be longer.
const PARENT_BYTES: usize = 55;

const SAMPLED: u8 = 1;
/// The trace id is random, so that its bits can be used for sampling.
const RANDOM: u8 = 2;

/// Identifies a trace; not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub u128);

/// Identifies a span within its trace; not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(pub u64);

impl TraceId {
    /// The id with these random bits.
    pub fn from_random(bits: u128) -> TraceId {
        TraceId(bits.max(1))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl SpanId {
    /// The id with these random bits.
    pub fn from_random(bits: u64) -> SpanId {
        SpanId(bits.max(1))
    }
}

/// A span's place: its trace, its own id, and whether the trace is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace, which all services of a request share.
    pub trace_id: TraceId,
    /// The span within the trace; the parent of what it causes.
    pub span_id: SpanId,
    flags: u8,
}

/// The context that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteContext {
    /// The client's span.
    pub context: TraceContext,
    /// Other systems' entries (`tracestate`), if there are any and they are valid.
    pub state: Option<Arc<str>>,
}

impl TraceContext {
    /// The first span of a new trace.
    pub fn root(trace_id: TraceId, span_id: SpanId, is_sampled: bool) -> TraceContext {
        TraceContext { trace_id, span_id, flags: RANDOM | u8::from(is_sampled) }
    }

    /// Another span of the same trace.
    pub fn child(self, span_id: SpanId) -> TraceContext {
        TraceContext { span_id, ..self }
    }

    /// Whether spans of the trace are recorded.
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The trace flags.
    pub fn flags(self) -> u8 {
        self.flags
    }

    /// Replaces the `traceparent` of a request that this span sends.
    pub fn inject(self, headers: &mut HeaderMap) {
        let mut text = String::with_capacity(PARENT_BYTES);
        let TraceContext { trace_id, span_id: SpanId(span), flags } = self;
        write!(text, "00-{trace_id}-{span:016x}-{flags:02x}").expect("a string takes everything");
        let value = HeaderValue::try_from(text).expect("hex digits and dashes are a valid header value");
        headers.insert(TRACEPARENT, value);
    }
}

impl RemoteContext {
    /// The context in a request's headers. Headers that do not follow the standard are removed: the request then begins
    /// a new trace, and they reach no worker.
    pub fn extract(headers: &mut HeaderMap) -> Option<RemoteContext> {
        let Some(context) = parent_in(headers) else {
            headers.remove(TRACEPARENT);
            headers.remove(TRACESTATE);
            return None;
        };
        let state = valid_state(headers.get_all(TRACESTATE).iter().map(HeaderValue::as_bytes));
        match state.as_ref().map(|state| HeaderValue::from_str(state)) {
            Some(Ok(value)) => _ = headers.insert(TRACESTATE, value),
            _ => _ = headers.remove(TRACESTATE),
        }
        Some(RemoteContext { context, state: state.map(Arc::from) })
    }
}

/// The only `traceparent`, if it is valid.
fn parent_in(headers: &HeaderMap) -> Option<TraceContext> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let only = values.next().filter(|_| values.next().is_none())?;
    parse_parent(only.as_bytes())
}

fn parse_parent(text: &[u8]) -> Option<TraceContext> {
    let (known, rest) = text.split_at_checked(PARENT_BYTES)?;
    let version = hex(&known[..2])?;
    let is_long_enough = match version {
        0 => rest.is_empty(),
        0xff => return None,
        _ => rest.is_empty() || rest[0] == b'-',
    };
    let has_dashes = [2, 35, 52].iter().all(|&at| known[at] == b'-');
    if !is_long_enough || !has_dashes {
        return None;
    }
    let (trace, span) = (hex(&known[3..35])?, hex(&known[36..52])? as u64);
    let flags = hex(&known[53..])? as u8 & (SAMPLED | RANDOM);
    let is_valid = trace != 0 && span != 0;
    is_valid.then_some(TraceContext { trace_id: TraceId(trace), span_id: SpanId(span), flags })
}

/// A number in lower-case hexadecimal digits.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(rows: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in rows {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_valid_parent_is_taken_and_passed_on_with_the_own_span() {
        let mut sent = headers(&[("traceparent", VALID), ("tracestate", "a=1"), ("tracestate", "b=2")]);
        let remote = RemoteContext::extract(&mut sent).unwrap();
        assert_eq!(remote.context.trace_id, TraceId(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c));
        assert_eq!(remote.context.span_id, SpanId(0xb7ad_6b71_6920_3331));
        assert!(remote.context.is_sampled());
        assert_eq!(remote.state.as_deref(), Some("a=1,b=2"));
        remote.context.child(SpanId(1)).inject(&mut sent);
        let passed = headers(&[
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-0000000000000001-01"),
            ("tracestate", "a=1,b=2"),
        ]);
        assert_eq!(sent, passed);
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        for (text, flags) in
            [(format!("cc{}-what-the-future-brings", &VALID[2..]), 1), (VALID.replace("-01", "-ff"), 3)]
        {
            assert_eq!(parse_parent(text.as_bytes()).unwrap().flags(), flags, "{text}");
        }
    }

    #[test]
    fn invalid_parents_are_removed_with_their_state() {
        let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        for bad in [
            "",
            "00",
            &VALID[..54],
            &format!("{VALID}-00"),
            &VALID.to_uppercase(),
            &VALID.replace("00-0", "ff-0"),
            &VALID.replace("-b7", "_b7"),
            &VALID.replace("9c-", "9g-"),
            &format!("01{}x", &VALID[2..]),
            &zero_trace,
            &zero_span,
        ] {
            let mut sent = headers(&[("traceparent", bad), ("tracestate", "a=1")]);
            assert_eq!(RemoteContext::extract(&mut sent), None, "{bad}");
            assert!(sent.is_empty(), "{bad}");
        }
        let mut twice = headers(&[("traceparent", VALID), ("traceparent", VALID)]);
        assert_eq!(RemoteContext::extract(&mut twice), None);
    }

    #[test]
    fn an_invalid_state_does_not_cost_the_parent() {
        let mut sent = headers(&[("traceparent", VALID), ("tracestate", "no equals sign")]);
        assert_eq!(RemoteContext::extract(&mut sent).unwrap().state, None);
        assert_eq!(sent, headers(&[("traceparent", VALID)]));
    }
}
