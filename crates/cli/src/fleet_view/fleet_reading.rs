//! One reading of a gateway: whether it is ready, its workers, and their counters.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

use crate::explain::query::AdminListener;

/// What the admin listener says at one moment.
pub struct FleetReading {
    pub at: Instant,
    /// `ready`, or why the gateway wants no traffic.
    pub readiness: String,
    pub workers: Vec<WorkerReading>,
}

/// What the list of workers and the metrics say about a worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerReading {
    /// Address and rank.
    pub label: String,
    pub state: String,
    pub view: String,
    pub in_flight: u64,
    pub queue_ms: f64,
    /// The engine's own numbers, if it reports them.
    pub load: Option<EngineLoad>,
    pub counts: WorkerCounts,
}

/// What an engine reports about its load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct EngineLoad {
    pub waiting: u64,
    pub running: u64,
    /// As a share; `None` where the engine does not tell it.
    pub kv_use: Option<f64>,
}

/// Counters of a worker since the gateway started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerCounts {
    pub requests: f64,
    pub failures: f64,
    pub prompt_tokens: f64,
    pub cached_tokens: f64,
}

/// The answer of `GET /workers`.
#[derive(Deserialize)]
struct WorkerList {
    workers: Vec<ListedWorker>,
}

/// A worker in `GET /workers`, as far as it is shown.
#[derive(Deserialize)]
struct ListedWorker {
    url: String,
    rank: Option<u16>,
    state: String,
    view: String,
    in_flight: u64,
    expected_queue_ms: f64,
    report: Option<EngineLoad>,
}

impl FleetReading {
    /// Reads the pages of a gateway.
    pub async fn take(listener: &mut AdminListener) -> anyhow::Result<FleetReading> {
        let readiness = readiness(&listener.answer("/readyz").await?.1);
        let workers = listener.get("/workers").await?;
        let WorkerList { workers } =
            serde_json::from_str(&workers).context("the answer is not a warmroute admin listener's")?;
        let mut counts = read_counts(&listener.get("/metrics").await?);
        let mut workers: Vec<WorkerReading> =
            workers.into_iter().map(|listed| WorkerReading::of(listed, &mut counts)).collect();
        workers.sort_by(|a, b| a.label.cmp(&b.label));
        Ok(FleetReading { at: Instant::now(), readiness, workers })
    }

    pub fn is_ready(&self) -> bool {
        self.readiness == "ready"
    }

    /// Workers that take requests.
    pub fn ready_workers(&self) -> usize {
        self.workers.iter().filter(|worker| matches!(&*worker.state, "ready" | "recovering")).count()
    }

    pub fn in_flight(&self) -> u64 {
        self.workers.iter().map(|worker| worker.in_flight).sum()
    }

    /// Requests that wait in the engines.
    pub fn waiting(&self) -> u64 {
        self.workers.iter().filter_map(|worker| worker.load).map(|load| load.waiting).sum()
    }
}

/// The status of a ready gateway, or the reason of one that is not.
fn readiness(page: &str) -> String {
    let page: Value = serde_json::from_str(page).unwrap_or_default();
    let text = page["status"].as_str().or(page["error"]["message"].as_str());
    text.unwrap_or("the answer of /readyz is not readable").to_owned()
}

impl WorkerReading {
    fn of(listed: ListedWorker, counts: &mut HashMap<String, WorkerCounts>) -> WorkerReading {
        let label = listed.rank.map_or_else(|| listed.url.clone(), |rank| format!("{}@{rank}", listed.url));
        WorkerReading {
            counts: counts.remove(&label).unwrap_or_default(),
            label,
            state: listed.state,
            view: listed.view,
            in_flight: listed.in_flight,
            queue_ms: listed.expected_queue_ms,
            load: listed.report,
        }
    }
}

/// The counters of each worker, by its label.
fn read_counts(page: &str) -> HashMap<String, WorkerCounts> {
    let mut counts: HashMap<String, WorkerCounts> = HashMap::new();
    for (name, labels, value) in page.lines().filter_map(sample) {
        let Some(worker) = label(labels, "worker") else { continue };
        let row = counts.entry(worker.to_owned()).or_default();
        match name {
            "warmroute_requests_total" => {
                row.requests += value;
                let is_failure = matches!(label(labels, "outcome"), Some("failed" | "server_error"));
                row.failures += if is_failure { value } else { 0.0 };
            }
            "warmroute_prompt_tokens_total" => row.prompt_tokens += value,
            "warmroute_cached_tokens_total" => row.cached_tokens += value,
            _ => {}
        }
    }
    counts
}

/// Name, labels and value of a line.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (name, rest) = line.split_once('{')?;
    let (labels, value) = rest.rsplit_once("} ")?;
    Some((name, labels, value.split(' ').next()?.parse().ok()?))
}

/// The value of a label. Workers' labels are URLs, which contain no quotes.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_by_worker() {
        let page = "# TYPE warmroute_requests counter\n\
            warmroute_requests_total{worker=\"http://a:1\",outcome=\"ok\"} 7\n\
            warmroute_requests_total{worker=\"http://a:1\",outcome=\"failed\"} 2\n\
            warmroute_requests_total{worker=\"http://b:1@0\",outcome=\"ok\"} 1\n\
            warmroute_prompt_tokens_total{worker=\"http://a:1\"} 100\n\
            warmroute_cached_tokens_total{worker=\"http://a:1\"} 40\n\
            warmroute_retries_total 3\n# EOF\n";
        let counts = read_counts(page);
        let expected =
            WorkerCounts { requests: 9.0, failures: 2.0, prompt_tokens: 100.0, cached_tokens: 40.0 };
        assert_eq!(counts["http://a:1"], expected);
        assert_eq!(counts["http://b:1@0"], WorkerCounts { requests: 1.0, ..WorkerCounts::default() });
        assert_eq!(counts.len(), 2);
    }

    #[test]
    fn readiness_is_a_status_or_a_reason() {
        assert_eq!(readiness(r#"{"status":"ready"}"#), "ready");
        assert_eq!(readiness(r#"{"error":{"message":"draining"}}"#), "draining");
        assert!(readiness("<html>").contains("not readable"));
    }
}
