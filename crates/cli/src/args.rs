//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use warmroute_engine::Profile;
use warmroute_replica::{Endpoint, EventEncoding, UsageDetails};

use crate::lab::LabArgs;
use crate::options::named::named;
use crate::options::quantity::{Millis, Secs, count, whole};
use crate::options::{OnOff, Options, Secret};

/// Cache-aware router for LLM engines: sends each request to the worker where its first token will come soonest
#[derive(Parser)]
#[command(name = "warmroute", version, max_term_width = 100, propagate_version = true)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Run the gateway in front of a fleet of engines
    Serve(Box<ServeArgs>),
    /// Run a simulated engine: an OpenAI-compatible server with the timing of an H200 and made-up answers
    Engine(EngineArgs),
    /// See it work: run eight simulated engines, a gateway and a workload in this process, then print a table
    Demo(DemoArgs),
    /// Compare policies, fleets and caches in virtual time, on traces or workloads
    Lab(LabArgs),
    /// Check a configuration file and print the resulting configuration
    Check(Box<CheckArgs>),
    /// Check whether a configuration works: connect to every worker and peer router, and report what to change
    Doctor(Box<DoctorArgs>),
    /// Show where a running gateway would send a request and why, where it sent the last ones, or what breaks prefixes
    Explain(ExplainArgs),
    /// Print whether a running gateway is ready, for scripts
    Status(StatusArgs),
    /// Show the fleet of a running gateway: state, load, hits and the last decisions
    Top(TopArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print the man page, or write all man pages into a folder
    Man(ManArgs),
}

/// `warmroute serve`.
#[derive(Args)]
#[command(
    args_override_self = true,
    after_help = "Example: warmroute serve http://10.0.0.1:8000 http://10.0.0.2:8000\n\
        These are the essentials; --help shows all options: discovery, limits, TLS, several routers and more.",
    after_long_help = "\
Every option is also a key of the configuration file, in the table named after its heading, and an environment \
variable: WARMROUTE_ and its name. Flags override the environment, and the environment overrides the file.

A TIME is a number in the unit that the option's name ends with, or has its own unit: 500ms, 2s, 10m, 1h30m. \
A SIZE is a number of bytes, or has a unit: 16MB, 16MiB. Numbers of TOKENS, REQUESTS and the like may end with k, M or G: \
500k. If a flag is repeated, the last one counts.

Examples:
  warmroute serve http://10.0.0.1:8000 http://10.0.0.2:8000
  warmroute serve --config warmroute.toml --policy least_loaded --drain-timeout-secs 10m"
)]
pub struct ServeArgs {
    /// URLs of the engines, with or without /v1
    #[arg(value_name = "URL")]
    pub urls: Vec<String>,
    /// Configuration file (TOML)
    #[arg(long, short, value_name = "FILE", env = "WARMROUTE_CONFIG", hide_env = true)]
    pub config: Option<PathBuf>,
    /// All other options.
    #[command(flatten)]
    pub options: Options,
}

