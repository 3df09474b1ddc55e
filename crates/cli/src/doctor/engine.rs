//! Checks one engine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use warmroute_discovery::EventsEntry;
use warmroute_events::{Direction, Endpoint, EventSource};
use warmroute_follow::{Aligned, Card, Engine, UnexpectedStatus, align};
use warmroute_probe::{lacks_rank, read_capacity};
use warmroute_wire::{Dialer, Scheme, Target, detect_scheme};

use super::finding::Finding;
use crate::options::OnOff;
use crate::plan::Plan;

/// Clocks further apart than this make the measured delay of events useless.
const SKEW_S_MAX: f64 = 5.0;
/// Timeout of a connection to an event endpoint.
const CONNECT: Duration = Duration::from_secs(2);
const KV_EVENTS: &str = "start the engine with --kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\
    \"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"tcp://*:5657\"}' (vLLM; docs/precise.md has others)";

/// One engine, and what the checks learned about it.
pub struct EngineCheck {
    engine: Engine,
    ranks: u16,
    /// Whether the ranks are configured. An engine without is not asked for them.
    has_ranks: bool,
    events: Option<EventsEntry>,
    pub is_well: bool,
    pub version: Option<String>,
    pub models: Vec<String>,
    findings: Vec<Finding>,
}

impl EngineCheck {
    pub fn new(url: &str, ranks: Option<u16>, events: Option<EventsEntry>, dialer: &Dialer) -> EngineCheck {
        EngineCheck {
            engine: Engine::new(url, dialer),
            ranks: ranks.unwrap_or(1),
            has_ranks: ranks.is_some(),
            events,
            is_well: false,
            version: None,
            models: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// Runs all checks, in the order in which the gateway depends on them.
    pub async fn check(&mut self, plan: &Plan, requests: OnOff) -> Vec<Finding> {
        match self.engine.page(&plan.probe.health_path).await {
            Ok(Some(_)) => {
                self.is_well = true;
                self.check_engine(plan, requests).await;
            }
            failed => match self.check_scheme().await {
                Some(finding) => self.add(finding),
                None => self.report_failure(failed.map(|_| ()), &plan.probe.health_path),
            },
        }
        std::mem::take(&mut self.findings)
    }

    fn report_failure(&mut self, failed: anyhow::Result<()>, health_path: &str) {
        match failed {
            Err(error) => self.add(Finding::trouble(
                format!("the engine does not answer: {error}"),
                "check that the engine runs, that the address is right, and that this machine may connect to it",
            )),
            Ok(()) => self.add(Finding::trouble(
                format!("the response to GET {}{health_path} is not 200", self.engine.url.trim_end_matches('/')),
                "wait if the engine is still loading; write the URL of the server without a path of its API; if health is \
                 at another path, set --health-check-endpoint",
            )),
        }
    }

    /// Reports a port that speaks TLS although the URL says plain HTTP, or the reverse.
    async fn check_scheme(&self) -> Option<Finding> {
        let target: Target = self.engine.url.parse().ok()?;
        let (_, rest) = self.engine.url.split_once("://")?;
        match (target.scheme, detect_scheme(&target).await?) {
            (Scheme::Https, Scheme::Http) => Some(Finding::trouble(
                "the URL says https, but the engine speaks plain HTTP at this port",
                format!(
                    "write http://{rest}, or give the engine a certificate (vLLM: --ssl-certfile, --ssl-keyfile)"
                ),
            )),
            (Scheme::Http, Scheme::Https) => Some(Finding::trouble(
                "the URL says http, but the engine speaks TLS at this port",
                format!(
                    "write https://{rest}, and set --worker-tls-ca if the system does not trust the certificate"
                ),
            )),
            _ => None,
        }
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    async fn check_engine(&mut self, plan: &Plan, requests: OnOff) {
        self.check_version().await;
        let cards = match self.engine.cards().await {
            Ok(cards) if !cards.is_empty() => cards,
            Ok(_) => {
                return self.add(Finding::trouble(
                    "the engine lists no model",
                    "check GET /v1/models of the engine",
                ));
            }
            Err(error) => {
                let remedy = models_remedy(&error, plan);
                return self.add(Finding::trouble(format!("{error:#}"), remedy));
            }
        };
        self.models = cards.iter().map(|card| card.id.clone()).collect();
        self.add(Finding::good(format!("serves {}", self.models.join(", "))));
        self.check_metrics().await;
        self.check_events(plan, &cards[0]).await;
        if requests.0 {
            self.check_cached_tokens(&cards[0]).await;
        }
    }

    async fn check_version(&mut self) {
        let version =
            |page: &[u8]| serde_json::from_slice::<Value>(page).ok()?["version"].as_str().map(str::to_owned);
        if let Ok(Some(page)) = self.engine.page("/version").await {
            self.version = version(&page).map(|version| format!("vLLM {version}"));
        } else if let Ok(Some(page)) = self.engine.server_info().await {
            self.version = version(&page).map(|version| format!("SGLang {version}"));
        }
        let found = match &self.version {
            Some(version) => Finding::good(version.clone()),
            None => Finding::note(
                "the engine reports no version (GET /version, GET /server_info)",
                "any OpenAI-compatible server works, but the router can only presume what its cache holds",
            ),
        };
        self.add(found);
    }

    async fn check_metrics(&mut self) {
        let Ok(Some(page)) = self.engine.page("/metrics").await else {
            return self.add(Finding::note(
                "no GET /metrics: the router estimates the load of the engine and assumes the size of its cache",
                "set the size of the cache with --worker-kv-tokens",
            ));
        };
        if let Some(missing) = (0..self.ranks).find(|&rank| self.has_ranks && lacks_rank(&page, rank)) {
            self.add(Finding::trouble(
                format!(
                    "the engine has no data-parallel rank {missing}, but {} ranks are configured",
                    self.ranks
                ),
                "reduce --dp-size, or ranks of this worker; vLLM has as many as its --data-parallel-size",
            ));
        }
        let text = String::from_utf8_lossy(&page);
        if text.contains("enable_prefix_caching=\"False\"") {
            self.add(Finding::trouble(
                "prefix caching is off",
                "start the engine with --enable-prefix-caching",
            ));
        }
        let found = match read_capacity(&page, None) {
            Some(capacity) => Finding::good(format!(
                "a cache of {} tokens in blocks of {}",
                capacity.tokens, capacity.block_tokens
            )),
            None => Finding::note(
                "the metrics do not report the size of the cache",
                "set it with --worker-kv-tokens; the engine prints it when it starts",
            ),
        };
        self.add(found);
    }

    async fn check_events(&mut self, plan: &Plan, card: &Card) {
        let Some(precise) = &plan.precise else {
            return self.add(Finding::note(
                "kv-events is off: the router presumes what caches hold",
                "set kv-events to auto",
            ));
        };
        match self.events.as_ref().map(|events| events.endpoint.as_str()) {
            Some("off" | "poll" | "bind") => {}
            _ => match self.engine.sources(self.events.as_ref(), self.ranks).await {
                Err(error) => self.add(Finding::trouble(format!("KV events: {error:#}"), KV_EVENTS)),
                Ok(sources) if sources.is_empty() => {
                    self.add(Finding::note(
                        "the engine publishes no KV events: the router presumes what its cache holds",
                        KV_EVENTS,
                    ));
                    // Without events there is nothing to compare prompts with.
                    return;
                }
                Ok(sources) => self.check_sources(&sources).await,
            },
        }
        let found = match align(&self.engine, card, &precise.paths, precise.matching).await {
            Ok(Aligned { matching, .. }) => Finding::good(format!(
                "prompts are rendered as the engine renders them, and compared in {matching}"
            )),
            Err(why) => Finding::note(
                format!("KV events cannot be compared with prompts: {why}"),
                "see docs/precise.md",
            ),
        };
        self.add(found);
    }

    async fn check_sources(&mut self, sources: &[EventSource]) {
        for source in sources {
            if source.direction == Direction::WeConnect {
                self.check_endpoint("KV events are published at", &source.endpoint).await;
            }
            match &source.replay {
                Some(replay) => self.check_endpoint("KV events are replayed at", replay).await,
                None => self.add(Finding::note(
                    "no replay endpoint: events published before the router started, or lost, cannot be recovered",
                    "add \"replay_endpoint\" to --kv-events-config of the engine",
                )),
            }
        }
    }

    async fn check_endpoint(&mut self, what: &str, endpoint: &Endpoint) {
        let Endpoint::Tcp { host, port } = endpoint else { return };
        let connected = tokio::time::timeout(CONNECT, TcpStream::connect((host.as_str(), *port))).await;
        let found = match connected {
            Ok(Ok(_)) => Finding::good(format!("{what} {endpoint}")),
            Ok(Err(error)) => Finding::trouble(
                format!("{what} {endpoint}, which cannot be reached: {error}"),
                "open the port to this machine, or name the right endpoint as kv-events of this worker",
            ),
            Err(_) => Finding::trouble(
                format!("{what} {endpoint}, which does not answer within 2 s"),
                "open the port to this machine; a firewall most likely drops the connection",
            ),
        };
        self.add(found);
    }

    /// Sends one prompt of some hundred tokens twice, for one token each. The engine must find the second one in its
    /// cache.
    async fn check_cached_tokens(&mut self, card: &Card) {
        let prompt = "The doctor asks the same thing twice, and looks whether it is remembered. ".repeat(24);
        let body = json!({"model": card.id, "prompt": prompt, "max_tokens": 1, "temperature": 0});
        let mut answers = Vec::new();
        for _ in 0..2 {
            match self.engine.post("/v1/completions", &body).await {
                Ok(answer) => answers.push(answer),
                Err(error) => {
                    return self.add(Finding::note(
                        format!("the engine did not answer a completion: {error:#}"),
                        "harmless if the engine serves chats only; --requests off sends no completions",
                    ));
                }
            }
        }
        let cached = answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        let found = match cached {
            Some(1..) => Finding::good("answers report cached tokens"),
            Some(0) => Finding::note(
                "a prompt that the engine has just computed was not in its cache",
                "check that prefix caching is on",
            ),
            None => Finding::note(
                "answers do not report cached tokens, so that predictions cannot be checked",
                "start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report",
            ),
        };
        self.add(found);
        self.compare_clocks(answers[1]["created"].as_f64());
    }

    fn compare_clocks(&mut self, created_unix_s: Option<f64>) {
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let follow = "synchronize both clocks by NTP: they measure the lag of KV events";
        let found = match created_unix_s.map(|created| unix_s - created) {
            Some(skew_s) if skew_s.abs() <= SKEW_S_MAX => {
                Finding::good(format!("the clocks of the engine and of this machine agree to {SKEW_S_MAX} s"))
            }
            Some(skew_s) => Finding::note(
                format!("the clocks of the engine and of this machine are {skew_s:.0} s apart"),
                follow,
            ),
            None => Finding::note("answers have no time of creation: clocks are not compared", follow),
        };
        self.add(found);
    }
}

/// What to do when the engine does not list its models.
fn models_remedy(error: &anyhow::Error, plan: &Plan) -> &'static str {
    let status = error.downcast_ref::<UnexpectedStatus>().map(|unexpected| unexpected.status);
    let is_refused = matches!(status, Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN));
    match (is_refused, plan.gateway.dialer.authorization()) {
        (true, None) => "the engine requires an API key: set --worker-api-key or --worker-api-key-file",
        (true, Some(_)) => "the engine refuses the key of --worker-api-key or --worker-api-key-file",
        (false, _) => "the engine must offer GET /v1/models",
    }
}
