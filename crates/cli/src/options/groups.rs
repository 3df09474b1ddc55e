//! The groups of options. Names and defaults that people know from other routers are kept; where a default differs, the
//! comment says why.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Deserializer, Serialize};
use warmroute_gateway::SessionKey;

use super::secret::Secret;

/// Defines one group: the struct (flags, environment and file keys in one), how it lies over another, and its keys.
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
        /// Address for clients [default: 0.0.0.0]
        #[arg(long, env = "WARMROUTE_HOST", hide_env = true)]
        host: IpAddr = Some(IpAddr::from([0, 0, 0, 0])),
        /// Port for clients; 0 takes a free one [default: 30000]
        #[arg(long, env = "WARMROUTE_PORT", hide_env = true)]
        port: u16 = Some(30_000),
        /// Address for the admin listener [default: 127.0.0.1]
        #[arg(long, env = "WARMROUTE_ADMIN_HOST", hide_env = true)]
        admin_host: IpAddr = Some(IpAddr::from([127, 0, 0, 1])),
        /// Port for health, metrics and workers; 0 takes a free one [default: 29000]
        #[arg(long, env = "WARMROUTE_ADMIN_PORT", alias = "prometheus-port", hide_env = true)]
        admin_port: u16 = Some(29_000),
        /// Clients that may be connected at once; more wait to be accepted [default: 16384]
        #[arg(long, value_name = "CONNECTIONS", env = "WARMROUTE_MAX_CLIENT_CONNECTIONS", hide_env = true)]
        max_client_connections: usize = Some(16_384),
        /// Threads that serve requests; 0 is one per core [default: 0]
        #[arg(long, env = "WARMROUTE_THREADS", hide_env = true)]
        threads: usize = Some(0),
        /// How long requests may go on after SIGTERM [default: 600]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_DRAIN_TIMEOUT_SECS", hide_env = true)]
        drain_timeout_secs: u64 = Some(600),
        /// Unix socket at which a gateway that runs is asked for its listeners, to take its place without a failed request; and at
        /// which the next one is waited for
        #[arg(long, value_name = "PATH", env = "WARMROUTE_HANDOVER", hide_env = true)]
        handover: PathBuf = None,
        /// How long such a gateway is waited for; then the new one ends, and that one goes on [default: 30]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_HANDOVER_TIMEOUT_SECS", hide_env = true)]
        handover_timeout_secs: u64 = Some(30),
        /// File in which what is presumed of caches, and was learned of workers, is kept from one process to the next. Private: it
        /// holds no text, but whoever has it can find out whether a prompt was asked
        #[arg(long, value_name = "FILE", env = "WARMROUTE_STATE", hide_env = true)]
        state: PathBuf = None,
        /// error, warn, info, debug, trace, or a filter such as warmroute_gateway=debug [default: info]
        #[arg(long, value_name = "LEVEL", env = "WARMROUTE_LOG_LEVEL", hide_env = true)]
        log_level: String = Some("info".to_owned()),
        /// How log lines are written [default: text]
        #[arg(long, value_enum, env = "WARMROUTE_LOG_FORMAT", hide_env = true)]
        log_format: LogFormat = Some(LogFormat::Text),
    }
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines, one object a line.
    Json,
}

group! {
    /// Where workers come from.
    Discovery in "discovery" ("Discovery") {
        /// Base URLs of the engines
        #[arg(long, value_name = "URL", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_WORKER_URLS", hide_env = true)]
        worker_urls: Vec<String> = None,
        /// TOML file that lists workers as the configuration does, read again whenever it changes
        #[arg(long, value_name = "FILE", env = "WARMROUTE_WORKER_FILE", hide_env = true)]
        worker_file: PathBuf = None,
        /// Names of which every A and AAAA record is an engine, as http://NAME:PORT
        #[arg(long, value_name = "URL", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_WORKER_DNS", hide_env = true)]
        worker_dns: Vec<String> = None,
        /// How often DNS names are looked up [default: 10]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_DNS_REFRESH_SECS", hide_env = true)]
        dns_refresh_secs: u64 = Some(10),
        /// Data-parallel ranks behind each URL of --worker-urls; each rank is a worker with a cache of its own
        #[arg(long, value_name = "RANKS", env = "WARMROUTE_DP_SIZE", hide_env = true)]
        dp_size: u16 = None,
    }
}

