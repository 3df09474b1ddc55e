//! One request to a gateway's admin listener.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, Uri};
use serde_json::Value;
use warmroute_wire::{Dialer, HttpClient, TlsFiles};

use crate::args::GatewayArgs;
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

    /// Asks what breaks the prefixes of prompts.
    pub fn prefixes() -> ExplainQuery {
        ExplainQuery { path: "/prefixes".to_owned(), body: None }
    }

    /// Sends the query and returns the JSON answer.
    pub async fn send(self, gateway: &GatewayArgs) -> anyhow::Result<String> {
        let mut listener = AdminListener::new(gateway)?;
        match self.body {
            Some(body) => listener.post(&self.path, body).await,
            None => listener.get(&self.path).await,
        }
    }
}

/// A gateway's admin listener.
pub struct AdminListener {
    url: String,
    has_token: bool,
    client: HttpClient,
}

impl AdminListener {
    /// The gateway's listener. Connections are made when needed.
    pub fn new(gateway: &GatewayArgs) -> anyhow::Result<AdminListener> {
        let GatewayArgs { admin: url, admin_token: token, admin_ca: ca } = gateway;
        check_url(url)?;
        let bearer = |token: &Secret| HeaderValue::try_from(format!("Bearer {}", token.reveal()));
        let bearer = token.as_ref().map(bearer).transpose().context("--admin-token")?;
        let dialer =
            Dialer::new(bearer, TlsFiles { ca: ca.clone(), ..TlsFiles::default() }).context("--admin-ca")?;
        let client = HttpClient::new(url, TIMEOUT, dialer);
        Ok(AdminListener { url: url.to_owned(), has_token: token.is_some(), client })
    }

    /// The page at this path.
    pub async fn get(&mut self, path: &str) -> anyhow::Result<String> {
        let (status, body) = self.answer(path).await?;
        self.accept(path, status, body)
    }

    /// The answer to a GET, whatever its status.
    pub async fn answer(&mut self, path: &str) -> anyhow::Result<(StatusCode, String)> {
        let answered = self.client.get(path).await;
        let (status, body) = answered.with_context(|| self.is_silent())?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    async fn post(&mut self, path: &str, body: Vec<u8>) -> anyhow::Result<String> {
        let answered = self.client.post(path, Bytes::from(body)).await;
        let (status, body) = answered.with_context(|| self.is_silent())?;
        self.accept(path, status, String::from_utf8_lossy(&body).into_owned())
    }

    fn is_silent(&self) -> String {
        format!("no gateway answers at {}", self.url)
    }

    fn accept(&self, path: &str, status: StatusCode, body: String) -> anyhow::Result<String> {
        if status.is_success() { Ok(body) } else { Err(Refused(refusal(self, path, status, &body)).into()) }
    }
}

/// The gateway answered and refused. Asking again changes nothing.
#[derive(Debug)]
pub struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn check_url(admin: &str) -> anyhow::Result<()> {
    let is_http = |url: &Uri| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some();
    let url = admin.parse().ok().filter(is_http);
    url.map(drop).with_context(|| format!("--admin {admin}: expected http://HOST:PORT or https://HOST:PORT"))
}

/// The error for a refused query of this path, with the gateway's own message if there is one.
fn refusal(listener: &AdminListener, path: &str, status: StatusCode, body: &str) -> String {
    let admin = &listener.url;
    if status == StatusCode::UNAUTHORIZED {
        return match listener.has_token {
            true => {
                format!("{admin} refuses the admin token: check --admin-token or WARMROUTE_ADMIN_TOKEN")
            }
            false => format!("{admin} requires its admin token: set --admin-token or WARMROUTE_ADMIN_TOKEN"),
        };
    }
    let answer: Value = serde_json::from_str(body).unwrap_or_default();
    let message = answer["error"]["message"].as_str();
    let asked = path.split('?').next().unwrap_or(path);
    match message {
        Some(message) if answer["error"]["code"] == "unknown_url" && message.contains(asked) => format!(
            "{admin} is the client listener of a gateway: --admin takes the address of the admin listener, \
             by default http://127.0.0.1:29000"
        ),
        // The admin listener knows what it was asked, and not the path of the request to explain.
        Some(message) if answer["error"]["code"] == "unknown_url" => {
            format!("{message}: --path takes the path of a request to a model, such as /v1/chat/completions")
        }
        Some(message) => format!("{message} ({status})"),
        None => format!("{admin} answers {status}: is it a warmroute admin listener?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
        let refused = |status, body| refusal(&listener(false), "/explain?path=/nope", status, body);
        let status = StatusCode::NOT_FOUND;
        let text = refused(status, r#"{"error":{"message":"no such thing"}}"#);
        assert_eq!(text, "no such thing (404 Not Found)");
        assert!(refused(status, "<html>").contains("is it a warmroute admin listener?"));
        for has_token in [false, true] {
            let text = refusal(&listener(has_token), "/explain", StatusCode::UNAUTHORIZED, "");
            assert!(text.contains("--admin-token"), "{text}");
        }
    }

    #[test]
    fn an_unknown_path_of_the_request_is_not_taken_for_another_listener() {
        let refused = |unknown: &str| {
            let body =
                json!({"error": {"code": "unknown_url", "message": format!("No such endpoint: {unknown}")}});
            refusal(&listener(false), "/explain?path=/nope", StatusCode::NOT_FOUND, &body.to_string())
        };
        let text = refused("/nope");
        assert!(text.starts_with("No such endpoint: /nope: --path takes"), "{text}");
        let text = refused("/explain; it is on the admin listener (--admin-port, 29000)");
        assert!(text.contains("is the client listener of a gateway"), "{text}");
    }

    fn listener(has_token: bool) -> AdminListener {
        let tls = TlsFiles::default();
        let client = HttpClient::new("http://a", TIMEOUT, Dialer::new(None, tls).unwrap());
        AdminListener { url: "http://a".to_owned(), has_token, client }
    }
}
