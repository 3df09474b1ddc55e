//! Sends a request, reads its streamed answer and measures its times, for the demo and `lab drive`.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use serde_json::Value;
use warmroute_types::Usage;
use warmroute_wire::{Dialer, HttpClient};

/// One request.
pub struct Question<'a> {
    /// Host and port.
    pub authority: &'a str,
    pub path: &'a str,
    /// The session header's value, if any.
    pub session: Option<String>,
    /// JSON body of a streaming request.
    pub body: String,
}

/// An answer and its times.
pub struct Served {
    pub text: String,
    /// From sending the request to its first event, in wall time.
    pub ttft: Duration,
    /// From sending the request to the end of its answer.
    pub e2e: Duration,
    /// The worker that answered, if the gateway names it.
    pub worker: String,
    /// Token counts, if the engine reports them.
    pub usage: Option<Usage>,
}

/// Sends a request and reads its stream to the end.
pub async fn ask(question: Question<'_>) -> anyhow::Result<Served> {
    let base = format!("http://{}", question.authority);
    let mut client = HttpClient::new(&base, Duration::MAX, Dialer::default());
    client.connect().await.context("no connection")?;
    let mut headers = HeaderMap::new();
    if let Some(session) = question.session {
        headers.insert("x-session-id", HeaderValue::try_from(session)?);
    }
    let sent = Instant::now();
    let response = client.post_streaming(question.path, headers, Bytes::from(question.body));
    let mut response = response.await.context("no answer")?;
    let status = response.status();
    let worker = response.headers().get("x-warmroute-worker").and_then(|value| value.to_str().ok());
    let worker = worker.unwrap_or_default().to_owned();
    let mut events = Vec::new();
    let mut ttft = None;
    while let Some(frame) = response.body_mut().frame().await {
        let Ok(chunk) = frame.context("the answer broke off")?.into_data() else { continue };
        events.extend_from_slice(&chunk);
        // Some routers send a comment before the first event.
        if ttft.is_none() && data_of(&events).next().is_some() {
            ttft = Some(sent.elapsed());
        }
    }
    let e2e = sent.elapsed();
    if !status.is_success() {
        bail!("{status}: {}", String::from_utf8_lossy(&events));
    }
    let Said { text, usage } = Said::of(&events)?;
    Ok(Served { text, ttft: ttft.context("an empty answer")?, e2e, worker, usage })
}

/// The data of each event.
fn data_of(events: &[u8]) -> impl Iterator<Item = &[u8]> {
    events.split(|&byte| byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "))
}

/// A chunk of a chat or completion stream.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    text: String,
    usage: Option<Usage>,
}

impl Said {
    fn of(events: &[u8]) -> anyhow::Result<Said> {
        let mut said = Said::default();
        let mut is_complete = false;
        for data in data_of(events) {
            if data == b"[DONE]" {
                is_complete = true;
                continue;
            }
            let event: Value = serde_json::from_slice(data).context("an event that is no JSON")?;
            if let Some(error) = event.get("error") {
                bail!("the stream ended with an error: {error}");
            }
            let choice = &event["choices"][0];
            let piece = choice["delta"]["content"].as_str().or(choice["text"].as_str());
            said.text.push_str(piece.unwrap_or_default());
            said.usage = usage_of(&event["usage"]).or(said.usage);
        }
        anyhow::ensure!(is_complete, "the stream ended without [DONE]");
        Ok(said)
    }
}

fn usage_of(usage: &Value) -> Option<Usage> {
    let tokens = |value: &Value| value.as_u64().and_then(|tokens| u32::try_from(tokens).ok());
    Some(Usage {
        prompt_tokens: tokens(&usage["prompt_tokens"])?,
        output_tokens: tokens(&usage["completion_tokens"])?,
        cached_tokens: tokens(&usage["prompt_tokens_details"]["cached_tokens"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(events: &str) -> anyhow::Result<Said> {
        Said::of(events.as_bytes())
    }

    #[test]
    fn text_is_gathered_and_failures_are_not_taken_for_answers() {
        let event =
            |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
        let whole = format!("{}{}data: [DONE]\n\n", event("war"), event("m"));
        assert_eq!(said(&whole).unwrap(), Said { text: "warm".to_owned(), usage: None });
        assert!(said(&event("cut")).is_err());
        assert!(said("data: {\"error\":{\"message\":\"broken\"}}\n\ndata: [DONE]\n\n").is_err());
    }

    #[test]
    fn completions_and_their_usage_are_read() {
        let events = ": wait\n\ndata: {\"choices\":[{\"text\":\"warm\"}],\"usage\":null}\n\n\
             data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\
             \"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n";
        let usage = Usage { prompt_tokens: 9, output_tokens: 1, cached_tokens: Some(8) };
        assert_eq!(said(events).unwrap(), Said { text: "warm".to_owned(), usage: Some(usage) });
        assert_eq!(data_of(b": wait\n\n").next(), None);
    }
}