group! {
    /// How workers are chosen.
    Routing in "routing" ("Routing") {
        /// expected_ttft, cache_aware, sticky_least_loaded, weighted_score, product, dual_choice, prefix_affinity,
        /// session_affinity, least_loaded, power_of_two, round_robin or random [default: expected_ttft]
        #[arg(long, env = "WARMROUTE_POLICY", hide_env = true)]
        policy: String = Some("expected_ttft".to_owned()),
        /// Policies that are asked about every request without a say; what they would choose is counted in metrics
        #[arg(long, value_name = "POLICY", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_SHADOW", hide_env = true)]
        shadow: Vec<String> = Some(Vec::new()),
        /// What least_loaded counts: requests in flight, or requests waiting in the engines [default: in-flight]
        #[arg(long, value_enum, env = "WARMROUTE_LOAD_SIGNAL", hide_env = true)]
        load_signal: Signal = Some(Signal::InFlight),
        /// What prefix_affinity and dual_choice look at: the first tokens, the system prompt, or sliding windows [default: tokens]
        #[arg(long, value_enum, env = "WARMROUTE_PREFIX_KEY", hide_env = true)]
        prefix_key: PrefixKey = Some(PrefixKey::Tokens),
        // Others take 256, which sends everybody who shares a system prompt of that length to one worker.
        /// How many tokens from the start that is; a token counts as 4 bytes [default: 1024]
        #[arg(long, value_name = "TOKENS", env = "WARMROUTE_PREFIX_TOKEN_COUNT", hide_env = true)]
        prefix_token_count: u32 = Some(1_024),
        /// Hash of the prefix: xxh3 or blake2b [default: xxh3]
        #[arg(long, env = "WARMROUTE_PREFIX_HASH", hide_env = true)]
        prefix_hash: String = Some("xxh3".to_owned()),
        /// Where a session is named, in order: header:NAME or body:FIELD [default: header:x-session-id,header:x-user-id,
        /// header:x-tenant-id,header:x-correlation-id,body:session_id,body:user,body:prompt_cache_key]
        #[arg(long, value_name = "KEY", value_delimiter = ',', env = "WARMROUTE_SESSION_KEYS", hide_env = true)]
        session_keys: Vec<String> = Some(SessionKey::default_order().iter().map(ToString::to_string).collect()),
        /// Say in response headers where a request went and why [default: off]
        #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(), env = "WARMROUTE_DECISION_HEADERS", hide_env = true)]
        decision_headers: bool = Some(false),
    }
}

/// What counts as load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signal {
    /// What this router has in flight.
    InFlight,
    /// What waits inside the engines, as they report it.
    Waiting,
}

/// What makes the prefix key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefixKey {
    /// The first tokens.
    Tokens,
    /// Tools and system prompt.
    System,
    /// The least hash of all windows of 256 tokens in the first 4,000.
    Windows,
}

