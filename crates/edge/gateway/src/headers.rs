//! Headers of forwarded requests and responses: which are removed, set and added.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use warmroute_prompt::Api;
use warmroute_router::Decision;

use crate::cached_tokens::CachedTokens;
use crate::keys::Tenant;
use crate::random::random;
use crate::{ClientCredentials, Config, Forwarded, WorkerChoice};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const WORKER: HeaderName = HeaderName::from_static("x-warmroute-worker");
pub(crate) const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// Headers with a client's credentials.
pub(crate) const CREDENTIALS: [HeaderName; 2] = [header::AUTHORIZATION, HeaderName::from_static("x-api-key")];
/// Longer request ids are replaced, because request ids go into logs and response headers.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Whether a header applies to one connection and must not be forwarded (RFC 9110, 7.6.1).
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "keep-alive"
            | "proxy-connection"
    )
}

/// Removes hop-by-hop headers, including those named in `Connection`.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    strip_hop_by_hop_and(headers, |_| false);
}

/// Removes hop-by-hop headers, including those named in `Connection`, and others.
fn strip_hop_by_hop_and(headers: &mut HeaderMap, is_removed: impl Fn(&str) -> bool) {
    if headers.contains_key(header::CONNECTION) {
        // Split as bytes: one invalid byte in the list must not protect the other names.
        let values = headers.get_all(header::CONNECTION).into_iter().map(HeaderValue::as_bytes);
        let names = values.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
        let names: Vec<HeaderName> = names.filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
        names.iter().for_each(|name| _ = headers.remove(name));
    }
    // One pass over the few headers of a request is cheaper than a lookup of each name that it could have.
    let is_one = |name: &&HeaderName| is_hop_by_hop(name.as_str()) || is_removed(name.as_str());
    let removed: Vec<HeaderName> = headers.keys().filter(is_one).cloned().collect();
    removed.iter().for_each(|name| _ = headers.remove(name));
}

/// Whether other gateways, or engines behind them, choose workers by this header.
fn is_steering(name: &str) -> bool {
    matches!(
        name,
        "x-data-parallel-host-port"
            | "x-decode-instance-id"
            | "x-dp-rank"
            | "x-encoder-hosts-ports"
            | "x-gateway-destination-endpoint"
            | "x-prefill-instance-id"
            | "x-prefiller-host-port"
            | "x-prefiller-url"
            | "x-smg-routing-key"
            | "x-smg-target-worker"
            | "x-worker-id"
            | "x-worker-instance-id"
    )
}

/// The headers by which a client would steer engines or the router. The destination that a picker sets is not one of them.
pub(crate) fn steering(headers: &HeaderMap) -> Vec<HeaderName> {
    let steers = |name: &&HeaderName| {
        let is_ours = name.as_str().starts_with("x-warmroute-");
        is_ours || (is_steering(name.as_str()) && *name != "x-gateway-destination-endpoint")
    };
    headers.keys().filter(steers).cloned().collect()
}

/// Whether a client could forge this header: ours, that of a proxy in front of us, or one that chooses workers.
fn is_spoofable(name: &str, forwarded: Forwarded) -> bool {
    let is_forwarded = |name: &str| {
        name.starts_with("x-forwarded-") || matches!(name, "forwarded" | "x-real-ip" | "true-client-ip")
    };
    name.starts_with("x-warmroute-")
        || is_steering(name)
        || (forwarded == Forwarded::Drop && is_forwarded(name))
}

/// The worker that the client requests, if clients may.
pub(crate) fn requested_worker(headers: &HeaderMap, choice: WorkerChoice) -> Option<String> {
    let chosen = headers.get(WORKER).filter(|_| choice == WorkerChoice::Clients)?;
    Some(String::from_utf8_lossy(chosen.as_bytes()).into_owned())
}

/// Prepares a worker's headers for the client.
pub(crate) fn towards_client(headers: &mut HeaderMap) {
    // If both are present, the chunked framing is the true one. A wrong length would truncate the response.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    strip_hop_by_hop(headers);
}

/// The client's request id if valid, else a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_sane = |id: &&HeaderValue| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers.get(REQUEST_ID).filter(is_sane).cloned().unwrap_or_else(new_request_id)
}

fn new_request_id() -> HeaderValue {
    HeaderValue::try_from([hex_digits(), hex_digits()].concat()).expect("hex digits are a valid header value")
}

/// The id under which one attempt of a request runs in a worker: the request's, and digits that no client knows. vLLM names
/// requests by this header, so an id that a client chose could meet, or end, another request with that id, also an
/// earlier attempt of the same one.
pub(crate) fn worker_request_id(request_id: &HeaderValue) -> HeaderValue {
    HeaderValue::try_from([request_id.as_bytes(), b"-", &hex_digits()].concat())
        .expect("a header value and hex digits are a valid header value")
}

