//! The lab's command line.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use http::Uri;
use warmroute_engine::Profile;
use warmroute_sim::{Balancer, Cut, EvictionNews, History, Incident, Passages, Slo, View, Workload};

/// `warmroute lab simulate`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  warmroute lab simulate --workload b2b --workers 8 --policies round_robin,cache_aware,expected_ttft --seeds 3 --html report.html
  warmroute lab simulate --trace conversation_trace.jsonl.zst --rate-scale 4 --json -
  warmroute lab simulate --workload sharegpt --policy exec:./mine.py

Policies are those of serve, and rules of other routers for comparison: preble_e2, dynamo_cost, llmd_weights, llmd_sticky, lbgr, \
mooncake_conductor, chwbl, aibrix.
A policy may have parameters: expected_ttft:without=queue (or behind, step, lacking, ties), weighted_score:affinity=3:queue=1, cache_aware:preset=high_affinity, prefix_affinity:factor=2.
exec:PROGRAM gets one JSON object a line for each decision (prompt_tokens, session_key, prefix_key, random, turn, candidates) and \
answers with {\"index\": N}.")]
pub struct SimulateArgs {
    #[command(flatten)]
    pub scene: SceneArgs,
    #[command(flatten)]
    pub contest: ContestArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Write one row for each request (CSV)
    #[arg(long, value_name = "FILE")]
    pub requests_out: Option<PathBuf>,
}

/// `warmroute lab sweep`.
#[derive(Args)]
#[command(after_help = "\
Parameters: rate (times the recorded rate), workers, kv-tokens, host-kv-tokens, pool-kv-tokens, pool-gbps, staleness (seconds between refreshes of an exact directory), \
lag (milliseconds of event lag, in the exact and reported views), loss (share of events that are lost, in the same), routers, share-delay (milliseconds between routers), affinity and queue (weights of weighted_score), threshold (of cache_aware).

Examples:
  warmroute lab sweep --trace conversation_trace.jsonl.zst --over rate=1,2,4,6 --html load.html
  warmroute lab sweep --workload b2b --policies weighted_score --over affinity=0,0.5,1,2,4 --over queue=0.25,1,4 --html surface.html")]
pub struct SweepArgs {
    #[command(flatten)]
    pub scene: SceneArgs,
    #[command(flatten)]
    pub contest: ContestArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// What to vary: NAME=VALUE,VALUE,…; twice for a surface
    #[arg(long, required = true, num_args = 1, value_name = "NAME=VALUES")]
    pub over: Vec<String>,
}

/// `warmroute lab bounds`.
#[derive(Args)]
pub struct BoundsArgs {
    #[command(flatten)]
    pub scene: SceneArgs,
    /// Write JSON here; `-` is stdout, and nothing else is printed there
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// `warmroute lab drive`.
#[derive(Args)]
#[command(after_help = "\
Prompts are made-up words of four bytes a token, as simulated engines count them (two with --events or --write-model: --token-bytes 2), \
and go to /v1/completions as streams. Start the engines with the same --speed.

Example:
  warmroute lab drive --url http://127.0.0.1:8080 --workload b2b --requests 400 --json -")]
pub struct DriveArgs {
    /// Where to ask: a router or an engine, with or without /v1
    #[arg(long, value_name = "URL")]
    pub url: Uri,
    /// What to call it in the results [default: the URL]
    #[arg(long)]
    pub name: Option<String>,
    /// The model to ask for
    #[arg(long, default_value = "llama-3.1-8b")]
    pub model: String,
    /// Engine seconds per second: arrivals and pauses come as much faster, and times are told in engine time
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Bytes that the engines make one token of
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=16))]
    pub token_bytes: u8,
    #[command(flatten)]
    pub traffic: TrafficArgs,
    #[command(flatten)]
    pub slo: SloArgs,
    /// Write JSON here; `-` is stdout, and nothing else is printed there
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// What is asked.
#[derive(Args, Clone)]
#[command(group(clap::ArgGroup::new("source").args(["trace", "workload"]).required(true)))]
pub struct TrafficArgs {
    /// Recorded traffic: what serve --record wrote, Mooncake or Bailian JSONL, Azure CSV, ShareGPT, LMBenchmark, AIBrix or MTRAG, plain or .zst
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Traffic by name: b2b, codegen, reasoning, agentic, tenants, sharegpt, rag-before, rag-after, batch, short, unique, one-hot-prefix,
    /// burst or azure
    #[arg(long, value_name = "NAME")]
    pub workload: Option<Workload>,
    /// Times the traffic's own rate (or number of clients)
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub rate_scale: f64,
    /// So many copies of the trace at once, with nothing in common
    #[arg(long, default_value_t = 1)]
    pub copies: u32,
    /// No more requests than this, about: sessions are not cut
    #[arg(long)]
    pub requests: Option<u64>,
    /// Sessions a second, for texts without times
    #[arg(long, default_value_t = 4.0)]
    pub sessions_per_s: f64,
    /// Mean seconds between an answer and the next question, for texts
    #[arg(long, default_value_t = 10.0)]
    pub think_s: f64,
    /// Where retrieved passages stand, for texts that have any
    #[arg(long, value_enum, default_value = "after")]
    pub passages: Place,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The traffic and the world it meets.
#[derive(Args, Clone)]
pub struct SceneArgs {
    #[command(flatten)]
    pub traffic: TrafficArgs,