group! {
    /// What is remembered about caches, and how it is weighed.
    Cache in "cache" ("Cache") {
        /// Thresholds of cache_aware under one name; the three below win over it [default: balanced]
        #[arg(long, value_enum, env = "WARMROUTE_CACHE_PRESET", hide_env = true)]
        cache_preset: Preset = Some(Preset::Balanced),
        /// Share of the prompt that must match [balanced: 0.3]
        #[arg(long, value_name = "SHARE", env = "WARMROUTE_CACHE_THRESHOLD", hide_env = true)]
        cache_threshold: f64 = None,
        /// Requests above the least loaded worker from which the matching one counts as overloaded [balanced: 64]
        #[arg(long, value_name = "REQUESTS", env = "WARMROUTE_BALANCE_ABS_THRESHOLD", hide_env = true)]
        balance_abs_threshold: u32 = None,
        /// Times the least loaded worker's requests from which it does [balanced: 1.5]
        #[arg(long, value_name = "TIMES", env = "WARMROUTE_BALANCE_REL_THRESHOLD", hide_env = true)]
        balance_rel_threshold: f64 = None,
        /// Whether both must be passed, either, or a bound that follows the fleet's load [default: both]
        #[arg(long, value_enum, env = "WARMROUTE_BALANCE", hide_env = true)]
        balance: BalanceRule = Some(BalanceRule::Both),
        /// Weight of the match in weighted_score [default: 1]
        #[arg(long, value_name = "WEIGHT", env = "WARMROUTE_AFFINITY_WEIGHT", hide_env = true)]
        affinity_weight: f64 = Some(1.0),
        /// Weight of the queue in weighted_score [default: 1]
        #[arg(long, value_name = "WEIGHT", env = "WARMROUTE_QUEUE_WEIGHT", hide_env = true)]
        queue_weight: f64 = Some(1.0),
        /// Memory for what is remembered of prompts, in units of 32 bytes, about one span each [default: 67108864]
        #[arg(long, value_name = "SPANS", env = "WARMROUTE_MAX_TREE_SIZE", hide_env = true)]
        max_tree_size: usize = Some(67_108_864),
        /// Hash of blocks and chunks: xxh3, or the slower sha256 and blake2b where rules ask for a standard one [default: xxh3]
        #[arg(long, value_name = "HASH", env = "WARMROUTE_BLOCK_HASH", hide_env = true)]
        block_hash: String = Some("xxh3".to_owned()),
        /// How often what has become too old is looked for and forgotten [default: 120]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_EVICTION_INTERVAL_SECS", hide_env = true)]
        eviction_interval_secs: u64 = Some(120),
        /// How long a prompt is believed to be cached after its last use [default: 1800]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_PRESUMED_TTL_SECS", hide_env = true)]
        presumed_ttl_secs: u64 = Some(1_800),
        /// Tokens that a worker's cache holds, where its metrics do not say [default: 500000]
        #[arg(long, value_name = "TOKENS", env = "WARMROUTE_WORKER_KV_TOKENS", hide_env = true)]
        worker_kv_tokens: u64 = Some(500_000),
        /// Ask streams for their usage, and keep it from clients who did not ask [default: on]
        #[arg(long, value_enum, env = "WARMROUTE_USAGE_INJECTION", hide_env = true)]
        usage_injection: Injection = Some(Injection::On),
    }
}

/// Thresholds under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// 0.2 / 128 / 2.0: more hits, for conversations.
    HighAffinity,
    /// 0.3 / 64 / 1.5.
    Balanced,
    /// 0.5 / 32 / 1.2: load first.
    LoadFocused,
}

/// How the balance thresholds are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BalanceRule {
    /// Both must be passed.
    Both,
    /// Either is enough.
    Either,
    /// Half the mean above the mean, and at least four requests.
    Dynamic,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Injection {
    /// Yes.
    On,
    /// No.
    Off,
}

group! {
    /// What engines tell of their caches.
    Events in "events" ("KV events") {
        /// Ask engines whether they publish KV events, and follow them [default: auto]
        #[arg(long, value_enum, env = "WARMROUTE_KV_EVENTS", hide_env = true)]
        kv_events: Following = Some(Following::Auto),
        /// Endpoint to which engines connect that do not bind their own, as tcp://0.0.0.0:5557; they are told apart by topic
        #[arg(long, value_name = "ENDPOINT", env = "WARMROUTE_KV_EVENTS_BIND", hide_env = true)]
        kv_events_bind: String = None,
        /// Where models' tokenizer files are: DIR, ORG/NAME in the Hugging Face cache, or MODEL=DIR for one model by its name.
        /// Engines' own paths are tried too
        #[arg(long, value_name = "PATH", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_MODEL_PATH", hide_env = true)]
        model_path: Vec<String> = None,
        /// In which units prompts are compared with what engines report: bytes needs no tokenizing; auto takes what the
        /// engine's /tokenize agrees with [default: auto]
        #[arg(long, value_enum, env = "WARMROUTE_MATCHING", hide_env = true)]
        matching: MatchingUnit = Some(MatchingUnit::Auto),
        /// Token that reporters must show to POST /events on the admin listener; without one, none is taken
        #[arg(long, value_name = "TOKEN", env = "WARMROUTE_EVENTS_TOKEN", hide_env = true, hide_env_values = true)]
        #[serde(skip_serializing)]
        events_token: Secret = None,
    }
}

