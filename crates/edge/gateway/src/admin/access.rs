//! Access to the admin listener.
//!
//! | | without `admin-token` | with `admin-token` |
//! |---|---|---|
//! | `/healthz`, `/readyz` | all | all |
//! | `GET /ui`, a page without data | all | all |
//! | `POST /events` | with `events-token` | with `events-token` |
//! | other `GET` | all, not web pages | with the token |
//! | everything else | only from this machine | with the token |
//!
//! A web page in a browser on this machine could send requests here too. Browsers mark these with `Origin`.

use http::{HeaderMap, Method, StatusCode, header};

use super::AdminError;
use crate::Token;

/// From where the listener can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// From this machine only.
    Loopback,
    /// From other machines.
    Network,
}

pub(super) const UNAUTHORIZED: &str = "missing or wrong token: send Authorization: Bearer TOKEN";
const REFUSED_FROM_NETWORK: &str =
    "changes over an admin listener that other machines can reach need an admin-token";
const REFUSED_CROSS_SITE: &str = "requests from web pages of other sites are refused";
const REFUSED_HOST: &str = "the Host header names another machine: use an IP address or localhost";
const REFUSED_FROM_BROWSER: &str = "requests from a web page need an admin-token";

/// Checks whether a request is allowed.
pub(super) fn authorize(
    token: Option<&Token>,
    reach: Reach,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Result<(), AdminError> {
    let forbidden = |why: &str| Err(AdminError(StatusCode::FORBIDDEN, why.to_owned()));
    if !matches!(path, "/healthz" | "/readyz") {
        check_page(reach, headers)?;
    }
    // `/events` has a token of its own. `/ui` is the console's page, which asks for the token; its data needs it.
    let is_open = matches!(path, "/healthz" | "/readyz" | "/events" | "/ui" | "/ui/");
    match token {
        _ if is_open => Ok(()),
        Some(token) if token.matches(headers) => Ok(()),
        Some(_) => Err(AdminError(StatusCode::UNAUTHORIZED, UNAUTHORIZED.to_owned())),
        None if headers.contains_key(header::ORIGIN) => forbidden(REFUSED_FROM_BROWSER),
        None if matches!(*method, Method::GET | Method::HEAD) => Ok(()),
        None if reach == Reach::Network => forbidden(REFUSED_FROM_NETWORK),
        None => Ok(()),
    }
}

/// Refuses what a web page could have sent: its browser names the page (`Origin`), or says that another site is the
/// source. A page whose name was made to point to this machine sends that name as `Host`. Load balancers that check the
/// health are not concerned.
fn check_page(reach: Reach, headers: &HeaderMap) -> Result<(), AdminError> {
    let forbidden = |why: &str| Err(AdminError(StatusCode::FORBIDDEN, why.to_owned()));
    let is_cross_site = headers
        .get("sec-fetch-site")
        .is_some_and(|site| !matches!(site.as_bytes(), b"same-origin" | b"none"));
    if is_cross_site {
        return forbidden(REFUSED_CROSS_SITE);
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    if reach == Reach::Loopback && !is_local_name(host) {
        return forbidden(REFUSED_HOST);
    }
    Ok(())
}

/// Whether a `Host` header names this machine by an address or as localhost. Names can be made to point here;
/// addresses and single words without a dot cannot be of a web page elsewhere.
fn is_local_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.parse::<std::net::IpAddr>().is_ok() || !name.contains('.') || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn status(token: Option<&str>, reach: Reach, ask: (Method, &str), header: Option<(&str, &str)>) -> u16 {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            let name: http::HeaderName = name.parse().unwrap();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        let token = token.map(Token::new);
        match authorize(token.as_ref(), reach, &ask.0, ask.1, &headers) {
            Ok(()) => 200,
            Err(AdminError(status, _)) => status.as_u16(),
        }
    }

    #[test]
    fn admin_access_follows_the_table() {
        use Reach::{Loopback, Network};
        let shown = Some(("authorization", "Bearer t"));
        for (token, reach, method, path, header, expected) in [
            (None, Loopback, Method::POST, "/workers", None, 200),
            (None, Loopback, Method::POST, "/workers", Some(("origin", "http://evil")), 403),
            (None, Network, Method::GET, "/metrics", None, 200),
            (None, Network, Method::GET, "/config", Some(("host", "router.example:29000")), 200),
            (None, Loopback, Method::GET, "/config", Some(("host", "evil.example:29000")), 403),
            (None, Loopback, Method::GET, "/config", Some(("host", "127.0.0.1:29000")), 200),
            (None, Loopback, Method::GET, "/config", Some(("host", "[::1]:29000")), 200),
            (None, Loopback, Method::GET, "/config", Some(("host", "localhost")), 200),
            (None, Loopback, Method::GET, "/workers", Some(("origin", "http://evil")), 403),
            (None, Loopback, Method::GET, "/workers", Some(("sec-fetch-site", "cross-site")), 403),
            (None, Loopback, Method::GET, "/workers", Some(("sec-fetch-site", "none")), 200),
            (None, Network, Method::POST, "/workers", None, 403),
            (None, Network, Method::PUT, "/config", None, 403),
            (None, Network, Method::POST, "/explain", None, 403),
            (Some("t"), Loopback, Method::GET, "/metrics", None, 401),
            (Some("t"), Loopback, Method::GET, "/nowhere", None, 401),
            (Some("t"), Loopback, Method::GET, "/metrics", Some(("authorization", "Bearer u")), 401),
            (Some("t"), Network, Method::DELETE, "/workers", shown, 200),
            (Some("t"), Network, Method::GET, "/healthz", None, 200),
            (Some("t"), Network, Method::GET, "/readyz", None, 200),
            (Some("t"), Network, Method::POST, "/events", None, 200),
            (Some("t"), Network, Method::GET, "/ui", None, 200),
            (Some("t"), Network, Method::GET, "/ui/stream", None, 401),
            (Some("t"), Network, Method::GET, "/ui/request", None, 401),
            (None, Loopback, Method::GET, "/ui/stream", Some(("sec-fetch-site", "same-origin")), 200),
            (None, Loopback, Method::GET, "/ui/stream", Some(("sec-fetch-site", "same-site")), 403),
            (None, Loopback, Method::GET, "/ui", Some(("host", "evil.example:29000")), 403),
        ] {
            let got = status(token, reach, (method.clone(), path), header);
            assert_eq!(got, expected, "{token:?} {reach:?} {method} {path} {header:?}");
        }
    }
}