/// `warmroute engine`.
#[derive(Args)]
#[command(after_help = "\
Inject faults with POST /fault: {\"kind\":\"die\"}, {\"kind\":\"hang\"}, {\"kind\":\"slow\",\"factor\":10},
{\"kind\":\"status\",\"code\":503,\"retry_after_s\":1}, {\"kind\":\"reset\",\"after_tokens\":3}, {\"kind\":\"restart\"},
{\"kind\":\"lie\"} (wrong usage),
{\"kind\":\"events\",\"lag_ms\":0,\"loss\":0,\"reorder\":0,\"duplicate\":0,\"replay_batches\":null,\"removals\":\"told|hidden\",
\"stores\":\"told|ahead\"}; {\"kind\":\"none\"} ends all faults.")]
pub struct EngineArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 picks a free port
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Timing to simulate: llama-3.1-8b or llama-3.2-3b on one NVIDIA H200
    #[arg(long, default_value = "llama-3.1-8b")]
    pub profile: Profile,
    /// Name of the served model [default: the profile's]
    #[arg(long)]
    pub model: Option<String>,
    /// Engine seconds per second: 10 runs ten times as fast
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Tokens per KV block
    #[arg(long, value_name = "TOKENS", value_parser = count::<u32>, default_value_t = 16)]
    pub block_size: u32,
    /// Tokens in the KV cache [default: what fits on the profile's GPU]
    #[arg(long, value_name = "TOKENS", value_parser = count::<u64>)]
    pub kv_tokens: Option<u64>,
    /// Requests computed at once at most, as vLLM's --max-num-seqs [default: 256]
    #[arg(long, value_name = "REQUESTS", value_parser = whole::<u32>(1..=u64::from(u32::MAX)))]
    pub max_num_seqs: Option<u32>,
    /// Tokens that half of the layers see: a second KV cache group with sliding-window attention; 0 is none
    #[arg(long, value_name = "TOKENS", value_parser = count::<u32>, default_value_t = 0)]
    pub sliding_window: u32,
    /// Compute the last cached block of each prompt again, as vLLM does with EAGLE or MTP drafts
    #[arg(long)]
    pub recompute_last_block: bool,
    /// Tokens of host memory behind each rank's KV cache, for evicted blocks; 0 is none
    #[arg(long, value_name = "TOKENS", value_parser = count::<u64>, default_value_t = 0)]
    pub host_kv_tokens: u64,
    /// Gigabytes per second from host memory to the GPU
    #[arg(long, default_value_t = 25.0)]
    pub host_gbps: f64,
    /// Data-parallel ranks behind this address, each with its own cache
    #[arg(long, value_parser = whole::<u16>(1..=65_535), default_value_t = 1)]
    pub ranks: u16,
    /// LoRA adapters to serve beside the model
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub adapters: Vec<String>,
    /// Adapters in memory at a time, as vLLM's --max-loras
    #[arg(long, default_value_t = 1)]
    pub adapter_slots: usize,
    /// Time to load an adapter that is not in memory, such as 2s; a plain number is in milliseconds
    #[arg(long, value_name = "TIME", default_value = "0")]
    pub adapter_load_ms: Millis,
    /// Report cached prompt tokens in usage, as vLLM does with --enable-prompt-tokens-details
    #[arg(long, value_parser = named::<UsageDetails>(), default_value = "on")]
    pub prompt_tokens_details: UsageDetails,
    /// Publish KV events here, as vLLM does: tcp://*:5557, port 0 for a free one; rank r uses a port r higher. Text
    /// is then tokenized with the model of --write-model
    #[arg(long, value_name = "ENDPOINT")]
    pub events: Option<Endpoint>,
    /// Endpoint for replays
    #[arg(long, value_name = "ENDPOINT", requires = "events")]
    pub replay: Option<Endpoint>,
    /// Topic of the events
    #[arg(long, value_name = "TOPIC", default_value = "", requires = "events")]
    pub events_topic: String,
    /// Encoding of events: map as in vLLM since 0.24, array as before and in SGLang
    #[arg(long, value_parser = named::<EventEncoding>(), default_value = "map", requires = "events")]
    pub event_encoding: EventEncoding,
    /// Connect to the endpoint instead of binding it, as vLLM does if the endpoint names a host
    #[arg(long, requires = "events")]
    pub events_connect: bool,
    /// Write the simulated model's tokenizer and chat template into this folder, for --model-path of serve
    #[arg(long, value_name = "FOLDER")]
    pub write_model: Option<PathBuf>,
}

/// `warmroute demo`.
#[derive(Args)]
pub struct DemoArgs {
    /// Number of simulated engines
    #[arg(long, default_value_t = 8, value_parser = whole::<u16>(1..=64))]
    pub engines: u16,
    /// Number of conversations in the workload, with four turns each
    #[arg(long, default_value_t = 144, value_parser = whole::<u32>(1..=10_000))]
    pub conversations: u32,
    /// Engine seconds per second: 10 runs ten times as fast
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Seed of the workload
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Policies to compare; the first is the baseline
    #[arg(long, value_delimiter = ',', default_value = "round_robin,expected_ttft")]
    pub policies: Vec<String>,
    /// Print one JSON object instead of the table, and nothing else on stdout
    #[arg(long)]
    pub json: bool,
    /// Run no workload: keep the gateway and the engines running, and print their addresses
    #[arg(long)]
    pub keep: bool,
}

/// `warmroute check`.
#[derive(Args)]
#[command(
    args_override_self = true,
    after_help = "It takes all options of serve; --help shows them.",
    after_long_help = ""
)]
pub struct CheckArgs {
    /// Configuration file (TOML), and URLs of engines
    #[arg(value_name = "FILE|URL")]
    pub places: Vec<String>,
    /// Configuration file (TOML)
    #[arg(long, short, value_name = "FILE", env = "WARMROUTE_CONFIG", hide_env = true)]
    pub config: Option<PathBuf>,
    /// The flags and environment that `serve` would get
    #[command(flatten)]
    pub options: Options,
}

/// `warmroute doctor`.
#[derive(Args)]
#[command(
    args_override_self = true,
    after_help = "It takes all options of serve; --help shows them.",
    after_long_help = ""
)]
pub struct DoctorArgs {
    /// Configuration file (TOML), and URLs of engines
    #[arg(value_name = "FILE|URL")]
    pub places: Vec<String>,
    /// Configuration file (TOML)
    #[arg(long, short, value_name = "FILE", env = "WARMROUTE_CONFIG", hide_env = true)]
    pub config: Option<PathBuf>,
    /// Send each worker a short prompt twice, for one token each; only that shows which numbers it reports
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub requests: OnOff,
    /// The options that `serve` would get
    #[command(flatten)]
    pub options: Options,
}