/// Whether engines' events are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Following {
    /// Where there are any.
    Auto,
    /// Nowhere: all caches are presumed.
    Off,
}

/// Units of comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MatchingUnit {
    /// What the engine agrees with, bytes first.
    Auto,
    /// Bytes or nothing.
    Bytes,
    /// Tokens: every request is tokenized.
    Tokens,
}

group! {
    /// How requests are read and sent on.
    Requests in "requests" ("Requests") {
        /// Largest JSON body that is taken; uploads are streamed and have no limit [default: 67108864]
        #[arg(long, value_name = "BYTES", env = "WARMROUTE_MAX_PAYLOAD_SIZE", hide_env = true)]
        max_payload_size: usize = Some(64 << 20),
        /// What the JSON bodies of all requests may take in memory together; beyond it requests are answered 503 [default: 1073741824]
        #[arg(long, value_name = "BYTES", env = "WARMROUTE_MAX_BUFFERED_BYTES", hide_env = true)]
        max_buffered_bytes: usize = Some(1 << 30),
        /// How often a request is tried on another worker when one fails before the first byte [default: 2]
        #[arg(long, value_name = "TIMES", env = "WARMROUTE_RETRY_MAX_RETRIES", hide_env = true)]
        retry_max_retries: u32 = Some(2),
    }
}

group! {
    /// How long clients and workers are waited for.
    Timeouts in "timeouts" ("Timeouts") {
        /// How long a client may take for the head of a request, or until its next one [default: 60]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_CLIENT_HEAD_TIMEOUT_SECS", hide_env = true)]
        client_head_timeout_secs: u64 = Some(60),
        /// How long it may take for the body, and a second more for every KiB that has come [default: 30]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_CLIENT_BODY_TIMEOUT_SECS", hide_env = true)]
        client_body_timeout_secs: u64 = Some(30),
        /// How long connecting to a worker may take [default: 5]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_CONNECT_TIMEOUT_SECS", hide_env = true)]
        connect_timeout_secs: u64 = Some(5),
        /// How long an answer's first byte may take; without streaming it comes after the last token [default: 600]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_FIRST_BYTE_TIMEOUT_SECS", hide_env = true)]
        first_byte_timeout_secs: u64 = Some(600),
        /// How long an answer may pause between two chunks [default: 300]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_IDLE_TIMEOUT_SECS", hide_env = true)]
        idle_timeout_secs: u64 = Some(300),
        // Others take 1800 in all, which cuts long answers that are well under way.
        /// How long a request may take in all; 0 is as long as it takes [default: 0]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_REQUEST_TIMEOUT_SECS", hide_env = true)]
        request_timeout_secs: u64 = Some(0),
    }
}

