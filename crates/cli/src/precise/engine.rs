//! What an engine says about itself that precise matching needs: its models, its event sources, its tokens.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use tokio::sync::Mutex;
use warmroute_discovery::EventsEntry;
use warmroute_events::{EventSource, read_server_info, read_vllm_sources};
use warmroute_probe::Client;
use warmroute_tokens::parity::{Answer, TokenizeEndpoint};
use warmroute_wire::Dialer;

/// Tokenizing a sample takes an engine milliseconds, but it may be busy.
const TIMEOUT: Duration = Duration::from_secs(10);

/// One engine, asked over one connection, which its clones share.
#[derive(Clone)]
pub struct Engine {
    pub url: String,
    client: Arc<Mutex<Client>>,
}

/// A card of `GET /v1/models`.
#[derive(Clone, Debug, Deserialize)]
pub struct Card {
    /// The name under which it is asked for.
    pub id: String,
    /// Where the engine found it: a path or a name.
    pub root: Option<String>,
    /// Of an adapter: the model it belongs to.
    pub parent: Option<String>,
}

#[derive(Deserialize)]
struct Cards {
    data: Vec<Card>,
}

/// What SGLang says of itself, as far as it is not about events.
#[derive(Deserialize)]
pub struct ServerInfo {
    pub max_total_num_tokens: Option<u64>,
    pub page_size: Option<u32>,
}

impl Engine {
    pub fn new(url: &str, dialer: &Dialer) -> Engine {
        Engine {
            url: url.to_owned(),
            client: Arc::new(Mutex::new(Client::new(url, TIMEOUT, dialer.clone()))),
        }
    }

    /// Its models, those that are no adapters first.
    pub async fn cards(&self) -> anyhow::Result<Vec<Card>> {
        let (status, body) = self.client.lock().await.get("/v1/models").await?;
        anyhow::ensure!(status == StatusCode::OK, "GET /v1/models: {status}");
        let mut cards = serde_json::from_slice::<Cards>(&body)?.data;
        cards.sort_by_key(|card| card.parent.is_some());
        Ok(cards)
    }

    /// Where its events are: as the operator says, or as it says itself. None where it publishes none; an error where it does
    /// not answer, which is not the same.
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

    /// SGLang's page about itself.
    pub async fn server_info(&self) -> anyhow::Result<Option<Bytes>> {
        match self.page("/server_info").await? {
            Some(body) => Ok(Some(body)),
            None => self.page("/get_server_info").await,
        }
    }

    /// TensorRT-LLM's events since the last poll.
    pub async fn poll_events(&self) -> anyhow::Result<Bytes> {
        let (status, body) = self.client.lock().await.post("/kv_cache_events", Bytes::new()).await?;
        anyhow::ensure!(status == StatusCode::OK, "POST /kv_cache_events: {status}");
        Ok(body)
    }

    /// A page, where the engine has it.
    pub async fn page(&self, path: &str) -> anyhow::Result<Option<Bytes>> {
        let (status, body) = self.client.lock().await.get(path).await?;
        Ok(Some(body).filter(|_| status == StatusCode::OK))
    }
}

impl Engine {
    /// What it answers to a JSON body.
    pub async fn post(&self, path: &str, body: &serde_json::Value) -> anyhow::Result<serde_json::Value> {
        let body = Bytes::from(body.to_string());
        let (status, answer) = self.client.lock().await.post(path, body).await?;
        anyhow::ensure!(status == StatusCode::OK, "POST {path}: {status}");
        Ok(serde_json::from_slice(&answer)?)
    }
}

impl TokenizeEndpoint for Engine {
    async fn tokenize(&self, body: String) -> Answer {
        let answer = self.client.lock().await.post("/tokenize", Bytes::from(body)).await;
        match answer {
            Ok((StatusCode::OK, body)) => Answer::Json(body.to_vec()),
            Ok((status @ (StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY), _)) => {
                Answer::Refused(status.to_string())
            }
            Ok((status, _)) => Answer::Unavailable(format!("POST /tokenize: {status}")),
            Err(error) => Answer::Unavailable(format!("POST /tokenize: {error}")),
        }
    }
}
