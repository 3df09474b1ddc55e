//! The lab's command line.

use std::path::PathBuf;

use clap::Args;
use http::Uri;
use warmroute_engine::Profile;
use warmroute_sim::{
    Balancer, EvictionEvents, History, Incident, Partition, PassagePlacement, Slo, View, Workload,
};
use warmroute_types::MAX_WORKERS;

use crate::options::OnOff;
use crate::options::named::named;
use crate::options::quantity::{count, milliseconds, seconds, whole};

/// Defaults by which flags that were not given are told from others.
pub const SESSIONS_PER_S: f64 = 4.0;
pub const THINK_S: f64 = 10.0;
pub const WORKERS: usize = 8;
pub const EVENT_REPLAY: usize = 10_000;

/// Most routers of a run: each has an index of its own.
pub const ROUTERS_MAX: u64 = 256;

/// Most requests of a run: records of more would fill the memory of a large machine.
const REQUESTS_MAX: u64 = 100_000_000;

/// `warmroute lab simulate`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  warmroute lab simulate --workload b2b --workers 8 --policies round_robin,cache_aware,expected_ttft --seeds 3 --html report.html
  warmroute lab simulate --trace conversation_trace.jsonl.zst --rate-scale 4 --json -
  warmroute lab simulate --workload sharegpt --policy exec:./mine.py

Policies are those of serve, and baselines from other routers: preble_e2, dynamo_cost, llmd_weights, llmd_sticky, lbgr, \
mooncake_conductor, chwbl, aibrix, longest_match.
Policies can have parameters: expected_ttft:without=queue (or behind, followers, step, eviction, lacking, ties), weighted_score:affinity=3:queue=1, \
cache_aware:preset=high_affinity:balance=either:worth=off, sticky_least_loaded:literal, least_loaded:signal=waiting, \
prefix_affinity:factor=2:key=system (or windows, tokens=N).
exec:PROGRAM reads one JSON object per line for each decision (prompt_tokens, session_key, prefix_key, random, turn, candidates) \
and writes {\"index\": N}.

A TIME is a number in the unit that the option's name ends with (otherwise in seconds), or has its own unit: 500ms, 2s, 1h30m. \
Numbers of tokens and requests may end with k, M or G: 500k.")]
pub struct SimulateArgs {
    #[command(flatten)]
    pub scene: SceneArgs,
    #[command(flatten)]
    pub contest: ContestArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Write one row per request (CSV)
    #[arg(long, value_name = "FILE")]
    pub requests_out: Option<PathBuf>,
}

/// `warmroute lab sweep`.
#[derive(Args)]
#[command(after_help = "\
Parameters: rate (multiple of the recorded rate), workers, kv-tokens, host-kv-tokens, pool-kv-tokens, pool-gbps, max-num-seqs, staleness (seconds between refreshes of an exact directory), \
lag (milliseconds of event lag, in the exact and reported views), loss (share of lost events, in the same views), batch (milliseconds between batches of events, in the reported view), concurrency, routers, share-delay (milliseconds between routers), affinity and queue (weights of weighted_score), threshold (of cache_aware). Their values take units: kv-tokens=200k,400k, lag=50ms,1s.

Examples:
  warmroute lab sweep --trace conversation_trace.jsonl.zst --over rate=1,2,4,6 --html load.html
  warmroute lab sweep --workload tenants --requests 4000 --over concurrency=16,64,256 --policies round_robin,expected_ttft
  warmroute lab sweep --workload b2b --policies weighted_score --over affinity=0,0.5,1,2,4 --over queue=0.25,1,4 --html surface.html")]
pub struct SweepArgs {
    #[command(flatten)]
    pub scene: SceneArgs,
    #[command(flatten)]
    pub contest: ContestArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Parameter to vary: NAME=VALUE,VALUE,…; give it twice for a surface
    #[arg(long, required = true, num_args = 1, value_name = "NAME=VALUES")]
    pub over: Vec<String>,
}

/// `warmroute lab bounds`.
#[derive(Args)]
pub struct BoundsArgs {
    #[command(flatten)]
    pub scene: SceneArgs,
    /// Write JSON to this file; `-` is stdout, and nothing else is printed there
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// `warmroute lab drive`.
#[derive(Args)]
#[command(after_help = "\
Prompts are made-up words of four bytes per token, as simulated engines count them (two with --events or --write-model: use \
--token-bytes 2), sent to /v1/completions as streams. Start the engines with the same --speed.

A TIME is a number in the unit that the option's name ends with (otherwise in seconds), or has its own unit: 500ms, 2s, 1h30m. \
Numbers of tokens and requests may end with k, M or G: 500k.

Examples:
  warmroute lab drive --url http://127.0.0.1:8080 --workload b2b --requests 400 --json -
  warmroute lab drive --url http://127.0.0.1:8080 --workload tenants --concurrency 32 --duration 60 --requests 100000 \
--engine-metrics http://127.0.0.1:8001,http://127.0.0.1:8002")]
pub struct DriveArgs {
    /// URL of the router or engine, with or without /v1
    #[arg(long, value_name = "URL")]
    pub url: Uri,
    /// Name in the results [default: the URL]
    #[arg(long)]
    pub name: Option<String>,
    /// Model to request
    #[arg(long, default_value = "llama-3.1-8b")]
    pub model: String,
    /// Engine seconds per second: traffic runs that much faster, and results are in engine time
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Bytes per token, as the engines count them
    #[arg(long, default_value_t = 4, value_parser = whole::<u8>(2..=16))]
    pub token_bytes: u8,
    /// Base URLs of engines whose /metrics are read before, during and after the run: vLLM, SGLang and simulated ones
    #[arg(long, value_name = "URL", value_delimiter = ',', num_args = 1..)]
    pub engine_metrics: Vec<Uri>,
    /// Requests in flight at any time: each of N clients plays session after session, without start and think times
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=u64::from(u32::MAX)))]
    pub concurrency: Option<u32>,
    /// Time after which --concurrency sends no further request, such as 60s. Traffic can end before: raise --requests
    #[arg(long, value_name = "TIME", value_parser = seconds, requires = "concurrency")]
    pub duration: Option<f64>,
    #[command(flatten)]
    pub traffic: TrafficArgs,
    #[command(flatten)]
    pub slo: SloArgs,
    /// Write JSON to this file; `-` is stdout, and nothing else is printed there
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// The traffic.
#[derive(Args, Clone)]
#[command(group(clap::ArgGroup::new("source").args(["trace", "workload"]).required(true)))]
pub struct TrafficArgs {
    /// Trace file: from serve --record, or Mooncake or Bailian JSONL, Azure CSV, ShareGPT, LMBenchmark, AIBrix,
    /// MTRAG or LooGLE; plain or .zst
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Workload: b2b, codegen, reasoning, agentic, coding-agents, tenants, sharegpt, rag-before, rag-after, batch,
    /// short, unique, one-hot-prefix, burst, azure, documents, follow-up, equal-queries or assistants; docs/lab.md
    /// describes them
    #[arg(long, value_name = "NAME")]
    pub workload: Option<Workload>,
    /// Multiplies the traffic's rate, or its number of clients
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub rate_scale: f64,
    /// Number of independent copies of the trace to run at once
    #[arg(long, value_parser = whole::<u32>(1..=u64::from(u32::MAX)), default_value_t = 1)]
    pub copies: u32,
    /// Approximate maximum number of requests; sessions are kept whole
    #[arg(long, value_name = "REQUESTS", value_parser = whole::<u64>(1..=REQUESTS_MAX))]
    pub requests: Option<u64>,
    /// Sessions per second, for traces without times
    #[arg(long, default_value_t = SESSIONS_PER_S)]
    pub sessions_per_s: f64,
    /// Mean time between an answer and the next question, for traces without times
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value_t = THINK_S)]
    pub think_s: f64,
    /// Position of retrieved passages, for traces that have them
    #[arg(long, value_parser = named::<PassagePlacement>(), default_value = "after")]
    pub passages: PassagePlacement,
    /// First seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The traffic, the engines and the network.
