//! Dials workers.

use std::io;
use std::sync::Arc;

use http::HeaderValue;
use parking_lot::RwLock;
use tokio::net::TcpStream;

use crate::Target;

/// How workers are reached, for all who reach them: clones are the same dialer.
#[derive(Clone, Debug, Default)]
pub struct Dialer(Arc<RwLock<Ways>>);

/// What a dialer knows.
#[derive(Clone, Debug, Default)]
struct Ways {
    /// Marked sensitive, so that it is not printed.
    authorization: Option<HeaderValue>,
}

impl Dialer {
    /// Shows workers this as `Authorization`; `None`: nothing.
    pub fn new(authorization: Option<HeaderValue>) -> Dialer {
        let sensitive = |mut value: HeaderValue| {
            value.set_sensitive(true);
            value
        };
        Dialer(Arc::new(RwLock::new(Ways { authorization: authorization.map(sensitive) })))
    }

    /// From the next connection on, this dialer and all its clones do as the other does.
    pub fn follow(&self, other: &Dialer) {
        let ways = other.0.read().clone();
        *self.0.write() = ways;
    }

    /// What workers are shown as `Authorization`.
    pub fn authorization(&self) -> Option<HeaderValue> {
        self.0.read().authorization.clone()
    }

    /// A new connection.
    pub async fn dial(&self, target: &Target) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_a_dialer_follows_and_nobody_prints_what_it_shows() {
        let first = Dialer::default();
        let clone = first.clone();
        first.follow(&Dialer::new(Some(HeaderValue::from_static("Bearer worker-key"))));
        assert_eq!(clone.authorization().unwrap(), "Bearer worker-key");
        assert!(!format!("{clone:?}").contains("worker-key"));
    }
}
