//! Key files: exactly the keys in a valid file are accepted, and errors do not reveal the content of an invalid one.

use http::{HeaderMap, HeaderValue, header};

use crate::keys::Keys;
use crate::token::Token;

/// A key file.
pub fn keys(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match Keys::read(&text) {
        Ok(keys) => only_listed_keys_are_accepted(&keys, &text),
        // Errors contain a line number and fixed words, so they cannot contain the line.
        Err(why) => assert!(why.to_string().starts_with("line ") || why.to_string().starts_with("the file")),
    }
}

fn only_listed_keys_are_accepted(keys: &Keys, text: &str) {
    let named: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for key in named.iter().filter(|key| !key.starts_with('#') && !key.starts_with("sha256:")) {
        assert!(!is_accepted(keys, &format!("{key}x")) || named.contains(&format!("{key}x").as_str()));
        // A key with control characters cannot be sent.
        if HeaderValue::from_str(key).is_ok() || HeaderValue::from_bytes(key.as_bytes()).is_ok() {
            assert!(is_accepted(keys, key), "{key} is in the file");
            assert!(Token::new(key).matches(&shown(key).unwrap_or_default()));
        }
        assert!(key.len() < 8 || !format!("{keys:?}").contains(key));
    }
}

fn is_accepted(keys: &Keys, key: &str) -> bool {
    let by_api_key = HeaderValue::from_bytes(key.as_bytes()).ok();
    let by_api_key =
        by_api_key.map(|key| HeaderMap::from_iter([(header::HeaderName::from_static("x-api-key"), key)]));
    let accepts =
        |headers: Option<HeaderMap>| headers.is_some_and(|headers| keys.tenant_of(&headers).is_some());
    let (bearer, api_key) = (accepts(shown(key)), accepts(by_api_key));
    assert_eq!(bearer, api_key, "both headers are the same key");
    bearer
}

fn shown(key: &str) -> Option<HeaderMap> {
    let value = HeaderValue::from_bytes(format!("Bearer {key}").as_bytes()).ok()?;
    Some(HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
}