fn hex_digits() -> [u8; 16] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bits = random();
    std::array::from_fn(|i| HEX[(bits >> (4 * i)) as usize & 15])
}

/// Prepares a client's headers for a worker. What each attempt sets itself is removed: host, id, rank (clients cannot choose a
/// worker with it), and the length of the body that is actually sent.
pub(crate) fn towards_worker(headers: &mut HeaderMap, api: Api, forwarded: Forwarded) {
    strip_hop_by_hop_and(headers, |name| match name {
        "host" | "content-length" | "expect" => true,
        // The gateway reads these responses and may have to append an error, so they must not be compressed.
        "accept-encoding" => api != Api::Other,
        name => *name == REQUEST_ID || *name == DATA_PARALLEL_RANK || is_spoofable(name, forwarded),
    });
}

/// Sets the credentials that a worker sees. A client's gateway key must not reach workers by default, because a
/// worker's operator could use it.
pub(crate) fn set_credentials(headers: &mut HeaderMap, config: &Config, tenant: Option<&Tenant>) {
    if !passes_credentials(config, tenant) {
        CREDENTIALS.iter().for_each(|name| _ = headers.remove(name));
    }
    if let Some(ours) = config.dialer.authorization() {
        headers.insert(header::AUTHORIZATION, ours);
    }
}

/// Whether a worker sees the client's credentials.
pub(crate) fn passes_credentials(config: &Config, tenant: Option<&Tenant>) -> bool {
    match config.client_credentials {
        ClientCredentials::Auto => tenant.is_none() && config.dialer.authorization().is_none(),
        ClientCredentials::Pass => true,
        ClientCredentials::Drop => false,
    }
}

/// Size of the headers as sent, in bytes.
pub(crate) fn size_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum()
}

/// Adds the routing decision to a response.
pub(crate) fn add_decision(headers: &mut HeaderMap, decision: &Decision, cached_tokens: CachedTokens) {
    let worker = HeaderValue::from_str(&decision.worker.label);
    let worker = worker.unwrap_or_else(|_| HeaderValue::from_static("unprintable"));
    headers.insert(WORKER, worker);
    headers.insert("x-warmroute-policy", HeaderValue::from_static(decision.policy));
    headers.insert("x-warmroute-reason", HeaderValue::from_static(decision.reason));
    if cached_tokens == CachedTokens::Hidden {
        // The reason and the expected time tell what is cached too.
        headers.remove("x-warmroute-reason");
        return;
    }
    // A policy that ignores caches predicts nothing, which is not the same as zero.
    let cached = decision.cached_tokens.map_or(HeaderValue::from_static("unknown"), HeaderValue::from);
    headers.insert("x-warmroute-cached-tokens", cached);
    headers.insert(
        "x-warmroute-expected-ttft-ms",
        HeaderValue::from(decision.expected_ttft_ms().round() as u64),
    );
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
    fn hop_by_hop_and_forgeable_headers_are_not_forwarded() {
        let mut headers = map(&[
            ("connection", "close, x-secret-hop"),
            ("connection", "x-other-hop"),
            ("x-secret-hop", "1"),
            ("x-other-hop", "1"),
            ("accept-encoding", "gzip"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("host", "gateway"),
            ("x-request-id", "mine"),
            ("x-data-parallel-rank", "3"),
            ("authorization", "Bearer k"),
            ("x-warmroute-worker", "http://mine"),
            ("x-forwarded-for", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("proxy-connection", "keep-alive"),
        ]);
        let mut trusting = headers.clone();
        towards_worker(&mut headers, Api::Chat, Forwarded::Drop);
        assert_eq!(headers, map(&[("authorization", "Bearer k")]));
        towards_worker(&mut trusting, Api::Chat, Forwarded::Pass);
        assert!(trusting.contains_key("x-forwarded-for") && !trusting.contains_key("x-warmroute-worker"));
    }

    #[test]
    fn an_invalid_byte_in_the_connection_header_protects_no_name() {
        let mut headers = map(&[("x-secret-hop", "1"), ("x-other", "1")]);
        let odd = HeaderValue::from_bytes(b"\xff, X-Secret-Hop").unwrap();
        headers.insert(header::CONNECTION, odd);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("x-other", "1")]));
    }

    #[test]
    fn a_valid_request_id_is_kept_and_others_are_replaced() {
        assert_eq!(request_id(&map(&[("x-request-id", "abc-1")])), "abc-1");
        for bad in ["", "with space", &"x".repeat(129)] {
            let id = request_id(&map(&[("x-request-id", bad)]));
            assert!(id != bad && id.len() == 32);
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
        let id = HeaderValue::from_static("abc-1");
        let attempts = [worker_request_id(&id), worker_request_id(&id)];
        assert!(
            attempts[0] != attempts[1]
                && attempts.iter().all(|id| id.to_str().unwrap().starts_with("abc-1-"))
        );
    }
}
