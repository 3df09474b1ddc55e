//! Certificates and keys out of PEM files, and what is wrong with those.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Settings of TLS that cannot work. What a key file holds is in none of them.
#[derive(Debug, thiserror::Error)]
pub enum BadTls {
    /// No file, or not for us.
    #[error("cannot read {}: {error}", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Not what it should be.
    #[error("{} has no {what} in PEM", file.display())]
    Missing {
        /// Which.
        file: PathBuf,
        /// What should be there.
        what: &'static str,
    },
    /// A certificate that does not fit its key, or that cannot be used.
    #[error("what is in {} cannot be used: {error}", file.display())]
    Unfit {
        /// Which.
        file: PathBuf,
        /// Why.
        error: rustls::Error,
    },
    /// Client certificates cannot be checked.
    #[error("client certificates cannot be checked by {}: {error}", file.display())]
    Verifier {
        /// By which authorities.
        file: PathBuf,
        /// Why.
        error: rustls::server::VerifierBuilderError,
    },
    /// TLS itself does not work.
    #[error(transparent)]
    Unsupported(#[from] rustls::Error),
    /// The system has no certificates to trust.
    #[error("the system has no certificates to trust; name a file of them")]
    NoRoots,
}

/// Who we are: a chain of certificates, and the key of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// PEM, our own first.
    pub certificates: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

/// A certificate chain and its key.
type Read = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Identity {
    pub(crate) fn read(&self) -> Result<Read, BadTls> {
        let key = PrivateKeyDer::from_pem_slice(&bytes(&self.key)?);
        let missing = |_| BadTls::Missing { file: self.key.clone(), what: "private key" };
        Ok((certificates(&self.certificates)?, key.map_err(missing)?))
    }

    pub(crate) fn unfit(&self, error: rustls::Error) -> BadTls {
        BadTls::Unfit { file: self.certificates.clone(), error }
    }
}

/// The only one: it needs no more than a C compiler to build.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Those whom a file says to trust.
pub(crate) fn roots_in(file: &Path) -> Result<Arc<RootCertStore>, BadTls> {
    let mut roots = RootCertStore::empty();
    let added = certificates(file)?.into_iter().try_for_each(|certificate| roots.add(certificate));
    added.map_err(|error| BadTls::Unfit { file: file.to_owned(), error })?;
    Ok(Arc::new(roots))
}

/// Those whom the system trusts.
pub(crate) fn system_roots() -> Result<Arc<RootCertStore>, BadTls> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(BadTls::NoRoots) } else { Ok(Arc::new(roots)) }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, BadTls> {
    let missing = || BadTls::Missing { file: file.to_owned(), what: "certificate" };
    let text = bytes(file)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
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
    fn an_authority_that_is_none_is_named_once() {
        let file = std::env::temp_dir().join(format!("warmroute-pem-{}", std::process::id()));
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n").unwrap();
        let error = roots_in(&file).unwrap_err();
        assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
        assert!(error.source().is_none(), "whoever prints sources too would say it twice");
        std::fs::remove_file(file).unwrap();
    }
}
