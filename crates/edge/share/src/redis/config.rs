//! What an operator says of the Redis server.

use std::time::Duration;

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use warmroute_wire::{AppProtocol, Dialer, Target, WorkerTls};

use crate::{BadShare, Secret, Secrets, Versions};

/// How this router shares by Redis or Valkey.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    /// `redis://[USER:PASSWORD@]HOST:PORT[/DB]`, or `rediss://` for TLS (`--share redis://a,redis://b`). Several are tried in turn, and one
    /// that says it is a replica is passed over: name all servers of a set, and a failover is followed.
    pub urls: Vec<Secret>,
    /// The password, where it is in no URL (`--share-redis-password-file`).
    pub password: Option<Secret>,
    /// What all routers know and nobody else, the server least of all (`--share-secret-file`).
    pub secret: Secrets,
    /// Channels are `PREFIX:all` and `PREFIX:NUMBER` (`--share-redis-prefix`): fleets that share a server must not share this.
    pub prefix: String,
    /// Certificates for `rediss://` (`--share-redis-tls-ca`, `-cert`, `-key`).
    pub tls: WorkerTls,
    /// What this build speaks.
    pub versions: Versions,
    /// How patient it is. Not for operators.
    pub pace: RedisPace,
}

/// Times of sharing by Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisPace {
    /// Every router says this often that it is there, and the server is asked whether it still is what it was.
    pub here_every: Duration,
    /// A router that said nothing for so long is gone; a server that brings us nothing of our own for so long is dead.
    pub gone_after: Duration,
    /// Connecting, or an answer of the server, may take so long.
    pub answer: Duration,
    /// The longest pause before the next try.
    pub redial: Duration,
}

impl Default for RedisPace {
    fn default() -> RedisPace {
        RedisPace {
            here_every: Duration::from_secs(1),
            gone_after: Duration::from_secs(5),
            answer: Duration::from_secs(2),
            redial: Duration::from_secs(1),
        }
    }
}

/// A server, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub target: Target,
    pub login: RedisConnectionInfo,
}

impl RedisConfig {
    /// One server, no TLS settings of its own.
    pub fn new(url: impl Into<String>, secret: impl Into<Secrets>) -> RedisConfig {
        RedisConfig {
            urls: vec![Secret::new(url)],
            password: None,
            secret: secret.into(),
            prefix: "warmroute".to_owned(),
            tls: WorkerTls::default(),
            versions: Versions::OURS,
            pace: RedisPace::default(),
        }
    }

    /// Whether it can work, without opening anything.
    pub fn validate(&self) -> Result<(), BadShare> {
        self.secret.keep_out()?;
        self.servers().map(|_| ())
    }

    /// Whether the certificates can be used, where there are any.
    pub fn read_certificates(&self) -> Result<(), BadShare> {
        self.dialer().map(|_| ())
    }

    pub(crate) fn dialer(&self) -> Result<Dialer, BadShare> {
        Ok(Dialer::with_protocol(AppProtocol::None, self.tls.clone())?)
    }

    pub(crate) fn servers(&self) -> Result<Vec<Server>, BadShare> {
        if self.urls.is_empty() {
            return Err(BadShare::BadUrl("there is none"));
        }
        self.urls.iter().map(|url| self.server(url.reveal())).collect()
    }

    fn server(&self, url: &str) -> Result<Server, BadShare> {
        let (scheme, plain) = speech(url)?;
        let info = plain.into_connection_info().map_err(|_| BadShare::BadUrl("it cannot be read"))?;
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

/// Plain or with TLS, and the URL without that: the client is given connections that are encrypted already, by the same code as all
/// others, and would refuse the letter.
fn speech(url: &str) -> Result<(&'static str, String), BadShare> {
    if url.contains('#') {
        return Err(BadShare::BadUrl("what stands behind # is not supported"));
    }
    let (scheme, rest) = url.split_once("://").ok_or(BadShare::BadUrl("it has no scheme"))?;
    match scheme {
        "redis" | "valkey" => Ok(("http", format!("redis://{rest}"))),
        "rediss" | "valkeys" => Ok(("https", format!("redis://{rest}"))),
        _ => Err(BadShare::BadUrl("another scheme")),
    }
}

impl Server {
    /// Without user and password.
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
    fn urls_are_taken_apart_and_the_file_s_password_counts() {
        let mut config = config("rediss://me:word@cache.example:6380/3");
        let server = config.servers().unwrap().remove(0);
        assert_eq!((server.name().as_str(), server.login.db()), ("cache.example:6380", 3));
        assert_eq!((server.login.username(), server.login.password()), (Some("me"), Some("word")));
        config.password = Some(Secret::new("of the file"));
        assert_eq!(config.servers().unwrap()[0].login.password(), Some("of the file"));
    }

    #[test]
    fn bad_urls_are_refused_without_being_repeated() {
        for url in ["", "http://a", "redis://", "unix:///tmp/x", "rediss://u:hush@a/#insecure"] {
            let error = config(url).validate().unwrap_err().to_string();
            assert!(error.starts_with("not a Redis URL") && !error.contains("hush"), "{error}");
        }
        assert!(format!("{:?}", config("redis://u:hush@a")).find("hush").is_none());
    }
}
