//! Settings for sharing through Redis.

use std::time::Duration;

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use warmroute_wire::{AppProtocol, Dialer, Target, TlsFiles};

use crate::{BadShare, Secret, Secrets, Versions};

/// Settings for sharing through Redis or Valkey.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// `redis://[USER:PASSWORD@]HOST:PORT[/DB]`, or `rediss://` for TLS (`--share redis://a,redis://b`).
    /// Servers are tried in turn, and replicas are skipped: name all servers of a replication set to follow a
    /// failover.
    pub urls: Vec<Secret>,
    /// The password, if no URL contains it (`--share-redis-password-file`).
    pub password: Option<Secret>,
    /// The secrets that all routers share; the server must not know them (`--share-secret-file`).
    pub secret: Secrets,
    /// Channels are `PREFIX:all` and `PREFIX:ROUTER` (`--share-redis-prefix`). Fleets that share a server
    /// need different prefixes.
    pub prefix: String,
    /// Certificates for `rediss://` (`--share-redis-tls-ca`, `-cert`, `-key`).
    pub tls: TlsFiles,
    /// Transport versions of this build.
    pub versions: Versions,
    /// Intervals and timeouts. Not configurable.
    pub timings: RedisTimings,
}

/// Intervals and timeouts of sharing through Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisTimings {
    /// Each router announces itself at this interval and checks that the server is not a replica.
    pub announce_interval: Duration,
    /// A router that sends nothing for this long is gone; a server that returns none of our own messages for
    /// this long is dead.
    pub gone_after: Duration,
    /// Timeout for connecting and for replies of the server.
    pub answer: Duration,
    /// Longest pause before the next attempt.
    pub redial: Duration,
}

impl Default for RedisTimings {
    fn default() -> RedisTimings {
        RedisTimings {
            announce_interval: Duration::from_secs(1),
            gone_after: Duration::from_secs(5),
            answer: Duration::from_secs(2),
            redial: Duration::from_secs(1),
        }
    }
}

/// A parsed server URL.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub target: Target,
    pub login: RedisConnectionInfo,
}

impl RedisConfig {
    /// Settings for one server, without certificates.
    pub fn new(url: impl Into<String>, secret: impl Into<Secrets>) -> RedisConfig {
        RedisConfig {
            urls: vec![Secret::new(url)],
            password: None,
            secret: secret.into(),
            prefix: "warmroute".to_owned(),
            tls: TlsFiles::default(),
            versions: Versions::OURS,
            timings: RedisTimings::default(),
        }
    }

    /// Checks the settings without opening files or sockets.
    pub fn validate(&self) -> Result<(), BadShare> {
        self.secret.validate()?;
        self.servers().map(|_| ())
    }

    /// Checks the certificates, if there are any.
    pub fn read_certificates(&self) -> Result<(), BadShare> {
        self.dialer().map(|_| ())
    }

    pub(crate) fn dialer(&self) -> Result<Dialer, BadShare> {
        Ok(Dialer::with_protocol(AppProtocol::None, self.tls.clone())?)
    }

    pub(crate) fn servers(&self) -> Result<Vec<Server>, BadShare> {
        if self.urls.is_empty() {
            return Err(BadShare::BadUrl("the list is empty"));
        }
        self.urls.iter().map(|url| self.server(url.reveal())).collect()
    }

    fn server(&self, url: &str) -> Result<Server, BadShare> {
        let (scheme, plain) = speech(url)?;
        let info = plain.into_connection_info().map_err(|_| BadShare::BadUrl("it is malformed"))?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return Err(BadShare::BadUrl("it names no host"));
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let target =
            format!("{scheme}://{host}:{port}").parse().map_err(|_| BadShare::BadUrl("it names no host"))?;
        let login = info.redis_settings().clone().set_skip_set_lib_name();
        let login = match &self.password {
            Some(password) => login.set_password(password.reveal()),
            None => login,
        };
        Ok(Server { target, login })
    }
}

/// Splits the URL into the scheme to dial with and a plain URL. The client receives streams that are already
/// encrypted, so it must not see the `s`.
fn speech(url: &str) -> Result<(&'static str, String), BadShare> {
    if url.contains('#') {
        return Err(BadShare::BadUrl("fragments (#) are not supported"));
    }
    let (scheme, rest) = url.split_once("://").ok_or(BadShare::BadUrl("it has no scheme"))?;
    match scheme {
        "redis" | "valkey" => Ok(("http", format!("redis://{rest}"))),
        "rediss" | "valkeys" => Ok(("https", format!("redis://{rest}"))),
        _ => Err(BadShare::BadUrl("unknown scheme")),
    }
}

impl Server {
    /// `HOST:PORT`, without user and password.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.target.host, self.target.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> RedisConfig {
        RedisConfig::new(url, Secret::new("0123456789abcdef"))
    }

    #[test]
    fn urls_are_parsed_and_the_password_file_wins() {
        let mut config = config("rediss://me:word@cache.example:6380/3");
        let server = config.servers().unwrap().remove(0);
        assert_eq!((server.name().as_str(), server.login.db()), ("cache.example:6380", 3));
        assert_eq!((server.login.username(), server.login.password()), (Some("me"), Some("word")));
        config.password = Some(Secret::new("from the file"));
        assert_eq!(config.servers().unwrap()[0].login.password(), Some("from the file"));
    }

    #[test]
    fn invalid_urls_are_rejected_without_repeating_them() {
        for url in ["", "http://a", "redis://", "unix:///tmp/x", "rediss://u:hush@a/#insecure"] {
            let error = config(url).validate().unwrap_err().to_string();
            assert!(error.starts_with("not a Redis URL") && !error.contains("hush"), "{error}");
        }
        assert!(format!("{:?}", config("redis://u:hush@a")).find("hush").is_none());
    }
}