group! {
    /// How many requests are taken, from whom.
    Admission in "admission" ("Admission") {
        /// Requests under way at once; the next ones wait; 0 is as many as come [default: 0]
        #[arg(long, value_name = "REQUESTS", env = "WARMROUTE_MAX_CONCURRENT_REQUESTS", hide_env = true)]
        max_concurrent_requests: u32 = Some(0),
        /// The same for each worker [default: 0]
        #[arg(long, value_name = "REQUESTS", env = "WARMROUTE_MAX_CONCURRENT_PER_WORKER", hide_env = true)]
        max_concurrent_per_worker: u32 = Some(0),
        /// Requests that may wait; more are answered 429 [default: 100]
        #[arg(long, value_name = "REQUESTS", env = "WARMROUTE_QUEUE_SIZE", hide_env = true)]
        queue_size: usize = Some(100),
        /// How long one may wait [default: 60]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_QUEUE_TIMEOUT_SECS", hide_env = true)]
        queue_timeout_secs: u64 = Some(60),
        /// Header that says how urgent a request is: high, normal or low; off takes all alike [default: x-warmroute-priority]
        #[arg(long, value_name = "NAME", env = "WARMROUTE_PRIORITY_HEADER", hide_env = true)]
        priority_header: String = Some("x-warmroute-priority".to_owned()),
        /// Any request may call itself high by that header; otherwise only those whose key has priority=high [default: off]
        #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(), env = "WARMROUTE_ALLOW_HIGH_PRIORITY", hide_env = true)]
        allow_high_priority: bool = Some(false),
        /// Header that says whose a request is; api-key takes the key it comes with [default: api-key]
        #[arg(long, value_name = "NAME", env = "WARMROUTE_TENANT_HEADER", hide_env = true)]
        tenant_header: String = Some("api-key".to_owned()),
        /// Requests a minute for each of them; 0 is as many as it likes [default: 0]
        #[arg(long, value_name = "REQUESTS", env = "WARMROUTE_RATE_LIMIT_REQUESTS_PER_MINUTE", hide_env = true)]
        rate_limit_requests_per_minute: u32 = Some(0),
        /// Tokens a minute for each of them, prompts and answers together [default: 0]
        #[arg(long, value_name = "TOKENS", env = "WARMROUTE_RATE_LIMIT_TOKENS_PER_MINUTE", hide_env = true)]
        rate_limit_tokens_per_minute: u32 = Some(0),
    }
}

group! {
    /// Who may come in, and what workers are shown.
    Security in "security" ("Security") {
        /// File of the API keys that let clients in, one a line; without it whoever comes may come in. Read again when it changes
        #[arg(long, value_name = "FILE", env = "WARMROUTE_API_KEYS_FILE", hide_env = true)]
        api_keys_file: PathBuf = None,
        /// Token that operators must show on the admin listener. Better in the environment or in a file: others see flags
        #[arg(long, value_name = "TOKEN", env = "WARMROUTE_ADMIN_TOKEN", hide_env = true, hide_env_values = true)]
        #[serde(skip_serializing)]
        admin_token: Secret = None,
        /// File in which that token is
        #[arg(long, value_name = "FILE", env = "WARMROUTE_ADMIN_TOKEN_FILE", hide_env = true, conflicts_with = "admin_token")]
        admin_token_file: PathBuf = None,
        /// Key that workers are shown, by requests and by probes
        #[arg(long, value_name = "KEY", env = "WARMROUTE_WORKER_API_KEY", hide_env = true, hide_env_values = true)]
        #[serde(skip_serializing)]
        worker_api_key: Secret = None,
        /// File in which that key is
        #[arg(long, value_name = "FILE", env = "WARMROUTE_WORKER_API_KEY_FILE", hide_env = true, conflicts_with = "worker_api_key")]
        worker_api_key_file: PathBuf = None,
        /// Whether workers get to see clients' keys; auto: only where neither the gateway asks for keys nor workers have one [default: auto]
        #[arg(long, value_enum, env = "WARMROUTE_CLIENT_CREDENTIALS", hide_env = true)]
        client_credentials: Credentials = Some(Credentials::Auto),
        /// Certificate chain (PEM) with which clients are served over TLS
        #[arg(long, value_name = "FILE", env = "WARMROUTE_TLS_CERT", hide_env = true)]
        tls_cert: PathBuf = None,
        /// Its private key (PEM)
        #[arg(long, value_name = "FILE", env = "WARMROUTE_TLS_KEY", hide_env = true)]
        tls_key: PathBuf = None,
        /// Authorities (PEM) of which clients must show a certificate
        #[arg(long, value_name = "FILE", env = "WARMROUTE_TLS_CLIENT_CA", hide_env = true)]
        tls_client_ca: PathBuf = None,
        /// Certificate chain (PEM) with which operators are served over TLS
        #[arg(long, value_name = "FILE", env = "WARMROUTE_ADMIN_TLS_CERT", hide_env = true)]
        admin_tls_cert: PathBuf = None,
        /// Its private key (PEM)
        #[arg(long, value_name = "FILE", env = "WARMROUTE_ADMIN_TLS_KEY", hide_env = true)]
        admin_tls_key: PathBuf = None,
        /// Authorities (PEM) of which operators must show a certificate
        #[arg(long, value_name = "FILE", env = "WARMROUTE_ADMIN_TLS_CLIENT_CA", hide_env = true)]
        admin_tls_client_ca: PathBuf = None,
        /// Authorities (PEM) that vouch for workers with https:// URLs [default: those that the system trusts]
        #[arg(long, value_name = "FILE", env = "WARMROUTE_WORKER_TLS_CA", hide_env = true)]
        worker_tls_ca: PathBuf = None,
        /// Certificate chain (PEM) that such workers are shown
        #[arg(long, value_name = "FILE", env = "WARMROUTE_WORKER_TLS_CERT", hide_env = true)]
        worker_tls_cert: PathBuf = None,
        /// Its private key (PEM)
        #[arg(long, value_name = "FILE", env = "WARMROUTE_WORKER_TLS_KEY", hide_env = true)]
        worker_tls_key: PathBuf = None,
        /// Whether workers get Forwarded, X-Forwarded-* and X-Real-IP; pass them only behind a proxy that writes them [default: drop]
        #[arg(long, value_enum, env = "WARMROUTE_FORWARDED_HEADERS", hide_env = true)]
        forwarded_headers: ForwardedHeaders = Some(ForwardedHeaders::Drop),
        /// Obey x-warmroute-worker, by which a request names its worker as GET /workers does [default: off]
        #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(), env = "WARMROUTE_ALLOW_WORKER_CHOICE", hide_env = true)]
        allow_worker_choice: bool = Some(false),
    }
}

