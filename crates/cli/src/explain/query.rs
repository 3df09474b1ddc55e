//! One request to a gateway's admin listener.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, Uri};
use serde_json::Value;
use warmroute_wire::{Dialer, HttpClient, WorkerTls};

use crate::options::Secret;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A query for decisions.
pub struct ExplainQuery {
    path: String,
    /// The request to explain; `None` to ask for past decisions.
    body: Option<Vec<u8>>,
}

impl ExplainQuery {
    /// Asks where this request would go, if sent to this path.
    pub fn preview(path: &str, body: Vec<u8>) -> ExplainQuery {
        let path = path.replace('%', "%25").replace('&', "%26").replace('#', "%23").replace(' ', "%20");
        ExplainQuery { path: format!("/explain?path={path}"), body: Some(body) }
    }

    /// Asks where the last `n` requests went.
    pub fn last(n: u16) -> ExplainQuery {
        ExplainQuery { path: format!("/explain?n={n}"), body: None }
    }

    /// Sends the query and returns the JSON answer.
    pub async fn send(
        self,
        admin: &str,
        token: Option<&Secret>,
        ca: Option<PathBuf>,
    ) -> anyhow::Result<String> {
        check_url(admin)?;
        let bearer = |token: &Secret| HeaderValue::try_from(format!("Bearer {}", token.reveal()));
        let bearer = token.map(bearer).transpose().context("--admin-token")?;
        let dialer = Dialer::new(bearer, WorkerTls { ca, identity: None }).context("--admin-ca")?;
        let mut client = HttpClient::new(admin, TIMEOUT, dialer);
        let answered = match self.body {
            Some(body) => client.post(&self.path, Bytes::from(body)).await,
            None => client.get(&self.path).await,
        };
        let (status, body) = answered.with_context(|| format!("no gateway answers at {admin}"))?;
        let body = String::from_utf8_lossy(&body).into_owned();
        if status.is_success() { Ok(body) } else { bail!("{}", refusal(admin, token, status, &body)) }
    }
}

fn check_url(admin: &str) -> anyhow::Result<()> {
    let url: Uri = admin.parse().with_context(|| format!("--admin {admin}"))?;
    let is_http = matches!(url.scheme_str(), Some("http" | "https"));
    anyhow::ensure!(is_http, "--admin {admin}: expected http://HOST:PORT or https://HOST:PORT");
    url.host().with_context(|| format!("--admin {admin}: no host"))?;
    Ok(())
}

/// The error for a refused query, with the gateway's own message if there is one.
fn refusal(admin: &str, token: Option<&Secret>, status: StatusCode, body: &str) -> String {
    if status == StatusCode::UNAUTHORIZED {
        return match token {
            Some(_) => {
                format!("{admin} refuses the admin token: check --admin-token or WARMROUTE_ADMIN_TOKEN")
            }
            None => format!("{admin} requires its admin token: set --admin-token or WARMROUTE_ADMIN_TOKEN"),
        };
    }
    let answer: Value = serde_json::from_str(body).unwrap_or_default();
    match answer["error"]["message"].as_str() {
        Some(message) => format!("{message} ({status})"),
        None => format!("{admin} answers {status}: is it a warmroute admin listener?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_http_url_has_an_admin_address() {
        for good in ["http://127.0.0.1:29000", "http://[::1]/", "https://a:1"] {
            check_url(good).unwrap();
        }
        for bad in ["127.0.0.1:29000", "ftp://a:1", "gateway", ""] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_refusal_shows_the_gateways_message() {
        let status = StatusCode::NOT_FOUND;
        let text = refusal("http://a", None, status, r#"{"error":{"message":"no such thing"}}"#);
        assert_eq!(text, "no such thing (404 Not Found)");
        assert!(refusal("http://a", None, status, "<html>").contains("is it a warmroute admin listener?"));
        let token = Secret::from("hush".to_owned());
        for token in [None, Some(&token)] {
            let text = refusal("http://a", token, StatusCode::UNAUTHORIZED, "");
            assert!(text.contains("--admin-token") && !text.contains("hush"), "{text}");
        }
    }
}
