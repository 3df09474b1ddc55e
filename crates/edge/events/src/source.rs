//! Where an engine publishes its events, as the engine or the operator states it.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;
use warmroute_zmtp::{BadEndpoint, Endpoint};

/// Most ranks of one engine.
const RANKS_MAX: u16 = 1_024;

/// One rank's event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSource {
    /// The data-parallel rank; 0 for an engine without.
    pub rank: u16,
    /// The publisher's endpoint, or the one that it connects to.
    pub endpoint: Endpoint,
    /// Which side connects.
    pub direction: Direction,
    /// The replay endpoint, if there is one.
    pub replay: Option<Endpoint>,
    /// The topic of its messages; empty where it has none.
    pub topic: String,
    /// Tokens in a block, where the engine says so.
    pub block_tokens: Option<u32>,
}

/// Which side connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The engine binds; we connect.
    WeConnect,
    /// The engine connects to an endpoint that we must bind: see [`BoundListener`](crate::BoundListener).
    TheyConnect,
}

/// Why the sources are unknown.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The engine's response is not understood.
    #[error("the engine's response is not understood: {0}")]
    Json(#[from] serde_json::Error),
    /// An endpoint is invalid.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// An engine names an endpoint elsewhere.
    #[error(
        "the engine names {0:?}, which is not on the worker's host; if that is right, configure kv-events for this \
         worker"
    )]
    Elsewhere(String),
    /// A rank's port is beyond 65535, or a file's endpoint has ranks.
    #[error("rank {0} has no endpoint: each rank takes the next TCP port, up to 65535; choose a lower port")]
    NoPort(u16),
}

impl EventSource {
    /// From the operator's configuration: the endpoints of rank 0; each further rank is one port higher. A wildcard
    /// means the worker's host.
    pub fn configured(
        endpoint: &str,
        replay: Option<&str>,
        topic: &str,
        ranks: u16,
        worker_url: &str,
    ) -> Result<Vec<EventSource>, SourceError> {
        let host = host_of(worker_url);
        let endpoint = endpoint.parse::<Endpoint>()?.on_host(host);
        let replay = replay.map(|replay| replay.parse::<Endpoint>()).transpose()?;
        let replay = replay.map(|replay| replay.on_host(host));
        (0..ranks.clamp(1, RANKS_MAX))
            .map(|rank| EventSource::of_rank(&endpoint, replay.as_ref(), topic, rank))
            .collect()
    }

    fn of_rank(
        endpoint: &Endpoint,
        replay: Option<&Endpoint>,
        topic: &str,
        rank: u16,
    ) -> Result<EventSource, SourceError> {
        let beyond = || SourceError::NoPort(rank);
        Ok(EventSource {
            rank,
            endpoint: endpoint.clone().of_rank(rank).ok_or_else(beyond)?,
            direction: Direction::WeConnect,
            replay: replay.map(|replay| replay.clone().of_rank(rank).ok_or_else(beyond)).transpose()?,
            topic: topic.to_owned(),
            block_tokens: None,
        })
    }
}

#[derive(Deserialize)]
struct VllmSource {
    #[serde(default)]
    enable_kv_cache_events: Option<bool>,
    publisher: Option<String>,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: Option<String>,
}