/// What becomes of what is said of clients' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardedHeaders {
    /// Dropped.
    Drop,
    /// Passed on.
    Pass,
}

/// What becomes of clients' keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Credentials {
    /// Passed on where nobody else uses them.
    Auto,
    /// Passed on.
    Pass,
    /// Dropped.
    Drop,
}

group! {
    /// How workers are watched.
    Health in "health" ("Health") {
        /// Path that answers 200 when an engine is well [default: /health]
        #[arg(long, value_name = "PATH", env = "WARMROUTE_HEALTH_CHECK_ENDPOINT", hide_env = true)]
        health_check_endpoint: String = Some("/health".to_owned()),
        // Others take 60: a worker that died idle would be found by a client first.
        /// How often a ready worker is asked; others are asked twice a second [default: 5]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_HEALTH_CHECK_INTERVAL_SECS", hide_env = true)]
        health_check_interval_secs: u64 = Some(5),
        /// How long the answer may take [default: 2]
        #[arg(long, value_name = "SECONDS", env = "WARMROUTE_HEALTH_CHECK_TIMEOUT_SECS", hide_env = true)]
        health_check_timeout_secs: u64 = Some(2),
        /// Failures in a row after which a worker gets no more requests [default: 3]
        #[arg(long, value_name = "TIMES", env = "WARMROUTE_HEALTH_FAILURE_THRESHOLD", hide_env = true)]
        health_failure_threshold: u32 = Some(3),
        /// How often engines are asked for their load [default: 1000]
        #[arg(long, value_name = "MS", env = "WARMROUTE_LOAD_INTERVAL_MS", hide_env = true)]
        load_interval_ms: u64 = Some(1_000),
    }
}

group! {
    /// What is written down for the lab.
    Recording in "recording" ("Recording") {
        /// Write down every request for `lab simulate --trace`: times, lengths and keyed hashes, no text. A file that is there
        /// becomes FILE.1
        #[arg(long, value_name = "FILE", env = "WARMROUTE_RECORD", hide_env = true)]
        record: PathBuf = None,
        /// How large the record may become before it is put aside as FILE.1 and begun anew [default: 268435456]
        #[arg(long, value_name = "BYTES", env = "WARMROUTE_RECORD_MAX_BYTES", hide_env = true)]
        record_max_bytes: u64 = Some(256 << 20),
        /// How models are called in the record: hashed, or by their name [default: hashed]
        #[arg(long, value_enum, env = "WARMROUTE_RECORD_MODELS", hide_env = true)]
        record_models: RecordedModels = Some(RecordedModels::Hashed),
    }
}

/// How models are called in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordedModels {
    /// By a number.
    Hashed,
    /// By name.
    Named,
}

