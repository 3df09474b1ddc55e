//! The groups of options. Names and defaults known from other routers are kept; a comment explains each default that
//! differs. Where a crate has a default, it is the option's default.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Deserializer, Serialize};
use warmroute_follow::{Following, MatchingUnit, Publishers};
use warmroute_gateway::{CacheSalt, CachedTokens, ClientCredentials, Forwarded, UsageInjection, WorkerApi};
use warmroute_index::Hash;
use warmroute_picker::Feedback;
use warmroute_prompt::{PrefixHash, PrefixSpan};
use warmroute_record::{LineFormat, ModelNames};
use warmroute_share::Secret;

use super::named::Choice;
use super::quantity::{ByteSize, Count, ListenHost, Millis, OnOff, Secs, Spans, StreamContinuation};
use super::settings::{Setting, Settings};
use crate::logging::LogFormat;

/// Prefix of environment variables.
pub(super) const ENVIRONMENT_PREFIX: &str = "WARMROUTE_";

/// A field's name after a prefix: in capitals, or, without a prefix, with `-` for `_`. `N` is the length.
const fn spelled<const N: usize>(prefix: &str, field: &str) -> [u8; N] {
    let (prefix, field) = (prefix.as_bytes(), field.as_bytes());
    let mut name = [0; N];
    let mut at = 0;
    while at < N {
        name[at] = match (at < prefix.len(), prefix.is_empty()) {
            (true, _) => prefix[at],
            (_, false) => field[at - prefix.len()].to_ascii_uppercase(),
            (_, true) if field[at] == b'_' => b'-',
            (_, true) => field[at],
        };
        at += 1;
    }
    name
}

/// The key of a field, or with the prefix its environment variable.
macro_rules! name {
    ($field:ident) => {
        name!($field, "")
    };
    ($field:ident, $prefix:expr) => {{
        const NAME: [u8; $prefix.len() + stringify!($field).len()] = spelled($prefix, stringify!($field));
        match std::str::from_utf8(&NAME) {
            Ok(name) => name,
            Err(_) => panic!("field names are ASCII"),
        }
    }};
}