#[derive(Args, Clone)]
pub struct SceneArgs {
    #[command(flatten)]
    pub traffic: TrafficArgs,

    /// Number of simulated engines
    #[arg(long, value_parser = whole::<usize>(1..=MAX_WORKERS as u64), default_value_t = WORKERS)]
    pub workers: usize,
    /// Engines of different kinds: COUNT, then :kv-tokens=N, :speed-percent=N and :max-num-seqs=N where they differ; repeatable
    #[arg(long, value_name = "GROUP")]
    pub worker_group: Vec<String>,
    /// Timing to simulate: llama-3.1-8b or llama-3.2-3b on one NVIDIA H200
    #[arg(long, default_value = "llama-3.1-8b")]
    pub profile: Profile,
    /// Tokens in each engine's KV cache [default: 846000 for 8B, 1050000 for 3B]
    #[arg(long, value_name = "TOKENS", value_parser = count::<u64>)]
    pub kv_tokens: Option<u64>,
    /// Requests that each engine computes at once at most, as vLLM's --max-num-seqs [default: 256]
    #[arg(long, value_name = "REQUESTS", value_parser = whole::<u32>(1..=u64::from(u32::MAX)))]
    pub max_num_seqs: Option<u32>,
    /// Tokens per KV block
    #[arg(long, value_name = "TOKENS", value_parser = count::<u32>, default_value_t = 16)]
    pub block_size: u32,
    /// Tokens of each engine's host memory, for evicted blocks; 0 is none
    #[arg(long, value_name = "TOKENS", value_parser = count::<u64>, default_value_t = 0)]
    pub host_kv_tokens: u64,
    /// Gigabytes per second from host memory to the GPU
    #[arg(long, default_value_t = 25.0)]
    pub host_gbps: f64,
    /// Tokens of a pool shared by all engines, for blocks evicted from host memory or, without it, from GPUs; 0 is none
    #[arg(long, value_name = "TOKENS", value_parser = count::<u64>, default_value_t = 0)]
    pub pool_kv_tokens: u64,
    /// Gigabytes per second from the pool to each GPU
    #[arg(long, default_value_t = 5.0)]
    pub pool_gbps: f64,
    /// Latency of the pool
    #[arg(long, value_name = "TIME", value_parser = milliseconds, default_value_t = 1.0)]
    pub pool_latency_ms: f64,
    /// Engine speed in percent of the profile's GPU
    #[arg(long, default_value_t = 100)]
    pub speed_percent: u32,