group! {
    /// Several routers that act as one.
    Sharing in "sharing" ("Several routers") {
        /// How this router shares what it does with others: mesh, or redis://HOST:PORT (rediss:// for TLS), or several of a set
        #[arg(long, value_name = "HOW", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_SHARE", hide_env = true)]
        #[serde(deserialize_with = "one_or_many")]
        share: Vec<String> = Some(Vec::new()),
        /// File with a secret that all these routers know and nobody else; on further lines, others that are understood as well
        #[arg(long, value_name = "FILE", env = "WARMROUTE_SHARE_SECRET_FILE", hide_env = true)]
        share_secret_file: PathBuf = None,
        /// Where the others of a mesh reach this router [default: 0.0.0.0:7946]
        #[arg(long, value_name = "ADDRESS", env = "WARMROUTE_MESH_LISTEN", hide_env = true)]
        mesh_listen: SocketAddr = Some(SocketAddr::from(([0, 0, 0, 0], 7_946))),
        /// What they are told to dial, where that is not the address listened on
        #[arg(long, value_name = "HOST:PORT", env = "WARMROUTE_MESH_ADVERTISE", hide_env = true)]
        mesh_advertise: String = None,
        /// Where some of them are; every address behind a name is one, as of a headless service
        #[arg(long, value_name = "HOST:PORT", num_args = 1.., value_delimiter = ',', env = "WARMROUTE_MESH_PEERS", hide_env = true)]
        #[serde(deserialize_with = "one_or_many")]
        mesh_peers: Vec<String> = Some(Vec::new()),
        /// Certificate chain (PEM) that this router shows the others of a mesh
        #[arg(long, value_name = "FILE", env = "WARMROUTE_MESH_TLS_CERT", hide_env = true)]
        mesh_tls_cert: PathBuf = None,
        /// Its private key (PEM)
        #[arg(long, value_name = "FILE", env = "WARMROUTE_MESH_TLS_KEY", hide_env = true)]
        mesh_tls_key: PathBuf = None,
        /// Authority (PEM) of all routers' certificates, and of nothing else
        #[arg(long, value_name = "FILE", env = "WARMROUTE_MESH_TLS_CA", hide_env = true)]
        mesh_tls_ca: PathBuf = None,
        /// Name that all routers' certificates carry [default: the host that each is dialed by]
        #[arg(long, value_name = "NAME", env = "WARMROUTE_MESH_TLS_NAME", hide_env = true)]
        mesh_tls_name: String = None,
        /// File with the password of the Redis server
        #[arg(long, value_name = "FILE", env = "WARMROUTE_SHARE_REDIS_PASSWORD_FILE", hide_env = true)]
        share_redis_password_file: PathBuf = None,
        /// Channels there begin with this; other fleets take another [default: warmroute]
        #[arg(long, value_name = "PREFIX", env = "WARMROUTE_SHARE_REDIS_PREFIX", hide_env = true)]
        share_redis_prefix: String = Some("warmroute".to_owned()),
        /// Authorities (PEM) that vouch for it [default: whom the system trusts]
        #[arg(long, value_name = "FILE", env = "WARMROUTE_SHARE_REDIS_TLS_CA", hide_env = true)]
        share_redis_tls_ca: PathBuf = None,
        /// Certificate chain (PEM) that it is shown
        #[arg(long, value_name = "FILE", env = "WARMROUTE_SHARE_REDIS_TLS_CERT", hide_env = true)]
        share_redis_tls_cert: PathBuf = None,
        /// Its private key (PEM)
        #[arg(long, value_name = "FILE", env = "WARMROUTE_SHARE_REDIS_TLS_KEY", hide_env = true)]
        share_redis_tls_key: PathBuf = None,
    }
}

/// A list, or one string, with commas between several as on the command line.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a string, or a list of strings")]
    enum Written {
        One(String),
        Many(Vec<String>),
    }
    let written = Option::<Written>::deserialize(deserializer)?;
    Ok(written.map(|written| match written {
        Written::One(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
        Written::Many(list) => list,
    }))
}

/// Every table of the file with its keys, spelled as in Rust (`_` for `-`).
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
