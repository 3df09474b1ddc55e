//! Headers on their way through: what is stripped, set and created.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use warmroute_prompt::Api;
use warmroute_router::Decision;

use crate::keys::Tenant;
use crate::random::random;
use crate::{ClientCredentials, Config, Forwarded, WorkerChoice};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const WORKER: HeaderName = HeaderName::from_static("x-warmroute-worker");
const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// Longer request ids than this are replaced: they go into logs and response headers.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Headers that speak about one connection and must not be passed to the next (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Removes what belongs to the connection, also what its `Connection` header names.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        // As bytes: one odd byte in such a list must not save what else it names.
        let values = headers.get_all(header::CONNECTION).into_iter().map(HeaderValue::as_bytes);
        let names = values.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
        let names: Vec<HeaderName> = names.filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
        names.iter().for_each(|name| _ = headers.remove(name));
    }
    HOP_BY_HOP.iter().for_each(|name| _ = headers.remove(name));
}

/// Removes what a client could say in somebody else's name: ours, or a proxy's before us.
fn strip_spoofable(headers: &mut HeaderMap, forwarded: Forwarded) {
    let is_forwarded = |name: &str| {
        name.starts_with("x-forwarded-") || matches!(name, "forwarded" | "x-real-ip" | "true-client-ip")
    };
    let is_spoofable = |name: &&HeaderName| {
        name.as_str().starts_with("x-warmroute-")
            || (forwarded == Forwarded::Drop && is_forwarded(name.as_str()))
    };
    let spoofable: Vec<HeaderName> = headers.keys().filter(is_spoofable).cloned().collect();
    spoofable.iter().for_each(|name| _ = headers.remove(name));
}

/// The worker that a client asks for, where it may.
pub(crate) fn requested_worker(headers: &HeaderMap, choice: WorkerChoice) -> Option<String> {
    let chosen = headers.get(WORKER).filter(|_| choice == WorkerChoice::Clients)?;
    Some(String::from_utf8_lossy(chosen.as_bytes()).into_owned())
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
pub(crate) fn towards_worker(
    headers: &mut HeaderMap,
    api: Api,
    request_id: &HeaderValue,
    forwarded: Forwarded,
) {
    strip_hop_by_hop(headers);
    strip_spoofable(headers, forwarded);
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

/// Leaves a worker only the credentials that are its business. A key that let a client in here must not be one of them by accident:
/// whoever runs a worker could use it.
pub(crate) fn set_credentials(headers: &mut HeaderMap, config: &Config, tenant: Option<&Tenant>) {
    let ours = config.dialer.authorization();
    let is_passed = match config.client_credentials {
        ClientCredentials::Auto => tenant.is_none() && ours.is_none(),
        ClientCredentials::Pass => true,
        ClientCredentials::Drop => false,
    };
    if !is_passed {
        headers.remove(header::AUTHORIZATION);
        headers.remove("x-api-key");
    }
    if let Some(ours) = ours {
        headers.insert(header::AUTHORIZATION, ours);
    }
}

/// Addresses the request to one worker.
pub(crate) fn address_to(headers: &mut HeaderMap, host: &HeaderValue, rank: Option<u16>) {
    headers.insert(header::HOST, host.clone());
    if let Some(rank) = rank {
        headers.insert(DATA_PARALLEL_RANK, HeaderValue::from(rank));
    }
}

/// What they take, as they were sent.
pub(crate) fn size_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum()
}

/// Says how the request was routed.
pub(crate) fn add_decision(headers: &mut HeaderMap, decision: &Decision) {
    let worker = HeaderValue::from_str(&decision.worker.label);
    let worker = worker.unwrap_or_else(|_| HeaderValue::from_static("unprintable"));
    headers.insert(WORKER, worker);
    headers.insert("x-warmroute-policy", HeaderValue::from_static(decision.policy));
    headers.insert("x-warmroute-reason", HeaderValue::from_static(decision.reason));
    // A policy that does not look at caches predicts nothing, which is not the same as none.
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
            ("x-warmroute-worker", "http://mine"),
            ("x-forwarded-for", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("proxy-connection", "keep-alive"),
        ]);
        let mut trusting = headers.clone();
        let id = HeaderValue::from_static("id-1");
        towards_worker(&mut headers, Api::Chat, &id, Forwarded::Drop);
        assert_eq!(headers, map(&[("authorization", "Bearer k"), ("x-request-id", "id-1")]));
        towards_worker(&mut trusting, Api::Chat, &id, Forwarded::Pass);
        assert!(trusting.contains_key("x-forwarded-for") && !trusting.contains_key("x-warmroute-worker"));
    }

    #[test]
    fn an_odd_byte_saves_nothing_that_the_connection_names() {
        let mut headers = map(&[("x-secret-hop", "1"), ("x-other", "1")]);
        let odd = HeaderValue::from_bytes(b"\xff, X-Secret-Hop").unwrap();
        headers.insert(header::CONNECTION, odd);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("x-other", "1")]));
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
