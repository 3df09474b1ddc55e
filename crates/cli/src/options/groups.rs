//! The groups of options. Names and defaults known from other routers are kept; a comment explains each default that
//! differs.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Deserializer, Serialize};
use warmroute_follow::MatchingUnit;
use warmroute_gateway::SessionKey;

use super::named::named;
use super::secret::Secret;

/// Defines one group: a struct for flags, environment and file keys, how two layers combine, and its keys.
macro_rules! group {
    (
        $(#[$about:meta])* $name:ident in $table:literal ($heading:literal) {
            $( $(#[$meta:meta])* $field:ident: $type:ty = $default:expr, )*
        }
    ) => {
        $(#[$about])*
        #[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[command(next_help_heading = $heading)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $name {
            $( $(#[$meta])* #[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<$type>, )*
        }

        impl $name {
            pub fn over(self, below: $name) -> $name {
                $name { $( $field: self.$field.or(below.$field), )* }
            }

            pub fn defaults() -> $name {
                $name { $( $field: $default, )* }
            }

            const KEYS: &'static [&'static str] = &[$( stringify!($field) ),*];
        }
    };
}

group! {
    /// Listeners, logs, shutdown.
    Server in "server" ("Server") {
        /// Address of the client listener [default: 0.0.0.0]
        #[arg(long, env = "WARMROUTE_HOST", hide_env = true)]
        host: IpAddr = Some(IpAddr::from([0, 0, 0, 0])),
        /// Port of the client listener; 0 picks a free port [default: 30000]
        #[arg(long, env = "WARMROUTE_PORT", hide_env = true)]
        port: u16 = Some(30_000),
        /// Address of the admin listener [default: 127.0.0.1]
        #[arg(long, env = "WARMROUTE_ADMIN_HOST", hide_env = true)]
        admin_host: IpAddr = Some(IpAddr::from([127, 0, 0, 1])),
        /// Port of the admin listener (health, metrics, workers); 0 picks a free port [default: 29000]
        #[arg(long, env = "WARMROUTE_ADMIN_PORT", alias = "prometheus-port", hide_env = true)]
        admin_port: u16 = Some(29_000),
        /// Maximum concurrent client connections; further clients wait to be accepted [default: 16384]
        #[arg(long, value_name = "CONNECTIONS", env = "WARMROUTE_MAX_CLIENT_CONNECTIONS", hide_env = true)]
        max_client_connections: usize = Some(16_384),
        /// Threads that serve requests; 0 is one per core [default: 0]
        #[arg(long, env = "WARMROUTE_THREADS", hide_env = true)]
        threads: usize = Some(0),
        /// Time for requests to finish after SIGTERM; then they are aborted [default: 600]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_DRAIN_TIMEOUT_SECS", hide_env = true)]
        drain_timeout_secs: u64 = Some(600),
        /// Unix socket for zero-downtime restarts: a new process takes over the listeners of the running one, then
        /// waits for its own successor
        #[arg(long, value_name = "PATH", env = "WARMROUTE_HANDOVER", hide_env = true)]
        handover: PathBuf = None,
        /// How long to wait for the running process to hand over; on timeout the new process exits and the old one
        /// continues [default: 30]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_HANDOVER_TIMEOUT_SECS", hide_env = true)]
        handover_timeout_secs: u64 = Some(30),
        /// File that keeps cache predictions and learned worker latencies across restarts. It contains no prompt
        /// text, but it can confirm a guessed prompt: keep it private
        #[arg(long, value_name = "FILE", env = "WARMROUTE_STATE", hide_env = true)]
        state: PathBuf = None,
        /// Log level (error, warn, info, debug, trace), or a filter such as warmroute_gateway=debug [default: info]
        #[arg(long, value_name = "LEVEL", env = "WARMROUTE_LOG_LEVEL", hide_env = true)]
        log_level: String = Some("info".to_owned()),
        /// Format of log lines [default: text]
        #[arg(long, value_enum, env = "WARMROUTE_LOG_FORMAT", hide_env = true)]
        log_format: LogFormat = Some(LogFormat::Text),
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

group! {
    /// Where workers come from.
    Discovery in "discovery" ("Discovery") {
        /// Base URLs of the engines, without /v1; separated by spaces or commas (in the environment: commas)
        #[arg(long, value_name = "URL", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_WORKER_URLS", hide_env = true)]
        worker_urls: Vec<String> = None,
        /// TOML file with a list of [[workers]], read again when it changes
        #[arg(long, value_name = "FILE", env = "WARMROUTE_WORKER_FILE", hide_env = true)]
        worker_file: PathBuf = None,
        /// Host names whose A and AAAA records are engines, as http://NAME:PORT
        #[arg(long, value_name = "URL", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_WORKER_DNS", hide_env = true)]
        worker_dns: Vec<String> = None,
        /// How often to resolve --worker-dns [default: 10]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_DNS_REFRESH_SECS", hide_env = true)]
        dns_refresh_secs: u64 = Some(10),
        /// Data-parallel ranks behind each URL of --worker-urls; each rank is a worker with its own cache
        #[arg(long, value_name = "RANKS", env = "WARMROUTE_DP_SIZE", hide_env = true)]
        dp_size: u16 = None,
    }
}

group! {
    /// How workers are chosen.
    Routing in "routing" ("Routing") {
        /// Routing policy: expected_ttft, cache_aware, sticky_least_loaded, weighted_score, product, dual_choice,
        /// prefix_affinity, session_affinity, least_loaded, power_of_two, round_robin or random [default:
        /// expected_ttft]
        #[arg(long, env = "WARMROUTE_POLICY", hide_env = true)]
        policy: String = Some("expected_ttft".to_owned()),
        /// Policies to evaluate on live traffic without acting on them; metrics show what they would choose
        #[arg(long, value_name = "POLICY", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_SHADOW", hide_env = true)]
        shadow: Vec<String> = Some(Vec::new()),
        /// Load that least_loaded compares: this router's requests in flight, or the engines' waiting requests
        /// [default: in-flight]
        #[arg(long, value_enum, env = "WARMROUTE_LOAD_SIGNAL", hide_env = true)]
        load_signal: Signal = Some(Signal::InFlight),
        /// Part of the prompt that prefix_affinity and dual_choice hash [default: tokens]
        #[arg(long, value_enum, env = "WARMROUTE_PREFIX_KEY", hide_env = true)]
        prefix_key: PrefixKey = Some(PrefixKey::Tokens),
        // Other routers use 256, which sends all users who share a system prompt of that length to one worker.
        /// Tokens in the prefix key when --prefix-key is tokens; a token counts as 4 bytes [default: 1024]
        #[arg(long, value_name = "TOKENS", env = "WARMROUTE_PREFIX_TOKEN_COUNT", hide_env = true)]
        prefix_token_count: u32 = Some(1_024),
        /// Hash of the prefix key: xxh3 or blake2b [default: xxh3]
        #[arg(long, env = "WARMROUTE_PREFIX_HASH", hide_env = true)]
        prefix_hash: String = Some("xxh3".to_owned()),
        /// Where to look for a session name, in order: header:NAME or body:FIELD [default: header:x-session-id,
        /// header:x-user-id,header:x-tenant-id,header:x-correlation-id,body:session_id,body:user,body:prompt_cache_key]
        #[arg(long, value_name = "KEY", value_delimiter = ',', env = "WARMROUTE_SESSION_KEYS", hide_env = true)]
        session_keys: Vec<String> = Some(SessionKey::default_order().iter().map(ToString::to_string).collect()),
        /// Add x-warmroute-* response headers with the chosen worker and the reason [default: off]
        #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(), env = "WARMROUTE_DECISION_HEADERS", hide_env = true)]
        decision_headers: bool = Some(false),
    }
}

/// The load that `least_loaded` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signal {
    /// Requests that this router has in flight
    InFlight,
    /// Waiting requests that the engines report
    Waiting,
}

/// The part of a prompt that makes the prefix key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefixKey {
    /// The first tokens of the prompt
    Tokens,
    /// Tools and system prompt
    System,
    /// The smallest hash of all 256-token windows in the first 4,000 tokens
    Windows,
}

group! {
    /// The cache index, and parameters of cache-aware policies.
    Cache in "cache" ("Cache") {
        /// Preset thresholds of cache_aware; the next three options override single values [default: balanced]
        #[arg(long, value_enum, env = "WARMROUTE_CACHE_PRESET", hide_env = true)]
        cache_preset: Preset = Some(Preset::Balanced),
        /// Share of the prompt that must match, 0 to 1 [balanced: 0.3]
        #[arg(long, value_name = "SHARE", env = "WARMROUTE_CACHE_THRESHOLD", hide_env = true)]
        cache_threshold: f64 = None,
        /// Overloaded when in-flight requests exceed the least loaded worker's by this number [balanced: 64]
        #[arg(long, value_name = "REQUESTS", env = "WARMROUTE_BALANCE_ABS_THRESHOLD", hide_env = true)]
        balance_abs_threshold: u32 = None,
        /// Overloaded when in-flight requests exceed this multiple of the least loaded worker's [balanced: 1.5]
        #[arg(long, value_name = "TIMES", env = "WARMROUTE_BALANCE_REL_THRESHOLD", hide_env = true)]
        balance_rel_threshold: f64 = None,
        /// How the two balance thresholds combine [default: both]
        #[arg(long, value_enum, env = "WARMROUTE_BALANCE", hide_env = true)]
        balance: BalanceRule = Some(BalanceRule::Both),
        /// Weight of the cache match in weighted_score [default: 1]
        #[arg(long, value_name = "WEIGHT", env = "WARMROUTE_AFFINITY_WEIGHT", hide_env = true)]
        affinity_weight: f64 = Some(1.0),
        /// Weight of the queue in weighted_score [default: 1]
        #[arg(long, value_name = "WEIGHT", env = "WARMROUTE_QUEUE_WEIGHT", hide_env = true)]
        queue_weight: f64 = Some(1.0),
        /// Memory limit of the cache index, in units of 32 bytes (about one span each) [default: 67108864]
        #[arg(long, value_name = "SPANS", env = "WARMROUTE_MAX_TREE_SIZE", hide_env = true)]
        max_tree_size: usize = Some(67_108_864),
        /// Hash of blocks and chunks: xxh3, or the slower sha256 or blake2b where a standard hash is required
        /// [default: xxh3]
        #[arg(long, value_name = "HASH", env = "WARMROUTE_BLOCK_HASH", hide_env = true)]
        block_hash: String = Some("xxh3".to_owned()),
        /// How often to evict expired entries from the cache index [default: 120]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_EVICTION_INTERVAL_SECS", hide_env = true)]
        eviction_interval_secs: u64 = Some(120),
        /// How long a prompt is presumed to be cached after its last use [default: 1800]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_PRESUMED_TTL_SECS", hide_env = true)]
        presumed_ttl_secs: u64 = Some(1_800),
        /// KV cache size of a worker whose metrics do not report it [default: 500000]
        #[arg(long, value_name = "TOKENS", env = "WARMROUTE_WORKER_KV_TOKENS", hide_env = true)]
        worker_kv_tokens: u64 = Some(500_000),
        /// Request usage for streams if the client did not, and remove it from the response [default: on]
        #[arg(long, value_enum, env = "WARMROUTE_USAGE_INJECTION", hide_env = true)]
        usage_injection: Injection = Some(Injection::On),
    }
}

/// Preset thresholds: cache-threshold / balance-abs-threshold / balance-rel-threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// 0.2 / 128 / 2.0: more cache hits, for conversations
    HighAffinity,
    /// 0.3 / 64 / 1.5
    Balanced,
    /// 0.5 / 32 / 1.2: balanced load first
    LoadFocused,
}

/// How the balance thresholds combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BalanceRule {
    /// Overloaded when both are exceeded
    Both,
    /// Overloaded when either is exceeded
    Either,
    /// Overloaded at 1.5 times the fleet's mean, and at least four requests above it
    Dynamic,
}

/// Whether the gateway requests usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Injection {
    /// Request usage
    On,
    /// Forward requests unchanged
    Off,
}

