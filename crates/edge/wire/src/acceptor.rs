//! Takes clients' connections, plain or with TLS.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::pem::{BadTls, Identity, provider, roots_in};
use crate::{Speech, Stream};

/// How a listener speaks to those who come. Clones are the same acceptor.
#[derive(Clone, Default)]
pub struct Acceptor(Arc<RwLock<Option<TlsAcceptor>>>);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.scheme())
    }
}

impl Acceptor {
    /// With TLS, as whoever we are. Where a file of authorities is named, clients must show a certificate of one of them.
    pub fn tls(identity: &Identity, client_ca: Option<&PathBuf>) -> Result<Acceptor, BadTls> {
        Acceptor::speaking(Speech::Http, identity, client_ca)
    }

    /// The same, for those who speak something else than HTTP.
    pub fn speaking(
        speech: Speech,
        identity: &Identity,
        client_ca: Option<&PathBuf>,
    ) -> Result<Acceptor, BadTls> {
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
            builder.with_single_cert(certificates, key).map_err(|error| identity.unfit(error))?;
        config.alpn_protocols = speech.alpn();
        Ok(Acceptor(Arc::new(RwLock::new(Some(TlsAcceptor::from(Arc::new(config)))))))
    }

    /// From the next connection on, this acceptor and all its clones do as the other does.
    pub fn follow(&self, other: &Acceptor) {
        let way = other.0.read().clone();
        *self.0.write() = way;
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.0.read().is_some() { "https" } else { "http" }
    }

    /// Takes a connection, and shakes hands where that is how it is done.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        stream.set_nodelay(true)?;
        let tls = self.0.read().clone();
        match tls {
            Some(tls) => Ok(Stream::Tls(Box::new(TlsStream::Server(tls.accept(stream).await?)))),
            None => Ok(Stream::Plain(stream)),
        }
    }
}
