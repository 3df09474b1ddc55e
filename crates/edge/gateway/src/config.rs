//! The gateway's settings.

use std::collections::HashMap;
use std::time::Duration;

use warmroute_prompt::PrefixRule;
use warmroute_types::{AT_LEAST_1, BadSetting, OptionValue, check_settings};
use warmroute_wire::Dialer;

use crate::Token;
use crate::admission_config::AdmissionConfig;
use crate::cache_salt::CacheSalt;
use crate::cached_tokens::CachedTokens;
use crate::continuation::ContinueStreams;
use crate::engine_fields::FieldPolicy;
use crate::session_keys::SessionKeys;

/// How requests are read and forwarded.
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest JSON body. Larger ones get 413.
    pub body_bytes_max: usize,
    /// Largest sum of all JSON bodies in memory. Beyond it, requests get 503.
    pub bodies_bytes_max: usize,
    /// Model aliases: alias to model.
    pub aliases: HashMap<String, String>,
    /// Where to look for a session name, in this order.
    pub session_keys: SessionKeys,
    /// Which part of a prompt makes its prefix key.
    pub prefix: PrefixRule,
    /// Whether responses carry the routing decision.
    pub decision_headers: DecisionHeaders,
    /// Whether to request usage for streams if the client did not.
    pub usage_injection: UsageInjection,
    /// Retries on other workers after a failure before the first byte, without those after failed connects.
    pub retries_max: u32,
    /// Whether streams survive their worker.
    pub continue_streams: ContinueStreams,
    /// Workers that may continue one stream, one after another.
    pub continuations_max: u32,
    /// Time limits for clients and workers.
    pub timeouts: Timeouts,
    /// Limits on concurrent requests and on tenants' rates.
    pub admission: AdmissionConfig,
    /// Whether clients' credentials are passed to workers.
    pub client_credentials: ClientCredentials,
    /// Whether `Forwarded` and similar headers are passed to workers.
    pub forwarded: Forwarded,
    /// Whether a client may choose its worker.
    pub worker_choice: WorkerChoice,
    /// Who may manage workers on the client listener.
    pub worker_api: WorkerApi,
    /// The token of the admin listener, which [`WorkerApi::Token`] asks for.
    pub admin_token: Option<Token>,
    /// What happens to fields of bodies that steer engines, unless a key says otherwise.
    pub engine_fields: FieldPolicy,
    /// Whose requests share the engines' caches.
    pub cache_salt: CacheSalt,
    /// Whether clients see how much was cached, unless a key says otherwise.
    pub cached_tokens: CachedTokens,
    /// Concurrent client connections. Further clients wait to be accepted.
    pub connections_max: usize,
    /// How workers are connected to and authenticated with. A gateway keeps its first dialer; a reload makes that
    /// dialer follow a new one.
    pub dialer: Dialer,
    /// How long an idle upstream connection is kept. Engines close theirs after 5 s, so ours must close earlier.
    pub idle_timeout: Duration,
    /// Idle connections kept per worker.
    pub idle_connections_max: usize,
}

/// Who may manage workers on the client listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerApi {
    /// Only the admin listener has these endpoints.
    #[default]
    Off,
    /// Requests with the admin token.
    Token,
    /// Every client: the network is trusted.
    Open,
}

impl OptionValue for WorkerApi {
    const VALUES: &'static [(WorkerApi, &'static str, &'static str)] = &[
        (WorkerApi::Off, "off", "Only the admin listener has these endpoints"),
        (WorkerApi::Token, "token", "Requests with the admin token"),
        (WorkerApi::Open, "open", "Every client: for trusted networks, as RL frameworks expect it"),
    ];
}

impl Default for Config {
    fn default() -> Config {
        Config {
            body_bytes_max: 64 << 20,
            bodies_bytes_max: 1 << 30,
            aliases: HashMap::new(),
            session_keys: SessionKeys::default(),
            prefix: PrefixRule::default(),
            decision_headers: DecisionHeaders::Off,
            usage_injection: UsageInjection::On,
            retries_max: 2,
            continue_streams: ContinueStreams::Off,
            continuations_max: 2,
            timeouts: Timeouts::default(),
            admission: AdmissionConfig::default(),
            client_credentials: ClientCredentials::default(),
            forwarded: Forwarded::default(),
            worker_choice: WorkerChoice::default(),
            worker_api: WorkerApi::default(),
            admin_token: None,
            engine_fields: FieldPolicy::default(),
            cache_salt: CacheSalt::default(),
            cached_tokens: CachedTokens::default(),
            connections_max: 16_384,
            dialer: Dialer::default(),
            idle_timeout: Duration::from_secs(4),
            idle_connections_max: 256,
        }
    }
}

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a client to send a request head, or to start its next request.
    pub head: Duration,
    /// For a client to send its body, plus one second for every KiB received.
    pub body: Duration,
    /// For connecting to a worker.
    pub connect: Duration,
    /// From sending the request to the first byte of the response body. Long prompts take minutes to compute, and
    /// without streaming the first byte follows the last token.
    pub first_byte: Duration,
    /// Between two chunks of a response.
    pub idle: Duration,
    /// From the request's arrival to the end of its response; `None`: unlimited.
    pub total: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        Timeouts {
            head: minutes(1),
            body: Duration::from_secs(30),
            connect: Duration::from_secs(5),
            first_byte: minutes(10),
            idle: minutes(5),
            total: None,
        }
    }
}

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A setting breaks its rule.
    #[error(transparent)]
    Setting(#[from] BadSetting),
    /// A request of the allowed size would never fit.
    #[error("max-buffered-bytes must be at least max-payload-size, {0} bytes")]
    NoRoomForOne(usize),
    /// Aliases are resolved once. Chains could be cyclic.
    #[error("alias `{0}` points to `{1}`, which is itself an alias; point it to a model")]
    AliasOfAlias(String, String),
    /// No request could have the token.
    #[error("client-worker-api: token needs an admin-token")]
    NoToken,
}