group! {
    /// KV events of engines.
    Events in "events" ("KV events") {
        /// Detect and follow the engines' KV events [default: auto]
        #[arg(long, value_enum, env = "WARMROUTE_KV_EVENTS", hide_env = true)]
        kv_events: Following = Some(Following::Auto),
        /// Endpoint that engines connect to if they do not bind their own, such as tcp://0.0.0.0:5557; topics tell
        /// them apart
        #[arg(long, value_name = "ENDPOINT", env = "WARMROUTE_KV_EVENTS_BIND", hide_env = true)]
        kv_events_bind: String = None,
        /// Where to find tokenizer files: DIR, ORG/NAME in the Hugging Face cache, or MODEL=DIR for one model. The
        /// engines' own paths are tried too
        #[arg(long, value_name = "PATH", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_MODEL_PATH", hide_env = true)]
        model_path: Vec<String> = None,
        /// Unit in which prompts are compared with KV events [default: auto]
        #[arg(long, value_parser = named::<MatchingUnit>(), env = "WARMROUTE_MATCHING", hide_env = true)]
        #[serde(with = "super::named")]
        matching: MatchingUnit = Some(MatchingUnit::Auto),
        /// Token for POST /events on the admin listener; without it, POST /events is disabled
        #[arg(long, value_name = "TOKEN", env = "WARMROUTE_EVENTS_TOKEN", hide_env = true, hide_env_values = true)]
        #[serde(skip_serializing)]
        events_token: Secret = None,
    }
}

