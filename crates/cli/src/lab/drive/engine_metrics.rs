//! What engines measured during a run, from their `/metrics` before and after it.
//!
//! Counters and histograms are differences of the two readings. The number of waiting requests is sampled during the run.
//! A figure that an engine does not publish is absent, and `problems` says so.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::Uri;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;
use warmroute_wire::HttpClient;
use warmroute_wire::{Dialer, TlsFiles};

use super::metrics_page::{Histogram, MetricsPage};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Time between samples of waiting requests. Rendering a page takes an engine milliseconds.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// Engines count an answer shortly after they have sent it, so the last reading is repeated until nothing changes.
const SETTLE_EVERY: Duration = Duration::from_millis(200);
const SETTLE_READINGS_MAX: usize = 10;

/// Metric names of one kind of engine.
#[derive(Debug)]
struct Names {
    prefix: &'static str,
    ttft: &'static str,
    /// Computed prompt tokens. Without it, they are the queried tokens less the hits.
    computed: Option<&'static str>,
    queries: &'static str,
    hits: &'static str,
    preemptions: &'static str,
    waiting: &'static str,
}

const KINDS: [Names; 2] = [
    Names {
        prefix: "vllm:",
        ttft: "vllm:time_to_first_token_seconds",
        computed: Some("vllm:request_prefill_kv_computed_tokens_sum"),
        queries: "vllm:prefix_cache_queries_total",
        hits: "vllm:prefix_cache_hits_total",
        preemptions: "vllm:num_preemptions_total",
        waiting: "vllm:num_requests_waiting",
    },
    Names {
        prefix: "sglang:",
        ttft: "sglang:time_to_first_token_seconds",
        computed: None,
        queries: "sglang:prompt_tokens_total",
        hits: "sglang:cached_tokens_total",
        preemptions: "sglang:num_retracted_requests_total",
        waiting: "sglang:num_queue_reqs",
    },
];

/// What an engine has counted since its start, or during a run.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counted {
    ttft_s: Option<Histogram>,
    computed: Option<f64>,
    queries: Option<f64>,
    hits: Option<f64>,
    preemptions: Option<f64>,
}

impl Counted {
    fn read(page: &MetricsPage, names: &Names) -> Counted {
        Counted {
            ttft_s: page.histogram(names.ttft),
            computed: names.computed.and_then(|name| page.sum(name)),
            queries: page.sum(names.queries),
            hits: page.sum(names.hits),
            preemptions: page.sum(names.preemptions),
        }
    }

    /// The counts since an earlier reading. A counter without an earlier value starts at zero.
    fn since(&self, before: &Counted) -> Counted {
        let less = |after: Option<f64>, before: Option<f64>| Some(after? - before.unwrap_or(0.0));
        let none = Histogram::default();
        Counted {
            ttft_s: self.ttft_s.as_ref().map(|ttft| ttft.since(before.ttft_s.as_ref().unwrap_or(&none))),
            computed: less(self.computed, before.computed),
            queries: less(self.queries, before.queries),
            hits: less(self.hits, before.hits),
            preemptions: less(self.preemptions, before.preemptions),
        }
    }

    /// Adds another engine's counts. A figure that only one has is that one's.
    fn add(&mut self, other: &Counted) {
        let both = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        self.ttft_s = match (&self.ttft_s, &other.ttft_s) {
            (Some(one), Some(other)) => Some(one.plus(other)),
            (one, other) => one.as_ref().or(other.as_ref()).cloned(),
        };
        self.computed = both(self.computed, other.computed);
        self.queries = both(self.queries, other.queries);
        self.hits = both(self.hits, other.hits);
        self.preemptions = both(self.preemptions, other.preemptions);
    }

    /// Whether a counter is smaller than before, because a new process started.
    fn went_back(&self) -> bool {
        let counts = [self.ttft_s.as_ref().map(|ttft| ttft.count), self.queries, self.hits, self.preemptions];
        counts.into_iter().flatten().any(|count| count < 0.0)
    }
}

/// One reading of an engine's page.
struct Reading {
    names: &'static Names,
    counted: Counted,
    waiting: Option<f64>,
}

impl Reading {
    async fn of(client: &mut HttpClient) -> anyhow::Result<Reading> {
        let (status, body) = client.get("/metrics").await.map_err(|error| anyhow::anyhow!("{error}"))?;
        anyhow::ensure!(status.is_success(), "/metrics answered {status}");
        let page =
            MetricsPage::read(&String::from_utf8_lossy(&body), &KINDS.each_ref().map(|names| names.prefix));
        let names = KINDS.iter().find(|names| page.has(names.prefix));
        let names = names.context("/metrics has no metrics of vLLM or SGLang")?;
        Ok(Reading { names, counted: Counted::read(&page, names), waiting: page.sum(names.waiting) })
    }