/// `warmroute explain`.
#[derive(Args)]
pub struct ExplainArgs {
    /// File with a request body, as a client would send it; - reads standard input. Without it, the last decisions are shown
    #[arg(value_name = "FILE")]
    pub request: Option<PathBuf>,
    /// The gateway
    #[command(flatten)]
    pub gateway: GatewayArgs,
    /// Path to which the request would be sent
    #[arg(long, value_name = "PATH", default_value = "/v1/chat/completions", requires = "request")]
    pub path: String,
    /// Number of decisions to show
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "request", value_parser = whole::<u16>(1..=65_535))]
    pub last: u16,
    /// Show where successive prompts part, why, and what that costs, instead of decisions
    #[arg(long, conflicts_with_all = ["request", "last"])]
    pub prefixes: bool,
    /// Print the gateway's response as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// The running gateway that a command asks.
#[derive(Args)]
pub struct GatewayArgs {
    /// URL of the gateway's admin listener
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:29000")]
    pub admin: String,
    /// Token of the admin listener (--admin-token of serve)
    #[arg(
        long,
        value_name = "TOKEN",
        env = "WARMROUTE_ADMIN_TOKEN",
        hide_env = true,
        hide_env_values = true
    )]
    pub admin_token: Option<Secret>,
    /// CA bundle (PEM) for an admin listener with https [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub admin_ca: Option<PathBuf>,
}

/// `warmroute status`.
#[derive(Args)]
#[command(after_help = "\
The exit code is 0 if the gateway is ready, and 1 if it is not ready or does not answer.

Example:
  warmroute status --wait 60 && run-the-benchmark")]
pub struct StatusArgs {
    /// The gateway.
    #[command(flatten)]
    pub gateway: GatewayArgs,
    /// How long to wait until the gateway is ready, such as 1500ms or 2m; a plain number is in seconds
    #[arg(long, value_name = "TIME", default_value = "0")]
    pub wait: Secs,
    /// Print a JSON object with every worker instead of a line
    #[arg(long)]
    pub json: bool,
}

/// `warmroute top`.
#[derive(Args)]
pub struct TopArgs {
    /// The gateway.
    #[command(flatten)]
    pub gateway: GatewayArgs,
    /// Print the table once, with totals since the gateway started
    #[arg(long)]
    pub once: bool,
    /// Time between two readings, such as 500ms; a plain number is in seconds
    #[arg(long, value_name = "TIME", default_value = "2")]
    pub interval: Secs,
}

/// `warmroute completions`.
#[derive(Args)]
#[command(after_help = "\
Example:
  warmroute completions bash > ~/.local/share/bash-completion/completions/warmroute")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `warmroute man`.
#[derive(Args)]
pub struct ManArgs {
    /// Folder for the man pages of warmroute and its subcommands
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    /// A screen of 30 lines, with the prompt before and after.
    #[test]
    fn the_short_help_fits_one_screen() {
        let mut command = super::Cli::command();
        for name in ["serve", "check", "doctor"] {
            let help = command.find_subcommand_mut(name).unwrap().render_help().to_string();
            assert!(help.lines().count() <= 28, "{name}: {}", help.lines().count());
        }
    }

    /// Parses a command line of this program.
    fn parsed(line: &str) -> Result<clap::ArgMatches, String> {
        super::Cli::command().try_get_matches_from(line.split(' ')).map_err(|error| error.to_string())
    }

    #[test]
    fn every_subcommand_takes_units() {
        for line in [
            "warmroute status --wait 1500ms",
            "warmroute top --interval 500ms",
            "warmroute engine --kv-tokens 500k --host-kv-tokens 1.5M --sliding-window 4k --adapter-load-ms 2s",
            "warmroute demo --conversations 1k",
            "warmroute serve --worker-kv-tokens 500k --queue-size 2k --rate-limit-tokens-per-minute 1.5M",
            "warmroute serve --max-concurrent-requests 1k --max-client-connections 20k --prefix-token-count 1k",
            "warmroute serve --continue-streams=128k --max-tree-size 1GiB --ttft-budget-ms 2s",
            "warmroute lab simulate --workload b2b --requests 10k --kv-tokens 300k --event-lag-ms 1s --network-ms 200us",
            "warmroute lab simulate --workload b2b --share-delay-ms 5ms --share-cut 1m..90s --incident fail:3@2m",
            "warmroute lab drive --url http://a --workload b2b --concurrency 2 --duration 2m --slo-ttft-ms 2s",
        ] {
            parsed(line).unwrap();
        }
        for (line, flag) in [
            ("warmroute status --wait soon", "--wait <TIME>"),
            ("warmroute engine --kv-tokens 1.5", "--kv-tokens <TOKENS>"),
            ("warmroute demo --conversations 20k", "--conversations <CONVERSATIONS>"),
            ("warmroute lab bounds --workload b2b --think-s 1x", "--think-s <TIME>"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(flag) && error.contains("expected a"), "{line}: {error}");
        }
    }
}
