//! Why a server was given up, in words that say what to change.

use std::time::Duration;

use redis::{ErrorKind, RedisError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use warmroute_wire::{Scheme, speaks_tls};

use crate::redis::config::Server;

/// For a look at what is there.
const LOOK: Duration = Duration::from_secs(2);

/// What servers say is cut off here.
const CHARS_MAX: usize = 160;

/// Why.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// No connection, or a certificate that is not trusted.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// What the server or the client says.
    #[error("{}", line(.0))]
    Redis(RedisError),
    /// A user or a password that it does not know.
    #[error(
        "it does not accept the user or the password: look at the user in the URL and at share-redis-password-file"
    )]
    Login,
    /// No password.
    #[error(
        "it wants a password: put it into share-redis-password-file, and the user, where there is one, into the URL (redis://USER@HOST:PORT)"
    )]
    NoLogin,
    /// A user that may not do what routers do.
    #[error("the user may not do what routers do: {}", line(.0))]
    Forbidden(RedisError),
    /// `redis://` towards a port with TLS.
    #[error("TLS is spoken at this port: write rediss:// instead of redis://")]
    Tls,
    /// `rediss://` towards a port without.
    #[error(
        "TLS is not spoken at this port: write redis:// instead of rediss://, or take the server's TLS port"
    )]
    Plain,
    /// Another service.
    #[error("an HTTP server is there, and no Redis: is the port right?")]
    Http,
    /// Nothing in time.
    #[error("it did not answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// The connection ended.
    #[error("it closed the connection, or more came than is taken in")]
    Closed,
    /// A copy.
    #[error("it is a replica")]
    Replica,
    /// What is published does not come back.
    #[error("it brought back nothing of our own for {} ms", .0.as_millis())]
    Deaf(Duration),
}

impl From<RedisError> for Lost {
    fn from(error: RedisError) -> Lost {
        match error.code() {
            _ if error.kind() == ErrorKind::AuthenticationFailed => Lost::Login,
            Some("WRONGPASS") => Lost::Login,
            Some("NOAUTH") => Lost::NoLogin,
            Some("NOPERM") => Lost::Forbidden(error),
            _ => Lost::Redis(error),
        }
    }
}

impl Lost {
    /// Whether what was seen does not tell what is wrong. A wrong scheme and a wrong port look like this, each in several ways.
    pub(crate) fn is_riddle(&self) -> bool {
        match self {
            Lost::Io(error) => error.kind() != std::io::ErrorKind::ConnectionRefused,
            Lost::Redis(error) => error.code().is_none(),
            Lost::Late(_) | Lost::Closed => true,
            _ => false,
        }
    }

    /// What is wrong with this server, if a look at it tells.
    pub(crate) async fn looked_at(server: &Server) -> Option<Lost> {
        let target = &server.target;
        if target.scheme == Scheme::Http && speaks_tls(target).await {
            return Some(Lost::Tls);
        }
        match timeout(LOOK, first_word(target.host.as_str(), target.port)).await.ok()?.ok()? {
            said if said == *b"HTTP" => Some(Lost::Http),
            [b'+' | b'-', ..] if target.scheme == Scheme::Https => Some(Lost::Plain),
            _ => None,
        }
    }
}

/// What is answered to the simplest question of Redis, which an HTTP server answers too, in its way.
async fn first_word(host: &str, port: u16) -> std::io::Result<[u8; 4]> {
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.write_all(b"PING\r\n\r\n").await?;
    let mut said = [0; 4];
    stream.read_exact(&mut said).await?;
    Ok(said)
}

/// What the server or the client says, on one line and without the client's own categories.
fn line(error: &RedisError) -> String {
    let said = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    said.lines().next().unwrap_or_default().chars().take(CHARS_MAX).collect()
}