    /// A reading that the next one repeats.
    async fn settled(client: &mut HttpClient) -> anyhow::Result<Reading> {
        let mut reading = Reading::of(client).await?;
        for _ in 1..SETTLE_READINGS_MAX {
            tokio::time::sleep(SETTLE_EVERY).await;
            let next = Reading::of(client).await?;
            let is_settled = next.counted == reading.counted;
            reading = next;
            if is_settled {
                break;
            }
        }
        Ok(reading)
    }

    /// Names of metrics that the page lacks.
    fn lacking(&self) -> Vec<String> {
        let (names, counted) = (self.names, &self.counted);
        let found = [
            (names.ttft, counted.ttft_s.is_some()),
            (names.queries, counted.queries.is_some()),
            (names.hits, counted.hits.is_some()),
            (names.preemptions, counted.preemptions.is_some()),
            (names.waiting, self.waiting.is_some()),
        ];
        let computed = names.computed.map(|name| (name, counted.computed.is_some()));
        let absent = found.into_iter().chain(computed).filter(|(_, is_found)| !is_found);
        absent.map(|(name, _)| format!("does not publish {name}")).collect()
    }
}

/// Engines that are watched during a run.
pub struct EngineWatch {
    engines: Vec<WatchedEngine>,
}

struct WatchedEngine {
    url: String,
    client: HttpClient,
    before: anyhow::Result<Reading>,
    waiting: Arc<Mutex<WaitingSamples>>,
    /// Absent where the first reading failed.
    sampling: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct WaitingSamples {
    sum: f64,
    count: u32,
    failed: u32,
}

impl EngineWatch {
    /// Reads every engine's counters, and begins to sample.
    pub async fn begin(urls: &[Uri]) -> anyhow::Result<EngineWatch> {
        let dialer = Dialer::new(None, TlsFiles::default()).context("TLS")?;
        let open = |url: &Uri| {
            let url = super::base_of(&url.to_string());
            let client = HttpClient::new(&url, TIMEOUT, dialer.clone());
            tokio::spawn(WatchedEngine::open(url, client))
        };
        let mut engines = Vec::new();
        for opened in urls.iter().map(open).collect::<Vec<_>>() {
            engines.push(opened.await?);
        }
        // Not before all have been read: one that does not answer takes seconds.
        for engine in engines.iter_mut().filter(|engine| engine.before.is_ok()) {
            let client = HttpClient::new(&engine.url, TIMEOUT, dialer.clone());
            engine.sampling = Some(tokio::spawn(sample(client, Arc::clone(&engine.waiting))));
        }
        Ok(EngineWatch { engines })
    }

    /// Reads every engine again: what each measured in between, and all together.
    pub async fn finish(self) -> anyhow::Result<EngineReport> {
        // All end at once, so that no engine is sampled after the run.
        self.engines.iter().flat_map(|engine| &engine.sampling).for_each(JoinHandle::abort);
        let finish = |engine: WatchedEngine| tokio::spawn(engine.finish());
        let mut runs = Vec::new();
        for finished in self.engines.into_iter().map(finish).collect::<Vec<_>>() {
            runs.push(finished.await?);
        }
        Ok(EngineReport {
            sum: sum_of(&runs),
            each: runs.iter().map(|run| EngineFigures::of(run.url.clone(), run)).collect(),
        })
    }
}

async fn sample(mut client: HttpClient, samples: Arc<Mutex<WaitingSamples>>) {
    loop {
        tokio::time::sleep(SAMPLE_EVERY).await;
        let reading = Reading::of(&mut client).await;
        let mut samples = samples.lock();
        match reading.ok().and_then(|reading| reading.waiting) {
            Some(waiting) => {
                samples.sum += waiting;
                samples.count += 1;
            }
            None => samples.failed += 1,
        }
    }
}

/// One engine's run.
#[derive(Default)]
struct EngineRun {
    url: String,
    counted: Counted,
    waiting: Waiting,
    problems: Vec<String>,
}

impl WatchedEngine {
    async fn open(url: String, mut client: HttpClient) -> WatchedEngine {
        let before = Reading::of(&mut client).await;
        WatchedEngine { url, client, before, waiting: Arc::default(), sampling: None }
    }

