//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use warmroute_engine::Profile;
use warmroute_replica::Endpoint;

use crate::lab::LabArgs;
use crate::options::{Options, Secret};

/// Sends each LLM request to the replica where its first token will come soonest.
#[derive(Parser)]
#[command(name = "warmroute", version, max_term_width = 100, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Subcommand)]
pub enum Command {
    /// Run the gateway in front of a fleet of engines
    Serve(Box<ServeArgs>),
    /// Run one simulated engine: an OpenAI-compatible server that takes an H200's time and answers with filler
    Engine(EngineArgs),
    /// See it work: eight simulated engines, a gateway and a workload in this process, then a table
    Demo(DemoArgs),
    /// Try policies, fleets and caches in virtual time, on traces or workloads, beside the bounds
    Lab(LabArgs),
    /// Check a configuration file and print what would be in force
    Check(Box<CheckArgs>),
    /// Go and look whether it would work: ask every worker and every other router, and say what to change
    Doctor(Box<DoctorArgs>),
    /// Ask a running gateway where a request would go and why, without sending it; or where the last ones went
    Explain(ExplainArgs),
}

/// `warmroute serve`.
#[derive(Args)]
#[command(after_help = "\
Every option can also stand in the configuration file, in the table named by its heading, and in the environment \
as WARMROUTE_ and its name. Flags win over the environment, the environment over the file.

Example:
  warmroute serve --worker-urls http://10.0.0.1:8000 http://10.0.0.2:8000 --policy least_loaded")]
pub struct ServeArgs {
    /// Configuration file (TOML)
    #[arg(long, short, value_name = "FILE", env = "WARMROUTE_CONFIG", hide_env = true)]
    pub config: Option<PathBuf>,
    /// Everything else.
    #[command(flatten)]
    pub options: Options,
}

/// `warmroute engine`.
#[derive(Args)]
#[command(after_help = "\
Faults, by POST /fault: {\"kind\":\"die\"}, {\"kind\":\"hang\"}, {\"kind\":\"slow\",\"factor\":10},
{\"kind\":\"status\",\"code\":503,\"retry_after_s\":1}, {\"kind\":\"reset\",\"after_tokens\":3}, {\"kind\":\"restart\"},
{\"kind\":\"events\",\"lag_ms\":0,\"loss\":0,\"reorder\":0,\"duplicate\":0,\"replay_batches\":null,\"removals\":\"told|hidden\",
\"stores\":\"told|ahead\"}; {\"kind\":\"none\"} heals.")]
pub struct EngineArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Whose timing to imitate: llama-3.1-8b or llama-3.2-3b on one NVIDIA H200
    #[arg(long, default_value = "llama-3.1-8b")]
    pub profile: Profile,
    /// Name under which the model is served [default: the profile's]
    #[arg(long)]
    pub model: Option<String>,
    /// Engine seconds per second: 10 runs ten times as fast
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Tokens per KV block
    #[arg(long, default_value_t = 16)]
    pub block_size: u32,
    /// Tokens that fit into the KV cache [default: what the profile's GPU holds]
    #[arg(long)]
    pub kv_tokens: Option<u64>,
    /// Tokens of host memory behind each rank's KV cache, to which evicted blocks go; 0 is none
    #[arg(long, default_value_t = 0)]
    pub host_kv_tokens: u64,
    /// Gigabytes a second from host memory to the GPU
    #[arg(long, default_value_t = 25.0)]
    pub host_gbps: f64,
    /// Data-parallel ranks behind this address, each with a cache of its own
    #[arg(long, default_value_t = 1)]
    pub ranks: u16,
    /// Whether usage says how many prompt tokens were cached, as vLLM does with --enable-prompt-tokens-details
    #[arg(long, value_enum, default_value = "on")]
    pub prompt_tokens_details: Switch,
    /// Publish KV events here, as vLLM does: tcp://*:5557, port 0 for a free one; rank r is r ports further. Text is then cut
    /// into tokens as the model of --write-model says
    #[arg(long, value_name = "ENDPOINT")]
    pub events: Option<Endpoint>,
    /// Answer replays here
    #[arg(long, value_name = "ENDPOINT", requires = "events")]
    pub replay: Option<Endpoint>,
    /// Topic of the events
    #[arg(long, value_name = "TOPIC", default_value = "", requires = "events")]
    pub events_topic: String,
    /// How events are written: map as vLLM does since 0.24, array as before and as SGLang
    #[arg(long, value_enum, default_value = "map", requires = "events")]
    pub event_encoding: Encoding,
    /// Connect to the endpoint instead of binding it, as vLLM does where it names a host
    #[arg(long, requires = "events")]
    pub events_connect: bool,
    /// Write the tokenizer and chat template of the simulated model into this folder, for --model-path of serve
    #[arg(long, value_name = "FOLDER")]
    pub write_model: Option<PathBuf>,
}

/// How events are written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    /// With names.
    Map,
    /// By place.
    Array,
}

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// `warmroute demo`.
#[derive(Args)]
pub struct DemoArgs {
    /// Simulated engines
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub engines: u16,
    /// Conversations in the workload; each has four turns
    #[arg(long, default_value_t = 144, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub conversations: u32,
    /// Engine seconds per second
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Seed of the workload
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Policies to compare, the first being the baseline
    #[arg(long, value_delimiter = ',', default_value = "round_robin,expected_ttft")]
    pub policies: Vec<String>,
    /// Print one JSON object instead of the table, and nothing else on stdout
    #[arg(long)]
    pub json: bool,
    /// Run no workload: leave the gateway and the engines running, and print where
    #[arg(long)]
    pub keep: bool,
}

/// `warmroute check`.
#[derive(Args)]
pub struct CheckArgs {
    /// Configuration file (TOML)
    pub config: PathBuf,
    /// What `serve` would be given beside it, flags and environment
    #[command(flatten)]
    pub options: Options,
}

/// `warmroute doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// Configuration file (TOML)
    #[arg(long, short, value_name = "FILE", env = "WARMROUTE_CONFIG", hide_env = true)]
    pub config: Option<PathBuf>,
    /// Whether to send each worker one short prompt twice, with a token of answer each: only that shows what it reports
    #[arg(long, value_enum, default_value = "on")]
    pub requests: Switch,
    /// What `serve` would be given
    #[command(flatten)]
    pub options: Options,
}

/// `warmroute explain`.
#[derive(Args)]
pub struct ExplainArgs {
    /// Body of a request, as a client would send it; - reads it from standard input. Left out, the last decisions are shown
    pub request: Option<PathBuf>,
    /// The gateway's admin listener
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:29000")]
    pub admin: String,
    /// The token that it asks operators for
    #[arg(
        long,
        value_name = "TOKEN",
        env = "WARMROUTE_ADMIN_TOKEN",
        hide_env = true,
        hide_env_values = true
    )]
    pub admin_token: Option<Secret>,
    /// Path that the request would be sent to
    #[arg(long, value_name = "PATH", default_value = "/v1/chat/completions", requires = "request")]
    pub path: String,
    /// How many of the last decisions are shown
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "request", value_parser = clap::value_parser!(u16).range(1..))]
    pub last: u16,
    /// Print the gateway's answer as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_makes_sense() {
        super::Cli::command().debug_assert();
    }
}