/// Whether KV events are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Following {
    /// Follow KV events of engines that publish them
    Auto,
    /// Ignore KV events: all caches are presumed
    Off,
}

group! {
    /// How requests are read and forwarded.
    Requests in "requests" ("Requests") {
        /// Largest JSON body; uploads are streamed without a limit [default: 67108864]
        #[arg(long, value_name = "BYTES", env = "WARMROUTE_MAX_PAYLOAD_SIZE", hide_env = true)]
        max_payload_size: usize = Some(64 << 20),
        /// Memory limit for the JSON bodies of all requests; beyond it requests get 503 [default: 1073741824]
        #[arg(long, value_name = "BYTES", env = "WARMROUTE_MAX_BUFFERED_BYTES", hide_env = true)]
        max_buffered_bytes: usize = Some(1 << 30),
        /// Retries on other workers when a worker fails before the first byte [default: 2]
        #[arg(long, value_name = "TIMES", env = "WARMROUTE_RETRY_MAX_RETRIES", hide_env = true)]
        retry_max_retries: u32 = Some(2),
    }
}

group! {
    /// Time limits for clients and workers.
    Timeouts in "timeouts" ("Timeouts") {
        /// Time for a client to send a request head, or to start its next request [default: 60]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_CLIENT_HEAD_TIMEOUT_SECS", hide_env = true)]
        client_head_timeout_secs: u64 = Some(60),
        /// Time for a client to send its body, plus one second for every KiB received [default: 30]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_CLIENT_BODY_TIMEOUT_SECS", hide_env = true)]
        client_body_timeout_secs: u64 = Some(30),
        /// Time to connect to a worker [default: 5]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_CONNECT_TIMEOUT_SECS", hide_env = true)]
        connect_timeout_secs: u64 = Some(5),
        /// Time until a response's first byte; without streaming it follows the last token [default: 600]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_FIRST_BYTE_TIMEOUT_SECS", hide_env = true)]
        first_byte_timeout_secs: u64 = Some(600),
        /// Longest pause between two chunks of a response [default: 300]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_IDLE_TIMEOUT_SECS", hide_env = true)]
        idle_timeout_secs: u64 = Some(300),
        // Other routers use 1800, which cuts off long responses.
        /// Time limit of a whole request; 0 is none [default: 0]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_REQUEST_TIMEOUT_SECS", hide_env = true)]
        request_timeout_secs: u64 = Some(0),
    }
}

