//! Where spans go, and which are kept.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use warmroute_wire::{Dialer, Target, percent_decoded_bytes};

/// The path of traces below a collector's base URL.
const TRACES_PATH: &str = "/v1/traces";

/// A collector, and how it is used.
#[derive(Clone, Debug)]
pub struct CollectorConfig {
    /// The collector's URL without its path.
    pub(crate) base: String,
    /// The path of traces.
    pub(crate) path: String,
    /// Headers of each export. Their values are sensitive and not printed.
    pub(crate) headers: HeaderMap,
    /// How to connect.
    pub dialer: Dialer,
    /// Time for one export.
    pub timeout: Duration,
    /// Share of new traces that are sampled. Traces that a client has begun follow the client's choice.
    pub sample_ratio: f64,
    /// What is said about this process.
    pub resource: Vec<(String, String)>,
}

/// Why a setting cannot be used. The text never contains a header's value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not the URL of a server.
    #[error("`{0}` is not the URL of a collector; expected http://HOST:4318")]
    Endpoint(String),
    /// The port of the other protocol.
    #[error("port 4317 is for OTLP over gRPC; use the collector's port for OTLP over HTTP, usually 4318")]
    GrpcPort,
    /// Not a list of headers.
    #[error("entry {0} of the list is not NAME=VALUE, or cannot be sent as a header")]
    Header(usize),
    /// Not a share.
    #[error("must be a number between 0 and 1")]
    Ratio,
}

impl CollectorConfig {
    /// A collector at a URL: its base, to which the path of traces is added, or the URL of traces itself.
    pub fn new(endpoint: &str) -> Result<CollectorConfig, ConfigError> {
        let bad = || ConfigError::Endpoint(without_user(endpoint));
        let uri: Uri = endpoint.parse().map_err(|_| bad())?;
        let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
        let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
        let target: Target = endpoint.parse().map_err(|_| bad())?;
        if !is_web || has_user || target.host.is_empty() || uri.query().is_some() {
            return Err(bad());
        }
        if target.port == 4317 {
            return Err(ConfigError::GrpcPort);
        }
        let prefix = uri.path().trim_end_matches('/');
        let path =
            if prefix.ends_with(TRACES_PATH) { prefix.to_owned() } else { format!("{prefix}{TRACES_PATH}") };
        let authority = uri.authority().ok_or_else(bad)?;
        let base = format!("{}://{authority}", uri.scheme_str().unwrap_or("http"));
        Ok(CollectorConfig {
            base,
            path,
            headers: HeaderMap::from_iter([(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/x-protobuf"),
            )]),
            dialer: Dialer::default(),
            timeout: Duration::from_secs(10),
            sample_ratio: 1.0,
            resource: Vec::new(),
        })
    }

    /// Adds headers from a list `NAME=VALUE,NAME=VALUE`, in which values may be percent-encoded.
    pub fn add_headers(&mut self, list: &str) -> Result<(), ConfigError> {
        let entries = list.split(',').enumerate().filter(|(_, entry)| !entry.trim().is_empty());
        for (at, entry) in entries {
            let bad = || ConfigError::Header(at + 1);
            let (name, value) = entry.split_once('=').ok_or_else(bad)?;
            let name: HeaderName = name.trim().parse().map_err(|_| bad())?;
            let mut value =
                HeaderValue::from_bytes(&percent_decoded_bytes(value.trim())).map_err(|_| bad())?;
            value.set_sensitive(true);
            self.headers.insert(name, value);
        }
        Ok(())
    }

    /// Checks the numbers.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if (0.0..=1.0).contains(&self.sample_ratio) { Ok(()) } else { Err(ConfigError::Ratio) }
    }
}

/// A URL without user and password, for messages.
fn without_user(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        (None, Some((_, rest))) => rest.to_owned(),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_traces_is_added_to_a_base_url() {
        for (endpoint, base, path) in [
            ("http://c:4318", "http://c:4318", "/v1/traces"),
            ("http://c:4318/", "http://c:4318", "/v1/traces"),
            ("https://c.example/otlp", "https://c.example", "/otlp/v1/traces"),
            ("http://[::1]:4318/v1/traces", "http://[::1]:4318", "/v1/traces"),
        ] {
            let config = CollectorConfig::new(endpoint).unwrap();
            assert_eq!((config.base.as_str(), config.path.as_str()), (base, path), "{endpoint}");
        }
    }

    #[test]
    fn urls_that_cannot_be_a_collectors_are_refused_without_their_password() {
        for bad in ["", "c:4318", "ftp://c:4318", "http://", "http://u:secret@c:4318", "http://c/?x=1"] {
            let error = CollectorConfig::new(bad).unwrap_err();
            assert!(matches!(error, ConfigError::Endpoint(_)), "{bad}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert_eq!(CollectorConfig::new("http://c:4317").unwrap_err(), ConfigError::GrpcPort);
    }

    #[test]
    fn headers_are_a_list_whose_values_are_not_printed() {
        let mut config = CollectorConfig::new("http://c:4318").unwrap();
        config.add_headers("authorization=Basic%20c2VjcmV0, x-scope = a=b , x-plus=%+1").unwrap();
        assert_eq!(config.headers["x-plus"], "%+1", "not an escape");
        assert_eq!(config.headers["authorization"], "Basic c2VjcmV0");
        assert_eq!(config.headers["x-scope"], "a=b");
        assert!(!format!("{config:?}").contains("c2VjcmV0"));
        for (bad, at) in [("x", 1), ("a=1,=2", 2), ("a=%0a", 1), ("b d=1", 1)] {
            assert_eq!(config.add_headers(bad).unwrap_err(), ConfigError::Header(at), "{bad}");
        }
    }

    #[test]
    fn a_share_is_between_0_and_1() {
        let mut config = CollectorConfig::new("http://c:4318").unwrap();
        for (ratio, is_valid) in [(0.0, true), (1.0, true), (1.1, false), (-0.1, false), (f64::NAN, false)] {
            config.sample_ratio = ratio;
            assert_eq!(config.validate().is_ok(), is_valid, "{ratio}");
        }
    }
}
