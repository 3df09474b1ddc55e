//! An HTTP client for what precise matching reads from an engine: its models, its event sources, its tokens.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use tokio::sync::Mutex;
use warmroute_discovery::EventsEntry;
use warmroute_events::{EventSource, read_server_info, read_vllm_sources};
use warmroute_tokens::parity::{Answer, ConversionEndpoint, TokenizeEndpoint};
use warmroute_wire::{Dialer, HttpClient};

/// Tokenizing a sample takes milliseconds, but a busy engine answers late.
const TIMEOUT: Duration = Duration::from_secs(10);

/// One engine, reached over one connection that all clones share.
#[derive(Clone)]
pub struct Engine {
    /// The base URL.
    pub url: String,
    client: Arc<Mutex<HttpClient>>,
}

/// One model of `GET /v1/models`.
#[derive(Clone, Debug, Deserialize)]
pub struct Card {
    /// The name that requests use.
    pub id: String,
    /// The path or name from which the engine loaded the model.
    pub root: Option<String>,
    /// An adapter's base model.
    pub parent: Option<String>,
}

/// An engine's response has another status than 200.
#[derive(Debug, thiserror::Error)]
#[error("{request}: {status}")]
pub struct UnexpectedStatus {
    request: String,
    /// What came instead of 200.
    pub status: StatusCode,
}

fn check_status(request: &str, status: StatusCode) -> Result<(), UnexpectedStatus> {
    match status {
        StatusCode::OK => Ok(()),
        _ => Err(UnexpectedStatus { request: request.to_owned(), status }),
    }
}

#[derive(Deserialize)]
struct Cards {
    data: Vec<Card>,
}

/// SGLang's cache size, from its server info.
#[derive(Deserialize)]
pub struct ServerInfo {
    pub max_total_num_tokens: Option<u64>,
    pub page_size: Option<u32>,
}

impl Engine {
    /// An engine that is not connected yet.
    pub fn new(url: &str, dialer: &Dialer) -> Engine {
        Engine {
            url: url.to_owned(),
            client: Arc::new(Mutex::new(HttpClient::new(url, TIMEOUT, dialer.clone()))),
        }
    }

    /// Lists the engine's models, base models before adapters.
    pub async fn cards(&self) -> anyhow::Result<Vec<Card>> {
        let (status, body) = self.client.lock().await.get("/v1/models").await?;
        check_status("GET /v1/models", status)?;
        let mut cards = serde_json::from_slice::<Cards>(&body)?.data;
        cards.sort_by_key(|card| card.parent.is_some());
        Ok(cards)
    }

    /// Finds the engine's event sources: the configured ones, or those the engine lists. The list is empty if the
    /// engine publishes no events; an engine that does not answer is an error.
    pub async fn sources(
        &self,
        configured: Option<&EventsEntry>,
        ranks: u16,
    ) -> anyhow::Result<Vec<EventSource>> {
        if let Some(EventsEntry { endpoint, replay, topic }) = configured {
            return Ok(EventSource::configured(endpoint, replay.as_deref(), topic, ranks, &self.url)?);
        }
        if let Some(body) = self.page("/kv_event_sources").await? {
            return Ok(read_vllm_sources(&body, &self.url)?);
        }
        match self.server_info().await? {
            Some(body) => Ok(read_server_info(&body, &self.url)?),
            None => Ok(Vec::new()),
        }
    }

    /// Reads SGLang's server info.
    pub async fn server_info(&self) -> anyhow::Result<Option<Bytes>> {
        match self.page("/server_info").await? {
            Some(body) => Ok(Some(body)),
            None => self.page("/get_server_info").await,
        }
    }

    /// Reads TensorRT-LLM's events since the last poll.
    pub async fn poll_events(&self) -> anyhow::Result<Bytes> {
        let (status, body) = self.client.lock().await.post("/kv_cache_events", Bytes::new()).await?;
        anyhow::ensure!(status == StatusCode::OK, "POST /kv_cache_events: {status}");
        Ok(body)
    }

    /// Reads a page. `None`: the engine has no such page.
    pub async fn page(&self, path: &str) -> anyhow::Result<Option<Bytes>> {
        let (status, body) = self.client.lock().await.get(path).await?;
        Ok(Some(body).filter(|_| status == StatusCode::OK))
    }
}

impl Engine {
    /// Posts a JSON body and returns the JSON answer.
    pub async fn post(&self, path: &str, body: &serde_json::Value) -> anyhow::Result<serde_json::Value> {
        let body = Bytes::from(body.to_string());
        let (status, answer) = self.client.lock().await.post(path, body).await?;
        check_status(&format!("POST {path}"), status)?;
        Ok(serde_json::from_slice(&answer)?)
    }
}

impl Engine {
    /// Posts a sample.
    async fn ask(&self, path: &str, body: String) -> Answer {
        let answer = self.client.lock().await.post(path, Bytes::from(body)).await;
        match answer {
            Ok((StatusCode::OK, body)) => Answer::Json(body.to_vec()),
            Ok((status @ (StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY), _)) => {
                Answer::Refused(status.to_string())
            }
            Ok((status, _)) => Answer::Unavailable(format!("POST {path}: {status}")),
            Err(error) => Answer::Unavailable(format!("POST {path}: {error}")),
        }
    }
}

impl TokenizeEndpoint for Engine {
    async fn tokenize(&self, body: String) -> Answer {
        self.ask("/tokenize", body).await
    }
}

impl ConversionEndpoint for Engine {
    async fn version(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        let page = self.page("/version").await.ok()??;
        serde_json::from_slice::<Version>(&page).ok().map(|page| page.version)
    }

    async fn count_tokens(&self, body: String) -> Answer {
        self.ask("/v1/messages/count_tokens", body).await
    }

    async fn render_response(&self, body: String) -> Answer {
        self.ask("/v1/responses/render", body).await
    }
}
