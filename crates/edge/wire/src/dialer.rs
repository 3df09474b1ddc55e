//! Dials workers.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use http::HeaderValue;
use parking_lot::RwLock;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

use crate::pem::{BadTls, Identity, provider, roots_in, system_roots};
use crate::target::Scheme;
use crate::{Speech, Stream, Target};

/// How workers are reached, for all who reach them: clones are the same dialer.
#[derive(Clone, Debug, Default)]
pub struct Dialer(Arc<RwLock<Arc<Ways>>>);

/// How workers with `https://` are spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerTls {
    /// A file of the authorities that vouch for them; `None`: whom the system trusts.
    pub ca: Option<PathBuf>,
    /// What they are shown of us.
    pub identity: Option<Identity>,
}

/// What a dialer knows.
#[derive(Debug, Default)]
struct Ways {
    /// Marked sensitive, so that it is not printed.
    authorization: Option<HeaderValue>,
    tls: WorkerTls,
    speech: Speech,
    /// Made of it when it is first needed: the system's certificates take time to read, and most fleets need none.
    config: OnceLock<Arc<ClientConfig>>,
}

impl Dialer {
    /// Shows workers this as `Authorization`, where it is given. Files that are named are read now, so that an error is told.
    pub fn new(authorization: Option<HeaderValue>, tls: WorkerTls) -> Result<Dialer, BadTls> {
        let sensitive = |mut value: HeaderValue| {
            value.set_sensitive(true);
            value
        };
        Dialer::of(Ways { authorization: authorization.map(sensitive), tls, ..Ways::default() })
    }

    /// For those who are no workers and speak something else than HTTP.
    pub fn speaking(speech: Speech, tls: WorkerTls) -> Result<Dialer, BadTls> {
        Dialer::of(Ways { speech, tls, ..Ways::default() })
    }

    fn of(ways: Ways) -> Result<Dialer, BadTls> {
        if ways.tls != WorkerTls::default() {
            ways.config()?;
        }
        Ok(Dialer(Arc::new(RwLock::new(Arc::new(ways)))))
    }

    /// From the next connection on, this dialer and all its clones do as the other does.
    pub fn follow(&self, other: &Dialer) {
        let ways = other.ways();
        *self.0.write() = ways;
    }

    /// What workers are shown as `Authorization`.
    pub fn authorization(&self) -> Option<HeaderValue> {
        self.0.read().authorization.clone()
    }

    /// A new connection.
    pub async fn dial(&self, target: &Target) -> io::Result<Stream> {
        self.dial_as(target, &target.host).await
    }

    /// A new connection to one whose certificate carries this name, which need not be the host that is dialed.
    pub async fn dial_as(&self, target: &Target, name: &str) -> io::Result<Stream> {
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await?;
        stream.set_nodelay(true)?;
        match target.scheme {
            Scheme::Http => Ok(Stream::Plain(stream)),
            Scheme::Https => {
                let config = self.ways().config().map_err(io::Error::other)?;
                let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
                let stream = TlsConnector::from(config).connect(name, stream).await?;
                Ok(Stream::Tls(Box::new(TlsStream::Client(stream))))
            }
        }
    }

    fn ways(&self) -> Arc<Ways> {
        Arc::clone(&self.0.read())
    }
}

impl Ways {
    fn config(&self) -> Result<Arc<ClientConfig>, BadTls> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let made = self.tls.config(self.speech)?;
        Ok(Arc::clone(self.config.get_or_init(|| made)))
    }
}

impl WorkerTls {
    fn config(&self, speech: Speech) -> Result<Arc<ClientConfig>, BadTls> {
        let roots = match &self.ca {
            Some(file) => roots_in(file)?,
            None => system_roots()?,
        };
        let builder =
            ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match &self.identity {
            Some(identity) => {
                let (certificates, key) = identity.read()?;
                let config = builder.with_client_auth_cert(certificates, key);
                config.map_err(|error| identity.unfit(error))?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = speech.alpn();
        Ok(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_a_dialer_follows_and_nobody_prints_what_it_shows() {
        let first = Dialer::default();
        let clone = first.clone();
        let key = HeaderValue::from_static("Bearer worker-key");
        first.follow(&Dialer::new(Some(key), WorkerTls::default()).unwrap());
        assert_eq!(clone.authorization().unwrap(), "Bearer worker-key");
        assert!(!format!("{clone:?}").contains("worker-key"));
    }
}