impl Config {
    /// Checks constraints that the types do not express.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (times, shares) = (&self.timeouts, self.admission.shares);
        check_settings(&[
            ("max-client-connections", self.connections_max > 0, AT_LEAST_1),
            ("client-head-timeout-secs", !times.head.is_zero(), AT_LEAST_1),
            ("client-body-timeout-secs", !times.body.is_zero(), AT_LEAST_1),
            ("connect-timeout-secs", !times.connect.is_zero(), AT_LEAST_1),
            ("first-byte-timeout-secs", !times.first_byte.is_zero(), AT_LEAST_1),
            ("idle-timeout-secs", !times.idle.is_zero(), AT_LEAST_1),
            ("prefix-token-count", self.prefix.tokens > 0, AT_LEAST_1),
            ("max-payload-size", self.body_bytes_max > 0, "must be at least 1 byte"),
            ("queue-share-per-tenant", shares.queue_percent <= 100, "must be 0 to 100 percent"),
            ("memory-share-per-tenant", shares.memory_percent <= 100, "must be 0 to 100 percent"),
        ])?;
        if self.bodies_bytes_max < self.body_bytes_max {
            return Err(ConfigError::NoRoomForOne(self.body_bytes_max));
        }
        if self.worker_api == WorkerApi::Token && self.admin_token.is_none() {
            return Err(ConfigError::NoToken);
        }
        match self.aliases.iter().find(|(_, model)| self.aliases.contains_key(*model)) {
            Some((alias, model)) => Err(ConfigError::AliasOfAlias(alias.clone(), model.clone())),
            None => Ok(()),
        }
    }
}

/// Whether a client's `Authorization` and `X-API-Key` are passed to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCredentials {
    /// Passed unless the gateway checks API keys or has worker credentials of its own.
    #[default]
    Auto,
    /// Always passed: workers accept the same keys.
    Pass,
    /// Never passed.
    Drop,
}

impl OptionValue for ClientCredentials {
    const VALUES: &'static [(ClientCredentials, &'static str, &'static str)] = &[
        (ClientCredentials::Auto, "auto", "Pass them unless --api-keys-file or --worker-api-key is set"),
        (ClientCredentials::Pass, "pass", "Pass them to workers"),
        (ClientCredentials::Drop, "drop", "Remove them"),
    ];
}

/// Whether `Forwarded` and similar headers of requests are passed to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarded {
    /// Dropped: any client can set them.
    #[default]
    Drop,
    /// Passed: a trusted proxy in front of the gateway sets them.
    Pass,
}

impl OptionValue for Forwarded {
    const VALUES: &'static [(Forwarded, &'static str, &'static str)] =
        &[(Forwarded::Drop, "drop", "Remove them"), (Forwarded::Pass, "pass", "Pass them to workers")];
}

/// Whether the request header `x-warmroute-worker` is obeyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerChoice {
    /// The header is dropped.
    #[default]
    Ours,
    /// The header is obeyed, for tests and debugging.
    Clients,
}

/// Whether responses carry `x-warmroute-*` headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecisionHeaders {
    /// No headers: clients learn nothing about the fleet.
    #[default]
    Off,
    /// Worker, policy, reason and predicted cached tokens.
    On,
}

/// Whether the gateway requests usage for streams, and removes it from the response if the client did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageInjection {
    /// Requested: otherwise the cached tokens of streams are unknown.
    #[default]
    On,
    /// Requests are not changed.
    Off,
}

impl OptionValue for UsageInjection {
    const VALUES: &'static [(UsageInjection, &'static str, &'static str)] = &[
        (UsageInjection::On, "on", "Request usage"),
        (UsageInjection::Off, "off", "Forward requests unchanged"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_of_an_alias_is_refused() {
        let aliases = [("a", "b"), ("b", "c")].map(|(from, to)| (from.to_owned(), to.to_owned()));
        let config = Config { aliases: aliases.into(), ..Config::default() };
        assert_eq!(config.validate(), Err(ConfigError::AliasOfAlias("a".into(), "b".into())));
    }
}