    /// How routers know the engines' caches: exact (read from the engines, or from a directory of a given age),
    /// reported (from KV events, as in production) or presumed (from their own routing and the engines' feedback)
    #[arg(long, default_value = "presumed")]
    pub view: View,
    /// Delay of cache events; exact and reported views
    #[arg(long, value_name = "TIME", value_parser = milliseconds, default_value_t = 0.0)]
    pub event_lag_ms: f64,
    /// Time between deliveries of cache events; 0 delivers at once; exact and reported views
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value_t = 0.0)]
    pub refresh_s: f64,
    /// Share of cache events that are lost, in whole batches; exact and reported views
    #[arg(long, default_value_t = 0.0)]
    pub event_loss: f64,
    /// Batches that each engine keeps for replay; 0 is no replay endpoint; reported view
    #[arg(long, value_name = "BATCHES", value_parser = count::<usize>, default_value_t = EVENT_REPLAY)]
    pub event_replay: usize,
    /// Number of routers, each with its own view, or sharing state with --share-delay-ms
    #[arg(long, value_parser = whole::<usize>(1..=ROUTERS_MAX), default_value_t = 1)]
    pub routers: usize,
    /// Routers share state, with this delay
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    pub share_delay_ms: Option<f64>,
    /// Share of messages between routers that are lost
    #[arg(long, default_value_t = 0.0, requires = "share_delay_ms")]
    pub share_loss: f64,
    /// Time in which half of the routers cannot reach the other half, such as 60..90 or 1m..90s; repeatable
    #[arg(long, value_name = "FROM..UNTIL", requires = "share_delay_ms")]
    pub share_cut: Vec<Partition>,
    /// How requests are assigned to routers
    #[arg(long, value_parser = named::<Balancer>(), default_value = "turns")]
    pub balancer: Balancer,
    /// One-way network delay between router and engine
    #[arg(long, value_name = "TIME", value_parser = milliseconds, default_value_t = 0.2)]
    pub network_ms: f64,
    /// What the engines did before the routers start: fresh (nothing), warm (they served the same traffic) or reset
    /// (the same, and their caches were reset just before)
    #[arg(long, default_value = "fresh")]
    pub history: History,
    /// Whether engines publish the blocks that they evict: published or unpublished; reported view
    #[arg(long, default_value = "published")]
    pub evictions: EvictionEvents,
    /// Requests in flight at any time: each of N clients plays session after session, without start and think times.
    /// Reports throughput at saturation
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=u64::from(u32::MAX)))]
    pub concurrency: Option<u32>,
    /// Events in the fleet: fail:3@120 (worker 3 after 120 s), recover, leave, join, reset; repeatable
    #[arg(long, value_name = "WHAT:WORKER@TIME")]
    pub incident: Vec<Incident>,
}

/// The policies, and how they are compared.
#[derive(Args, Clone)]
pub struct ContestArgs {
    /// Policies to compare; the first is the baseline
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub policies: Vec<String>,
    /// One more policy, or exec:PROGRAM; repeatable
    #[arg(long, value_name = "NAME")]
    pub policy: Vec<String>,
    /// Number of seeds, for confidence intervals
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(1..=1_000))]
    pub seeds: u64,
    #[command(flatten)]
    pub slo: SloArgs,
    /// Compute bounds that no router can beat
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub bounds: OnOff,
    /// Concurrent runs [default: one per core]
    #[arg(long)]
    pub threads: Option<usize>,
}

/// Service-level objectives.
#[derive(Args, Clone, Copy)]
pub struct SloArgs {
    /// Longest time to first token that meets the objective
    #[arg(long, value_name = "TIME", value_parser = milliseconds, default_value_t = 2_000.0)]
    pub slo_ttft_ms: f64,
    /// Longest time per output token that meets the objective
    #[arg(long, value_name = "TIME", value_parser = milliseconds, default_value_t = 50.0)]
    pub slo_tpot_ms: f64,
}

/// Output files.
#[derive(Args, Clone)]
pub struct OutputArgs {
    /// Write JSON to this file; `-` is stdout, and nothing else is printed there
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
    /// Write one self-contained HTML page to this file; `-` is stdout
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// Write Markdown to this file; `-` is stdout
    #[arg(long, value_name = "OUT")]
    pub markdown: Option<PathBuf>,
}

impl From<SloArgs> for Slo {
    fn from(args: SloArgs) -> Slo {
        Slo { ttft_ms: args.slo_ttft_ms, tpot_ms: args.slo_tpot_ms }
    }
}