group! {
    /// Limits on concurrent requests and on rates.
    Admission in "admission" ("Admission") {
        /// Maximum concurrent requests; further ones wait in the admission queue; 0 is unlimited [default: 0]
        #[arg(long, value_name = "REQUESTS", env = "WARMROUTE_MAX_CONCURRENT_REQUESTS", hide_env = true)]
        max_concurrent_requests: u32 = Some(0),
        /// Maximum concurrent requests per worker; 0 is unlimited [default: 0]
        #[arg(long, value_name = "REQUESTS", env = "WARMROUTE_MAX_CONCURRENT_PER_WORKER", hide_env = true)]
        max_concurrent_per_worker: u32 = Some(0),
        /// Maximum requests in the admission queue; further ones get 429 [default: 100]
        #[arg(long, value_name = "REQUESTS", env = "WARMROUTE_QUEUE_SIZE", hide_env = true)]
        queue_size: usize = Some(100),
        /// Longest wait in the admission queue; then a request gets 429 [default: 60]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_QUEUE_TIMEOUT_SECS", hide_env = true)]
        queue_timeout_secs: u64 = Some(60),
        /// Header that sets a request's priority: high, normal or low; `off` ignores priorities [default:
        /// x-warmroute-priority]
        #[arg(long, value_name = "NAME", env = "WARMROUTE_PRIORITY_HEADER", hide_env = true)]
        priority_header: String = Some("x-warmroute-priority".to_owned()),
        /// Let every client request high priority; otherwise only keys with priority=high may [default: off]
        #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(), env = "WARMROUTE_ALLOW_HIGH_PRIORITY", hide_env = true)]
        allow_high_priority: bool = Some(false),
        /// Header that names the tenant; `api-key` uses the API key [default: api-key]
        #[arg(long, value_name = "NAME", env = "WARMROUTE_TENANT_HEADER", hide_env = true)]
        tenant_header: String = Some("api-key".to_owned()),
        /// Requests per minute and tenant; 0 is unlimited [default: 0]
        #[arg(long, value_name = "REQUESTS", env = "WARMROUTE_RATE_LIMIT_REQUESTS_PER_MINUTE", hide_env = true)]
        rate_limit_requests_per_minute: u32 = Some(0),
        /// Tokens per minute and tenant, prompts and answers together; 0 is unlimited [default: 0]
        #[arg(long, value_name = "TOKENS", env = "WARMROUTE_RATE_LIMIT_TOKENS_PER_MINUTE", hide_env = true)]
        rate_limit_tokens_per_minute: u32 = Some(0),
    }
}

