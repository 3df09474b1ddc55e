//! Heads: clients cannot forge headers, and no path means something else to a worker than to the gateway.
//!
//! The input is a path, then one header per line.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use warmroute_prompt::Api;
use warmroute_wire::{Dialer, TlsFiles, percent_decoded};

use crate::client_path::{DECODINGS_MAX, is_client_path};
use crate::headers::{request_id, set_credentials, towards_client, towards_worker};
use crate::status_class::StatusClass;
use crate::{ClientCredentials, Config, Forwarded};

/// The head of a request or of a response.
pub fn head(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let path = lines.next().and_then(|path| std::str::from_utf8(path).ok()).unwrap_or_default();
    path_means_one_thing(path);
    let headers: HeaderMap = lines.filter_map(field).take(100).collect();
    worker_sees_only_forwardable_headers(&headers);
    worker_sees_only_the_gateways_credentials(&headers);
    client_sees_one_framing(&headers);
    for status in [200, 400, 429, 500, 503] {
        StatusClass::of(http::StatusCode::from_u16(status).expect("a status"), &headers);
    }
}

fn field(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
}

/// The path's meaning does not change when a proxy decodes it again.
fn path_means_one_thing(path: &str) {
    if !is_client_path(path) {
        return;
    }
    let mut plain = path.to_owned();
    // Each round costs the whole path, so the number of rounds must not grow with its length.
    for _ in 0..=DECODINGS_MAX {
        let segments: Vec<&str> = plain.split(['/', '\\']).collect();
        assert!(!segments.iter().any(|segment| matches!(*segment, "." | "..")), "{path}");
        assert!(!plain.contains("//") && !plain.contains(char::is_control), "{path}");
        let controls =
            |name| segments.len() <= 3 + usize::from(plain.ends_with('/')) && segments.contains(&name);
        assert!(!controls("load_lora_adapter") && !controls("unload_lora_adapter"), "{path}");
        assert_eq!(Api::of_path(plain.trim_end_matches('/')), Api::of_path(path), "{path}");
        match percent_decoded(&plain) {
            decoded if decoded == plain => return,
            decoded => plain = decoded,
        }
    }
    panic!("it is encoded too often: {path}");
}

fn worker_sees_only_forwardable_headers(sent: &HeaderMap) {
    let id = request_id(sent);
    assert!((1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic));
    let mut seen = sent.clone();
    towards_worker(&mut seen, Api::Chat, Forwarded::Drop);
    for name in seen.keys() {
        assert!(!is_set_by_gateway(name.as_str()), "{name} was forwarded");
        assert!(!names_in_connection(sent).contains(name), "{name} is named in `Connection`");
        assert!(seen.get_all(name).iter().eq(sent.get_all(name)), "{name} was changed");
    }
    let mut twice = seen.clone();
    towards_worker(&mut twice, Api::Chat, Forwarded::Drop);
    assert_eq!(twice, seen);
}

/// Written independently of the code under test, so that a name forgotten there is found here.
fn is_set_by_gateway(name: &str) -> bool {
    const NAMES: &str = "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer \
        transfer-encoding upgrade content-length expect accept-encoding x-data-parallel-rank forwarded x-real-ip \
        true-client-ip host x-request-id";
    let begins = ["x-warmroute-", "x-forwarded-"].iter().any(|begin| name.starts_with(begin));
    begins || NAMES.split_whitespace().any(|word| word == name)
}

fn names_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).into_iter().map(HeaderValue::as_bytes);
    let names = values.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    names.filter_map(|name| HeaderName::from_bytes(name).ok()).collect()
}

fn worker_sees_only_the_gateways_credentials(sent: &HeaderMap) {
    let ours = HeaderValue::from_static("Bearer ours");
    let dialer = Dialer::new(Some(ours.clone()), TlsFiles::default()).expect("it names no file");
    for client_credentials in [ClientCredentials::Auto, ClientCredentials::Drop] {
        let config = Config { dialer: dialer.clone(), client_credentials, ..Config::default() };
        let mut seen = sent.clone();
        set_credentials(&mut seen, &config, None);
        assert!(seen.get_all(header::AUTHORIZATION).iter().eq([&ours]) && !seen.contains_key("x-api-key"));
    }
}

fn client_sees_one_framing(answered: &HeaderMap) {
    let mut seen = answered.clone();
    towards_client(&mut seen);
    let was_chunked = answered.contains_key(header::TRANSFER_ENCODING);
    assert!(!seen.contains_key(header::TRANSFER_ENCODING) && !seen.contains_key(header::CONNECTION));
    assert!(!was_chunked || !seen.contains_key(header::CONTENT_LENGTH));
}
