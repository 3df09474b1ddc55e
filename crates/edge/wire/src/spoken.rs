//! What is spoken at a port, for somebody who was not understood there.
//!
//! A TLS handshake with a plain server, and a plain request to a TLS one, fail in as many ways as there are servers: a reset, silence, an
//! alert, a page in plain HTTP. So it is tried. A server that takes part in a handshake speaks TLS, whatever it thinks of us or we of its
//! certificate; that is asked first, because some TLS servers answer plain requests with a page that says so.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::pem::provider;
use crate::target::Scheme;
use crate::{BadTls, Target};

/// For each try.
const TIMEOUT: Duration = Duration::from_secs(3);

/// How whoever listens there wants to be spoken to; `None` where that cannot be told, or nobody does.
pub async fn spoken(target: &Target) -> Option<Scheme> {
    if speaks_tls(target).await {
        return Some(Scheme::Https);
    }
    let is_plain = timeout(TIMEOUT, speaks_plainly(target)).await;
    is_plain.is_ok_and(|speaks| speaks.unwrap_or(false)).then_some(Scheme::Http)
}

/// Whether whoever listens there takes part in a TLS handshake.
pub async fn speaks_tls(target: &Target) -> bool {
    timeout(TIMEOUT, shakes_hands(target)).await.is_ok_and(|speaks| speaks.unwrap_or(false))
}

/// Whether a TLS handshake failed because what came back, or came in, was no TLS at all.
pub fn is_plain(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidMessage(_)))
}

async fn shakes_hands(target: &Target) -> io::Result<bool> {
    let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(curious().map_err(io::Error::other)?);
    match connector.connect(name, connect(target).await?).await {
        Ok(_) => Ok(true),
        Err(error) => {
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            Ok(inner.is_some() && !is_plain(&error))
        }
    }
}

/// Trusts nobody, which does not matter: it only wants to see a certificate.
fn curious() -> Result<Arc<ClientConfig>, BadTls> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()))
}

async fn speaks_plainly(target: &Target) -> io::Result<bool> {
    let mut stream = connect(target).await?;
    let host = target.host_header.to_str().unwrap_or_default();
    stream
        .write_all(format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut said = [0; 5];
    stream.read_exact(&mut said).await?;
    Ok(said == *b"HTTP/")
}

async fn connect(target: &Target) -> io::Result<TcpStream> {
    TcpStream::connect((target.host.as_str(), target.port)).await
}