group! {
    /// Authentication, TLS, and what workers see of clients.
    Security in "security" ("Security") {
        /// File with one API key per line, read again when it changes. Without it, no authentication
        #[arg(long, value_name = "FILE", env = "WARMROUTE_API_KEYS_FILE", hide_env = true)]
        api_keys_file: PathBuf = None,
        /// Token for the admin listener. Prefer the environment or a file: other users can see flags
        #[arg(long, value_name = "TOKEN", env = "WARMROUTE_ADMIN_TOKEN", hide_env = true, hide_env_values = true)]
        #[serde(skip_serializing)]
        admin_token: Secret = None,
        /// File with the admin token
        #[arg(long, value_name = "FILE", env = "WARMROUTE_ADMIN_TOKEN_FILE", hide_env = true, conflicts_with = "admin_token")]
        admin_token_file: PathBuf = None,
        /// API key to send to workers with requests and probes
        #[arg(long, value_name = "KEY", env = "WARMROUTE_WORKER_API_KEY", hide_env = true, hide_env_values = true)]
        #[serde(skip_serializing)]
        worker_api_key: Secret = None,
        /// File with the worker API key
        #[arg(long, value_name = "FILE", env = "WARMROUTE_WORKER_API_KEY_FILE", hide_env = true, conflicts_with = "worker_api_key")]
        worker_api_key_file: PathBuf = None,
        /// Whether workers see clients' API keys [default: auto]
        #[arg(long, value_enum, env = "WARMROUTE_CLIENT_CREDENTIALS", hide_env = true)]
        client_credentials: Credentials = Some(Credentials::Auto),
        /// Certificate chain (PEM) of the client listener; enables TLS
        #[arg(long, value_name = "FILE", env = "WARMROUTE_TLS_CERT", hide_env = true)]
        tls_cert: PathBuf = None,
        /// Private key (PEM) of --tls-cert
        #[arg(long, value_name = "FILE", env = "WARMROUTE_TLS_KEY", hide_env = true)]
        tls_key: PathBuf = None,
        /// CA bundle (PEM); clients must present a certificate that it signed
        #[arg(long, value_name = "FILE", env = "WARMROUTE_TLS_CLIENT_CA", hide_env = true)]
        tls_client_ca: PathBuf = None,
        /// Certificate chain (PEM) of the admin listener; enables TLS
        #[arg(long, value_name = "FILE", env = "WARMROUTE_ADMIN_TLS_CERT", hide_env = true)]
        admin_tls_cert: PathBuf = None,
        /// Private key (PEM) of --admin-tls-cert
        #[arg(long, value_name = "FILE", env = "WARMROUTE_ADMIN_TLS_KEY", hide_env = true)]
        admin_tls_key: PathBuf = None,
        /// CA bundle (PEM); admin clients must present a certificate that it signed
        #[arg(long, value_name = "FILE", env = "WARMROUTE_ADMIN_TLS_CLIENT_CA", hide_env = true)]
        admin_tls_client_ca: PathBuf = None,
        /// CA bundle (PEM) for workers with https:// URLs [default: the system's]
        #[arg(long, value_name = "FILE", env = "WARMROUTE_WORKER_TLS_CA", hide_env = true)]
        worker_tls_ca: PathBuf = None,
        /// Client certificate chain (PEM) to present to these workers
        #[arg(long, value_name = "FILE", env = "WARMROUTE_WORKER_TLS_CERT", hide_env = true)]
        worker_tls_cert: PathBuf = None,
        /// Private key (PEM) of --worker-tls-cert
        #[arg(long, value_name = "FILE", env = "WARMROUTE_WORKER_TLS_KEY", hide_env = true)]
        worker_tls_key: PathBuf = None,
        /// Whether workers get Forwarded, X-Forwarded-* and X-Real-IP; use `pass` only behind a proxy that sets them
        /// [default: drop]
        #[arg(long, value_enum, env = "WARMROUTE_FORWARDED_HEADERS", hide_env = true)]
        forwarded_headers: ForwardedHeaders = Some(ForwardedHeaders::Drop),
        /// Let a request choose its worker with the header x-warmroute-worker, named as in GET /workers [default: off]
        #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(), env = "WARMROUTE_ALLOW_WORKER_CHOICE", hide_env = true)]
        allow_worker_choice: bool = Some(false),
    }
}

