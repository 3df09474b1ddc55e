//! Accepts client connections, plain or with TLS.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::pem::{BadTls, Identity, provider, roots_in};
use crate::{AppProtocol, Stream};

/// Accepts connections of a listener. Clones share the settings.
#[derive(Clone, Default)]
pub struct Acceptor(Arc<RwLock<Option<TlsAcceptor>>>);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.scheme())
    }
}

impl Acceptor {
    /// Accepts TLS connections with this identity. With `client_ca`, clients must present a certificate signed by it.
    pub fn tls(identity: &Identity, client_ca: Option<&PathBuf>) -> Result<Acceptor, BadTls> {
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = match client_ca {
            Some(file) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots_in(file)?, provider());
                let bad = |error| BadTls::Verifier { file: file.clone(), error };
                builder.with_client_cert_verifier(verifier.build().map_err(bad)?)
            }
            None => builder.with_no_client_auth(),
        };
        let (certificates, key) = identity.read()?;
        let mut config =
            builder.with_single_cert(certificates, key).map_err(|error| identity.unusable(error))?;
        config.alpn_protocols = AppProtocol::Http.alpn();
        Ok(Acceptor(Arc::new(RwLock::new(Some(TlsAcceptor::from(Arc::new(config)))))))
    }

    /// Makes this acceptor and its clones use the other's settings for new connections.
    pub fn follow(&self, other: &Acceptor) {
        let tls = other.0.read().clone();
        *self.0.write() = tls;
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.0.read().is_some() { "https" } else { "http" }
    }

    /// Accepts a connection, including the TLS handshake if there is one.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        stream.set_nodelay(true)?;
        let tls = self.0.read().clone();
        match tls {
            Some(tls) => Ok(Stream::Tls(Box::new(TlsStream::Server(tls.accept(stream).await?)))),
            None => Ok(Stream::Plain(stream)),
        }
    }
}
