//! Headers on their way through: what is stripped, set and created.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use warmroute_prompt::Api;
use warmroute_router::Decision;

use crate::random::random;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// Longer request ids than this are replaced: they go into logs and response headers.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Headers that speak about one connection and must not be passed to the next (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Removes what belongs to the connection, also what its `Connection` header names.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderValue> = headers.get_all(header::CONNECTION).iter().cloned().collect();
        let names =
            named.iter().flat_map(|value| value.to_str().unwrap_or_default().split(',')).map(str::trim);
        names.filter(|name| !name.is_empty()).for_each(|name| _ = headers.remove(name));
    }
    HOP_BY_HOP.iter().for_each(|name| _ = headers.remove(name));
}

/// Makes a worker's headers fit for the client.
pub(crate) fn towards_client(headers: &mut HeaderMap) {
    // Of two framings the chunks are the true one; a length beside them would cut the answer short.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    strip_hop_by_hop(headers);
}

/// The client's request id if it is a sane one, else a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_sane = |id: &&HeaderValue| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(REQUEST_ID).filter(is_sane).cloned().unwrap_or_else(new_request_id)
}

fn new_request_id() -> HeaderValue {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bits = u128::from(random()) << 64 | u128::from(random());
    let digits: [u8; 32] = std::array::from_fn(|i| HEX[(bits >> (4 * i)) as usize & 15]);
    HeaderValue::from_bytes(&digits).expect("hex digits are a valid header value")
}

/// Makes a client's headers fit for a worker. The rank is ours to say: a client cannot choose a worker.
pub(crate) fn towards_worker(headers: &mut HeaderMap, api: Api, request_id: &HeaderValue) {
    strip_hop_by_hop(headers);
    if api != Api::Other {
        // These answers are read on their way, and an error may have to be added to them.
        headers.remove(header::ACCEPT_ENCODING);
    }
    // The body's length is what we send: hyper writes it.
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::EXPECT);
    headers.remove(DATA_PARALLEL_RANK);
    headers.insert(REQUEST_ID, request_id.clone());
}

/// Addresses the request to one worker.
pub(crate) fn address_to(headers: &mut HeaderMap, host: &HeaderValue, rank: Option<u16>) {
    headers.insert(header::HOST, host.clone());
    if let Some(rank) = rank {
        headers.insert(DATA_PARALLEL_RANK, HeaderValue::from(rank));
    }
}

/// Says how the request was routed.
pub(crate) fn describe(headers: &mut HeaderMap, decision: &Decision) {
    let worker = HeaderValue::from_str(&decision.worker.label);
    let worker = worker.unwrap_or_else(|_| HeaderValue::from_static("unprintable"));
    headers.insert("x-warmroute-worker", worker);
    headers.insert("x-warmroute-policy", HeaderValue::from_static(decision.policy));
    headers.insert("x-warmroute-reason", HeaderValue::from_static(decision.reason));
    // A policy that does not look at caches predicts nothing, which is not the same as none.
    let cached = decision.cached_tokens.map_or(HeaderValue::from_static("unknown"), HeaderValue::from);
    headers.insert("x-warmroute-cached-tokens", cached);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(rows: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |&(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        rows.iter().map(pair).for_each(|(name, value)| _ = headers.append(name, value));
        headers
    }

    #[test]
    fn what_belongs_to_the_connection_stays_there() {
        let mut headers = map(&[
            ("connection", "close, x-secret-hop"),
            ("connection", "x-other-hop"),
            ("x-secret-hop", "1"),
            ("x-other-hop", "1"),
            ("accept-encoding", "gzip"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("x-data-parallel-rank", "3"),
            ("authorization", "Bearer k"),
        ]);
        towards_worker(&mut headers, Api::Chat, &HeaderValue::from_static("id-1"));
        assert_eq!(headers, map(&[("authorization", "Bearer k"), ("x-request-id", "id-1")]));
    }

    #[test]
    fn a_sane_request_id_is_kept_and_others_are_replaced() {
        assert_eq!(request_id(&map(&[("x-request-id", "abc-1")])), "abc-1");
        for bad in ["", "with space", &"x".repeat(129)] {
            let id = request_id(&map(&[("x-request-id", bad)]));
            assert!(id != bad && id.len() == 32);
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
