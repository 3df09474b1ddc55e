//! Why a Redis server cannot be used, with advice on what to change.

use std::time::Duration;

use redis::{ErrorKind, RedisError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use warmroute_wire::{Scheme, speaks_tls};

use crate::redis::config::Server;

/// Timeout for examining a server.
const DIAGNOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Replies of servers are cut to this length.
const CHARS_MAX: usize = 160;

/// Why a Redis server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RedisFailure {
    /// No connection, or an untrusted certificate.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// An error of the server or the client.
    #[error("{}", line(.0))]
    Redis(RedisError),
    /// Wrong user or password.
    #[error("it rejects the user or the password: check the user in the URL and share-redis-password-file")]
    WrongPassword,
    /// A password is required.
    #[error(
        "it requires a password: set share-redis-password-file, and the user, if any, in the URL (redis://USER@HOST:PORT)"
    )]
    NoPassword,
    /// The user lacks permissions.
    #[error("the user lacks permissions that routers need: {}", line(.0))]
    Forbidden(RedisError),
    /// `redis://` to a port with TLS.
    #[error("this port uses TLS: write rediss:// instead of redis://")]
    Tls,
    /// `rediss://` to a port without TLS.
    #[error("this port does not use TLS: write redis:// instead of rediss://, or use the server's TLS port")]
    NotTls,
    /// Another service.
    #[error("an HTTP server answers instead of Redis: check the port")]
    Http,
    /// A timeout expired.
    #[error("it did not answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The connection closed.
    #[error("the connection closed, or the server sent more than could be processed")]
    Closed,
    /// The server is a replica.
    #[error("it is a replica: list the primary, too")]
    Replica,
    /// Published messages do not come back.
    #[error("it returned none of our own messages for {} ms", .0.as_millis())]
    NoEcho(Duration),
}

impl From<RedisError> for RedisFailure {
    fn from(error: RedisError) -> RedisFailure {
        match error.code() {
            _ if error.kind() == ErrorKind::AuthenticationFailed => RedisFailure::WrongPassword,
            Some("WRONGPASS") => RedisFailure::WrongPassword,
            Some("NOAUTH") => RedisFailure::NoPassword,
            Some("NOPERM") => RedisFailure::Forbidden(error),
            _ => RedisFailure::Redis(error),
        }
    }
}

impl RedisFailure {
    /// Whether the error does not show the cause. A wrong scheme or port produces several such errors.
    pub(crate) fn is_ambiguous(&self) -> bool {
        match self {
            RedisFailure::Io(error) => error.kind() != std::io::ErrorKind::ConnectionRefused,
            RedisFailure::Redis(error) => error.code().is_none(),
            RedisFailure::TimedOut(_) | RedisFailure::Closed => true,
            _ => false,
        }
    }

    /// Examines the server; returns the cause if it can be found.
    pub(crate) async fn diagnose(server: &Server) -> Option<RedisFailure> {
        let target = &server.target;
        if target.scheme == Scheme::Http && speaks_tls(target).await {
            return Some(RedisFailure::Tls);
        }
        match timeout(DIAGNOSE_TIMEOUT, first_reply(target.host.as_str(), target.port)).await.ok()?.ok()? {
            reply if reply == *b"HTTP" => Some(RedisFailure::Http),
            [b'+' | b'-', ..] if target.scheme == Scheme::Https => Some(RedisFailure::NotTls),
            _ => None,
        }
    }
}

/// The first bytes of the reply to a `PING`, which HTTP servers answer, too.
async fn first_reply(host: &str, port: u16) -> std::io::Result<[u8; 4]> {
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.write_all(b"PING\r\n\r\n").await?;
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).await?;
    Ok(reply)
}

/// The error on one line, without the client's categories.
fn line(error: &RedisError) -> String {
    let reply = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    reply.lines().next().unwrap_or_default().chars().take(CHARS_MAX).collect()
}
