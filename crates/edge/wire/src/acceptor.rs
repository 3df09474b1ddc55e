//! Accepts client connections, plain or with TLS.

use std::io;
use std::sync::Arc;

use parking_lot::RwLock;
use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::pem::{BadTls, TlsFiles, provider, roots_in};
use crate::{AppProtocol, Stream};

/// The first byte of a TLS connection (RFC 8446, 5.1). No HTTP request begins with it.
const TLS_HANDSHAKE: u8 = 22;

/// Accepts connections of a listener. Clones share the settings.
#[derive(Clone, Default)]
pub struct Acceptor(Arc<RwLock<Option<TlsAcceptor>>>);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.scheme())
    }
}

impl Acceptor {
    /// Accepts TLS connections with the certificate of these files, or plain ones if there is none. With a CA bundle,
    /// clients must present a certificate signed by it.
    pub fn new(files: &TlsFiles, protocol: AppProtocol) -> Result<Acceptor, BadTls> {
        let Some(identity) = files.identity()? else {
            return if files.ca.is_some() { Err(BadTls::NoIdentity) } else { Ok(Acceptor::default()) };
        };
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = match &files.ca {
            Some(file) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots_in(file)?, provider());
                let bad = |error| BadTls::Verifier { file: file.clone(), error };
                builder.with_client_cert_verifier(verifier.build().map_err(bad)?)
            }
            None => builder.with_no_client_auth(),
        };
        let (certificates, key) = identity.read()?;
        let config = builder.with_single_cert(certificates, key).map_err(|error| identity.unusable(error))?;
        Ok(Acceptor::of(config, protocol))
    }

    /// Accepts TLS connections with a certificate that this process makes for itself, for clients that do not verify
    /// it.
    pub fn self_signed(name: &str, protocol: AppProtocol) -> Result<Acceptor, BadTls> {
        let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed([name.to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key.into())?;
        Ok(Acceptor::of(config, protocol))
    }

    fn of(mut config: ServerConfig, protocol: AppProtocol) -> Acceptor {
        config.alpn_protocols = protocol.alpn();
        Acceptor(Arc::new(RwLock::new(Some(TlsAcceptor::from(Arc::new(config))))))
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

    /// Accepts a connection that the client encrypts or not: the first byte tells.
    pub async fn accept_either(&self, stream: TcpStream) -> io::Result<Stream> {
        let mut first = [0];
        let is_tls = stream.peek(&mut first).await? == 1 && first == [TLS_HANDSHAKE];
        match is_tls {
            true => self.accept(stream).await,
            false => Acceptor::default().accept(stream).await,
        }
    }
}
