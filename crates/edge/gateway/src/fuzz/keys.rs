//! Files of keys: whoever is named in a good one is let in, nobody else is, and no error shows what stands in a bad one.

use http::{HeaderMap, HeaderValue, header};

use crate::keys::Keys;
use crate::token::Token;

/// A file of keys, as somebody may write it.
pub fn keys(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match Keys::read(&text) {
        Ok(keys) => only_those_named_are_let_in(&keys, &text),
        // Told by the line's number, in words of ours: what a line holds cannot be among them.
        Err(why) => assert!(why.to_string().starts_with("line ") || why.to_string().starts_with("there is")),
    }
}

fn only_those_named_are_let_in(keys: &Keys, text: &str) {
    let named: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for key in named.iter().filter(|key| !key.starts_with('#') && !key.starts_with("sha256:")) {
        assert!(!is_let_in(keys, &format!("{key}x")) || named.contains(&format!("{key}x").as_str()));
        // One with control characters in it cannot be sent.
        if HeaderValue::from_str(key).is_ok() || HeaderValue::from_bytes(key.as_bytes()).is_ok() {
            assert!(is_let_in(keys, key), "{key} is in the file");
            assert!(Token::new(key).is_shown(&shown(key).unwrap_or_default()));
        }
        assert!(key.len() < 8 || !format!("{keys:?}").contains(key));
    }
}

fn is_let_in(keys: &Keys, key: &str) -> bool {
    let by_api_key = HeaderValue::from_bytes(key.as_bytes()).ok();
    let by_api_key =
        by_api_key.map(|key| HeaderMap::from_iter([(header::HeaderName::from_static("x-api-key"), key)]));
    let lets_in =
        |headers: Option<HeaderMap>| headers.is_some_and(|headers| keys.tenant_of(&headers).is_some());
    let (bearer, api_key) = (lets_in(shown(key)), lets_in(by_api_key));
    assert_eq!(bearer, api_key, "both headers are the same key");
    bearer
}

fn shown(key: &str) -> Option<HeaderMap> {
    let value = HeaderValue::from_bytes(format!("Bearer {key}").as_bytes()).ok()?;
    Some(HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
}
