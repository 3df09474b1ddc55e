//! A parsed worker URL.

use std::str::FromStr;

use http::uri::PathAndQuery;
use http::{HeaderValue, Uri};
use warmroute_types::BadUrl;

/// A worker's URL scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Unencrypted.
    Http,
    /// TLS.
    Https,
}

/// Where to connect, and the `Host` header to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// HTTP or HTTPS.
    pub scheme: Scheme,
    /// Host name or address, without brackets.
    pub host: String,
    /// The port, the scheme's own where the URL has none.
    pub port: u16,
    /// Host and port as the URL writes them.
    pub host_header: HeaderValue,
    /// Path before every request path; usually empty.
    path_prefix: String,
}

impl FromStr for Target {
    type Err = BadUrl;

    /// Parses a URL that [`Address::parse`](warmroute_types::Address::parse) accepts.
    fn from_str(url: &str) -> Result<Target, BadUrl> {
        let bad = |why| BadUrl::new(url, why);
        let uri: Uri = url.parse().map_err(|_| bad("expected http://HOST:PORT"))?;
        let authority = uri.authority().ok_or_else(|| bad("the URL has no host"))?;
        let (scheme, port) = match uri.scheme_str() {
            Some("https") => (Scheme::Https, 443),
            _ => (Scheme::Http, 80),
        };
        Ok(Target {
            scheme,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(port),
            host_header: HeaderValue::from_str(authority.as_str())
                .map_err(|_| bad("invalid characters in the host"))?,
            path_prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl Target {
    /// A request's path and query, with this worker's path prefix.
    pub fn uri_for(&self, requested: &Uri) -> Uri {
        let path = requested.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
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
    fn urls_are_parsed() {
        let target: Target = "http://10.0.0.7:8000".parse().unwrap();
        assert_eq!((target.host.as_str(), target.port), ("10.0.0.7", 8000));
        assert_eq!(target.host_header, "10.0.0.7:8000");
        let requested = Uri::from_static("http://gateway/v1/models?x=1");
        assert_eq!(target.uri_for(&requested), "/v1/models?x=1");
        let target: Target = "http://[::1]/base/".parse().unwrap();
        assert_eq!((target.host.as_str(), target.port), ("::1", 80));
        assert_eq!(target.uri_for(&requested), "/base/v1/models?x=1");
        let target: Target = "https://engine.internal".parse().unwrap();
        assert_eq!((target.scheme, target.port), (Scheme::Https, 443));
    }
}
