//! The page itself: one HTML document with its style and its script, and the policy that lets nothing else run in it.
//!
//! The files of `page/` are joined at compile time. The policy names the hashes of exactly this style and this script,
//! so injected ones do not run, and allows requests to this listener only.

use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body_util::Full;
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("page/console.css");

const SCRIPT: &str = concat!(
    "\"use strict\";\n(() => {\n",
    include_str!("page/format.js"),
    include_str!("page/state.js"),
    include_str!("page/charts.js"),
    include_str!("page/fleet.js"),
    include_str!("page/requests.js"),
    include_str!("page/panels.js"),
    include_str!("page/stream.js"),
    "})();\n"
);

const BODY: &str = include_str!("page/console.html");

static PAGE: LazyLock<Bytes> = LazyLock::new(|| {
    let page = BODY.replace("/*style*/", STYLE).replace("/*script*/", SCRIPT);
    Bytes::from(page)
});

static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    HeaderValue::from_str(&policy).expect("the policy is ASCII")
});

/// `GET /ui`. The page contains no data, so it needs no token; its requests do.
pub(crate) fn page() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(PAGE.clone()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_names_nothing_outside() {
        let page = std::str::from_utf8(&PAGE).unwrap();
        assert!(page.contains(STYLE) && page.contains(SCRIPT));
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            let places = page.matches(outside).count();
            assert_eq!(places, 0, "{outside}");
        }
    }
}
