//! Access to the admin listener.
//!
//! | | without `admin-token` | with `admin-token` |
//! |---|---|---|
//! | `/healthz`, `/readyz` | all | all |
//! | `POST /events` | with `events-token` | with `events-token` |
//! | other `GET` | all | with the token |
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
const REFUSED_FROM_BROWSER: &str = "changes from a web page need an admin-token";

/// Checks whether a request is allowed.
pub(super) fn authorize(
    token: Option<&Token>,
    reach: Reach,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Result<(), AdminError> {
    let forbidden = |why: &str| Err(AdminError(StatusCode::FORBIDDEN, why.to_owned()));
    // `/events` has a token of its own.
    let is_open = matches!(path, "/healthz" | "/readyz" | "/events");
    match token {
        _ if is_open => Ok(()),
        Some(token) if token.matches(headers) => Ok(()),
        Some(_) => Err(AdminError(StatusCode::UNAUTHORIZED, UNAUTHORIZED.to_owned())),
        None if matches!(*method, Method::GET | Method::HEAD) => Ok(()),
        None if reach == Reach::Network => forbidden(REFUSED_FROM_NETWORK),
        None if headers.contains_key(header::ORIGIN) => forbidden(REFUSED_FROM_BROWSER),
        None => Ok(()),
    }
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
        ] {
            let got = status(token, reach, (method.clone(), path), header);
            assert_eq!(got, expected, "{token:?} {reach:?} {method} {path} {header:?}");
        }
    }
}
