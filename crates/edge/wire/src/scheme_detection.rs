//! Finds out whether a port speaks HTTP or HTTPS, to explain a failed connection.
//!
//! TLS to a plain server and plain HTTP to a TLS server fail in many ways: a reset, silence, an alert, an error page.
//! So both are tried. A server that takes part in a TLS handshake speaks TLS, whatever becomes of the certificates.
//! TLS is tried first, because some TLS servers answer plain requests with an error page.

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

/// Time limit of each try.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The scheme that a server speaks; `None` if that is unclear or nothing listens there.
pub async fn detect_scheme(target: &Target) -> Option<Scheme> {
    if speaks_tls(target).await {
        return Some(Scheme::Https);
    }
    let is_plain = timeout(TIMEOUT, answers_plain_http(target)).await;
    is_plain.is_ok_and(|speaks| speaks.unwrap_or(false)).then_some(Scheme::Http)
}

/// Whether a server takes part in a TLS handshake.
pub async fn speaks_tls(target: &Target) -> bool {
    timeout(TIMEOUT, completes_handshake(target)).await.is_ok_and(|speaks| speaks.unwrap_or(false))
}

/// Whether a TLS handshake failed because the other side does not speak TLS.
pub(crate) fn is_plain(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(rustls::Error::InvalidMessage(_)))
}

async fn completes_handshake(target: &Target) -> io::Result<bool> {
    let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(probing_config().map_err(io::Error::other)?);
    match connector.connect(name, connect(target).await?).await {
        Ok(_) => Ok(true),
        Err(error) => {
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            Ok(inner.is_some() && !is_plain(&error))
        }
    }
}

/// A client that trusts no certificate: it only needs to see one.
fn probing_config() -> Result<Arc<ClientConfig>, BadTls> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()))
}

async fn answers_plain_http(target: &Target) -> io::Result<bool> {
    let mut stream = connect(target).await?;
    let host = target.host_header.to_str().unwrap_or_default();
    stream
        .write_all(format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut start = [0; 5];
    stream.read_exact(&mut start).await?;
    Ok(start == *b"HTTP/")
}

async fn connect(target: &Target) -> io::Result<TcpStream> {
    TcpStream::connect((target.host.as_str(), target.port)).await
}
