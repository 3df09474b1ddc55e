//! Opens connections to workers.

use std::io;
use std::sync::{Arc, OnceLock};

use http::HeaderValue;
use parking_lot::RwLock;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

use crate::pem::{BadTls, CertifiedKey, Identity, PemTexts, TlsFiles, provider, roots_in, system_roots};
use crate::scheme_detection::is_plain;
use crate::target::Scheme;
use crate::{AppProtocol, Stream, Target};

/// How to connect to workers. Clones share the settings.
#[derive(Clone, Debug, Default)]
pub struct Dialer(Arc<RwLock<Arc<DialSettings>>>);

/// The settings of a dialer.
#[derive(Debug, Default)]
struct DialSettings {
    /// Marked as sensitive, so that it is not printed.
    authorization: Option<HeaderValue>,
    tls: TlsFiles,
    protocol: AppProtocol,
    /// Created at the first TLS connection: reading the system's certificates is slow, and most fleets do not need
    /// them.
    config: OnceLock<Arc<ClientConfig>>,
}

impl Dialer {
    /// A dialer that sends `authorization` to workers. Reads the named files at once, so that errors surface now.
    pub fn new(authorization: Option<HeaderValue>, tls: TlsFiles) -> Result<Dialer, BadTls> {
        let authorization = authorization.map(sensitive);
        Dialer::from_settings(DialSettings { authorization, tls, ..DialSettings::default() })
    }

    /// A dialer with certificates from memory.
    pub fn from_pem(authorization: Option<HeaderValue>, pem: &PemTexts) -> Result<Dialer, BadTls> {
        let unusable = |error| BadTls::Unusable { file: pem.origin.clone(), error };
        let config = client_config(pem.roots()?, pem.certified_key()?, AppProtocol::Http, unusable)?;
        Dialer::from_settings(DialSettings {
            authorization: authorization.map(sensitive),
            config: OnceLock::from(config),
            ..DialSettings::default()
        })
    }

    /// A dialer for a protocol other than HTTP.
    pub fn with_protocol(protocol: AppProtocol, tls: TlsFiles) -> Result<Dialer, BadTls> {
        Dialer::from_settings(DialSettings { protocol, tls, ..DialSettings::default() })
    }

    fn from_settings(settings: DialSettings) -> Result<Dialer, BadTls> {
        if settings.tls != TlsFiles::default() {
            settings.config()?;
        }
        Ok(Dialer(Arc::new(RwLock::new(Arc::new(settings)))))
    }

    /// Makes this dialer and its clones use the other's settings for new connections.
    pub fn follow(&self, other: &Dialer) {
        let settings = other.settings();
        *self.0.write() = settings;
    }

    /// The `Authorization` header for workers.
    pub fn authorization(&self) -> Option<HeaderValue> {
        self.0.read().authorization.clone()
    }

    /// Opens a connection.
    pub async fn dial(&self, target: &Target) -> io::Result<Stream> {
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await?;
        stream.set_nodelay(true)?;
        match target.scheme {
            Scheme::Http => Ok(Stream::Plain(stream)),
            Scheme::Https => {
                let config = self.settings().config().map_err(io::Error::other)?;
                let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
                let connected = TlsConnector::from(config).connect(name, stream).await;
                let stream = connected.map_err(in_words)?;
                Ok(Stream::Tls(Box::new(TlsStream::Client(stream))))
            }
        }
    }

    fn settings(&self) -> Arc<DialSettings> {
        Arc::clone(&self.0.read())
    }
}

/// Replaces the TLS library's words for a server without TLS, which do not say what to do.
fn in_words(error: io::Error) -> io::Error {
    match is_plain(&error) {
        true => io::Error::new(
            error.kind(),
            "the server does not speak TLS at this port; its URL must begin with http://",
        ),
        false => error,
    }
}

impl DialSettings {
    fn config(&self) -> Result<Arc<ClientConfig>, BadTls> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let made = self.tls.client_config(self.protocol)?;
        Ok(Arc::clone(self.config.get_or_init(|| made)))
    }
}

impl TlsFiles {
    fn client_config(&self, protocol: AppProtocol) -> Result<Arc<ClientConfig>, BadTls> {
        let identity = self.identity()?;
        let roots = self.ca.as_deref().map_or_else(system_roots, roots_in)?;
        let certified_key = identity.as_ref().map(Identity::read).transpose()?;
        let unusable = |error| match &identity {
            Some(identity) => identity.unusable(error),
            None => BadTls::Unsupported(error),
        };
        client_config(roots, certified_key, protocol, unusable)
    }
}

fn client_config(
    roots: Arc<RootCertStore>,
    identity: Option<CertifiedKey>,
    protocol: AppProtocol,
    unusable: impl Fn(rustls::Error) -> BadTls,
) -> Result<Arc<ClientConfig>, BadTls> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(roots);
    let mut config = match identity {
        Some((certificates, key)) => builder.with_client_auth_cert(certificates, key).map_err(unusable)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocol.alpn();
    Ok(Arc::new(config))
}

/// Marks a header so that it is not printed.
fn sensitive(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_follow_and_credentials_are_not_printed() {
        let first = Dialer::default();
        let clone = first.clone();
        let key = HeaderValue::from_static("Bearer worker-key");
        first.follow(&Dialer::new(Some(key), TlsFiles::default()).unwrap());
        assert_eq!(clone.authorization().unwrap(), "Bearer worker-key");
        assert!(!format!("{clone:?}").contains("worker-key"));
    }
}
