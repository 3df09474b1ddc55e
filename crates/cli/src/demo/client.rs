//! A client that streams one chat answer and watches the clock.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// An answer, and how it came.
pub struct Served {
    pub text: String,
    /// From sending the request to the first bytes of its answer, wall time. The simulated engine sends none before the
    /// first token, and the gateway holds its head back until they come.
    pub ttft: Duration,
    /// The worker that answered.
    pub worker: String,
}

/// Sends a chat request of a session and reads its stream to the end.
pub async fn chat(gateway: SocketAddr, session: &str, body: &str) -> anyhow::Result<Served> {
    let stream = TcpStream::connect(gateway).await.context("no connection to the gateway")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::post("/v1/chat/completions")
        .header(header::HOST, gateway.to_string())
        .header(header::CONTENT_TYPE, "application/json")
        .header("x-session-id", session)
        .body(Full::new(Bytes::from(body.to_owned())))?;

    let sent = Instant::now();
    let mut response = sender.send_request(request).await.context("no answer")?;
    let status = response.status();
    let worker = response.headers().get("x-warmroute-worker").and_then(|value| value.to_str().ok());
    let worker = worker.unwrap_or_default().to_owned();
    let mut events = Vec::new();
    let mut ttft = None;
    while let Some(frame) = response.body_mut().frame().await {
        let Ok(chunk) = frame.context("the answer broke off")?.into_data() else { continue };
        ttft.get_or_insert_with(|| sent.elapsed());
        events.extend_from_slice(&chunk);
    }
    if !status.is_success() {
        bail!("{status}: {}", String::from_utf8_lossy(&events));
    }
    Ok(Served { text: text_of(&events)?, ttft: ttft.context("an empty answer")?, worker })
}

/// The text that the events of a chat stream carry.
fn text_of(events: &[u8]) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut is_complete = false;
    for line in events.split(|&byte| byte == b'\n') {
        let Some(data) = line.strip_prefix(b"data: ") else { continue };
        if data == b"[DONE]" {
            is_complete = true;
            continue;
        }
        let event: Value = serde_json::from_slice(data).context("an event that is no JSON")?;
        if let Some(error) = event.get("error") {
            bail!("the stream ended with an error: {error}");
        }
        text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
    }
    anyhow::ensure!(is_complete, "the stream ended without [DONE]");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::text_of;

    #[test]
    fn text_is_gathered_and_failures_are_not_taken_for_answers() {
        let event =
            |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
        let whole = format!("{}{}data: [DONE]\n\n", event("war"), event("m"));
        assert_eq!(text_of(whole.as_bytes()).unwrap(), "warm");
        assert!(text_of(event("cut").as_bytes()).is_err());
        assert!(text_of(b"data: {\"error\":{\"message\":\"broken\"}}\n\ndata: [DONE]\n\n").is_err());
    }
}