/// What happens to forwarding headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardedHeaders {
    /// Remove them
    Drop,
    /// Pass them to workers
    Pass,
}

/// What happens to clients' API keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Credentials {
    /// Pass them unless --api-keys-file or --worker-api-key is set
    Auto,
    /// Pass them to workers
    Pass,
    /// Remove them
    Drop,
}

group! {
    /// Probes of workers.
    Health in "health" ("Health") {
        /// Path that returns 200 if an engine is healthy [default: /health]
        #[arg(long, value_name = "PATH", env = "WARMROUTE_HEALTH_CHECK_ENDPOINT", hide_env = true)]
        health_check_endpoint: String = Some("/health".to_owned()),
        // Other routers use 60, so that clients would find a dead idle worker first.
        /// How often to check a ready worker; others are checked twice a second [default: 5]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_HEALTH_CHECK_INTERVAL_SECS", hide_env = true)]
        health_check_interval_secs: u64 = Some(5),
        /// Time for a worker to answer a probe [default: 2]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_HEALTH_CHECK_TIMEOUT_SECS", hide_env = true)]
        health_check_timeout_secs: u64 = Some(2),
        /// Consecutive failures after which a worker gets no more requests [default: 3]
        #[arg(long, value_name = "TIMES", env = "WARMROUTE_HEALTH_FAILURE_THRESHOLD", hide_env = true)]
        health_failure_threshold: u32 = Some(3),
        /// How often to read the engines' load [default: 1000]
        #[arg(long, value_name = "MS", env = "WARMROUTE_LOAD_INTERVAL_MS", hide_env = true)]
        load_interval_ms: u64 = Some(1_000),
    }
}

group! {
    /// Recording of traces for the lab.
    Recording in "recording" ("Recording") {
        /// Record every request for `lab simulate --trace`: times, lengths and keyed hashes, no text. An existing
        /// file is renamed to FILE.1
        #[arg(long, value_name = "FILE", env = "WARMROUTE_RECORD", hide_env = true)]
        record: PathBuf = None,
        /// Size at which the record is renamed to FILE.1 and started anew [default: 268435456]
        #[arg(long, value_name = "BYTES", env = "WARMROUTE_RECORD_MAX_BYTES", hide_env = true)]
        record_max_bytes: u64 = Some(256 << 20),
        /// How the record names models [default: hashed]
        #[arg(long, value_enum, env = "WARMROUTE_RECORD_MODELS", hide_env = true)]
        record_models: RecordedModels = Some(RecordedModels::Hashed),
    }
}

/// How a record names models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordedModels {
    /// By a hash
    Hashed,
    /// By name
    Named,
}

