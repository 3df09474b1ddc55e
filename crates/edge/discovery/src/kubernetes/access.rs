//! How to reach the API server and who we are.
//!
//! Tokens and CA bundles of pods are replaced while a process runs. All files are read again for every connection, and
//! a watch lasts minutes, so that the latest ones are used without watching them.

use std::path::PathBuf;
use std::time::Duration;

use http::HeaderValue;
use warmroute_wire::{Dialer, HttpClient, PemTexts, TlsFiles};

/// Time for the API server to start its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The API server and the credentials for it.
#[derive(Clone)]
pub struct KubernetesAccess {
    /// Base URL.
    pub(super) url: String,
    /// The namespace of this process or of the kubeconfig's context.
    pub(super) namespace: String,
    /// The kubeconfig, or the folder of the service account, for errors.
    pub(super) origin: PathBuf,
    pub(super) ca: Option<Source>,
    pub(super) identity: Option<(Source, Source)>,
    pub(super) token: Option<Source>,
}

/// A credential in a file, or as text. It has no `Debug`, so that it is not printed.
#[derive(Clone)]
pub(super) enum Source {
    File(PathBuf),
    Text(Vec<u8>),
}

/// Why the API server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadAccess {
    /// The process is not in a pod, and there is no kubeconfig.
    #[error(
        "no Kubernetes API server is known: run in a pod, or set kubeconfig (KUBECONFIG and ~/.kube/config were tried)"
    )]
    Nowhere,
    /// A file cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Unreadable {
        /// The kubeconfig, or a file of credentials.
        file: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The kubeconfig cannot be used.
    #[error("{}: {why}", file.display())]
    Kubeconfig {
        /// The kubeconfig.
        file: PathBuf,
        /// The cause.
        why: String,
    },
}

impl std::fmt::Debug for KubernetesAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} by {}", self.url, self.origin.display())
    }
}

impl KubernetesAccess {
    /// The namespace of this process or of the kubeconfig's context.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A client for a new connection, with credentials as they are now.
    pub(super) async fn client(&self) -> Result<HttpClient, String> {
        let authorization = match &self.token {
            Some(token) => Some(bearer(&token.read().await?).ok_or("the token has invalid characters")?),
            None => None,
        };
        let dialer = match self.url.starts_with("https://") {
            true => Dialer::from_pem(authorization, &self.pem().await?),
            // A proxy on this machine.
            false => Dialer::new(authorization, TlsFiles::default()),
        };
        let dialer = dialer.map_err(|bad| bad.to_string())?;
        Ok(HttpClient::new(&self.url, ANSWER_TIMEOUT, dialer))
    }

    async fn pem(&self) -> Result<PemTexts, String> {
        let ca = match &self.ca {
            Some(ca) => Some(ca.read().await?),
            None => None,
        };
        let identity = match &self.identity {
            Some((certificates, key)) => Some((certificates.read().await?, key.read().await?)),
            None => None,
        };
        Ok(PemTexts { origin: self.origin.clone(), ca, identity })
    }
}

impl Source {
    async fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Source::File(file) => {
                let read = tokio::fs::read(file).await;
                read.map_err(|error| format!("cannot read {}: {error}", file.display()))
            }
            Source::Text(text) => Ok(text.clone()),
        }
    }
}

fn bearer(token: &[u8]) -> Option<HeaderValue> {
    let token = std::str::from_utf8(token).ok()?.trim();
    HeaderValue::try_from(format!("Bearer {token}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_trimmed_and_not_printed() {
        assert_eq!(bearer(b"abc\n").unwrap(), "Bearer abc");
        assert_eq!(bearer(b"a\nb"), None);
        let access = KubernetesAccess {
            url: "http://a".into(),
            namespace: String::new(),
            origin: "config".into(),
            ca: None,
            identity: None,
            token: Some(Source::Text(b"hush".to_vec())),
        };
        assert!(!format!("{access:?}").contains("hush"));
    }
}
