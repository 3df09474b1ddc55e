//! Heads: a client says nothing in another's name, and no path means one thing to us and another to a worker.
//!
//! The input is a path, then headers, a line each.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use warmroute_prompt::Api;
use warmroute_wire::{Dialer, WorkerTls};

use crate::headers::{self, request_id, set_credentials, towards_client, towards_worker};
use crate::percent::percent_decoded;
use crate::server::{DECODINGS_MAX, is_for_clients};
use crate::status_class::StatusClass;
use crate::{ClientCredentials, Config, Forwarded};

/// The head of a request or of an answer.
pub fn head(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let path = lines.next().and_then(|path| std::str::from_utf8(path).ok()).unwrap_or_default();
    path_means_one_thing(path);
    let headers: HeaderMap = lines.filter_map(field).take(100).collect();
    worker_sees_only_what_is_the_clients(&headers);
    worker_sees_no_credentials_but_ours(&headers);
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

/// However often somebody on the way decodes it.
fn path_means_one_thing(path: &str) {
    if !is_for_clients(path) {
        return;
    }
    let mut plain = path.to_owned();
    // Each time costs the whole path, so how often it can be decoded must not grow with its length.
    for _ in 0..=DECODINGS_MAX {
        let segments: Vec<&str> = plain.split(['/', '\\']).collect();
        assert!(!segments.iter().any(|segment| matches!(*segment, "." | "..")), "{path}");
        assert!(!plain.contains("//") && !plain.contains(char::is_control), "{path}");
        let steers =
            |name| segments.len() <= 3 + usize::from(plain.ends_with('/')) && segments.contains(&name);
        assert!(!steers("load_lora_adapter") && !steers("unload_lora_adapter"), "{path}");
        assert_eq!(Api::of_path(plain.trim_end_matches('/')), Api::of_path(path), "{path}");
        match percent_decoded(&plain) {
            decoded if decoded == plain => return,
            decoded => plain = decoded,
        }
    }
    panic!("it is encoded too often: {path}");
}

fn worker_sees_only_what_is_the_clients(sent: &HeaderMap) {
    let id = request_id(sent);
    assert!((1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic));
    let mut seen = sent.clone();
    towards_worker(&mut seen, Api::Chat, &id, Forwarded::Drop);
    assert!(seen.get_all(headers::REQUEST_ID).iter().eq([&id]), "one id, and it is the one we log");
    for name in seen.keys().filter(|name| *name != headers::REQUEST_ID) {
        assert!(!is_ours_to_say(name.as_str()), "{name} came through");
        assert!(!names_in_connection(sent).contains(name), "{name} was the connection's");
        assert!(seen.get_all(name).iter().eq(sent.get_all(name)), "{name} was changed");
    }
    let mut twice = seen.clone();
    towards_worker(&mut twice, Api::Chat, &id, Forwarded::Drop);
    assert_eq!(twice, seen);
}

/// Written apart from the code that strips: a name that is forgotten there must be remembered here.
fn is_ours_to_say(name: &str) -> bool {
    const NAMES: &str = "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer \
        transfer-encoding upgrade content-length expect accept-encoding x-data-parallel-rank forwarded x-real-ip \
        true-client-ip";
    let begins = ["x-warmroute-", "x-forwarded-"].iter().any(|begin| name.starts_with(begin));
    begins || NAMES.split_whitespace().any(|word| word == name)
}

fn names_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).into_iter().map(HeaderValue::as_bytes);
    let names = values.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    names.filter_map(|name| HeaderName::from_bytes(name).ok()).collect()
}

fn worker_sees_no_credentials_but_ours(sent: &HeaderMap) {
    let ours = HeaderValue::from_static("Bearer ours");
    let dialer = Dialer::new(Some(ours.clone()), WorkerTls::default()).expect("it names no file");
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
