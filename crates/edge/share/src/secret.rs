//! Secrets that never appear in logs, errors or pages.

use std::fmt;
use std::path::Path;

use serde::Deserialize;

use crate::error::{BadShare, SECRET_BYTES_MIN};

/// A secret or password. It is neither printed nor serialized.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl From<String> for Secret {
    fn from(secret: String) -> Secret {
        Secret(secret)
    }
}

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The secret itself, to derive keys from it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The secrets that all routers share. The first one is used, all are accepted, so that a secret can be
/// replaced without separating the routers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secrets(Vec<Secret>);

impl Secrets {
    /// Reads one secret per line: the first is used, all are accepted. A file keeps them out of the process
    /// list.
    pub fn from_file(file: &Path) -> Result<Secrets, BadShare> {
        let unreadable = |error| BadShare::Unreadable { file: file.to_owned(), error };
        let text = std::fs::read_to_string(file).map_err(unreadable)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Ok(Secrets(lines.map(Secret::new).collect()))
    }

    /// The secret that this router uses, and that all others must accept.
    pub fn primary(&self) -> Option<&Secret> {
        self.0.first()
    }

    /// Checks that there is a secret and that none is too short.
    pub(crate) fn validate(&self) -> Result<(), BadShare> {
        if self.0.is_empty() {
            return Err(BadShare::NoSecret("; the file contains none"));
        }
        let is_short = self.0.iter().any(|secret| secret.reveal().len() < SECRET_BYTES_MIN);
        if is_short { Err(BadShare::NoSecret("; a line of the file is too short")) } else { Ok(()) }
    }

    /// The secrets as bytes, the used one first.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.0.iter().map(|secret| secret.reveal().as_bytes().to_vec()).collect()
    }
}

impl From<Secret> for Secrets {
    fn from(only: Secret) -> Secrets {
        Secrets(vec![only])
    }
}

impl<const N: usize> From<[Secret; N]> for Secrets {
    fn from(secrets: [Secret; N]) -> Secrets {
        Secrets(secrets.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed_and_short_ones_are_rejected() {
        let secret = Secret::new("a secret of some length");
        assert_eq!(format!("{secret:?}"), "…");
        assert!(Secrets::from(secret.clone()).validate().is_ok());
        assert!(Secrets::from([secret, Secret::new("short")]).validate().is_err());
        assert!(Secrets::from([]).validate().is_err());
    }
}
