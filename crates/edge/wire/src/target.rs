//! A worker's URL, taken apart once.

use std::str::FromStr;

use http::uri::PathAndQuery;
use http::{HeaderValue, Uri};
use warmroute_types::BadUrl;

/// How a worker is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain.
    Http,
    /// With TLS.
    Https,
}

/// Where to connect, and what to call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Plain, or with TLS.
    pub scheme: Scheme,
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The `Host` header.
    pub host_header: HeaderValue,
    /// What stands before every path; empty for most.
    path_prefix: String,
}

impl FromStr for Target {
    type Err = BadUrl;

    /// Takes apart what [`Address::parse`](warmroute_types::Address::parse) found good.
    fn from_str(url: &str) -> Result<Target, BadUrl> {
        let bad = |why| BadUrl::new(url, why);
        let uri: Uri = url.parse().map_err(|_| bad("expected http://HOST:PORT"))?;
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
        let (scheme, port) = match uri.scheme_str() {
            Some("https") => (Scheme::Https, 443),
            _ => (Scheme::Http, 80),
        };
        Ok(Target {
            scheme,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(port),
            host_header: HeaderValue::from_str(authority.as_str()).map_err(|_| bad("odd characters"))?,
            path_prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl Target {
    /// The request's path and query as this worker is asked for it.
    pub fn uri_for(&self, asked: &Uri) -> Uri {
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
        let target: Target = "https://engine.internal".parse().unwrap();
        assert_eq!((target.scheme, target.port), (Scheme::Https, 443));
    }
}