/// From vLLM's `GET /kv_event_sources` (since 0.31): one entry a rank. Empty where it publishes nothing by ZeroMQ.
pub fn read_vllm_sources(body: &[u8], worker_url: &str) -> Result<Vec<EventSource>, SourceError> {
    let by_rank: BTreeMap<u16, VllmSource> = serde_json::from_slice(body)?;
    let host = host_of(worker_url);
    let zmq = by_rank.into_iter().filter(|(_, source)| {
        source.enable_kv_cache_events != Some(false) && source.publisher.as_deref() == Some("zmq")
    });
    let mut sources = Vec::new();
    for (rank, source) in zmq {
        let Some(endpoint) = &source.endpoint else { continue };
        let endpoint: Endpoint = endpoint.parse()?;
        let direction = direction(&endpoint, host);
        let replay = source.replay_endpoint.map(|replay| replay.parse::<Endpoint>()).transpose()?;
        let endpoint = endpoint.on_host(host);
        let replay = replay.map(|replay| replay.on_host(host));
        // Engines that connect to us name our own address, which we do not connect to.
        let dialed = Some(&endpoint).filter(|_| direction == Direction::WeConnect);
        dialed.into_iter().chain(&replay).try_for_each(|endpoint| check_host(endpoint, host))?;
        sources.push(EventSource {
            rank,
            endpoint,
            direction,
            replay,
            topic: source.topic.unwrap_or_default(),
            block_tokens: None,
        });
    }
    Ok(sources)
}

/// vLLM binds wildcards and files, and connects to everything else; but it reports a free port that it bound as its
/// own address.
fn direction(endpoint: &Endpoint, worker_host: &str) -> Direction {
    match endpoint {
        Endpoint::Tcp { host, .. } if !endpoint.is_wildcard() && host != worker_host => {
            Direction::TheyConnect
        }
        _ => Direction::WeConnect,
    }
}

#[derive(Deserialize)]
struct ServerInfo {
    kv_events: Option<SglangEvents>,
}

#[derive(Deserialize)]
struct SglangEvents {
    publisher: Option<String>,
    endpoint_host: Option<String>,
    endpoint_port_base: Option<u16>,
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: Option<String>,
    block_size: Option<u32>,
    dp_size: Option<u16>,
}

/// From SGLang's `GET /server_info` (since 0.5.13). Empty where it publishes nothing.
pub fn read_server_info(body: &[u8], worker_url: &str) -> Result<Vec<EventSource>, SourceError> {
    let info: ServerInfo = serde_json::from_slice(body)?;
    let Some(events) = info.kv_events.filter(|events| events.publisher.as_deref() == Some("zmq")) else {
        return Ok(Vec::new());
    };
    let Some(port) = events.endpoint_port_base else { return Ok(Vec::new()) };
    let host = events.endpoint_host.unwrap_or_else(|| "*".to_owned());
    let endpoint = Endpoint::Tcp { host, port }.on_host(host_of(worker_url));
    check_host(&endpoint, host_of(worker_url))?;
    if let Some(replay) = &events.replay_endpoint {
        check_host(&replay.parse::<Endpoint>()?.on_host(host_of(worker_url)), host_of(worker_url))?;
    }
    let endpoint = endpoint.to_string();
    let topic = events.topic.unwrap_or_default();
    let ranks = events.dp_size.unwrap_or(1);
    let mut sources =
        EventSource::configured(&endpoint, events.replay_endpoint.as_deref(), &topic, ranks, worker_url)?;
    sources.iter_mut().for_each(|source| source.block_tokens = events.block_size);
    Ok(sources)
}