    async fn finish(mut self) -> EngineRun {
        let mut run = EngineRun { url: self.url, ..EngineRun::default() };
        let before = match self.before {
            Ok(before) => before,
            Err(error) => {
                run.problems.push(format!("no metrics before the run: {error:#}"));
                return run;
            }
        };
        match Reading::settled(&mut self.client).await {
            Ok(after) => run.compare(&before, &after, &self.waiting.lock()),
            Err(error) => run.problems.push(format!("no metrics after the run: {error:#}")),
        }
        run
    }
}

impl EngineRun {
    fn compare(&mut self, before: &Reading, after: &Reading, samples: &WaitingSamples) {
        let mut counted = after.counted.since(&before.counted);
        if after.names.computed.is_none() {
            counted.computed = counted.queries.zip(counted.hits).map(|(queries, hits)| queries - hits);
        }
        if counted.went_back() {
            self.problems.push("restarted during the run: its counters began again".to_owned());
            return;
        }
        self.problems = after.lacking();
        if samples.failed > 0 {
            let all = samples.failed + samples.count;
            self.problems.push(format!("{} of {all} samples of waiting requests failed", samples.failed));
        }
        let mean = (samples.count > 0).then(|| samples.sum / f64::from(samples.count));
        self.waiting = Waiting { mean, last: after.waiting };
        self.counted = counted;
    }
}

/// All engines as one. A figure that some engines lack is the sum of the others, and a problem.
fn sum_of(runs: &[EngineRun]) -> EngineFigures {
    let mut all = EngineRun::default();
    for run in runs {
        all.counted.add(&run.counted);
        let add =
            |sum: &mut Option<f64>, one: Option<f64>| *sum = one.map(|one| sum.unwrap_or(0.0) + one).or(*sum);
        add(&mut all.waiting.mean, run.waiting.mean);
        add(&mut all.waiting.last, run.waiting.last);
    }
    type Figure = (&'static str, fn(&EngineRun) -> bool);
    let figures: [Figure; 6] = [
        ("ttft_ms", |run| run.counted.ttft_s.is_some()),
        ("prefill_tokens_computed", |run| run.counted.computed.is_some()),
        ("prefix_queries_tokens", |run| run.counted.queries.is_some()),
        ("prefix_hits_tokens", |run| run.counted.hits.is_some()),
        ("preemptions", |run| run.counted.preemptions.is_some()),
        ("waiting", |run| run.waiting.last.is_some()),
    ];
    let known: Vec<&EngineRun> = runs.iter().filter(|run| figures.iter().any(|(_, has)| has(run))).collect();
    if known.is_empty() {
        all.problems.push("no figures of any engine".to_owned());
    } else if known.len() < runs.len() {
        all.problems.push(format!("figures of {} of {} engines", known.len(), runs.len()));
    }
    for (name, has) in figures {
        let having = known.iter().filter(|run| has(run)).count();
        if having < known.len() {
            all.problems.push(format!("{name} of {having} of {} engines", runs.len()));
        }
    }
    let engines = if runs.len() == 1 { "1 engine".to_owned() } else { format!("{} engines", runs.len()) };
    EngineFigures::of(engines, &all)
}

/// What engines measured, in sum and each. Absent figures are null in JSON.
#[derive(Debug, Serialize)]
pub struct EngineReport {
    pub sum: EngineFigures,
    pub each: Vec<EngineFigures>,
}

/// One engine's figures.
#[derive(Debug, Serialize)]
pub struct EngineFigures {
    /// URL, or the number of engines.
    pub engine: String,
    /// Requests with a first token.
    pub requests: Option<u64>,
    pub ttft_ms: Option<EngineTtft>,
    pub prefill_tokens_computed: Option<u64>,
    pub prefix_queries_tokens: Option<u64>,
    pub prefix_hits_tokens: Option<u64>,
    pub token_hit_ratio: Option<f64>,
    pub preemptions: Option<u64>,
    pub waiting: Waiting,
    /// Why figures are absent or incomplete.
    pub problems: Vec<String>,
}

/// Time to first token in the engine, without the network and the router.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EngineTtft {
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

/// Requests that wait in an engine.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Waiting {
    /// Over the samples of the run; `None` if it was too short for one.
    pub mean: Option<f64>,
    /// After the run.
    pub last: Option<f64>,
}

impl EngineFigures {
    fn of(engine: String, run: &EngineRun) -> EngineFigures {
        let counted = &run.counted;
        let whole = |count: Option<f64>| count.map(|count| count.round() as u64);
        let queries = counted.queries.filter(|queries| *queries > 0.0);
        EngineFigures {
            engine,
            requests: whole(counted.ttft_s.as_ref().map(|ttft| ttft.count)),
            ttft_ms: counted.ttft_s.as_ref().and_then(EngineTtft::of),
            prefill_tokens_computed: whole(counted.computed),
            prefix_queries_tokens: whole(counted.queries),
            prefix_hits_tokens: whole(counted.hits),
            token_hit_ratio: queries.and_then(|queries| Some(counted.hits? / queries)),
            preemptions: whole(counted.preemptions),
            waiting: run.waiting,
            problems: run.problems.clone(),
        }
    }
}

impl EngineTtft {
    fn of(ttft_s: &Histogram) -> Option<EngineTtft> {
        let ms = |share: f64| Some(1e3 * ttft_s.quantile(share)?);
        Some(EngineTtft { mean: 1e3 * ttft_s.mean()?, p50: ms(0.5)?, p95: ms(0.95)?, p99: ms(0.99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a real engine's page after 23 requests.
    const VLLM: &str = include_str!("vllm-0.32.0.metrics.txt");
    const SGLANG: &str = "\
sglang:prompt_tokens_total{model_name=\"m\"} 1000.0
sglang:cached_tokens_total{cache_source=\"device\",model_name=\"m\"} 600.0
sglang:cached_tokens_total{cache_source=\"host\",model_name=\"m\"} 100.0
sglang:num_queue_reqs{model_name=\"m\"} 3.0
sglang:time_to_first_token_seconds_bucket{le=\"0.1\",model_name=\"m\"} 4.0
sglang:time_to_first_token_seconds_bucket{le=\"+Inf\",model_name=\"m\"} 4.0
sglang:time_to_first_token_seconds_count{model_name=\"m\"} 4.0
sglang:time_to_first_token_seconds_sum{model_name=\"m\"} 0.2
";

    fn reading(text: &str) -> Reading {
        let page = MetricsPage::read(text, &KINDS.each_ref().map(|names| names.prefix));
        let names = KINDS.iter().find(|names| page.has(names.prefix)).unwrap();
        Reading { names, counted: Counted::read(&page, names), waiting: page.sum(names.waiting) }
    }

    fn run_between(before: &str, after: &str) -> EngineRun {
        let mut run = EngineRun::default();
        run.compare(&reading(before), &reading(after), &WaitingSamples { sum: 6.0, count: 3, failed: 0 });
        run
    }

    #[test]
    fn the_page_of_a_real_vllm_is_read() {
        let after = reading(VLLM);
        let before = Reading { names: after.names, counted: Counted::default(), waiting: None };
        let mut run = EngineRun::default();
        run.compare(&before, &after, &WaitingSamples::default());
        let figures = EngineFigures::of("e".to_owned(), &run);
        assert_eq!((figures.requests, figures.prefill_tokens_computed), (Some(23), Some(3_020)));
        assert_eq!((figures.prefix_queries_tokens, figures.prefix_hits_tokens), (Some(3_660), Some(640)));
        assert_eq!((figures.preemptions, figures.waiting.last), (Some(0), Some(0.0)));
        assert!(figures.problems.is_empty(), "{figures:?}");
        let ttft = figures.ttft_ms.unwrap();
        assert!((ttft.mean - 17.94).abs() < 0.01 && ttft.p50 < ttft.p95 && ttft.p95 < ttft.p99, "{ttft:?}");
    }

    #[test]
    fn an_sglang_engine_computes_what_it_does_not_find() {
        let run = run_between("sglang:prompt_tokens_total{model_name=\"m\"} 200.0\n", SGLANG);
        let figures = EngineFigures::of("e".to_owned(), &run);
        assert_eq!((figures.prefix_queries_tokens, figures.prefix_hits_tokens), (Some(800), Some(700)));
        assert_eq!(figures.prefill_tokens_computed, Some(100));
        assert_eq!((figures.requests, figures.preemptions), (Some(4), None));
        assert_eq!(figures.problems, ["does not publish sglang:num_retracted_requests_total"]);
        assert_eq!((figures.waiting.mean, figures.waiting.last), (Some(2.0), Some(3.0)));
        let ttft = figures.ttft_ms.unwrap();
        assert!((ttft.mean - 50.0).abs() < 1e-9 && (ttft.p50 - 50.0).abs() < 1e-9, "{ttft:?}");
    }

    #[test]
    fn a_restarted_engine_has_no_figures() {
        let run = run_between(SGLANG, "sglang:prompt_tokens_total{model_name=\"m\"} 900.0\n");
        assert_eq!(run.counted, Counted::default());
        assert_eq!(run.problems, ["restarted during the run: its counters began again"]);
    }

    #[test]
    fn a_sum_says_how_many_engines_it_is_of() {
        let unreachable = EngineRun { problems: vec!["no metrics".to_owned()], ..EngineRun::default() };
        let sum = sum_of(&[run_between(SGLANG, SGLANG), unreachable]);
        assert_eq!((sum.requests, sum.preemptions), (Some(0), None));
        assert_eq!(sum.problems, ["figures of 1 of 2 engines", "preemptions of 0 of 2 engines"]);
    }
}
