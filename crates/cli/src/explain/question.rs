//! One question to a gateway's admin listener.

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

/// A gateway that has not answered by then is not going to.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is asked.
pub struct Question {
    method: Method,
    path: String,
    body: Vec<u8>,
}

impl Question {
    /// Where would this request go, sent to that path?
    pub fn what_of(path: &str, body: Vec<u8>) -> Question {
        let path = path.replace('%', "%25").replace('&', "%26").replace('#', "%23").replace(' ', "%20");
        Question { method: Method::POST, path: format!("/explain?path={path}"), body }
    }

    /// Where did the last `n` go?
    pub fn last(n: u16) -> Question {
        Question { method: Method::GET, path: format!("/explain?n={n}"), body: Vec::new() }
    }

    /// The answer, if the gateway gives one.
    pub async fn put_to(self, admin: &str, token: Option<&Secret>) -> anyhow::Result<String> {
        let (host, port) = authority(admin)?;
        let asking = self.ask(&host, port, token);
        let (status, body) = match tokio::time::timeout(PATIENCE, asking).await {
            Ok(answered) => answered.with_context(|| format!("no gateway answers at {admin}"))?,
            Err(_) => bail!("{admin} did not answer within {PATIENCE:?}"),
        };
        let body = String::from_utf8_lossy(&body).into_owned();
        if status.is_success() { Ok(body) } else { bail!("{}", refusal(admin, status, &body)) }
    }

    async fn ask(self, host: &str, port: u16, token: Option<&Secret>) -> anyhow::Result<(StatusCode, Bytes)> {
        // A literal IPv6 address stands in brackets in a URL, and without them in an address.
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

/// What the gateway said, in its own words where it has any.
fn refusal(admin: &str, status: StatusCode, body: &str) -> String {
    let said: Value = serde_json::from_str(body).unwrap_or_default();
    match said["error"]["message"].as_str() {
        Some(message) => format!("{message} ({status})"),
        None => format!("{admin} answers {status}: is it a warmroute admin listener?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_from_a_url_and_nothing_else() {
        assert_eq!(authority("http://127.0.0.1:29000").unwrap(), ("127.0.0.1".to_owned(), 29_000));
        assert_eq!(authority("http://[::1]/").unwrap(), ("[::1]".to_owned(), 80));
        for bad in ["127.0.0.1:29000", "https://a:1", "gateway", ""] {
            assert!(authority(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn refusals_are_told_in_the_gateways_words() {
        let status = StatusCode::NOT_FOUND;
        let said = refusal("http://a", status, r#"{"error":{"message":"no such thing"}}"#);
        assert_eq!(said, "no such thing (404 Not Found)");
        assert!(refusal("http://a", status, "<html>").contains("is it a warmroute admin listener?"));
    }
}
