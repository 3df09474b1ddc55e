//! Validation of worker URLs, in one place for flags, files and the admin API.

use crate::Address;

/// Why an engine with 0 ranks is refused.
pub const NO_RANKS: &str =
    "0 ranks: give at least 1, or leave ranks out for an engine without data parallelism";

/// A worker URL that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` is not a valid worker URL: {why}")]
pub struct BadUrl {
    /// The URL as written, with secrets masked.
    pub url: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl BadUrl {
    /// The error for this URL. It appears in logs and responses, so secrets in the URL are masked.
    pub fn new(url: &str, why: &'static str) -> BadUrl {
        BadUrl { url: mask_url(url), why }
    }
}

impl Address {
    /// The workers behind a URL: one for each rank, or the engine as a whole where it has none.
    pub fn parse(url: &str, ranks: Option<u16>) -> Result<Vec<Address>, BadUrl> {
        let bad = |why| BadUrl::new(url, why);
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let rest = rest.ok_or_else(|| bad("expected http://HOST:PORT or https://HOST:PORT"))?;
        if rest.contains('@') {
            return Err(bad("it contains credentials; use worker-api-key instead"));
        }
        if rest.contains(['?', '#']) {
            return Err(bad("it has a query; give the base URL only"));
        }
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad("it contains spaces or non-ASCII characters"));
        }
        let authority = rest.split('/').next().unwrap_or_default();
        check_authority(authority).map_err(bad)?;
        if ranks == Some(0) {
            return Err(bad(NO_RANKS));
        }
        Ok(Address::ranks(base_url(url), ranks))
    }
}

/// The URL without `/v1` and slashes at its end. Clients' base URLs end with `/v1`, so users write it for engines too.
pub fn base_url(url: &str) -> &str {
    let authority = url.find("://").map_or(0, |at| at + 3);
    let host_end = url[authority..].find('/').map_or(url.len(), |at| authority + at);
    let path = url[host_end..].trim_end_matches('/');
    let path = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/');
    &url[..host_end + path.len()]
}

/// A URL without credentials and query, which may contain secrets. Safe to log.
pub fn mask_url(url: &str) -> String {
    let scheme = url.find("://").filter(|&at| url[..at].bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let (scheme, rest) = url.split_at(scheme.map_or(0, |at| at + 3));
    match (rest.rfind('@'), rest.find(['?', '#'])) {
        (None, None) => url.to_owned(),
        (Some(at), None) => format!("{scheme}***{}", &rest[at..]),
        (None, Some(query)) => format!("{scheme}{}?***", &rest[..query]),
        (Some(at), Some(query)) if at < query => format!("{scheme}***{}?***", &rest[at..query]),
        // The end of the secret is ambiguous.
        (Some(_), Some(_)) => format!("{scheme}***"),
    }
}

fn check_authority(authority: &str) -> Result<(), &'static str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => v6.split_once(']').ok_or("the bracket of the IPv6 address is not closed")?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    if host.is_empty() {
        return Err("it has no host");
    }
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok(()),
        Some(port) if port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(()),
        _ => Err("the port is not a number from 1 to 65535"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_urls_become_workers() {
        let workers = |url, ranks| -> Vec<String> {
            Address::parse(url, ranks).unwrap().iter().map(ToString::to_string).collect()
        };
        assert_eq!(workers("http://10.0.0.7:8000/", None), ["http://10.0.0.7:8000"]);
        assert_eq!(workers("http://[::1]:80/base/", None), ["http://[::1]:80/base"]);
        assert_eq!(workers("https://a:8443/", None), ["https://a:8443"]);
        assert_eq!(workers("http://a", Some(2)), ["http://a@0", "http://a@1"]);
        for url in ["http://a:80/v1", "http://a:80/v1/", "http://a:80//v1//", "http://a:80/"] {
            assert_eq!(workers(url, None), ["http://a:80"], "{url}");
        }
        assert_eq!(workers("http://a/base/v1", None), ["http://a/base"]);
        assert_eq!(workers("http://a/apiv1", None), ["http://a/apiv1"]);
        assert_eq!(workers("http://v1", None), ["http://v1"]);
    }

    #[test]
    fn invalid_urls_are_rejected_with_the_reason() {
        for (url, why) in [
            ("10.0.0.7:8000", "http://HOST:PORT"),
            ("ftp://a", "http://HOST:PORT"),
            ("https://", "no host"),
            ("http://user:pass@a", "credentials"),
            ("http://a/?q=1", "query"),
            ("http://", "no host"),
            ("http://:80", "no host"),
            ("http://a:http", "port"),
            ("http://a:0", "port"),
            ("http://[::1", "bracket"),
            ("http://a b", "spaces"),
        ] {
            let error = Address::parse(url, None).unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
        }
        assert!(Address::parse("http://a", Some(0)).is_err());
    }

    #[test]
    fn secrets_in_a_url_are_masked() {
        for (url, shown) in [
            ("http://user:hush@h:1", "http://***@h:1"),
            ("user:hush@h:1", "***@h:1"),
            ("ftp://hush@h/x", "ftp://***@h/x"),
            ("http://user:hu@sh@h:1", "http://***@h:1"),
            ("http://user:hush@h:1/?key=hush", "http://***@h:1/?***"),
            ("http://h:1/?key=hush", "http://h:1/?***"),
            ("http://user:hu?sh@h:1", "http://***"),
            ("user:hush@h://x", "***@h://x"),
        ] {
            assert_eq!(mask_url(url), shown);
            assert_eq!(Address::parse(url, None).unwrap_err().url, shown);
        }
        assert_eq!(mask_url("http://h:1/base"), "http://h:1/base");
    }
}