    /// Simulated engines
    #[arg(long, default_value_t = 8)]
    pub workers: usize,
    /// Engines of unequal kind instead: COUNT, then :kv-tokens=N and :speed-percent=N where they differ; may be repeated
    #[arg(long, value_name = "GROUP")]
    pub worker_group: Vec<String>,
    /// Whose timing to imitate: llama-3.1-8b or llama-3.2-3b on one NVIDIA H200
    #[arg(long, default_value = "llama-3.1-8b")]
    pub profile: Profile,
    /// Tokens of each engine's KV cache [default: 846000 for 8B, 1050000 for 3B]
    #[arg(long)]
    pub kv_tokens: Option<u64>,
    /// Tokens per KV block
    #[arg(long, default_value_t = 16)]
    pub block_size: u32,
    /// Tokens of each engine's host memory, to which evicted blocks go; 0 is none
    #[arg(long, default_value_t = 0)]
    pub host_kv_tokens: u64,
    /// Gigabytes a second from host memory to the GPU
    #[arg(long, default_value_t = 25.0)]
    pub host_gbps: f64,
    /// Tokens of a pool that all engines share, to which go what host memories, or without them GPUs, have no room for; 0 is none
    #[arg(long, default_value_t = 0)]
    pub pool_kv_tokens: u64,
    /// Gigabytes a second from the pool to each GPU
    #[arg(long, default_value_t = 5.0)]
    pub pool_gbps: f64,
    /// Milliseconds until the pool's first byte comes
    #[arg(long, default_value_t = 1.0)]
    pub pool_latency_ms: f64,
    /// The engines' speed in percent of the profile's GPU
    #[arg(long, default_value_t = 100)]
    pub speed_percent: u32,

