//! One request to a gateway's admin listener.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::options::Secret;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A query for decisions.
pub struct ExplainQuery {
    method: Method,
    path: String,
    body: Vec<u8>,
}

impl ExplainQuery {
    /// Asks where this request would go, if sent to this path.
    pub fn preview(path: &str, body: Vec<u8>) -> ExplainQuery {
        let path = path.replace('%', "%25").replace('&', "%26").replace('#', "%23").replace(' ', "%20");
        ExplainQuery { method: Method::POST, path: format!("/explain?path={path}"), body }
    }

    /// Asks where the last `n` requests went.
    pub fn last(n: u16) -> ExplainQuery {
        ExplainQuery { method: Method::GET, path: format!("/explain?n={n}"), body: Vec::new() }
    }

    /// Sends the query and returns the JSON answer.
    pub async fn send(self, admin: &str, token: Option<&Secret>) -> anyhow::Result<String> {
        let (host, port) = authority(admin)?;
        let request = self.request(&host, port, token);
        let (status, body) = match tokio::time::timeout(TIMEOUT, request).await {
            Ok(answered) => answered.with_context(|| format!("no gateway answers at {admin}"))?,
            Err(_) => bail!("{admin} did not answer within {TIMEOUT:?}"),
        };
        let body = String::from_utf8_lossy(&body).into_owned();
        if status.is_success() { Ok(body) } else { bail!("{}", refusal(admin, status, &body)) }
    }

    async fn request(
        self,
        host: &str,
        port: u16,
        token: Option<&Secret>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        // An IPv6 address has brackets in a URL, but not in a socket address.
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let mut request = Request::builder()
            .method(self.method)
            .uri(self.path)
            .header(header::HOST, format!("{host}:{port}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(self.body)))?;
        if let Some(token) = token {
            let bearer = HeaderValue::try_from(format!("Bearer {}", token.reveal()));
            request.headers_mut().insert(header::AUTHORIZATION, bearer.context("--admin-token")?);
        }
        let answered = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        tokio::select! {
            answered = answered => answered,
            Err(broken) = connection => Err(broken.into()),
        }
    }
}

fn authority(admin: &str) -> anyhow::Result<(String, u16)> {
    let url: Uri = admin.parse().with_context(|| format!("--admin {admin}"))?;
    anyhow::ensure!(url.scheme_str() == Some("http"), "--admin {admin}: expected http://HOST:PORT");
    let host = url.host().with_context(|| format!("--admin {admin}: no host"))?;
    Ok((host.to_owned(), url.port_u16().unwrap_or(80)))
}

/// The error for a refused query, with the gateway's own message if there is one.
fn refusal(admin: &str, status: StatusCode, body: &str) -> String {
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
        assert_eq!(authority("http://127.0.0.1:29000").unwrap(), ("127.0.0.1".to_owned(), 29_000));
        assert_eq!(authority("http://[::1]/").unwrap(), ("[::1]".to_owned(), 80));
        for bad in ["127.0.0.1:29000", "https://a:1", "gateway", ""] {
            assert!(authority(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_refusal_shows_the_gateways_message() {
        let status = StatusCode::NOT_FOUND;
        let text = refusal("http://a", status, r#"{"error":{"message":"no such thing"}}"#);
        assert_eq!(text, "no such thing (404 Not Found)");
        assert!(refusal("http://a", status, "<html>").contains("is it a warmroute admin listener?"));
    }
}
