//! Reads certificates and keys from PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Unusable TLS settings. Errors never contain a key.
#[derive(Debug, thiserror::Error)]
pub enum BadTls {
    /// A file cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Unreadable {
        /// A certificate, a key or a bundle, as configured.
        file: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// A file does not contain what it should.
    #[error("{} has no {what} in PEM", file.display())]
    Missing {
        /// The file that should have it.
        file: PathBuf,
        /// What is missing.
        what: &'static str,
    },
    /// A certificate is unusable or does not match its key.
    #[error("unusable certificate or key in {}: {error}", file.display())]
    Unusable {
        /// The file of the certificate.
        file: PathBuf,
        /// The cause.
        error: rustls::Error,
    },
    /// The CA bundle for client certificates is unusable.
    #[error("unusable CA bundle for client certificates in {}: {error}", file.display())]
    Verifier {
        /// The file of the bundle.
        file: PathBuf,
        /// The cause.
        error: rustls::server::VerifierBuilderError,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Unsupported(#[from] rustls::Error),
    /// A certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Unmade(#[from] rcgen::Error),
    /// A certificate without its key, or a key without its certificate.
    #[error("set both the certificate and its key")]
    HalfIdentity,
    /// Clients are to be verified on a listener without TLS.
    #[error("a CA bundle for clients requires a certificate and a key of the listener")]
    NoIdentity,
    /// The system has no trusted certificates.
    #[error("the system has no trusted CA certificates; name a CA bundle")]
    NoRoots,
}

/// The PEM files of one end of TLS connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// A CA bundle for the certificates of the other end. A dialer without one uses the system's; an acceptor without
    /// one asks for no certificate.
    pub ca: Option<PathBuf>,
    /// The certificate chain with our certificate first.
    pub certificates: Option<PathBuf>,
    /// The private key of our certificate.
    pub key: Option<PathBuf>,
}

/// A certificate chain and the key of its first certificate.
pub(crate) struct Identity<'a> {
    certificates: &'a Path,
    key: &'a Path,
}

/// A certificate chain and its key.
pub(crate) type CertifiedKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// CA and client certificates as PEM texts, for credentials that are not in files of their own.
#[derive(Clone, Default)]
pub struct PemTexts {
    /// Where the texts come from, for errors.
    pub origin: PathBuf,
    /// CA bundle for the server's certificate; `None`: the system's.
    pub ca: Option<Vec<u8>>,
    /// Our client certificate chain and its private key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl PemTexts {
    pub(crate) fn roots(&self) -> Result<Arc<RootCertStore>, BadTls> {
        self.ca.as_ref().map_or_else(system_roots, |pem| roots_of(pem, &self.origin))
    }

    pub(crate) fn certified_key(&self) -> Result<Option<CertifiedKey>, BadTls> {
        let Some((certificates, key)) = &self.identity else { return Ok(None) };
        let missing = |_| BadTls::Missing { file: self.origin.clone(), what: "private key" };
        let key = PrivateKeyDer::from_pem_slice(key).map_err(missing)?;
        Ok(Some((certificates_of(certificates, &self.origin)?, key)))
    }
}

impl TlsFiles {
    /// Our certificate and its key: both or neither.
    pub(crate) fn identity(&self) -> Result<Option<Identity<'_>>, BadTls> {
        match (&self.certificates, &self.key) {
            (Some(certificates), Some(key)) => Ok(Some(Identity { certificates, key })),
            (None, None) => Ok(None),
            _ => Err(BadTls::HalfIdentity),
        }
    }
}

impl Identity<'_> {
    pub(crate) fn read(&self) -> Result<CertifiedKey, BadTls> {
        let key = PrivateKeyDer::from_pem_slice(&bytes(self.key)?);
        let missing = |_| BadTls::Missing { file: self.key.to_owned(), what: "private key" };
        Ok((certificates(self.certificates)?, key.map_err(missing)?))
    }

    pub(crate) fn unusable(&self, error: rustls::Error) -> BadTls {
        BadTls::Unusable { file: self.certificates.to_owned(), error }
    }
}

/// The crypto provider. `ring` needs only a C compiler to build.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The CA certificates in a file.
pub(crate) fn roots_in(file: &Path) -> Result<Arc<RootCertStore>, BadTls> {
    roots_of(&bytes(file)?, file)
}

/// The CA certificates in a PEM text. `origin` names it in errors.
pub(crate) fn roots_of(pem: &[u8], origin: &Path) -> Result<Arc<RootCertStore>, BadTls> {
    let mut roots = RootCertStore::empty();
    let added = certificates_of(pem, origin)?.into_iter().try_for_each(|certificate| roots.add(certificate));
    added.map_err(|error| BadTls::Unusable { file: origin.to_owned(), error })?;
    Ok(Arc::new(roots))
}

/// The system's CA certificates.
pub(crate) fn system_roots() -> Result<Arc<RootCertStore>, BadTls> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(BadTls::NoRoots) } else { Ok(Arc::new(roots)) }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, BadTls> {
    certificates_of(&bytes(file)?, file)
}

fn certificates_of(pem: &[u8], origin: &Path) -> Result<Vec<CertificateDer<'static>>, BadTls> {
    let missing = || BadTls::Missing { file: origin.to_owned(), what: "certificate" };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    certificates.ok().filter(|certificates| !certificates.is_empty()).ok_or_else(missing)
}

fn bytes(file: &Path) -> Result<Vec<u8>, BadTls> {
    std::fs::read(file).map_err(|error| BadTls::Unreadable { file: file.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn an_invalid_ca_bundle_is_named_once() {
        let file = std::env::temp_dir().join(format!("warmroute-pem-{}", std::process::id()));
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n").unwrap();
        let error = roots_in(&file).unwrap_err();
        assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
        assert!(error.source().is_none(), "printing the sources too would name it twice");
        std::fs::remove_file(file).unwrap();
    }
}