/// How `--help` names the value of an option, unless the option says otherwise.
fn value_name(type_name: &str, variable: &'static str) -> &'static str {
    match type_name {
        "Secs" | "Millis" => "TIME",
        "ByteSize" | "Spans" => "SIZE",
        "PathBuf" => "FILE",
        "OnOff" => "on|off",
        _ => &variable[ENVIRONMENT_PREFIX.len()..],
    }
}

/// Defines one group: a struct whose fields are flags, environment variables and keys of the file, how two layers combine,
/// and its keys. All three names come from the field's name. `-h` shows the options with `hide_short_help = false`, and the
/// help adds the default.
///
/// `option: Type => part.setting` is an option that sets one setting of a part; that setting's default is the option's
/// default. `option: Type,` sets nothing by itself; there are 13. A part gets the token or keys that `security` reads from a secret
/// or its file, and not these. OpenTelemetry's variables fill the gaps of `[tracing]` before there is a collector, so that
/// [`plan`](crate::plan) needs to know what was given. Settings between would repeat the fields of the group.
macro_rules! group {
    (@read $settings:ident $type:ty) => { None };
    (@read $settings:ident $type:ty => $($place:ident).+) => {
        <$type as Setting<_>>::read(&$settings.$($place).+)
    };
    (@write $settings:ident $group:ident.$field:ident) => {};
    (@write $settings:ident $group:ident.$field:ident => $($place:ident).+) => {
        if let Some(value) = &$group.$field {
            let written = value.write(&mut $settings.$($place).+);
            written.map_err(|why| anyhow::anyhow!("{}{why}", name!($field)))?;
        }
    };
    (
        $(#[$about:meta])* $name:ident ($heading:literal) {
            $( $(#[$meta:meta])* $field:ident: $type:ty $(=> $($place:ident).+)?, )*
        }
    ) => {
        $(#[$about])*
        #[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[command(next_help_heading = $heading)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
        pub struct $name {
            $(
                #[arg(long, env = name!($field, ENVIRONMENT_PREFIX), hide_env = true, hide_short_help = true)]
                #[arg(value_name = value_name(stringify!($type), name!($field, ENVIRONMENT_PREFIX)))]
                $(#[$meta])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
        }

        impl $name {
            /// These options, with gaps filled from `below` where the key may be filled.
            pub fn over(self, below: $name, may_fill: impl Fn(&str) -> bool) -> $name {
                $name { $( $field: self.$field.or(below.$field.filter(|_| may_fill(name!($field)))), )* }
            }

            /// The options that are set: key and value.
            pub fn set(&self) -> Vec<(&'static str, &dyn Any)> {
                let all = [$( (name!($field), self.$field.as_ref().map(|value| value as &dyn Any)) ),*];
                all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
            }

            /// All options: key and value, which is an `Option`.
            pub(super) fn all(&mut self) -> Vec<(&'static str, &mut dyn Any)> {
                vec![$( (name!($field), &mut self.$field) ),*]
            }

            /// The keys whose values differ.
            pub(super) fn differing(&self, other: &$name) -> Vec<&'static str> {
                let all = [$( (name!($field), self.$field != other.$field) ),*];
                all.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
            }

            /// The options that give these settings.
            pub(super) fn read(settings: &Settings) -> $name {
                let _ = settings;
                $name { $( $field: group!(@read settings $type $(=> $($place).+)?), )* }
            }

            /// Changes the settings for which an option is given. An error begins with the option's key.
            pub(super) fn write(&self, settings: &mut Settings) -> anyhow::Result<()> {
                let _ = &settings;
                $( group!(@write settings self.$field $(=> $($place).+)?); )*
                Ok(())
            }

            pub(super) const KEYS: &'static [&'static str] = &[$( name!($field) ),*];
        }
    };
}

group! {
    /// Listeners, logs, shutdown.
    Server ("Server") {
        /// Address of the client listener
        #[arg(hide_short_help = false)]
        host: ListenHost => process.listen,
        /// Port of the client listener; 0 picks a free port
        #[arg(hide_short_help = false)]
        port: u16 => process.listen,
        /// Address of the admin listener
        admin_host: ListenHost => process.admin,
        /// Port of the admin listener: health, metrics, workers
        ///
        /// 0 picks a free port.
        #[arg(hide_short_help = false, value_name = "PORT", alias = "prometheus-port")]
        admin_port: u16 => process.admin,
        /// Maximum concurrent client connections; further clients wait to be accepted
        #[arg(value_name = "CONNECTIONS")]
        max_client_connections: Count<usize> => gateway.connections_max,
        /// Threads that serve requests; 0 is one per core
        threads: usize => process.threads,
        /// Time for requests to finish after SIGTERM; then they are aborted
        drain_timeout_secs: Secs => process.drain_timeout,
        /// Unix socket for zero-downtime restarts: a new process takes over the listeners of the running one, then
        /// waits for its own successor
        #[arg(value_name = "PATH")]
        handover: PathBuf => process.handover,
        /// How long to wait for the running process to hand over; on timeout the new process exits and the old one
        /// continues
        handover_timeout_secs: Secs => process.handover_timeout,
        /// File that keeps cache predictions and learned worker latencies across restarts
        ///
        /// It contains no prompt text, but it can confirm a guessed prompt: keep it private.
        state: PathBuf => process.state,
        /// Log level: error, warn, info, debug or trace
        ///
        /// A filter such as warmroute_gateway=debug is accepted too.
        #[arg(value_name = "LEVEL")]
        log_level: String => log.level,
        /// Format of log lines
        log_format: Choice<LogFormat> => log.format,
        /// Log a line for every request to this file, or to stderr: worker, reason, tokens, times, status; no prompts
        #[arg(value_name = "FILE|stderr")]
        access_log: PathBuf => access_log.file,
        /// Format of access log lines
        access_log_format: Choice<LineFormat> => access_log.format,
        /// Size at which the access log is renamed to FILE.DATE and started anew; the last 9 are kept
        access_log_max_bytes: ByteSize => access_log.bytes_max,
    }
}

group! {
    /// Where workers come from.
    Discovery ("Discovery") {
        /// URLs of the engines, separated by spaces or commas; the same as URL arguments
        #[arg(value_name = "URL", num_args = 1.., value_delimiter = ',',)]
        #[serde(deserialize_with = "one_or_many")]
        worker_urls: Vec<String> => sources.urls,
        /// TOML file with a list of [[workers]], read again when it changes
        worker_file: PathBuf => sources.sources.file,
        /// Host names whose A and AAAA records are engines, as http://NAME:PORT
        #[arg(value_name = "URL", num_args = 1.., value_delimiter = ',',)]
        #[serde(deserialize_with = "one_or_many")]
        worker_dns: Vec<String> => sources.sources.dns,
        /// How often to resolve --worker-dns
        dns_refresh_secs: Secs => sources.sources.dns_refresh,
        /// Data-parallel ranks behind each URL of --worker-urls and each port in Kubernetes; each rank is a worker with
        /// its own cache
        #[arg(value_name = "RANKS")]
        dp_size: u16 => sources.ranks,
        /// Find workers in Kubernetes: by --selector, --service-discovery-service or --service-discovery-pool
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
        service_discovery: OnOff => sources.kubernetes.is_on,
        /// Labels of the workers' pods, as key=value or as kubectl -l takes them
        #[arg(value_name = "LABELS", num_args = 1..)]
        #[serde(deserialize_with = "one_or_many_whole")]
        selector: Vec<String> => sources.kubernetes.selector,
        /// Service whose endpoints are the workers
        #[arg(value_name = "NAME")]
        service_discovery_service: String => sources.kubernetes.service,
        /// InferencePools whose pods are the workers, on each of their target ports, as NAME or NAMESPACE/NAME
        #[arg(value_name = "POOL", num_args = 1.., value_delimiter = ',')]
        #[serde(deserialize_with = "one_or_many")]
        service_discovery_pool: Vec<String> => sources.kubernetes.pools,
        // Other routers use 80. Engines listen elsewhere, and their pods declare where.
        /// Port of the workers, as a number or the name of a container port [default: the port named http, or the
        /// only one]
        #[arg(value_name = "PORT")]
        #[serde(deserialize_with = "text_or_number")]
        service_discovery_port: String => sources.kubernetes.port,
        // Other routers watch the whole cluster, which needs rights in the whole cluster.
        /// Namespaces of the workers; `*` is all of them [default: the router's own]
        #[arg(value_name = "NAMESPACE", num_args = 1.., value_delimiter = ',')]
        #[serde(deserialize_with = "one_or_many")]
        service_discovery_namespace: Vec<String> => sources.kubernetes.namespaces,
        /// Kubeconfig of the cluster [default: the pod's service account, $KUBECONFIG or ~/.kube/config]
        kubeconfig: PathBuf => sources.kubernetes.kubeconfig,
    }
}

group! {
    /// How workers are chosen.
    Routing ("Routing") {
        /// Routing policy
        ///
        /// One of expected_ttft, cache_aware, sticky_least_loaded, weighted_score, product, dual_choice,
        /// prefix_affinity, session_affinity, least_loaded, power_of_two, round_robin or random. Parameters follow
        /// the name, as in cache_aware:preset=high_affinity:balance=either, weighted_score:affinity=3:queue=1 or
        /// least_loaded:signal=waiting.
        #[arg(hide_short_help = false)]
        policy: String => policies.active,
        /// Policies to evaluate on live traffic without acting on them; metrics show what they would choose
        #[arg(value_name = "POLICY", num_args = 1.., value_delimiter = ',',)]
        #[serde(deserialize_with = "one_or_many")]
        shadow: Vec<String> => policies.shadows,
        /// Part of the prompt that prefix_affinity and dual_choice hash
        prefix_key: Choice<PrefixSpan> => gateway.prefix.span,
        // Other routers use 256, which sends all users who share a system prompt of that length to one worker.
        /// Tokens in the prefix key when --prefix-key is tokens; a token counts as 4 bytes
        #[arg(value_name = "TOKENS")]
        prefix_token_count: Count<u32> => gateway.prefix.tokens,
        /// Hash of the prefix key
        prefix_hash: Choice<PrefixHash> => gateway.prefix.hash,
        /// Where to look for a session name, in order: header:NAME or body:PATH [default: what common clients send]
        ///
        /// A path has dots between names, as in body:metadata.user_id. docs/policies.md lists the default order and
        /// what each client sends.
        #[arg(value_name = "KEY", value_delimiter = ',',)]
        #[serde(deserialize_with = "one_or_many")]
        session_keys: Vec<String> => gateway.session_keys,
        /// Name worker and reason in response headers
        ///
        /// The headers are x-warmroute-worker, -policy, -reason, -cached-tokens and others.
        #[arg(hide_short_help = false, num_args = 0..=1, require_equals = true, default_missing_value = "on")]
        decision_headers: OnOff => gateway.decision_headers,
    }
}

group! {
    /// The cache index, and parameters of cache-aware policies.
    Cache ("Cache") {
        /// cache_aware: share of the prompt that must match, 0 to 1 [default: 0.3]
        #[arg(value_name = "SHARE")]
        cache_threshold: f64 => policies.cache_threshold,
        /// cache_aware: overloaded when in-flight requests exceed the least loaded worker's by this number [default: 64]
        #[arg(value_name = "REQUESTS")]
        balance_abs_threshold: Count<u32> => policies.balance_abs,
        /// cache_aware: overloaded when in-flight requests exceed this multiple of the least loaded worker's [default: 1.5]
        #[arg(value_name = "TIMES")]
        balance_rel_threshold: f64 => policies.balance_rel,
        /// Memory limit of the cache index; a plain number is in units of 32 bytes, about one span each
        max_tree_size: Spans => router.index.budget_bytes,
        /// Hash of blocks and chunks: xxh3, or the slower sha256 or blake2b where a standard hash is required
        #[arg(value_name = "HASH", hide_possible_values = true)]
        block_hash: Choice<Hash> => router.index.hash,
        /// How often to evict expired entries from the cache index
        eviction_interval_secs: Secs => process.eviction_interval,
        /// How long a prompt is presumed to be cached after its last use
        presumed_ttl_secs: Secs => router.index.presumed_ttl,
        /// KV cache size of a worker whose metrics do not report it
        #[arg(value_name = "TOKENS")]
        worker_kv_tokens: Count<u64> => router.index.presumed_tokens,
        /// Request usage for streams if the client did not, and remove it from the response
        usage_injection: Choice<UsageInjection> => gateway.usage_injection,
    }
}

group! {
    /// KV events of engines.
    Events ("KV events") {
        /// Detect and follow the engines' KV events
        kv_events: Choice<Following> => follow.following,
        /// Endpoint that engines connect to if they do not bind their own, such as tcp://0.0.0.0:5557; topics tell
        /// them apart
        #[arg(value_name = "ENDPOINT")]
        kv_events_bind: String => follow.bind,
        /// Whose events --kv-events-bind accepts; ZeroMQ has no authentication
        kv_events_publishers: Choice<Publishers> => follow.publishers,
        /// Where to find tokenizer files, to follow KV events: DIR, ORG/NAME or MODEL=DIR
        ///
        /// ORG/NAME is looked up in the Hugging Face cache. MODEL=DIR applies to one model. The engines' own paths are
        /// tried too.
        #[arg(value_name = "PATH", num_args = 1.., value_delimiter = ',',)]
        #[serde(deserialize_with = "one_or_many")]
        model_path: Vec<String> => follow.paths,
        /// Unit in which prompts are compared with KV events
        matching: Choice<MatchingUnit> => follow.matching,
        /// Token for POST /events on the admin listener; without it, POST /events is disabled
        #[arg(value_name = "TOKEN", hide_env_values = true)]
        #[serde(skip_serializing)]
        events_token: Secret,
    }
}

group! {
    /// How requests are read and forwarded.
    Requests ("Requests") {
        /// Largest JSON body; uploads are streamed without a limit
        max_payload_size: ByteSize => gateway.body_bytes_max,
        /// Memory limit for the JSON bodies of all requests; beyond it requests get 503, and a key whose bodies fill
        /// its share gets 429
        max_buffered_bytes: ByteSize => gateway.bodies_bytes_max,
        /// Retries on other workers when a worker fails before the first byte; workers that cannot be connected to do not
        /// count
        #[arg(value_name = "TIMES")]
        retry_max_retries: u32 => gateway.retries_max,
        // Off: engines without `continue_final_message` would begin a new answer.
        /// Continue a chat or completion stream on another worker when its worker dies: on, off, or only while prompt and
        /// answer are shorter than a number of tokens
        #[arg(value_name = "on|off|TOKENS", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
        continue_streams: StreamContinuation => gateway.continue_streams,
        /// How many workers may continue one stream, one after another
        #[arg(value_name = "WORKERS")]
        max_continuations: u32 => gateway.continuations_max,
    }
}

group! {
    /// Time limits for clients and workers.
    Timeouts ("Timeouts") {
        /// Time for a client to send a request head, or to start its next request
        client_head_timeout_secs: Secs => gateway.timeouts.head,
        /// Longest pause in a request body; bodies that arrive too slowly time out, too
        client_body_timeout_secs: Secs => gateway.timeouts.body,
        /// Time to connect to a worker
        connect_timeout_secs: Secs => gateway.timeouts.connect,
        /// Time until a response's first byte; without streaming it follows the last token
        first_byte_timeout_secs: Secs => gateway.timeouts.first_byte,
        /// Longest pause between two chunks of a response
        idle_timeout_secs: Secs => gateway.timeouts.idle,
        // Other routers use 1800, which cuts off long responses.
        /// Time limit of a whole request; 0 is none
        request_timeout_secs: Secs => gateway.timeouts.total,
    }
}

group! {
    /// Limits on concurrent requests and on rates.
    Admission ("Admission") {
        /// Maximum concurrent requests; further ones wait in the admission queue; 0 is unlimited
        #[arg(value_name = "REQUESTS")]
        max_concurrent_requests: Count<u32> => gateway.admission.running_max,
        /// Maximum concurrent requests per worker; 0 is unlimited
        #[arg(value_name = "REQUESTS")]
        max_concurrent_per_worker: Count<u32> => router.in_flight_max,
        /// Maximum requests in the admission queue; further ones get 429
        #[arg(value_name = "REQUESTS")]
        queue_size: Count<usize> => gateway.admission.waiting_max,
        /// Longest wait in the admission queue; then a request gets 429
        queue_timeout_secs: Secs => gateway.admission.wait_max,
        // Refusing at once lets clients go elsewhere; a fleet that scales from zero needs minutes.
        /// Longest wait for a worker while none is ready, as when a fleet starts from zero; 0 is none
        wake_timeout_secs: Secs => gateway.admission.wake_max,
        /// Budget for the time to first token, unless a key has its own; a request may set a shorter one; a request
        /// that cannot meet it gets 429 at once; 0 is none
        ttft_budget_ms: Millis => gateway.admission.ttft_budget,
        /// Header that sets a request's priority: high, normal or low; `off` ignores priorities
        #[arg(value_name = "NAME")]
        priority_header: String => gateway.admission.priority_header,
        /// Let every client request high priority; otherwise only keys with priority=high may
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
        allow_high_priority: OnOff => gateway.admission.class_max,
        /// Header that names the tenant; `api-key` uses the API key
        #[arg(value_name = "NAME")]
        tenant_header: String => gateway.admission.tenant_header,
        /// Requests per minute and tenant; 0 is unlimited
        #[arg(value_name = "REQUESTS")]
        rate_limit_requests_per_minute: Count<u32> => gateway.admission.limits.requests_per_minute,
        /// Tokens per minute and tenant, prompts and answers together; 0 is unlimited
        #[arg(value_name = "TOKENS")]
        rate_limit_tokens_per_minute: Count<u32> => gateway.admission.limits.tokens_per_minute,
        /// Requests in flight per tenant, waiting ones included; 0 is unlimited
        #[arg(value_name = "REQUESTS")]
        max_concurrent_per_tenant: Count<u32> => gateway.admission.limits.concurrent,
        /// Share of the admission queue per tenant, in percent; 0 is unlimited
        #[arg(value_name = "PERCENT")]
        queue_share_per_tenant: u32 => gateway.admission.shares.queue_percent,
        /// Share of max-buffered-bytes per tenant, in percent; with 0 a tenant may use what is still free
        #[arg(value_name = "PERCENT")]
        memory_share_per_tenant: u32 => gateway.admission.shares.memory_percent,
    }
}

group! {
    /// Authentication, TLS, and what workers see of clients.
    Security ("Security") {
        /// File with one API key per line; without it, no authentication
        ///
        /// It is read again when it changes.
        #[arg(hide_short_help = false)]
        api_keys_file: PathBuf,
        /// Token for the admin listener. Prefer the environment or a file: other users can see flags
        #[arg(value_name = "TOKEN", hide_env_values = true)]
        #[serde(skip_serializing)]
        admin_token: Secret,
        /// File with the admin token
        #[arg(conflicts_with = "admin_token")]
        admin_token_file: PathBuf,
        /// API key to send to workers with requests and probes
        #[arg(hide_short_help = false, value_name = "KEY", hide_env_values = true)]
        #[serde(skip_serializing)]
        worker_api_key: Secret,
        /// File with the worker API key
        #[arg(conflicts_with = "worker_api_key")]
        worker_api_key_file: PathBuf,
        /// Whether workers see clients' API keys
        client_credentials: Choice<ClientCredentials> => gateway.client_credentials,
        /// Certificate chain (PEM) of the client listener; enables TLS
        tls_cert: PathBuf => tls.clients.certificates,
        /// Private key (PEM) of --tls-cert
        tls_key: PathBuf => tls.clients.key,
        /// CA bundle (PEM); clients must present a certificate that it signed
        tls_client_ca: PathBuf => tls.clients.ca,
        /// Certificate chain (PEM) of the admin listener; enables TLS
        admin_tls_cert: PathBuf => tls.operators.certificates,
        /// Private key (PEM) of --admin-tls-cert
        admin_tls_key: PathBuf => tls.operators.key,
        /// CA bundle (PEM); admin clients must present a certificate that it signed
        admin_tls_client_ca: PathBuf => tls.operators.ca,
        /// CA bundle (PEM) for workers with https:// URLs [default: the system's]
        worker_tls_ca: PathBuf => tls.workers.ca,
        /// Client certificate chain (PEM) to present to these workers
        worker_tls_cert: PathBuf => tls.workers.certificates,
        /// Private key (PEM) of --worker-tls-cert
        worker_tls_key: PathBuf => tls.workers.key,
        /// Whether workers get Forwarded, X-Forwarded-* and X-Real-IP; use `pass` only behind a proxy that sets them
        forwarded_headers: Choice<Forwarded> => gateway.forwarded,
        /// What to do with request fields that steer engines: FIELD:pass, FIELD:drop or FIELD:refuse, with a field of
        /// the list in docs/security.md, or all. A key's engine-fields take precedence
        #[arg(value_name = "FIELD:ACTION", num_args = 1.., value_delimiter = ',',)]
        #[serde(deserialize_with = "one_or_many")]
        engine_fields: Vec<String> => gateway.engine_fields,
        /// Whose requests may share the engines' caches; a salt separates others
        cache_salt: Choice<CacheSalt> => gateway.cache_salt,
        /// Whether clients see how many tokens of their prompts were cached; a key's cached-tokens takes precedence
        cached_tokens: Choice<CachedTokens> => gateway.cached_tokens,
        /// Let a request choose its worker with the header x-warmroute-worker, named as in GET /workers
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
        allow_worker_choice: OnOff => gateway.worker_choice,
        /// Who may add, remove and flush workers on the client listener, by /workers, /add_worker, /remove_worker,
        /// /list_workers and /flush_cache
        client_worker_api: Choice<WorkerApi> => gateway.worker_api,
    }
}

group! {
    /// Probes of workers.
    Health ("Health") {
        /// Path that returns 200 if an engine is healthy
        #[arg(value_name = "PATH")]
        health_check_endpoint: String => probe.health_path,
        // Other routers use 60, so that clients would find a dead idle worker first.
        /// How often to check a ready worker; others are checked twice a second
        health_check_interval_secs: Secs => probe.health_interval,
        /// Time for a worker to answer a probe
        health_check_timeout_secs: Secs => probe.timeout,
        /// Consecutive failures after which a worker gets no more requests
        #[arg(value_name = "TIMES")]
        health_failure_threshold: u32 => router.health.failures_max,
        /// How often to read the engines' load
        load_interval_ms: Millis => probe.load_interval,
    }
}

group! {
    /// Recording of traces for the lab.
    Recording ("Recording") {
        /// Record every request for `lab simulate --trace`: times, lengths and keyed hashes, no text. An existing
        /// file is renamed to FILE.DATE; the last 9 are kept
        record: PathBuf => record.file,
        /// Size at which the record is renamed to FILE.DATE and started anew
        record_max_bytes: ByteSize => record.bytes_max,
        /// How the record names models
        record_models: Choice<ModelNames> => record.names,
    }
}

group! {
    /// OpenTelemetry traces.
    Tracing ("Tracing") {
        /// Send OpenTelemetry traces to this collector, by OTLP over HTTP: http://HOST:4318
        ///
        /// /v1/traces is added to the URL unless it ends so. Without it, the OTEL_EXPORTER_OTLP_ variables apply.
        #[arg(value_name = "URL")]
        otlp_endpoint: String,
        /// Headers to send to the collector, separated by commas; values may be percent-encoded
        #[arg(value_name = "NAME=VALUE", hide_env_values = true)]
        #[serde(skip_serializing)]
        otlp_headers: Secret,
        /// File with these headers
        #[arg(conflicts_with = "otlp_headers")]
        otlp_headers_file: PathBuf,
        /// Time for the collector to take a batch of spans; requests do not wait for it [default: 10]
        otlp_timeout_secs: Secs,
        /// CA bundle (PEM) for a collector with an https:// URL [default: the system's]
        otlp_tls_ca: PathBuf,
        /// Share of requests to trace, 0 to 1; requests with a trace context follow their client's choice [default: 1]
        #[arg(value_name = "SHARE")]
        trace_sample_ratio: f64,
        /// Attributes of this process in traces, such as service.name=router-a
        #[arg(value_name = "NAME=VALUE", num_args = 1.., value_delimiter = ',',)]
        #[serde(deserialize_with = "one_or_many")]
        trace_attributes: Vec<String>,
    }
}

group! {
    /// Sharing state between routers.
    Sharing ("Several routers") {
        /// Share state with peer routers: mesh, or redis://HOST:PORT
        ///
        /// Several Redis servers may be given; rediss:// is Redis over TLS.
        #[arg(value_name = "HOW", num_args = 1.., value_delimiter = ',',)]
        #[serde(deserialize_with = "one_or_many")]
        share: Vec<String> => sharing.by,
        /// File with the secret that all peers share. Further lines are accepted from peers too, for rotation
        share_secret_file: PathBuf => sharing.secret_file,
        /// Address of the mesh listener
        #[arg(value_name = "ADDRESS")]
        mesh_listen: SocketAddr => sharing.mesh.listen,
        /// Address that peers should dial, if it differs from --mesh-listen
        #[arg(value_name = "HOST:PORT")]
        mesh_advertise: String => sharing.mesh.advertise,
        /// Addresses of some peers; a name stands for all its addresses, as in a headless service
        #[arg(value_name = "HOST:PORT", num_args = 1.., value_delimiter = ',',)]
        #[serde(deserialize_with = "one_or_many")]
        mesh_peers: Vec<String> => sharing.mesh.peers,
        /// File with the password of the Redis server
        share_redis_password_file: PathBuf => sharing.redis_password_file,
        /// Prefix of the Redis channels; use another one for each fleet
        #[arg(value_name = "PREFIX")]
        share_redis_prefix: String => sharing.redis.prefix,
        /// CA bundle (PEM) for the Redis server [default: the system's]
        share_redis_tls_ca: PathBuf => sharing.redis.tls.ca,
        /// Client certificate chain (PEM) to present to the Redis server
        share_redis_tls_cert: PathBuf => sharing.redis.tls.certificates,
        /// Private key (PEM) of --share-redis-tls-cert
        share_redis_tls_key: PathBuf => sharing.redis.tls.key,
    }
}

group! {
    /// The endpoint picker for Envoy.
    Picker ("Endpoint picker") {
        /// Port of the endpoint picker, which Envoy asks where to send each request (ext_proc); usually 9002, 0 picks a
        /// free port. Requests on this port get any worker that serves their model. Without it and --picker-pools there is
        /// no picker
        #[arg(value_name = "PORT")]
        picker_port: u16 => picker.port,
        /// Pools with a port of their own, as POOL=PORT: a request on that port gets a worker of that pool. A pool is an
        /// entry of --service-discovery-pool, or the `pool` of [[workers]]
        #[arg(value_name = "POOL=PORT", num_args = 1.., value_delimiter = ',')]
        #[serde(deserialize_with = "one_or_many")]
        picker_pools: Vec<String> => picker.pools,
        /// Address of the endpoint picker's listeners
        #[arg(value_name = "ADDRESS")]
        picker_host: IpAddr => picker.host,
        /// How the picker sees responses, from which the router learns
        picker_feedback: Choice<Feedback> => picker.config.feedback,
        /// Further endpoints to name after the chosen one, at most 3. Envoy takes a list with the load balancing policy
        /// override_host only
        #[arg(value_name = "ENDPOINTS")]
        picker_fallbacks: usize => picker.config.fallbacks,
        /// Obey the headers of the inference extension's conformance tests, by which a client chooses its engine; for tests
        /// only
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on", hide = true)]
        picker_conformance_headers: OnOff => picker.config.conformance_headers,
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string, or a list of strings")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// A list, or one string with commas as on the command line.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    let value = Option::<OneOrMany>::deserialize(deserializer)?;
    Ok(value.map(|value| match value {
        OneOrMany::One(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
        OneOrMany::Many(list) => list,
    }))
}

/// A list, or one string, which may contain commas.
fn one_or_many_whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    let value = Option::<OneOrMany>::deserialize(deserializer)?;
    Ok(value.map(|value| match value {
        OneOrMany::One(text) => vec![text],
        OneOrMany::Many(list) => list,
    }))
}

/// A port in the file may be written as a number.
fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a port number or a name")]
    enum TextOrNumber {
        Text(String),
        Number(u16),
    }
    let value = Option::<TextOrNumber>::deserialize(deserializer)?;
    Ok(value.map(|value| match value {
        TextOrNumber::Text(text) => text,
        TextOrNumber::Number(number) => number.to_string(),
    }))
}
