//! The gateway's own settings.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http::HeaderName;
use warmroute_prompt::{PrefixRule, SessionField};
use warmroute_wire::Dialer;

use crate::admission_gate::AdmissionConfig;

/// How requests are read and sent on.
#[derive(Clone, Debug)]
pub struct Config {
    /// Larger JSON bodies are refused with 413.
    pub body_bytes_max: usize,
    /// What the JSON bodies of all requests may take together; beyond it they are refused with 503.
    pub bodies_bytes_max: usize,
    /// Names under which clients may ask for a model: alias to model.
    pub aliases: HashMap<String, String>,
    /// Where a session's name is looked for, in this order.
    pub session_keys: Vec<SessionKey>,
    /// What of a prompt makes its prefix key.
    pub prefix: PrefixRule,
    /// Whether responses say how they were routed.
    pub decision_headers: DecisionHeaders,
    /// Whether streams are asked for their usage where the client did not.
    pub usage_injection: UsageInjection,
    /// How often a request that failed before its first byte is sent to another worker.
    pub retries_max: u32,
    /// How long clients and workers are waited for.
    pub timeouts: Timeouts,
    /// How many requests are taken, from whom.
    pub admission: AdmissionConfig,
    /// Whether workers get to see what clients show to come in.
    pub client_credentials: ClientCredentials,
    /// Whether `Forwarded` and its like are passed to workers.
    pub forwarded: Forwarded,
    /// Whether a client may say which worker it wants.
    pub worker_choice: WorkerChoice,
    /// Clients that may be connected at once; more wait to be accepted.
    pub connections_max: usize,
    /// How workers are reached, and what they are shown. The dialer that a gateway begins with is the one it keeps; it may be told
    /// to follow another.
    pub dialer: Dialer,
    /// How long an unused connection to a worker is kept. Engines close theirs after 5 s; ours go first.
    pub idle_timeout: Duration,
    /// Unused connections kept per worker.
    pub idle_connections_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            body_bytes_max: 64 << 20,
            bodies_bytes_max: 1 << 30,
            aliases: HashMap::new(),
            session_keys: SessionKey::default_order(),
            prefix: PrefixRule::default(),
            decision_headers: DecisionHeaders::Off,
            usage_injection: UsageInjection::On,
            retries_max: 2,
            timeouts: Timeouts::default(),
            admission: AdmissionConfig::default(),
            client_credentials: ClientCredentials::default(),
            forwarded: Forwarded::default(),
            worker_choice: WorkerChoice::default(),
            connections_max: 16_384,
            dialer: Dialer::default(),
            idle_timeout: Duration::from_secs(4),
            idle_connections_max: 256,
        }
    }
}

/// How long others are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A client's head, or its next request.
    pub head: Duration,
    /// A client's body, and a second more for every KiB of it that has come.
    pub body: Duration,
    /// Connecting.
    pub connect: Duration,
    /// From the request to the first byte of the answer's body. Long prompts of reasoning models take minutes to compute, and
    /// without streaming the first byte comes after the last token.
    pub first_byte: Duration,
    /// Between two chunks of an answer.
    pub idle: Duration,
    /// From the request's arrival to the end of its answer; `None`: as long as it takes.
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

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No request would fit.
    #[error("max-payload-size must be at least 1 byte")]
    NoBody,
    /// The largest request that may come would never fit.
    #[error("max-buffered-bytes must be at least max-payload-size, {0} bytes")]
    NoRoomForOne(usize),
    /// An alias of an alias would need a second look-up, and could go round in circles.
    #[error("alias `{0}` points to `{1}`, which is an alias itself")]
    AliasOfAlias(String, String),
}

impl Config {
    /// Checks what the types cannot.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.body_bytes_max == 0 {
            return Err(ConfigError::NoBody);
        }
        if self.bodies_bytes_max < self.body_bytes_max {
            return Err(ConfigError::NoRoomForOne(self.body_bytes_max));
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
    /// Where nobody reads them here, they are meant for the worker; a key that let somebody in here is no worker's business.
    #[default]
    Auto,
    /// Always: workers know the same keys.
    Pass,
    /// Never.
    Drop,
}

/// Whether workers are told what a client, or whoever is before us, says of the client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarded {
    /// No: anybody can write anything there.
    #[default]
    Drop,
    /// Yes: a proxy that we trust is before us and writes it.
    Pass,
}

/// Whether `x-warmroute-worker` in a request is obeyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerChoice {
    /// No: it is dropped.
    #[default]
    Ours,
    /// Yes: for tests and for those who look for a fault.
    Clients,
}

/// Whether responses carry `x-warmroute-*` headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecisionHeaders {
    /// The fleet stays private.
    #[default]
    Off,
    /// Worker, policy, reason and predicted cached tokens.
    On,
}

/// Whether the gateway asks streams for their usage, and keeps it from clients who did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageInjection {
    /// Yes: without it, nobody learns what a stream found in the cache.
    #[default]
    On,
    /// Requests go on untouched.
    Off,
}

/// A place where a session's name may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionKey {
    /// A request header.
    Header(HeaderName),
    /// A field of the body.
    Body(SessionField),
}

impl SessionKey {
    /// The order that other routers use: headers first, from the narrowest to the widest, then the body.
    pub fn default_order() -> Vec<SessionKey> {
        let headers = ["x-session-id", "x-user-id", "x-tenant-id", "x-correlation-id"];
        let headers = headers.map(|name| SessionKey::Header(HeaderName::from_static(name)));
        headers.into_iter().chain(SessionField::ALL.map(SessionKey::Body)).collect()
    }
}

impl FromStr for SessionKey {
    type Err = String;

    /// `header:NAME` or `body:FIELD`.
    fn from_str(text: &str) -> Result<SessionKey, String> {
        let wrong =
            || format!("`{text}`: expected header:NAME or body:session_id, body:user, body:prompt_cache_key");
        match text.split_once(':').ok_or_else(wrong)? {
            ("header", name) => HeaderName::from_str(name).map(SessionKey::Header).map_err(|_| wrong()),
            ("body", name) => {
                let field = SessionField::ALL.into_iter().find(|field| field.name() == name);
                field.map(SessionKey::Body).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionKey::Header(name) => write!(f, "header:{name}"),
            SessionKey::Body(field) => write!(f, "body:{}", field.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_keys_are_written_as_they_are_read() {
        for key in SessionKey::default_order() {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        assert!("body:name".parse::<SessionKey>().unwrap_err().contains("prompt_cache_key"));
        assert!("x-user".parse::<SessionKey>().is_err());
    }

    #[test]
    fn an_alias_of_an_alias_is_refused() {
        let aliases = [("a", "b"), ("b", "c")].map(|(from, to)| (from.to_owned(), to.to_owned()));
        let config = Config { aliases: aliases.into(), ..Config::default() };
        assert_eq!(config.validate(), Err(ConfigError::AliasOfAlias("a".into(), "b".into())));
    }
}
