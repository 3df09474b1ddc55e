//! Accepts client connections, plain or with TLS.

use std::io;
use std::sync::Arc;

use parking_lot::RwLock;
use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::pem::{BadTls, TlsFiles, provider, roots_in};
use crate::{AppProtocol, Stream};

/// The first byte of a TLS connection (RFC 8446, 5.1). No HTTP request begins with it.
const TLS_HANDSHAKE: u8 = 22;

/// Accepts connections of a listener. Clones share the settings.
#[derive(Clone, Default)]
pub struct Acceptor(Arc<RwLock<Option<TlsAcceptor>>>);

/// Whether clients must present a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientCertificates {
    None,
    Required,
}

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
        let required = match files.ca {
            Some(_) => ClientCertificates::Required,
            None => ClientCertificates::None,
        };
        Acceptor::of(config, required, protocol)
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
        Acceptor::of(config, ClientCertificates::None, protocol)
    }

    /// Clients resume sessions with tickets that only this process can decrypt, until its next reload. It keeps no state for
    /// them, so their number is not limited. Certificates of clients are verified in full handshakes only, so clients that
    /// must present one resume nothing: otherwise an expired certificate would go on to be accepted.
    fn of(
        mut config: ServerConfig,
        certificates: ClientCertificates,
        protocol: AppProtocol,
    ) -> Result<Acceptor, BadTls> {
        config.alpn_protocols = protocol.alpn();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match certificates {
            ClientCertificates::None => config.ticketer = rustls::crypto::ring::Ticketer::new()?,
            ClientCertificates::Required => config.send_tls13_tickets = 0,
        }
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustls::{ClientConfig, HandshakeKind, RootCertStore};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsConnector;

    use super::*;

    fn acceptor(
        CertifiedKey { cert, signing_key }: &CertifiedKey<rcgen::KeyPair>,
        certificates: ClientCertificates,
    ) -> Acceptor {
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let config =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key.into());
        Acceptor::of(config.unwrap(), certificates, AppProtocol::Http).unwrap()
    }

    /// One connection that reads one byte; how its handshake went.
    async fn handshake(config: &Arc<ClientConfig>, acceptor: &Acceptor) -> HandshakeKind {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = async {
            let mut accepted = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
            accepted.write_all(b"x").await.unwrap();
            accepted.flush().await.unwrap();
            accepted
        };
        let client = async {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let connector = TlsConnector::from(Arc::clone(config));
            let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
            // Tickets come before the first byte.
            stream.read_exact(&mut [0]).await.unwrap();
            stream.get_ref().1.handshake_kind().unwrap()
        };
        tokio::join!(server, client).1
    }

    #[tokio::test]
    async fn any_number_of_clients_resume_their_sessions_until_the_next_reload() {
        let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.cert.der().clone()).unwrap();
        let client = || {
            let config =
                ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
            Arc::new(config.unwrap().with_root_certificates(roots.clone()).with_no_client_auth())
        };
        let acceptor = self::acceptor(&certificate, ClientCertificates::None);
        // More than rustls remembers by default (256 sessions, two for each client).
        let clients: Vec<_> = (0..300).map(|_| client()).collect();
        for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
            for client in &clients {
                assert_eq!(handshake(client, &acceptor).await, expected);
            }
        }
        acceptor.follow(&self::acceptor(&certificate, ClientCertificates::None));
        assert_eq!(handshake(&clients[0], &acceptor).await, HandshakeKind::Full);
        // Certificates of clients are verified each time.
        let strict = self::acceptor(&certificate, ClientCertificates::Required);
        let client = client();
        for _ in 0..3 {
            assert_eq!(handshake(&client, &strict).await, HandshakeKind::Full);
        }
    }
}