group! {
    /// Sharing state between routers.
    Sharing in "sharing" ("Several routers") {
        /// How to share state with peer routers: mesh, or one or more of redis://HOST:PORT (rediss:// for TLS)
        #[arg(long, value_name = "HOW", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_SHARE", hide_env = true)]
        #[serde(deserialize_with = "one_or_many")]
        share: Vec<String> = Some(Vec::new()),
        /// File with the secret that all peers share. Further lines are accepted from peers too, for rotation
        #[arg(long, value_name = "FILE", env = "WARMROUTE_SHARE_SECRET_FILE", hide_env = true)]
        share_secret_file: PathBuf = None,
        /// Address of the mesh listener [default: 0.0.0.0:7946]
        #[arg(long, value_name = "ADDRESS", env = "WARMROUTE_MESH_LISTEN", hide_env = true)]
        mesh_listen: SocketAddr = Some(SocketAddr::from(([0, 0, 0, 0], 7_946))),
        /// Address that peers should dial, if it differs from --mesh-listen
        #[arg(long, value_name = "HOST:PORT", env = "WARMROUTE_MESH_ADVERTISE", hide_env = true)]
        mesh_advertise: String = None,
        /// Addresses of some peers; a name stands for all its addresses, as in a headless service
        #[arg(long, value_name = "HOST:PORT", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_MESH_PEERS", hide_env = true)]
        #[serde(deserialize_with = "one_or_many")]
        mesh_peers: Vec<String> = Some(Vec::new()),
        /// Certificate chain (PEM) to present to peers
        #[arg(long, value_name = "FILE", env = "WARMROUTE_MESH_TLS_CERT", hide_env = true)]
        mesh_tls_cert: PathBuf = None,
        /// Private key (PEM) of --mesh-tls-cert
        #[arg(long, value_name = "FILE", env = "WARMROUTE_MESH_TLS_KEY", hide_env = true)]
        mesh_tls_key: PathBuf = None,
        /// CA (PEM) that signs the certificates of all routers, and nothing else
        #[arg(long, value_name = "FILE", env = "WARMROUTE_MESH_TLS_CA", hide_env = true)]
        mesh_tls_ca: PathBuf = None,
        /// Name in all routers' certificates [default: the host that is dialed]
        #[arg(long, value_name = "NAME", env = "WARMROUTE_MESH_TLS_NAME", hide_env = true)]
        mesh_tls_name: String = None,
        /// File with the password of the Redis server
        #[arg(long, value_name = "FILE", env = "WARMROUTE_SHARE_REDIS_PASSWORD_FILE", hide_env = true)]
        share_redis_password_file: PathBuf = None,
        /// Prefix of the Redis channels; use another one for each fleet [default: warmroute]
        #[arg(long, value_name = "PREFIX", env = "WARMROUTE_SHARE_REDIS_PREFIX", hide_env = true)]
        share_redis_prefix: String = Some("warmroute".to_owned()),
        /// CA bundle (PEM) for the Redis server [default: the system's]
        #[arg(long, value_name = "FILE", env = "WARMROUTE_SHARE_REDIS_TLS_CA", hide_env = true)]
        share_redis_tls_ca: PathBuf = None,
        /// Client certificate chain (PEM) to present to the Redis server
        #[arg(long, value_name = "FILE", env = "WARMROUTE_SHARE_REDIS_TLS_CERT", hide_env = true)]
        share_redis_tls_cert: PathBuf = None,
        /// Private key (PEM) of --share-redis-tls-cert
        #[arg(long, value_name = "FILE", env = "WARMROUTE_SHARE_REDIS_TLS_KEY", hide_env = true)]
        share_redis_tls_key: PathBuf = None,
    }
}

/// A list, or one string with commas as on the command line.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a string, or a list of strings")]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    let value = Option::<OneOrMany>::deserialize(deserializer)?;
    Ok(value.map(|value| match value {
        OneOrMany::One(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
        OneOrMany::Many(list) => list,
    }))
}

/// Every table of the file and its keys, with `_` for `-`.
pub(super) const KEYS: [(&str, &[&str]); 12] = [
    ("server", Server::KEYS),
    ("discovery", Discovery::KEYS),
    ("routing", Routing::KEYS),
    ("cache", Cache::KEYS),
    ("events", Events::KEYS),
    ("requests", Requests::KEYS),
    ("timeouts", Timeouts::KEYS),
    ("admission", Admission::KEYS),
    ("security", Security::KEYS),
    ("health", Health::KEYS),
    ("recording", Recording::KEYS),
    ("sharing", Sharing::KEYS),
];