/// Checks that an endpoint which an engine names is on the worker's own host. An engine must not choose where the router
/// connects. Files count as the worker's only if the worker is on this machine.
fn check_host(endpoint: &Endpoint, worker_host: &str) -> Result<(), SourceError> {
    let is_local = |host: &str| {
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    let is_own = match endpoint {
        Endpoint::Tcp { host, .. } => host == worker_host || is_local(host) && is_local(worker_host),
        Endpoint::Ipc(_) => is_local(worker_host),
    };
    if is_own { Ok(()) } else { Err(SourceError::Elsewhere(endpoint.to_string())) }
}

/// The host in a worker's URL, without brackets.
pub(crate) fn host_of(worker_url: &str) -> &str {
    let rest = worker_url.split_once("://").map_or(worker_url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or(rest);
    match authority.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
        Some((v6, _)) => v6,
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: &str = "http://10.0.0.7:8000/base";

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn a_real_vllm_with_two_ranks_is_understood() {
        let body = include_bytes!("../tests/captures/kv_event_sources.json");
        let sources = read_vllm_sources(body, WORKER).unwrap();
        assert_eq!(sources.len(), 2);
        assert_eq!(sources[1].rank, 1);
        assert_eq!(sources[1].endpoint, endpoint("tcp://10.0.0.7:5578"));
        assert_eq!(sources[1].replay, Some(endpoint("tcp://10.0.0.7:5588")));
        assert_eq!(sources[1].topic, "kv@127.0.0.1:8103@tiny");
        assert_eq!(sources[1].direction, Direction::WeConnect);
    }

    #[test]
    fn engines_that_connect_and_engines_that_bind_are_distinguished() {
        let of = |at: &str| {
            let body = format!(r#"{{"0":{{"publisher":"zmq","endpoint":"{at}"}}}}"#);
            read_vllm_sources(body.as_bytes(), WORKER).unwrap()[0].direction
        };
        assert_eq!(of("tcp://router:5557"), Direction::TheyConnect);
        assert_eq!(of("tcp://10.0.0.7:40123"), Direction::WeConnect);
        let local = br#"{"0":{"publisher":"zmq","endpoint":"ipc:///run/events"}}"#;
        let sources = read_vllm_sources(local, "http://localhost:8000").unwrap();
        assert_eq!(sources[0].direction, Direction::WeConnect);
    }

    #[test]
    fn an_engine_does_not_choose_where_we_connect() {
        for source in [
            r#""endpoint":"ipc:///run/docker.sock""#,
            r#""endpoint":"tcp://*:5557","replay_endpoint":"tcp://10.0.0.8:22""#,
            r#""endpoint":"tcp://*:5557","replay_endpoint":"ipc:///run/docker.sock""#,
            r#""endpoint":"tcp://router:5557","replay_endpoint":"tcp://127.0.0.1:6379""#,
        ] {
            let body = format!(r#"{{"0":{{"publisher":"zmq",{source}}}}}"#);
            let refused = read_vllm_sources(body.as_bytes(), WORKER);
            assert!(matches!(refused, Err(SourceError::Elsewhere(_))), "{source}: {refused:?}");
        }
        for host in [r#""endpoint_host":"10.0.0.8""#, r#""replay_endpoint":"tcp://10.0.0.8:1""#] {
            let body = format!(r#"{{"kv_events":{{"publisher":"zmq","endpoint_port_base":5557,{host}}}}}"#);
            assert!(
                matches!(read_server_info(body.as_bytes(), WORKER), Err(SourceError::Elsewhere(_))),
                "{host}"
            );
        }
    }

    #[test]
    fn an_engine_without_events_has_no_sources() {
        let none = br#"{"0":{"publisher":"null","endpoint":"tcp://*:5557"},"1":{"enable_kv_cache_events":false,"publisher":"zmq"}}"#;
        assert_eq!(read_vllm_sources(none, WORKER).unwrap(), []);
        assert_eq!(read_server_info(br#"{"model":"x"}"#, WORKER).unwrap(), []);
        assert!(read_vllm_sources(b"<html>", WORKER).is_err());
    }

    #[test]
    fn sglang_counts_ports_from_its_base() {
        let body = br#"{"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,
            "topic":"kv-events","block_size":1,"dp_size":2}}"#;
        let sources = read_server_info(body, "http://[fd00::1]:30000").unwrap();
        assert_eq!(sources[1].endpoint, endpoint("tcp://[fd00::1]:5558"));
        assert_eq!((sources[1].block_tokens, sources[1].topic.as_str()), (Some(1), "kv-events"));
    }

    #[test]
    fn configured_ranks_beyond_the_last_port_are_refused() {
        let configured = |at, ranks| EventSource::configured(at, None, "", ranks, WORKER);
        assert_eq!(configured("tcp://*:5557", 3).unwrap()[2].endpoint, endpoint("tcp://10.0.0.7:5559"));
        assert!(configured("tcp://*:65535", 2).is_err());
        assert!(configured("nonsense", 1).is_err());
    }
}