    /// How routers know what engines hold: exact (from the engines themselves, or from a directory of a given age), reported (from
    /// the engines' events, as production reads them) or presumed (from their own routing and the engines' feedback)
    #[arg(long, default_value = "presumed")]
    pub view: View,
    /// How much later news of a cache arrive; exact and reported views
    #[arg(long, default_value_t = 0.0)]
    pub event_lag_ms: f64,
    /// News of caches arrive only every so many seconds; exact and reported views
    #[arg(long, default_value_t = 0.0)]
    pub refresh_s: f64,
    /// Share of news that are lost on the way, a whole batch each time; exact and reported views
    #[arg(long, default_value_t = 0.0)]
    pub event_loss: f64,
    /// Batches of events that each engine remembers for routers that missed some; 0: it has no replay endpoint; reported view
    #[arg(long, value_name = "BATCHES", default_value_t = 10_000)]
    pub event_replay: usize,
    /// Routers side by side, each with a view of its own, or as one with --share-delay-ms
    #[arg(long, default_value_t = 1)]
    pub routers: usize,
    /// Routers tell each other what they do, and it takes so long to arrive
    #[arg(long, value_name = "MS")]
    pub share_delay_ms: Option<f64>,
    /// Share of what they tell that is lost on the way
    #[arg(long, default_value_t = 0.0, requires = "share_delay_ms")]
    pub share_loss: f64,
    /// Half of the routers cannot reach the other half in these seconds, as in 60..90; may be repeated
    #[arg(long, value_name = "FROM..UNTIL", requires = "share_delay_ms")]
    pub share_cut: Vec<Cut>,
    /// Which router a request meets: they take turns, or each session has its own
    #[arg(long, value_enum, default_value = "turns")]
    pub balancer: BalancerWord,
    /// One way between router and engine
    #[arg(long, default_value_t = 0.2)]
    pub network_ms: f64,
    /// What the engines did before the routers start: fresh (nothing), warm (they served the same traffic) or reset (the same, and their
    /// caches were reset just before)
    #[arg(long, default_value = "fresh")]
    pub history: History,
    /// Whether engines publish the blocks that they evict: told or untold; reported view
    #[arg(long, default_value = "told")]
    pub evictions: EvictionNews,
    /// What happens to engines: fail:3@120 (worker 3, second 120), recover, leave, join, reset; may be repeated
    #[arg(long, value_name = "WHAT:WORKER@SECOND")]
    pub incident: Vec<Incident>,
}

/// Who is compared, and how.
#[derive(Args, Clone)]
pub struct ContestArgs {
    /// Policies to compare, the first being the baseline
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub policies: Vec<String>,
    /// One more policy, or exec:PROGRAM; may be repeated
    #[arg(long, value_name = "NAME")]
    pub policy: Vec<String>,
    /// Seeds to run, for confidence
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub seeds: u64,
    #[command(flatten)]
    pub slo: SloArgs,
    /// Whether to compute what no router could do better
    #[arg(long, value_enum, default_value = "on")]
    pub bounds: Toggle,
    /// Runs at a time [default: one for each core]
    #[arg(long)]
    pub threads: Option<usize>,
}

/// What clients were promised.
#[derive(Args, Clone, Copy)]
pub struct SloArgs {
    /// Longest time to first token that counts as good
    #[arg(long, default_value_t = 2_000.0)]
    pub slo_ttft_ms: f64,
    /// Longest time per token that counts as good
    #[arg(long, default_value_t = 50.0)]
    pub slo_tpot_ms: f64,
}

/// What comes out.
#[derive(Args, Clone)]
pub struct OutputArgs {
    /// Write JSON here; `-` is stdout, and nothing else is printed there
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
    /// Write one self-contained page here; `-` is stdout
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
    /// Write Markdown here; `-` is stdout
    #[arg(long, value_name = "OUT")]
    pub markdown: Option<PathBuf>,
}

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Toggle {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Who is before the routers.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BalancerWord {
    /// Routers take turns.
    Turns,
    /// All requests of a session meet the same router.
    Session,
}

impl From<BalancerWord> for Balancer {
    fn from(word: BalancerWord) -> Balancer {
        match word {
            BalancerWord::Turns => Balancer::Turns,
            BalancerWord::Session => Balancer::Session,
        }
    }
}

/// Where passages stand.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// Before the history.
    Before,
    /// In the last question.
    After,
    /// Nowhere.
    None,
}

impl From<Place> for Passages {
    fn from(place: Place) -> Passages {
        match place {
            Place::Before => Passages::Before,
            Place::After => Passages::After,
            Place::None => Passages::Left,
        }
    }
}

impl From<SloArgs> for Slo {
    fn from(args: SloArgs) -> Slo {
        Slo { ttft_ms: args.slo_ttft_ms, tpot_ms: args.slo_tpot_ms }
    }
}
