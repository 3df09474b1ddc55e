//! A worker's URL, taken apart once.

use std::str::FromStr;

use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Uri};

/// Where to connect, and what to call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The `Host` header.
    pub(crate) host_header: HeaderValue,
    /// What stands before every path; empty for most.
    path_prefix: String,
}

/// A worker URL that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` is no worker URL: {why}")]
pub struct BadUrl {
    url: String,
    why: &'static str,
}

impl FromStr for Target {
    type Err = BadUrl;

    fn from_str(url: &str) -> Result<Target, BadUrl> {
        let bad = |why| BadUrl { url: url.to_owned(), why };
        let uri: Uri = url.parse().map_err(|_| bad("expected http://HOST:PORT"))?;
        match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => {}
            Some(scheme) if *scheme == Scheme::HTTPS => {
                return Err(bad("TLS towards workers is not there yet"));
            }
            _ => return Err(bad("expected http://HOST:PORT")),
        }
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("credentials do not belong into it"));
        }
        if uri.query().is_some() {
            return Err(bad("it must not have a query"));
        }
        Ok(Target {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            host_header: HeaderValue::from_str(authority.as_str()).map_err(|_| bad("odd characters"))?,
            path_prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl Target {
    /// The request's path and query as this worker is asked for it.
    pub(crate) fn uri_for(&self, asked: &Uri) -> Uri {
        let path = asked.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        if self.path_prefix.is_empty() {
            return Uri::from(path);
        }
        format!("{}{path}", self.path_prefix).parse().unwrap_or_else(|_| Uri::from(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let target: Target = "http://10.0.0.7:8000".parse().unwrap();
        assert_eq!((target.host.as_str(), target.port), ("10.0.0.7", 8000));
        assert_eq!(target.host_header, "10.0.0.7:8000");
        let asked = Uri::from_static("http://gateway/v1/models?x=1");
        assert_eq!(target.uri_for(&asked), "/v1/models?x=1");
        let target: Target = "http://[::1]/base/".parse().unwrap();
        assert_eq!((target.host.as_str(), target.port), ("::1", 80));
        assert_eq!(target.uri_for(&asked), "/base/v1/models?x=1");
    }

    #[test]
    fn urls_that_cannot_work_say_why() {
        for (url, why) in [
            ("10.0.0.7:8000", "http://HOST:PORT"),
            ("https://a", "TLS"),
            ("http://user:pass@a", "credentials"),
            ("http://a/?q=1", "query"),
            ("not a url", "http://HOST:PORT"),
        ] {
            let error = url.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
